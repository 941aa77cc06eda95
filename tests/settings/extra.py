"""A module that `imports` or `include` names."""

from __future__ import annotations

from tests.settings.settings_app import app


@app.task(name="extra")
def extra() -> str:
    return "from extra"
