"""An app whose task has a hard limit, which the solo pool can't keep."""

from __future__ import annotations

from umbel import Umbel

app = Umbel("limited")


@app.task(name="limited", time_limit=10.0)
def limited() -> None: ...
