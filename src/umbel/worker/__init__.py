"""The worker: a supervisor that runs no task, and pool processes that fetch for themselves."""
