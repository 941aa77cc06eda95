"""How a pool process runs its tasks: one after the other, in threads, or on an event loop."""

from umbel.worker.pools.base import Pool as Pool
from umbel.worker.pools.loop import LoopPool as LoopPool
from umbel.worker.pools.serial import SerialPool as SerialPool
from umbel.worker.pools.threads import ThreadPool as ThreadPool
