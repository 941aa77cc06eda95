"""``app.backend``: the stored results under the names that Celery's backends have for them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from umbel import states
from umbel.arguments import checked_id, checked_state
from umbel.exceptions import NotProvided
from umbel.message import Result
from umbel.result import AsyncResult
from umbel.resultstate import done_in, store_of
from umbel.settings import censored, result_life
from umbel.stored import encode_meta, state_in, value_in

if TYPE_CHECKING:
    from umbel.app import Umbel


class Backend:
    """Reading and writing results by task id. `Umbel.store` is what keeps them."""

    def __init__(self, app: Umbel) -> None:
        self.app = app

    def get_state(self, task_id: str) -> str:
        return self._result(task_id).state

    get_status = get_state

    def get_result(self, task_id: str) -> Any:
        return self._result(task_id).result

    def get_traceback(self, task_id: str) -> str | None:
        return self._result(task_id).traceback

    def get_children(self, task_id: str) -> list[AsyncResult[Any]] | None:
        return self._result(task_id).children

    def get_task_meta(self, task_id: str, cache: bool = True) -> dict[str, Any]:
        """``status``, ``result``, ``traceback``, ``children``, ``date_done`` and ``task_id``.

        All of one moment: a task may go on while it is asked for.
        """
        result = self._result(task_id)
        meta = result._read()
        return {
            "status": state_in(meta),
            "result": value_in(meta),
            "traceback": None if meta is None else meta.traceback,
            "children": result._children_in(meta) or [],
            "date_done": done_in(meta),
            "task_id": task_id,
        }

    def store_result(
        self,
        task_id: str,
        result: object,
        state: str,
        traceback: str | None = None,
        request: object = None,
        **_: object,
    ) -> Any:
        """Store a state and its result, or exception; a stored SUCCESS stays. Returns `result`."""
        app = self.app
        task_id = checked_id(task_id)
        state = checked_state(state, "store_result")
        store = store_of(app)
        now = app.clock.wall()
        done = datetime.fromtimestamp(now, app.zone).isoformat()
        meta = encode_meta(
            task_id,
            state,
            result,
            traceback,
            date_done=done if state in states.READY_STATES else None,
            form=app.result_format,
        )
        life = result_life(app.conf, state)
        store.put([Result(task_id, state, meta, now + life if life else None)])
        return result

    def mark_as_started(self, task_id: str, **meta: object) -> None:
        self.store_result(task_id, meta, states.STARTED)

    def mark_as_done(self, task_id: str, result: object, *_: object, **__: object) -> None:
        self.store_result(task_id, result, states.SUCCESS)

    def mark_as_failure(
        self,
        task_id: str,
        exc: BaseException,
        traceback: str | None = None,
        *_: object,
        **__: object,
    ) -> None:
        """Store FAILURE. What was linked to the task isn't sent: its worker would do that."""
        self.store_result(task_id, exc, states.FAILURE, traceback)

    def forget(self, task_id: str) -> None:
        """Delete a result."""
        self._result(task_id).forget()

    def as_uri(self, include_password: bool = False) -> str:
        """The URL of the result store; ``disabled://`` where there is none."""
        url = self.app.connections.store_url or "disabled://"
        return url if include_password else str(censored("result_backend", url))

    def _result(self, task_id: str) -> AsyncResult[Any]:
        return AsyncResult(task_id, app=self.app)

    if not TYPE_CHECKING:  # which are to see what isn't there

        def __getattr__(self, name: str) -> Any:
            raise NotProvided(
                f"app.backend.{name} isn't there: app.backend reads and writes results by task id, "
                "and app.store is what keeps them"
            )
