"""How many real kills each cell or point has received, and that none of them went without."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import pytest

KILLS: Counter[str] = Counter()
"""SIGKILLs that processes of `umbel worker` have died from, by cell or point."""
EXPECTED: set[str] = set()
"""Cells and points whose tests ran and that must have received one."""


def count_kills(where: str, kills: int) -> None:
    """Note `kills` real kills at `where`, which must receive some."""
    EXPECTED.add(where)
    KILLS[where] += kills


def missed() -> list[str]:
    return sorted(where for where in EXPECTED if not KILLS[where])


def kill_lines(kills: Mapping[str, int]) -> Iterator[str]:
    width = max(map(len, kills), default=0)
    for where in sorted(kills):
        yield f"{where:<{width}}  {kills[where]:>4}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not EXPECTED:
        return
    terminalreporter.section("real kills of worker processes")
    for line in kill_lines({where: KILLS[where] for where in EXPECTED}):
        terminalreporter.write_line(line)
    for where in missed():
        terminalreporter.write_line(f"NO KILL REACHED: {where}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if missed():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
