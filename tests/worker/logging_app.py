"""An app that sets up logging itself: when it is imported, or by the signal `setup_logging`."""

from __future__ import annotations

import logging
import os

from tests.worker.live_app import chatter

from umbel import Umbel, signals

app = Umbel("logging")
app.task(name="chatter")(chatter.__wrapped__)


def set_up(**_: object) -> None:
    logging.basicConfig(
        filename=os.environ["APP_LOG"],
        format="APP:%(levelname)s:%(name)s:%(message)s",
        level=logging.INFO,
    )


if os.environ["APP_LOG_HOW"] == "own":
    set_up()
else:
    signals.setup_logging.connect(set_up)
