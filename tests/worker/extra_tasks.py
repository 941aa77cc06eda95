"""A module that only `--include` brings in."""

from __future__ import annotations

from tests.worker.live_app import note

from umbel.current import get_current_app

app = get_current_app()


@app.task(name="included")
def included(tag: str) -> str:
    note("start", tag)
    return "from extra_tasks"
