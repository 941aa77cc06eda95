"""For those who test a driver or an application: contract suites and a model (needs pytest)."""
