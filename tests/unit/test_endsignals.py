"""What handlers and signals get once a task has ended, whoever ran it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from umbel import signals
from umbel.einfo import ExceptionInfo
from umbel.endsignals import handler_arguments, signal_arguments
from umbel.exceptions import Retry
from umbel.outcome import End, Options, Verdict, decide
from umbel.request import Context

ERROR = KeyError("x")
OF_A_WORKER_ALONE = {"task_revoked", "task_unknown", "task_rejected"}


@dataclass
class How:
    value: Any = None
    error: BaseException | None = None
    einfo: ExceptionInfo | None = None
    reason: object = None
    runtime: float = 0.5


FAILED = How(error=ERROR, einfo=ExceptionInfo(ERROR, "KeyError: 'x'"))


@pytest.mark.parametrize("options", [Options(), Options(acks_late=True, retry_on_worker_lost=True)])
@pytest.mark.parametrize("end", End)
def test_every_signal_has_all_its_arguments(end: End, options: Options) -> None:
    request = Context(id="id", task="t", args=[1], kwargs={"y": 2})
    verdict = decide(end, options)
    for name in {*verdict.signals, "task_internal_error"} - OF_A_WORKER_ALONE:
        named = signal_arguments(name, None, request, FAILED, verdict)
        assert named.keys() == getattr(signals, name).providing_args


def test_what_ended_a_run() -> None:
    request = Context(id="id", args=(), kwargs={})
    retry = Retry(exc=ERROR)
    retried = How(error=ERROR, einfo=FAILED.einfo, reason=retry)
    verdict = decide(End.RETURNED, Options())
    told = [
        signal_arguments("task_postrun", None, request, each, verdict)["retval"]
        for each in (How(7), FAILED, retried)
    ]
    assert told == [7, ERROR, retry]
    assert handler_arguments("on_success", request, How(7), verdict) == (7, "id", (), {})
    failure = handler_arguments("on_failure", request, FAILED, verdict)
    assert failure == (ERROR, "id", (), {}, FAILED.einfo)
    failed = Verdict("FAILURE", verdict.settle)
    returned = handler_arguments("after_return", request, FAILED, failed)
    assert returned == ("FAILURE", ERROR, "id", (), {}, None)


def test_of_what_was_raised_elsewhere_there_is_only_the_text() -> None:
    verdict = decide(End.RAISED, Options())
    named = signal_arguments("task_failure", None, Context(id="id"), FAILED, verdict)
    assert named["traceback"] == "KeyError: 'x'"
    assert (named["args"], named["kwargs"]) == ([], {})


def test_a_retry_that_nobody_asked_for_says_why() -> None:
    verdict = decide(End.RETRY, Options())
    reason = signal_arguments("task_retry", None, Context(), FAILED, verdict)["reason"]
    assert (type(reason), reason.exc, reason.when) == (Retry, ERROR, None)


def test_what_a_worker_alone_can_tell_is_not_for_here() -> None:
    with pytest.raises(ValueError, match="'task_rejected' isn't a signal"):
        signal_arguments("task_rejected", None, Context(), FAILED, decide(End.RAISED, Options()))
