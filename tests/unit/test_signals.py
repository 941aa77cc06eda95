"""Signals: who is called, with what, in which order, and what a receiver may do wrong."""

from __future__ import annotations

import functools
import gc
import logging
import os
import signal as os_signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from umbel import signals
from umbel.signals import Signal


@pytest.fixture
def signal() -> Signal:
    return Signal("thing_done", ["result"])


class Sender:
    """Something that sends; two are never equal."""


def test_a_receiver_gets_everything_by_keyword(signal: Signal) -> None:
    @signal.connect
    def receiver(**kwargs: object) -> object:
        return kwargs

    sender = Sender()
    answers = signal.send(sender, result=3)
    assert answers == [(receiver, {"signal": signal, "sender": sender, "result": 3})]
    assert signal.send_robust(sender, result=3) == answers


def test_a_receiver_may_name_what_it_wants(signal: Signal) -> None:
    @signal.connect()
    def receiver(sender: object, result: int = 0, **kwargs: object) -> tuple[object, int]:
        return sender, result

    assert signal.send("s", result=7)[0][1] == ("s", 7)


def test_nobody_listens(signal: Signal) -> None:
    assert not signal.receivers
    assert not signal.has_listeners()
    assert signal.send(None) == []


def test_one_sender_only(signal: Signal) -> None:
    mine, other = Sender(), Sender()
    heard: list[object] = []

    @signal.connect(sender=mine)
    def receiver(sender: object, **kwargs: object) -> None:
        heard.append(sender)

    for sender in (mine, other, None):
        signal.send(sender)
    assert heard == [mine]
    assert [signal.has_listeners(each) for each in (mine, other, None)] == [True, False, False]


def test_texts_are_the_same_sender_when_they_are_equal(signal: Signal) -> None:
    @signal.connect(sender="proj.add")
    def receiver(**kwargs: object) -> None: ...

    assert signal.has_listeners(".".join(["proj", "add"]))
    assert not signal.has_listeners("proj.sub")


def test_a_new_object_is_never_taken_for_a_sender_that_is_gone(signal: Signal) -> None:
    heard: list[object] = []

    def receiver(sender: object, **kwargs: object) -> None:
        heard.append(sender)

    sender: Sender | None = Sender()
    signal.connect(receiver, sender=sender)
    sender = None
    gc.collect()
    for _ in range(100):
        signal.send(Sender())
    signal.send(None)
    assert heard == []
    signal.connect(receiver)
    assert len(signal.receivers) == 1
    signal.send("any")
    assert heard == ["any"]


def test_receivers_are_held_weakly(signal: Signal) -> None:
    class Listener:
        def hear(self, **kwargs: object) -> str:
            return "heard"

    listener: Listener | None = Listener()
    assert listener is not None
    signal.connect(listener.hear)
    signal.connect(lambda **kwargs: "gone at once")
    gc.collect()
    assert [answer for _, answer in signal.send(None)] == ["heard"]
    assert len(signal.receivers) == 1
    listener = None
    gc.collect()
    assert not signal.has_listeners()
    assert signal.send(None) == []
    assert not signal.receivers


def test_a_receiver_can_be_kept(signal: Signal) -> None:
    signal.connect(lambda **kwargs: 1, weak=False)
    gc.collect()
    assert [answer for _, answer in signal.send(None)] == [1]


def test_connecting_twice_connects_once(signal: Signal) -> None:
    class Listener:
        def hear(self, **kwargs: object) -> None: ...

    def receiver(**kwargs: object) -> None: ...

    one, two = Listener(), Listener()
    for _ in range(3):
        signal.connect(receiver)
        signal.connect(receiver, sender="s")
        signal.connect(one.hear)
        signal.connect(two.hear)
    assert [fun for fun, _ in signal.send("s")] == [receiver, receiver, one.hear, two.hear]


def test_a_dispatch_uid_stands_for_the_receiver(signal: Signal) -> None:
    def first(**kwargs: object) -> int:
        return 1

    def second(**kwargs: object) -> int:
        return 2

    signal.connect(first, dispatch_uid="mine")
    signal.connect(second, dispatch_uid="mine")
    assert signal.send(None) == [(first, 1)]
    assert not signal.disconnect(first)
    assert signal.disconnect(dispatch_uid="mine")
    assert signal.receivers == ()


def test_disconnect_needs_the_same_sender(signal: Signal) -> None:
    def receiver(**kwargs: object) -> None: ...

    signal.connect(receiver, sender="s")
    assert not signal.disconnect(receiver)
    assert not signal.disconnect(receiver, sender="other")
    assert signal.disconnect(receiver, sender="s")
    assert not signal.disconnect(receiver, sender="s")


