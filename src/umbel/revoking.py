"""Ask that tasks aren't run: a log in the broker, and a word to workers that run one."""

from __future__ import annotations

import signal as signals
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from umbel.arguments import checked_id, listed
from umbel.asking import tell
from umbel.exceptions import TaskRevokedError
from umbel.mailbox import Command
from umbel.message import Result
from umbel.ports import Revocation
from umbel.publish import new_id
from umbel.settings import result_life
from umbel.states import READY_STATES, REVOKED
from umbel.stored import encode_meta

if TYPE_CHECKING:
    from umbel.app import Umbel


def revoke(app: Umbel, task_ids: Iterable[str], terminate: bool, signal: str | int | None) -> None:
    """What `Umbel.revoke` does."""
    name = signal_name(signal)
    ids = listed(task_ids, "revoke", "a list of task ids")
    revocations = [Revocation(checked_id(task_id), terminate, name) for task_id in ids]
    broker = app.broker
    store_revoked(app, broker.revoke(revocations))
    if revocations and (terminate or broker.features.shared_with_celery):
        tell(app, _command(revocations))


def store_revoked(app: Umbel, task_ids: Iterable[str]) -> None:
    """Store REVOKED for what was found waiting, unless a final state is stored already."""
    ids = sorted(task_ids)
    store = app.store
    if store is None or not ids:
        return
    final = {
        record.task_id
        for record in store.get(ids)
        if record is not None and record.state in READY_STATES
    }
    now = app.clock.wall()
    done = datetime.fromtimestamp(now, app.zone).isoformat()
    life = result_life(app.conf, REVOKED)
    results = [
        Result(
            task_id=task_id,
            state=REVOKED,
            meta=encode_meta(
                task_id,
                REVOKED,
                TaskRevokedError("revoked"),
                date_done=done,
                form=app.result_format,
            ),
            expires_at=now + life if life else None,
        )
        for task_id in ids
        if task_id not in final
    ]
    if results:
        store.put(results)


def _command(revocations: Sequence[Revocation]) -> Command:
    """What tells workers to look at the log; to Celery's it says all."""
    first = revocations[0]
    arguments = {
        "task_id": [each.task_id for each in revocations],
        "terminate": first.terminate,
        "signal": first.signal,
    }
    return Command("revoke", arguments, is_logged=True, tag=new_id())


def signal_name(value: str | int | None) -> str:
    """The name of the signal that ends a running task: ``SIGTERM`` unless named, as ``"SIGKILL"``,
    ``"KILL"`` or 9. Raises `ValueError`."""
    if value is None:
        return "SIGTERM"
    try:
        if isinstance(value, int):
            return signals.Signals(value).name
        name = value.upper()
        return signals.Signals[name if name.startswith("SIG") else f"SIG{name}"].name
    except (ValueError, KeyError, AttributeError):
        known = ", ".join(each.name for each in signals.Signals)
        raise ValueError(f"there is no signal {value!r} here; there are {known}") from None
