"""The result stores, one driver a module; none knows another."""