def test_what_a_receiver_raises_is_logged_and_answered(
    signal: Signal, caplog: pytest.LogCaptureFixture
) -> None:
    error = ValueError("mine")

    @signal.connect
    def bad(**kwargs: object) -> None:
        raise error

    @signal.connect
    def good(**kwargs: object) -> str:
        return "still called"

    with caplog.at_level(logging.ERROR, logger="umbel.signals"):
        assert signal.send(None) == [(bad, error), (good, "still called")]
    assert "of signal thing_done raised ValueError('mine')" in caplog.text
    assert caplog.records[0].exc_info is not None


def test_an_exit_goes_through(signal: Signal) -> None:
    @signal.connect
    def leave(**kwargs: object) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        signal.send(None)


def test_retry_calls_again_until_it_succeeds(
    signal: Signal, caplog: pytest.LogCaptureFixture
) -> None:
    calls = iter([ConnectionError("away"), None])

    def flaky(**kwargs: object) -> str:
        if error := next(calls):
            raise error
        return "done"

    signal.connect(flaky, retry=True)
    with caplog.at_level(logging.WARNING, logger="umbel.signals"):
        assert signal.send(None) == [(flaky, "done")]
    assert "ConnectionError('away'); calling it again in 0 s" in caplog.text
    assert signal.disconnect(flaky)


def test_retry_keeps_its_receiver(signal: Signal) -> None:
    signal.connect(lambda **kwargs: 1, retry=True)
    gc.collect()
    assert signal.has_listeners()


def without_kwargs(sender: object) -> None: ...


async def asynchronous(**kwargs: object) -> None: ...


@pytest.mark.parametrize(
    ("receiver", "sentence"),
    [
        (without_kwargs, "doesn't accept \\*\\*kwargs"),
        (functools.partial(without_kwargs, 1), "doesn't accept \\*\\*kwargs"),
        (asynchronous, "nobody would await it"),
        ("proj.add", r"isn't callable. To listen to one sender, write connect\(sender=…\)"),
    ],
)
def test_what_cannot_receive_is_refused(signal: Signal, receiver: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=f"can't receive signal thing_done: .*{sentence}"):
        signal.connect(receiver)
    assert signal.receivers == ()


def test_callables_of_every_kind_can_receive(signal: Signal) -> None:
    class Caller:
        __slots__ = ()

        def __call__(self, **kwargs: object) -> str:
            return "called"

    part: functools.partial[dict[str, object]] = functools.partial(dict, more=1)
    caller = Caller()
    signal.connect(caller)
    signal.connect(dict)
    signal.connect(part)
    answers = [answer for _, answer in signal.send("s")]
    assert answers[0] == "called"
    assert answers[1] == {"signal": signal, "sender": "s"}
    assert answers[2] == {"signal": signal, "sender": "s", "more": 1}


def test_annotations_that_exist_for_type_checkers_only_do_no_harm(signal: Signal) -> None:
    space: dict[str, Any] = {}
    source = "def receiver(sender: Missing, **kwargs: Absent) -> Nowhere: return 4"
    if sys.version_info >= (3, 14):
        exec(compile(source, "receiver", "exec", dont_inherit=True), space)
    else:
        exec("from __future__ import annotations\n" + source, space)
    signal.connect(space["receiver"])
    assert signal.send(None)[0][1] == 4


def test_a_receiver_may_disconnect_itself(signal: Signal) -> None:
    @signal.connect
    def once(**kwargs: object) -> bool:
        return signal.disconnect(once)

    assert signal.send(None) == [(once, True)]
    assert signal.send(None) == []


def test_threads_connect_disconnect_and_send_at_once(signal: Signal) -> None:
    def make() -> Callable[..., object]:
        def receiver(**kwargs: object) -> None: ...

        return receiver

    kept: list[Callable[..., object]] = []
    failures: list[object] = []

    def work() -> None:
        for number in range(300):
            fun = make()
            signal.connect(fun)
            failures.extend(answer for _, answer in signal.send(None) if answer is not None)
            if number % 10:
                failures.extend([] if signal.disconnect(fun) else [fun])
            else:
                kept.append(fun)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(kept) == 120
    assert {fun for fun, _ in signal.send(None)} == set(kept)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_can_connect_although_a_thread_of_its_parent_was_about_to(signal: Signal) -> None:
    def receiver(**kwargs: object) -> int:
        return 5

    with signals._lock:
        child = os.fork()
        if child == 0:
            try:
                os_signal.alarm(10)
                signal.connect(receiver)
                os._exit(7 if signal.send(None)[0][1] == 5 else 1)
            finally:
                os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


