"""``umbel demo``: what a task queue is for, on real files, in well under a minute.

Every text file becomes a task in an embedded broker; real workers count its words. Some files
come from a service that fails at first, one kills the process that counts it. In the end, every
count is compared with that of a plain loop over the same files.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from umbel import AsyncResult
from umbel.cli.dead import describe
from umbel.cli.demo_app import Count, app, count_download, count_file, count_poison
from umbel.cli.demo_check import Tally, what_is_off
from umbel.cli.demo_files import count_in_plain_loop, standard_library
from umbel.cli.demo_progress import make_display
from umbel.cli.demo_service import FlakyService
from umbel.cli.demo_workers import Workers
from umbel.cli.exits import Exit, Mistake
from umbel.cli.output import console, count
from umbel.cli.session import Session, pass_session
from umbel.worker.options import usable_processors

EXAMPLES = """\b
Examples:
  umbel demo
  umbel demo ~/projects

Exit code 0: every count adds up. Nothing is left behind.
"""

WORKERS = 2
PER_WORKER = max(1, usable_processors() // WORKERS)
_FLAKY_EACH = 20
"""Every so many-th file comes from the service that fails at first …"""
_MOST_FLAKY = 40
"""… up to this many: the demo is about work, not about waiting."""
_WINDOW = 500
"""How many open tasks are looked at in one go; they end roughly in the order of sending."""
_PATIENCE = 60.0
"""Seconds without the end of any task after which something must be wrong."""

Results = dict[str, AsyncResult[Count]]
"""The result of each file's task, by path."""


@dataclass(frozen=True, slots=True)
class Roles:
    """Which file plays what."""

    deadly: str
    flaky: Sequence[str]
    plain: Sequence[str]


@click.command("demo", epilog=EXAMPLES)
@click.argument("folder", required=False, type=click.Path(path_type=Path), metavar="[FOLDER]")
@pass_session
def command(session: Session, /, folder: Path | None) -> None:
    """Count the words of every text file under FOLDER (default: Python's standard library).

    Each file is a task; real worker processes run them. Some files are flaky and are retried, one
    is poison and ends as a dead letter, which is then shown, explained and requeued.
    """
    screen = console(session.no_color)
    with _interrupted_by_signals(), tempfile.TemporaryDirectory(prefix="umbel-demo-") as scratch:
        expected = look_at(folder or standard_library(), screen)
        play(expected, Path(scratch), screen)


def look_at(folder: Path, screen: Console) -> Mapping[str, int]:
    """The words of each text file under `folder`, by path. Raises `Mistake` if there is none."""
    if not folder.is_dir():
        what = "isn't a folder" if folder.exists() else "doesn't exist"
        raise Mistake(f"{folder} {what}; name one with text files in it", Exit.NO_INPUT)
    started = time.perf_counter()
    found = count_in_plain_loop(folder)
    seconds = time.perf_counter() - started
    left_out = ", ".join(f"{number:,} {why}" for why, number in found.left_out.most_common())
    note = f" (left out: {left_out})" if left_out else ""
    if not found.words:
        raise Mistake(f"there are no text files under {folder}{note}", Exit.NO_INPUT)
    screen.print(f"{count(len(found.words), 'text file')} under {folder}{note}.")
    screen.print(f"A plain loop counts {count(found.total, 'word')} in {seconds:.1f} s.")
    return found.words


def play(expected: Mapping[str, int], scratch: Path, screen: Console) -> None:
    """The demo proper. Raises `Mistake` where a count is off."""
    app.conf.broker_url = app.conf.result_backend = f"sqlite:///{scratch / 'demo.db'}"
    poison = scratch / "poison"
    poison.touch()
    roles = cast_roles(list(expected))
    with app, FlakyService(roles.flaky) as service, _workers(scratch) as workers:
        screen.print(f"{WORKERS} workers with {WORKERS * PER_WORKER} processes are online.")
        screen.print(
            f"{count(len(roles.flaky), 'file')} must be had from a service that at first answers "
            f"503 or not at all. One is poison: {roles.deadly} kills the process that counts it."
        )
        results = send_all(roles, service.urls, poison)
        tally = follow(results, service, workers, screen)
        show_summary(tally, screen)
        revived = revive(roles.deadly, results[roles.deadly].id, poison, screen)
        off = what_is_off(
            expected, tally, roles.deadly, revived, service.failures, app.broker.queues()
        )
    if off:
        raise Mistake(f"{count(len(off), 'count')} off: {'; '.join(off[:10])}")
    screen.print("Every count adds up.")


