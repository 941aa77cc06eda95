"""``memory://``: broker, coordinator and inspector within one process."""

from umbel.brokers.memory.broker import MemoryBroker
from umbel.brokers.memory.state import MemoryState, reset, shared

__all__ = ["MemoryBroker", "MemoryState", "reset", "shared"]
