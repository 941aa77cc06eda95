"""An app that can't be imported."""

from __future__ import annotations

from umbel import Umbel

app = Umbel("broken")
raise RuntimeError("the shop is closed")
