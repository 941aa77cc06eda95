"""Tasks that log whatever a log line can be asked to hold."""

from __future__ import annotations

import logging
import sys
import warnings
from typing import Any

from umbel import Umbel, get_task_logger

app = Umbel("json", task_send_sent_event=True)  # without effect yet: answered with a warning
logger = get_task_logger("shop.tasks")


@app.task(name="speak", bind=True, max_retries=1)
def speak(self: Any, tag: str) -> str:
    print(f"printed by {tag}\nin two lines \x1b[31m\x00")
    print("to stderr", file=sys.stderr)
    logger.info("paid %s", tag, extra={"order": {"lines": [1, 2.5]}, "time": "noon", "odd": {1, 2}})
    logging.getLogger("other").error("wrong %d", tag)
    warnings.warn("careful", UserWarning, stacklevel=1)
    try:
        raise LookupError("line one\nline two")
    except LookupError:
        logger.exception("it\nfailed")
    if not self.request.retries:
        raise self.retry(countdown=0)
    return tag


@app.task(name="fail")
def fail(tag: str) -> None:
    raise KeyError(tag)
