"""Bodies and stored results that a real Celery made; `bodies.json` says which one."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_ALL: Final[dict[str, Any]] = json.loads(
    (Path(__file__).parent / "golden" / "bodies.json").read_text()
)
ARGS: Final[list[Any]] = _ALL["args"]
KWARGS: Final[dict[str, Any]] = _ALL["kwargs"]
CERTIFICATE: Final[str] = _ALL["certificate"]
"""Of who signed what is ``auth``; it is valid until 2125."""


@dataclass(frozen=True, slots=True)
class Body:
    """One message's, as it was on the wire; `header` is that of the compression."""

    serializer: str
    compression: str | None
    content_type: str
    content_encoding: str
    header: str | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Stored:
    """One result: ``{"a": [1, "é"]}``, or for FAILURE ``ValueError("no", 1)``."""

    serializer: str
    compression: str | None
    state: str
    data: bytes


BODIES: Final = [
    Body(
        each["serializer"],
        each["compression"],
        each["content-type"],
        each["content-encoding"],
        each["compression-header"],
        base64.b64decode(each["body"]),
    )
    for each in _ALL["messages"]
]
RESULTS: Final = [
    Stored(each["serializer"], each["compression"], each["state"], base64.b64decode(each["data"]))
    for each in _ALL["results"]
]
