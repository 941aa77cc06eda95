"""Final results that a process has read already (`result_cache_max`)."""

from __future__ import annotations

import contextlib
from collections import OrderedDict

from umbel.stored import Meta


class KeptResults:
    """By task id, those that were used last; `most` 0 is any number.

    Thread-safe without a lock, which a fork could leave taken: each step is one of the dict's own,
    and what another thread has dropped in between is no loss.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._metas: OrderedDict[str, Meta] = OrderedDict()

    def get(self, task_id: str) -> Meta | None:
        meta = self._metas.get(task_id)
        if meta is not None:
            with contextlib.suppress(KeyError):
                self._metas.move_to_end(task_id)
        return meta

    def put(self, task_id: str, meta: Meta) -> None:
        self._metas[task_id] = meta
        with contextlib.suppress(KeyError):
            self._metas.move_to_end(task_id)
            while self.most and len(self._metas) > self.most:
                self._metas.popitem(last=False)

    def drop(self, task_id: str) -> None:
        self._metas.pop(task_id, None)
