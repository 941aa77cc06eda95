"""Umbel: a distributed task queue."""
