"""``app.control``: what can be asked of workers, as far as this release has it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from umbel.absent import CONTROL, without
from umbel.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from umbel.app import Umbel


@without("app.control", CONTROL)
class Control:
    """Revoking, terminating, purging."""

    def __init__(self, app: Umbel) -> None:
        self.app = app

    def revoke(
        self,
        task_id: str | Iterable[str],
        destination: Iterable[str] | None = None,
        terminate: bool = False,
        signal: str | None = None,
        **options: object,
    ) -> None:
        """`Umbel.revoke`, also of a single id. A revocation holds for all workers."""
        if destination is not None:
            raise ImproperlyConfigured(
                f"revoke(destination={destination!r:.80}): a revocation is kept in the broker and "
                "holds for every worker; leave destination out"
            )
        ids = [task_id] if isinstance(task_id, str) else task_id
        self.app.revoke(ids, terminate=terminate, signal=signal)

    def terminate(
        self,
        task_id: str | Iterable[str],
        destination: Iterable[str] | None = None,
        signal: str | None = None,
        **options: object,
    ) -> None:
        """`revoke`, with the end of what runs already."""
        self.revoke(task_id, destination, terminate=True, signal=signal)

    def purge(self, connection: object = None) -> int:
        """Delete what waits in the app's queues; how many messages. Workers keep what they hold."""
        app = self.app
        return app.broker.purge([queue.name for queue in app.router.select()])

    discard_all = purge
