"""How much memory this process has."""

from __future__ import annotations

import os
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
_STATM: Final = "/proc/self/statm"


def resident_kib() -> int:
    """What of its memory is in the machine's now, in KiB; 0 where the system doesn't say."""
    try:
        with open(_STATM, "rb") as file:
            return int(file.read().split()[1]) * _PAGE // 1024
    except (OSError, ValueError, IndexError):
        return 0