CELERY = {
    "before_task_publish": "body exchange routing_key headers properties declare retry_policy",
    "after_task_publish": "body exchange routing_key headers",
    "task_sent": "task_id task args kwargs eta taskset",
    "task_received": "request",
    "task_prerun": "task_id task args kwargs",
    "task_postrun": "task_id task args kwargs retval state",
    "task_success": "result runtime",
    "task_retry": "request reason einfo",
    "task_failure": "task_id exception args kwargs traceback einfo",
    "task_internal_error": "task_id args kwargs request exception traceback einfo",
    "task_revoked": "request terminated signum expired",
    "task_unknown": "message exc name id",
    "task_rejected": "message exc",
    "import_modules": "",
    "celeryd_init": "instance conf options",
    "worker_init": "",
    "celeryd_after_setup": "instance conf",
    "worker_before_create_process": "",
    "worker_process_init": "",
    "worker_process_shutdown": "pid exitcode",
    "worker_ready": "",
    "heartbeat_sent": "",
    "worker_shutting_down": "sig how exitcode",
    "worker_shutdown": "",
    "setup_logging": "loglevel logfile format colorize",
    "after_setup_logger": "logger loglevel logfile format colorize",
    "after_setup_task_logger": "logger loglevel logfile format colorize",
    "beat_init": "",
    "beat_embedded_init": "",
    "eventlet_pool_started": "",
    "eventlet_pool_preshutdown": "",
    "eventlet_pool_postshutdown": "",
    "eventlet_pool_apply": "target args kwargs",
    "user_preload_options": "app options",
}


def test_every_signal_of_celery_exists_with_its_arguments() -> None:
    ours = {name: each for name, each in vars(signals).items() if isinstance(each, Signal)}
    assert {name: each.name for name, each in ours.items()} == {name: name for name in CELERY}
    for name, args in CELERY.items():
        assert ours[name].providing_args == set(args.split()), name


@given(st.lists(st.sampled_from([None, "a", "b"]), max_size=8), st.sampled_from(["a", "b", "c"]))
def test_receivers_hear_their_sender_in_the_order_of_connecting(
    listening_to: list[str | None], sender: str
) -> None:
    signal = Signal("s")
    funs: list[Callable[..., object]] = [
        functools.partial(dict, number=number) for number in range(len(listening_to))
    ]
    for fun, expected in zip(funs, listening_to, strict=True):
        signal.connect(fun, sender=expected)
    called = [fun for fun, _ in signal.send(sender)]
    wanted = [
        fun for fun, each in zip(funs, listening_to, strict=True) if each is None or each == sender
    ]
    assert called == wanted
    assert signal.has_listeners(sender) == bool(wanted)


class Connections(RuleBasedStateMachine):
    """A signal beside a plain list of what should be connected."""

    senders = (None, "a", "b")

    def __init__(self) -> None:
        super().__init__()
        self.signal = Signal("s")
        self.funs: list[Callable[..., object] | None] = [
            functools.partial(dict, number=number) for number in range(4)
        ]
        self.model: list[tuple[int, str | None]] = []

    @rule(number=st.integers(0, 3), sender=st.sampled_from(senders))
    def connect(self, number: int, sender: str | None) -> None:
        if (fun := self.funs[number]) is not None:
            self.signal.connect(fun, sender=sender)
            if (number, sender) not in self.model:
                self.model.append((number, sender))

    @rule(number=st.integers(0, 3), sender=st.sampled_from(senders))
    def disconnect(self, number: int, sender: str | None) -> None:
        if (fun := self.funs[number]) is not None:
            there = (number, sender) in self.model
            assert self.signal.disconnect(fun, sender=sender) == there
            self.model = [each for each in self.model if each != (number, sender)]

    @rule(number=st.integers(0, 3))
    def die(self, number: int) -> None:
        self.funs[number] = None
        self.model = [each for each in self.model if each[0] != number]

    @invariant()
    def everyone_is_called(self) -> None:
        for sender in self.senders:
            wanted = [number for number, each in self.model if each in (None, sender)]
            answers: Any = [answer for _, answer in self.signal.send(sender)]
            assert [answer["number"] for answer in answers] == wanted


TestConnections = Connections.TestCase
