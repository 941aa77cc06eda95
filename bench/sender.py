"""The sending side of a contender, in its own environment: ``python -m bench.sender MODULE``.

Reads one JSON array per line, ``[function, *arguments]``, calls that function of the module, and
answers with one JSON object: its `value`, the `cpu` seconds of this process and the `wall` seconds
that it took, or, where it raised, its `error`. A range is ``{"first": …, "last": …}``.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import Any, Protocol


class Peer(Protocol):
    """What a module has. Tasks are ``noop`` and ``nap``, which takes 100 ms."""

    def send(self, task: str, numbers: range) -> list[str] | None:
        """Call the task for each number, one call after the other; the ids, where it has them."""
        ...

    def send_in_bulk(self, task: str, numbers: range) -> list[str] | None:
        """The same, in whatever way the library has for many. Optional."""
        ...

    def send_later(self, numbers: range, seconds: float) -> None:
        """Call ``noop`` for each, due in so many seconds. Optional."""
        ...

    def round_trips(self, count: int) -> list[float]:
        """Call ``noop`` and wait for its result, one after the other; the seconds of each."""
        ...


def answer(module: Any, request: list[Any]) -> dict[str, object]:
    function, *given = request
    arguments = [range(g["first"], g["last"]) if isinstance(g, dict) else g for g in given]
    call = getattr(module, function)
    cpu, wall = time.process_time(), time.perf_counter()
    try:
        value = call(*arguments)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return {"value": value, "cpu": cpu, "wall": wall}


def main() -> None:
    # What libraries print goes to the log with the rest of what they say.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    module = importlib.import_module(sys.argv[1])
    imported = time.perf_counter() - began
    print(json.dumps({"value": imported}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(module, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
