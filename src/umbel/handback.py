"""Leave the queues to Celery's workers: what our own keys hold goes where these find it."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from typing import TYPE_CHECKING, Final

from umbel.exceptions import ImproperlyConfigured, UmbelError
from umbel.ports import Broker, HandedBack
from umbel.silence import node_name

if TYPE_CHECKING:
    from umbel.app import Umbel
    from umbel.drivers import BrokerDriver

logger = logging.getLogger("umbel.worker")

_LOOK: Final = 1.0


class StillWorking(UmbelError):
    """Workers of ours run, and would take up again what is handed back."""


def hand_back(app: Umbel) -> HandedBack:
    """Reclaim what dead workers of ours held, and hand back. May take as long as their lease.

    Raises `StillWorking`, and `ImproperlyConfigured` where no worker of Celery's can come.
    """
    broker = app.broker
    if not broker.features.shared_with_celery:
        raise ImproperlyConfigured(
            f"no worker of Celery's can use the queues of {broker.location}, so there is nobody to "
            "hand back to; name the broker that they use, such as redis://host:6379/0"
        )
    if living := _living_after_the_dead_are_reclaimed(broker):
        raise StillWorking(
            f"workers of Umbel's still run: {', '.join(living)}. They would take up again what is "
            "handed back: stop them first"
        )
    return broker.hand_back()


def hand_back_after_the_last(app: Umbel) -> None:
    """For a worker that has left: hand back if no other worker of ours is there."""
    broker: BrokerDriver = app.broker
    if not broker.features.shared_with_celery or broker.runs():
        return
    handed = broker.hand_back()
    logger.info(
        "The last worker leaves. Handed back to Celery's workers: %d due later.", handed.delayed
    )


def _living_after_the_dead_are_reclaimed(broker: Broker) -> list[str]:
    """The names of the workers that run. A worker is dead once it was silent for its lease while
    somebody else's heart beat, so one does here."""
    run = uuid.uuid4().hex
    name = f"handback@{os.uname().nodename}"
    broker.enlist(run, None, json.dumps({"hostname": name}).encode())
    try:
        first = broker.beat(run)
        seen_at = {peer.run: peer.seen_at for peer in first.peers}
        peers = first.peers
        while peers:
            if living := [peer for peer in peers if peer.seen_at > seen_at.get(peer.run, 0.0)]:
                return sorted(map(node_name, living))
            time.sleep(_LOOK)
            peers = broker.beat(run).peers
    finally:
        broker.leave(run)
    return []
