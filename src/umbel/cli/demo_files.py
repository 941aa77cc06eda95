"""The input of ``umbel demo``: which files count as text, and the plain loop over them."""

from __future__ import annotations

import os
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from umbel.cli.demo_app import count_words_of

_HEAD = 8192


@dataclass(slots=True)
class Found:
    """The words of each text file, by its absolute path, and why others were left out."""

    words: dict[str, int] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.words.values())


def standard_library() -> Path:
    """The folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def count_in_plain_loop(folder: Path) -> Found:
    """Count the words of every text file under `folder`, one after the other.

    A file is text if there is no NUL byte in its first 8 KiB. Hidden folders, `site-packages` and
    `__pycache__` are left out, and so are links, since what they lead to is counted where it is.
    """
    found = Found()
    for path in _regular_files(folder, found.left_out):
        try:
            path.encode()
            if _is_binary(path):
                found.left_out["binary"] += 1
            else:
                found.words[path] = count_words_of(path)
        except UnicodeEncodeError:
            found.left_out["with a name that isn't Unicode"] += 1
        except OSError:
            found.left_out["unreadable"] += 1
    return found


def _regular_files(folder: Path, left_out: Counter[str]) -> Iterator[str]:
    def unreadable(error: OSError) -> None:
        left_out["unreadable"] += 1

    for parent, folders, files in os.walk(os.path.realpath(folder), onerror=unreadable):
        folders[:] = sorted(name for name in folders if not _is_left_out(name))
        for name in sorted(files):
            path = os.path.join(parent, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path
            else:
                left_out["no plain file"] += 1


def _is_left_out(folder: str) -> bool:
    return folder.startswith(".") or folder in ("__pycache__", "site-packages")


def _is_binary(path: str) -> bool:
    with open(path, "rb") as file:
        return b"\0" in file.read(_HEAD)
