"""A broker in one SQLite file, for any number of processes of one machine."""

from umbel.brokers.sqlite.broker import SqliteBroker

__all__ = ["SqliteBroker"]
