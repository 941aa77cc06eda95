"""What sending costs, in Python calls and in modules: figures that don't depend on the machine."""

from __future__ import annotations

import subprocess
import sys
from types import FrameType
from typing import Any

import umbel
from umbel import Umbel

FOLDER = umbel.__file__.removesuffix("__init__.py")


def test_delay_makes_at_most_25_calls(app: Umbel) -> None:
    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    add.delay(1, 2)
    calls: list[str] = []

    def note(frame: FrameType, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            calls.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        add.delay(1, 2)
    finally:
        sys.setprofile(None)
    assert 0 < len(calls) <= 25, calls


def test_importing_umbel_loads_nothing_that_sending_does_not_need() -> None:
    code = (
        "import sys; import umbel; "
        "print(*{'asyncio', 'sqlite3', 'socket', 'random', 'zoneinfo', 'click', 'rich', "
        "'multiprocessing', 'umbel.why', 'umbel.worker', 'umbel.cli'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
