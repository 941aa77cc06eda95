"""An app with a setting that doesn't exist."""

from __future__ import annotations

from umbel import Umbel

app = Umbel("wrong", worker_prefetch_multiplyer=3)
