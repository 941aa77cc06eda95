"""Warnings that point at the line of whoever called Umbel, however deep in Umbel they are made."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Final

_OURS: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the first line outside this package that led here."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)
