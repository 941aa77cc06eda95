"""The way from an app up to the command line, which imports apps and isn't imported by them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from umbel.app import Umbel


def command_line(app: Umbel, arguments: Sequence[str]) -> int:
    """Run ``umbel ARGUMENTS`` with `app` as what ``-A`` names; its exit code."""
    with warnings.catch_warnings():  # the command line shows them in its own way
        code: int = import_module("umbel.cli").main(arguments, app)
    return code
