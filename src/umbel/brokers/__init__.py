"""The brokers, one driver a module or folder; none knows another."""
