"""What a task forks is no part of the worker.

It may outlive everything, so it must not keep open what others take for a sign of life (the
scoreboard's lock, the line to the supervisor), nor take the worker's signals for its own.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Final

_OURS: Final = (signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1)


def disown(*let_go: Callable[[], object]) -> None:
    """From now on, each fork of this process calls `let_go` first, and has no handlers of ours."""
    left = list(let_go)

    def in_child() -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in _OURS:
            signal.signal(number, signal.SIG_DFL)
        while left:  # a fork of the fork has nothing of it any more
            with contextlib.suppress(OSError, BufferError):
                left.pop()()

    os.register_at_fork(after_in_child=in_child)
