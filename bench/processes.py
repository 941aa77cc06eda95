"""What the operating system says of a process and all that descends from it (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> Iterator[int]:
    """`pid` and its descendants, those of its threads included."""
    yield pid
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in children:
            yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    """User and system time of the tree so far, that of its ended and reaped processes included."""
    return sum(_cpu_of(each) for each in tree(pid))


def _cpu_of(pid: int) -> float:
    try:
        # The clock that clock_getcpuclockid(3) gives for a process: nanoseconds, where
        # /proc/<pid>/stat has hundredths of a second.
        own = time.clock_gettime(~pid << 3 | 2)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it has ended; its parent has its time
        return 0.0
    return own + (int(fields[13]) + int(fields[14])) / _TICKS


def pss_mib(pid: int) -> float:
    """Memory of the tree, with what several processes share counted once."""
    kib = 0
    for each in tree(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return kib / 1024
