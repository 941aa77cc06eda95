"""``import umbel`` in fresh interpreters, whose own start isn't counted.

Modules are compiled already, as after the first start of any installed package.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Final

from bench.figures import Figure, Workload

TRIES: Final = 20
_PROGRAM: Final = (
    "from time import perf_counter\n"
    "began = perf_counter()\n"
    "import umbel\n"
    "print((perf_counter() - began) * 1000)\n"
)


def measure(folder: Path) -> Mapping[str, float]:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def once() -> float:
        command = [sys.executable, "-c", _PROGRAM]
        return float(subprocess.check_output(command, cwd=folder, env=environment))

    once()
    return {"import umbel": median(once() for _ in range(TRIES))}


WORKLOAD = Workload(
    "import",
    f"import umbel, median of {TRIES} processes",
    (Figure("import umbel", "ms", at_most=100, digits=1),),
    measure,
)
