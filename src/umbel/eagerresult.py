"""The result of a task that was run in its caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from typing import TYPE_CHECKING, Any

from umbel import states
from umbel.asyncresult import AsyncResult, Change
from umbel.joining import Callback, OnInterval, OnMessage, called
from umbel.stored import Meta

if TYPE_CHECKING:
    from umbel.app import Umbel


class EagerResult(AsyncResult[Any]):
    """What came of a task that was run here. It is never waited for, and kept nowhere else."""

    __slots__ = ("following",)

    def __init__(
        self,
        id: str,
        ret_value: object,
        state: str,
        traceback: str | None = None,
        name: str | None = None,
        app: Umbel | None = None,
    ) -> None:
        super().__init__(id, app=app, task_name=name)
        self._meta = Meta(id, state, ret_value, traceback)
        self.following: AsyncResult[Any] | None = None
        """The result of the next step, in a chain."""

    def get(
        self,
        timeout: float | None = None,
        propagate: bool = True,
        interval: float = 0.5,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callback | None = None,
        on_message: OnMessage | None = None,
        on_interval: OnInterval | None = None,
        disable_sync_subtasks: bool = True,
    ) -> Any:
        """The return value; None where the task was ignored or rejected.

        Raises what the task raised, or returns it where `propagate` is false.
        """
        value = self.result
        if self.state not in (states.SUCCESS, *states.PROPAGATE_STATES):
            return None
        return self.maybe_throw(propagate, callback) if callback or propagate else value

    wait = get

    async def aget(
        self,
        timeout: float | None = None,  # noqa: ASYNC109  # as that of what is sent
        propagate: bool = True,
        interval: float = 0.5,
        no_ack: bool = True,
        follow_parents: bool = True,
        callback: Callback | None = None,
        on_message: OnMessage | None = None,
        on_interval: OnInterval | None = None,
        disable_sync_subtasks: bool = True,
    ) -> Any:
        """`get`."""
        value = self.get(propagate=propagate)
        if callback is not None and self.state in (states.SUCCESS, *states.PROPAGATE_STATES):
            await called(callback, self.id, value)
        return value

    def __await__(self) -> Generator[Any, None, Any]:
        return self.aget().__await__()

    async def __aiter__(self) -> AsyncIterator[Change]:
        """The one state that it has."""
        yield Change(self.state, self.result)

    def forget(self) -> None:
        """Nothing is stored that could be deleted."""

    def revoke(
        self,
        connection: object = None,
        terminate: bool = False,
        signal: str | int | None = None,
        wait: bool = False,
        timeout: float | None = None,
    ) -> None:
        """The task has run already; its state becomes REVOKED."""
        self._meta = Meta(self.id, states.REVOKED)

    def __copy__(self) -> EagerResult:
        made = EagerResult(self.id, self.result, self.state, self.traceback, self.name, self.app)
        made.parent = self.parent
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return EagerResult, (self.id, self.result, self.state, self.traceback, self.name)

    def __repr__(self) -> str:
        return f"<EagerResult: {self.id}>"


def last_of(result: AsyncResult[Any]) -> AsyncResult[Any]:
    """The result of the last step of a chain that was run, its parents behind it."""
    while isinstance(result, EagerResult) and result.following is not None:
        result.following.parent = result
        result = result.following
    return result