def cast_roles(paths: Sequence[str]) -> Roles:
    """The poison is in the middle of the files, the flaky ones are spread over the others."""
    middle = len(paths) // 2
    others = [*paths[:middle], *paths[middle + 1 :]]
    flaky = others[::_FLAKY_EACH][:_MOST_FLAKY]
    return Roles(paths[middle], flaky, sorted(set(others) - set(flaky)))


def send_all(roles: Roles, urls: Sequence[str], poison: Path) -> Results:
    """One task for each file, all sent in one step."""
    with app.batch():
        flaky = count_download.delay_many((url,) for url in urls)
        deadly = count_poison.delay(roles.deadly, str(poison))
        plain = count_file.delay_many((path,) for path in roles.plain)
    paths = [*roles.flaky, roles.deadly, *roles.plain]
    return dict(zip(paths, [*flaky, deadly, *plain], strict=True))


def follow(results: Results, service: FlakyService, workers: Workers, screen: Console) -> Tally:
    """Wait until every task has ended, and show how far they are."""
    pending = dict(results)
    counts: dict[str, Count] = {}
    errors: dict[str, str] = {}
    started = last_end = time.monotonic()
    with make_display(screen, len(results)) as display:
        while pending:
            ended = [path for path in list(pending)[:_WINDOW] if pending[path].ready()]
            for path in ended:
                result = pending.pop(path)
                if result.successful():
                    counts[path] = result.get()
                else:
                    errors[path] = repr(result.result)
            display.show(len(counts) + len(errors), service.failures)
            if ended:
                last_end = time.monotonic()
            else:
                _check_progress(last_end, pending, workers)
                time.sleep(0.05)
    return Tally(counts, errors, app.dead.list(), time.monotonic() - started)


def show_summary(tally: Tally, screen: Console) -> None:
    screen.print(
        f"\n  files             {len(tally.counts) + len(tally.errors):>12,}"
        f"\n  words             {tally.words:>12,}"
        f"\n  retries           {tally.retries:>12,}"
        f"\n  dead letters      {len(tally.letters):>12,}"
        f"\n  seconds           {tally.seconds:>12,.1f}"
        f"\n  tasks per second  {tally.rate:>12,.0f}\n"
    )


def revive(path: str, task_id: str, poison: Path, screen: Console) -> Count | None:
    """Show the poison file's dead letter, take the poison away, and send it once more."""
    letter = app.dead.get(task_id)
    if letter is None:
        return None
    screen.print(f"$ umbel dead show {task_id}\n{describe(letter)}\n")
    screen.print(f"$ umbel why {task_id}\n{app.why(task_id)}\n")
    poison.unlink()
    screen.print(f"The poison is taken out of {path}, so it can be tried again.\n")
    screen.print(f"$ umbel dead requeue {task_id}")
    app.dead.requeue(task_id)
    revived: Count = app.AsyncResult(task_id).get(timeout=_PATIENCE)
    screen.print(f"It succeeds: {count(revived['words'], 'word')}.")
    return revived


def _workers(scratch: Path) -> Workers:
    return Workers(str(app.conf.broker_url), scratch, WORKERS, PER_WORKER)


def _check_progress(last_end: float, pending: Results, workers: Workers) -> None:
    workers.check()
    if time.monotonic() - last_end > _PATIENCE:
        path, result = next(iter(pending.items()))
        raise Mistake(
            f"no task has ended for {_PATIENCE:g} s and {len(pending)} are open; that of {path}: "
            f"{app.why(result.id)}"
        )


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP do what Ctrl-C does, so that they leave nothing behind either."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
