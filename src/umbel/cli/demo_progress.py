"""How far ``umbel demo`` is: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

_LINE_EVERY = 2.0


class Display(Protocol):
    """Shows how many tasks have ended, and how many retries there were so far."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

    def show(self, done: int, retries: int) -> None: ...


def make_display(screen: Console, total: int) -> Display:
    return Bar(screen, total) if screen.is_terminal else Lines(screen, total)


class Bar:
    """A progress bar with rate and remaining time."""

    def __init__(self, screen: Console, total: int) -> None:
        self._progress = Progress(
            TextColumn("counting words"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeRemainingColumn(),
            TextColumn("retries: {task.fields[retries]}"),
            console=screen,
        )
        self._bar = self._progress.add_task("", total=total, retries=0)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, done: int, retries: int) -> None:
        self._progress.update(self._bar, completed=done, retries=retries)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:,.0f}/s")


class Lines:
    """A line every two seconds, and one at the end."""

    def __init__(self, screen: Console, total: int) -> None:
        self._screen = screen
        self._total = total
        self._started = time.monotonic()
        self._next = self._started + _LINE_EVERY / 2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Every line is complete already."""

    def show(self, done: int, retries: int) -> None:
        now = time.monotonic()
        if done < self._total and now < self._next:
            return
        self._next = now + _LINE_EVERY
        rate = done / max(now - self._started, 0.001)
        left = f"{(self._total - done) / rate:.0f} s left" if done else "just begun"
        self._screen.print(
            f"counting words: {done:,} of {self._total:,}, {rate:,.0f}/s, {left}, "
            f"retries: {retries:,}"
        )
