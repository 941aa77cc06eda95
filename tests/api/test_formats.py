"""Serializers, compression, signing and typed arguments as an application uses them."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tests.api.looking import only
from tests.unit.golden_bodies import RESULTS, Stored
from tests.unit.signers import make_signer

from umbel import Umbel
from umbel.clock import ManualClock
from umbel.exceptions import (
    BackendGetMetaError,
    DecodeError,
    EncodeError,
    ImproperlyConfigured,
    MessageTooLarge,
    Retry,
)
from umbel.message import Message, Result
from umbel.protocol import NO_EMBED, read_request, take_call
from umbel.request import Context, running
from umbel.serialization import register, unregister
from umbel.signals import after_task_publish, before_task_publish
from umbel.stored import encode_meta

_runs = itertools.count(1)


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


def lease(app: Umbel) -> Context:
    """The next message, as a worker of this app takes it."""
    run = f"formats-{next(_runs)}"
    app.broker.enlist(run, f"{run}#1", b"{}")
    (delivery,) = app.broker.turn(f"{run}#1", 1, queues=["celery"], begin=1, limit=1).deliveries
    assert isinstance(delivery.message, Message)
    request = read_request(delivery, hostname="w@here")
    take_call(request, *app.call_reader().call(delivery.message))
    return request


def kind(message: Message) -> tuple[str, str, object]:
    return message.content_type, message.content_encoding, message.headers.get("compression")


JSON = ("application/json", "utf-8", None)
YAML = ("application/x-yaml", "utf-8", None)
MSGPACK = ("application/x-msgpack", "binary", None)


# Which serializer.


@pytest.mark.setting("task_serializer")
def test_task_serializer(app: Umbel) -> None:
    app.send_task("proj.t", [1], {"a": 2})
    assert kind(only(app)) == JSON
    app.broker.purge(["celery"])
    app.conf.task_serializer = "yaml"
    app.send_task("proj.t", [1], {"a": 2})
    message = only(app)
    assert kind(message) == YAML
    assert message.body.startswith(b"- - 1\n- a: 2\n")


def test_the_task_wins_over_the_setting_and_the_call_over_both(app: Umbel) -> None:
    app.conf.task_serializer = "yaml"

    @app.task(serializer="msgpack")
    def task() -> None: ...

    task.delay()
    assert kind(only(app)) == MSGPACK
    app.broker.purge(["celery"])
    task.apply_async(serializer="json")
    assert kind(only(app)) == JSON
    app.broker.purge(["celery"])
    task.apply_async(serializer=None)  # takes back what the task says
    assert kind(only(app)) == YAML
    app.broker.purge(["celery"])
    task.delay_many([(), ()][:1])
    assert kind(only(app)) == MSGPACK


def test_a_serializer_of_the_route(app: Umbel) -> None:
    app.conf.task_routes = {"proj.*": {"serializer": "msgpack", "compression": "bzip2"}}
    app.send_task("proj.t")
    assert kind(only(app)) == ("application/x-msgpack", "binary", "application/x-bz2")


def test_a_serializer_of_ones_own(app: Umbel) -> None:
    register("mine", json.dumps, json.loads, "application/x-mine")
    try:
        app.conf.update(task_serializer="mine", accept_content=["mine"])
        app.send_task("proj.t", [1])
        assert kind(only(app)) == ("application/x-mine", "utf-8", None)
        assert lease(app).args == [1]
    finally:
        unregister("mine")


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**70])
def test_what_the_serializer_can_not_carry_is_named(app: Umbel, value: object) -> None:
    with pytest.raises(EncodeError, match=r"^args\[0\]\['a'\]\[1\]: .* can't be sent as msgpack"):
        app.send_task("proj.t", [{"a": [0, value]}], serializer="msgpack")


@pytest.mark.setting("accept_content")
def test_accept_content(app: Umbel) -> None:
    app.send_task("proj.t", [1], serializer="msgpack")
    with pytest.raises(DecodeError, match="accepted: application/json"):
        lease(app)
    app.conf.update(accept_content=["msgpack"])
    app.send_task("proj.t", [1], serializer="msgpack")
    assert lease(app).args == [1]
    app.send_task("proj.t", [1])
    with pytest.raises(DecodeError, match="accepted: application/x-msgpack"):
        lease(app)
    app.conf.update(accept_content=["msgpak"])
    with pytest.raises(ImproperlyConfigured, match="did you mean 'msgpack'"):
        app.call_reader()


# Compression.


@pytest.mark.setting("task_compression")
def test_task_compression(app: Umbel) -> None:
    app.conf.task_compression = "zlib"
    app.send_task("proj.t", ["x" * 1000])
    message = only(app)
    assert kind(message) == ("application/json", "utf-8", "application/x-gzip")
    assert len(message.body) < 200
    assert lease(app).args == ["x" * 1000]


def test_compression_of_the_task_and_of_the_call(app: Umbel) -> None:
    @app.task(compression="lzma")
    def task() -> None: ...

    task.delay()
    assert kind(only(app))[2] == "application/x-lzma"
    app.broker.purge(["celery"])
    task.apply_async(compression="zstd", serializer="msgpack")
    assert kind(only(app)) == ("application/x-msgpack", "binary", "application/zstd")
    app.conf.update(accept_content=["msgpack"])
    assert lease(app).args == []


def test_the_largest_message_is_measured_as_it_is_stored(app: Umbel) -> None:
    app.conf.task_max_message_size = 1000
    app.send_task("proj.t", ["x" * 10_000], compression="zlib")
    with pytest.raises(MessageTooLarge, match="16 times"):
        app.send_task("proj.t", ["x" * 17_000], compression="zlib")
    with pytest.raises(MessageTooLarge):
        app.send_task("proj.t", ["x" * 10_000])


# Signals see what is sent.


@pytest.fixture
def published() -> Iterator[list[tuple[str, Any]]]:
    seen: list[tuple[str, Any]] = []

    def before(body: Any, **more: Any) -> None:
        seen.append(("before", body))
        body[1]["added"] = 1

    def after(body: Any, **more: Any) -> None:
        seen.append(("after", body))

    before_task_publish.connect(before, weak=False)
    after_task_publish.connect(after, weak=False)
    yield seen
    before_task_publish.disconnect(before)
    after_task_publish.disconnect(after)


def test_signals_of_a_message_that_is_not_json(
    app: Umbel, published: list[tuple[str, Any]]
) -> None:
    app.conf.update(accept_content=["msgpack"])
    app.send_task("proj.t", [1], {}, serializer="msgpack", compression="zlib")
    assert [each for each, _ in published] == ["before", "after"]
    assert published[1][1] == ([1], {"added": 1}, dict(NO_EMBED))
    assert lease(app).kwargs == {"added": 1}


# Typed arguments.


def test_typed_arguments_are_sent_as_plain_json(app: Umbel) -> None:
    @app.task
    def task(point: Point, *, where: Path) -> None: ...

    for send in (
        lambda: task.delay(Point(1), where=Path("/a")),
        lambda: task.apply_async((Point(1),), {"where": Path("/a")}),
        lambda: app.send_task(task.name, (Point(1),), {"where": Path("/a")}),
    ):
        send()
        message = only(app)
        assert json.loads(message.body)[:2] == [[{"x": 1, "y": 0}], {"where": "/a"}]
        assert message.headers["argsrepr"] == "(Point(x=1, y=0),)"
        app.broker.purge(["celery"])


def test_typed_arguments_by_a_serializer_that_carries_less(app: Umbel) -> None:
    @app.task(serializer="msgpack")
    def task(key: UUID) -> None: ...

    app.conf.update(accept_content=["msgpack"])
    task.delay(UUID(int=1))
    assert lease(app).args == ["00000000-0000-0000-0000-000000000001"]


def test_without_an_annotation_a_dataclass_is_refused_as_ever(app: Umbel) -> None:
    @app.task
    def task(point: object) -> None: ...

    with pytest.raises(EncodeError, match=r"args\[0\]: .* dataclasses\.asdict\(value\)"):
        task.delay(Point(1))


def test_what_does_not_fit_fails_in_the_caller(app: Umbel) -> None:
    @app.task
    def task(point: Point) -> None: ...

    with pytest.raises(EncodeError, match="the argument 'point' is 5, which isn't Point"):
        task.delay(5)  # type: ignore[arg-type]


def test_without_typing_annotations_say_nothing(app: Umbel) -> None:
    @app.task(typing=False)
    def task(key: UUID) -> None: ...

    task.delay("no key at all")  # type: ignore[arg-type]
    assert json.loads(only(app).body)[0] == ["no key at all"]
    task.typing = True
    with pytest.raises(EncodeError, match="isn't UUID"):
        task.delay("no key at all")  # type: ignore[arg-type]


# Retries.


def test_a_retry_keeps_the_body_and_a_new_one_is_made_as_the_task_says(app: Umbel) -> None:
    @app.task(bind=True, serializer="msgpack", compression="zlib")
    def task(self: Any, point: Point, n: int = 0) -> None: ...

    app.conf.update(accept_content=["msgpack", "json"])
    task.delay(Point(1), n=1)
    first = only(app)
    request = lease(app)
    with running(task, request):
        same = task.retry(throw=False).posting
        other = task.retry(args=(Point(7),), throw=False).posting
        as_json = task.retry(args=(Point(8),), throw=False, serializer="json").posting
    assert same is not None
    assert same.message.body == first.body
    assert kind(same.message) == kind(first)
    assert other is not None
    assert kind(other.message) == kind(first)
    assert app.call_reader().call(other.message)[:2] == ([{"x": 7, "y": 0}], {"n": 1})
    assert as_json is not None
    assert kind(as_json.message) == ("application/json", "utf-8", "application/x-gzip")


def test_a_retry_in_plain_json_of_a_message_that_was_not(app: Umbel) -> None:
    @app.task(bind=True)
    def task(self: Any, n: int) -> None: ...

    app.conf.update(accept_content=["msgpack"])
    task.apply_async((1,), serializer="msgpack", compression="zlib")
    with running(task, lease(app)), pytest.raises(Retry) as caught:
        task.retry(args=(2,))
    assert caught.value.posting is not None
    message = caught.value.posting.message
    assert kind(message) == JSON
    assert json.loads(message.body)[:2] == [[2], {}]


# Results.


def put(app: Umbel, task_id: str, state: str, value: object) -> bytes:
    meta = encode_meta(task_id, state, value, form=app.result_format)
    assert app.store is not None
    app.store.put([Result(task_id, state, meta)])
    return meta


@pytest.mark.setting("result_serializer")
def test_result_serializer(app: Umbel) -> None:
    app.conf.update(result_serializer="yaml", accept_content=["json", "yaml"])
    assert put(app, "one", "SUCCESS", {"a": 1}).startswith(b"children: ")
    assert app.AsyncResult("one").get(timeout=5) == {"a": 1}
    # A result from before the setting was changed is read as ever.
    app.conf.result_serializer = "json"
    put(app, "two", "SUCCESS", 2)
    app.conf.result_serializer = "yaml"
    assert app.AsyncResult("two").get(timeout=5) == 2


def test_pickled_results_hold_the_exception_itself(app: Umbel) -> None:
    app.conf.update(result_serializer="pickle", accept_content=["pickle"])
    put(app, "one", "FAILURE", KeyError("k", 1, {2}))
    assert app.AsyncResult("one").result.args == ("k", 1, {2})
    with pytest.raises(KeyError):
        app.AsyncResult("one").get(timeout=5)

    class Local(Exception): ...

    put(app, "two", "FAILURE", Local("no pickle has it"))
    assert type(app.AsyncResult("two").result).__name__ == "test_pickled_results_hold_the_" + (
        "exception_itself.<locals>.Local"
    )
    put(app, "three", "FAILURE", DecodeError("Celery has its own"))
    assert type(app.AsyncResult("three").result) is DecodeError


@pytest.mark.setting("result_accept_content")
def test_result_accept_content(app: Umbel) -> None:
    app.conf.update(result_serializer="pickle", result_accept_content=["pickle"])
    put(app, "one", "SUCCESS", {1})
    assert app.AsyncResult("one").get(timeout=5) == {1}
    app.conf.result_accept_content = None
    with pytest.raises(BackendGetMetaError, match="add 'pickle' to result_accept_content"):
        app.AsyncResult("one").get(timeout=5)
    app.conf.update(result_accept_content=["yaml"])
    app.conf.result_serializer = "json"
    put(app, "two", "SUCCESS", 1)
    with pytest.raises(BackendGetMetaError, match="'json'"):
        app.AsyncResult("two").get(timeout=5)


@pytest.mark.setting("result_compression")
def test_result_compression(app: Umbel) -> None:
    app.conf.result_compression = "zstd"
    meta = put(app, "one", "SUCCESS", "x" * 1000)
    assert meta.startswith(b"\0celery-compressed\0application/zstd\0")
    assert len(meta) < 300
    app.conf.result_compression = None
    assert app.AsyncResult("one").get(timeout=5) == "x" * 1000
    assert str(app.why("one")).startswith("finished: SUCCESS")


@pytest.mark.parametrize(
    "stored",
    [each for each in RESULTS if each.serializer != "auth"],
    ids=lambda each: f"{each.serializer}-{each.compression}-{each.state}",
)
def test_celerys_results_are_read(app: Umbel, stored: Stored) -> None:
    app.conf.update(result_serializer=stored.serializer, accept_content=[stored.serializer])
    assert app.store is not None
    app.store.put([Result("tid", stored.state, stored.data)])
    result = app.AsyncResult("tid")
    if stored.state == "SUCCESS":
        assert result.get(timeout=5) == {"a": [1, "é"]}
    else:
        assert result.traceback == "tb"
        with pytest.raises(ValueError, match="no") as caught:
            result.get(timeout=5)
        assert caught.value.args == ("no", 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0celery-compressed\0",
        b"\0celery-compressed\0application/zstd\0x",
        b"\x80\x04.",
        b"{",
    ],
)
@pytest.mark.parametrize("serializer", ["json", "msgpack", "yaml", "pickle"])
def test_a_damaged_result_is_said_to_be_one(app: Umbel, serializer: str, data: bytes) -> None:
    app.conf.update(result_serializer=serializer, accept_content=[serializer])
    assert app.store is not None
    app.store.put([Result("tid", "SUCCESS", data)])
    with pytest.raises(BackendGetMetaError):
        app.AsyncResult("tid").get(timeout=5)


def test_what_a_result_can_not_be_stored_as_is_named(app: Umbel) -> None:
    app.conf.result_serializer = "msgpack"
    with pytest.raises(EncodeError, match=r"^return value\[0\]: .* can't be sent as msgpack"):
        put(app, "one", "SUCCESS", [{1}])


# Signing.


@pytest.fixture
def signing(tmp_path: Path, clock: ManualClock) -> Iterator[Umbel]:
    alice = make_signer(tmp_path, "alice", days=100_000)
    with Umbel(
        "signing",
        broker=f"memory://signing-{tmp_path.name}",
        clock=clock,
        task_serializer="auth",
        accept_content=["auth"],
        security_key=str(alice.key),
        security_certificate=str(alice.certificate),
        security_cert_store=str(tmp_path),
    ) as app:
        yield app


def test_setup_security(signing: Umbel) -> None:
    with pytest.raises(ImproperlyConfigured, match="no serializer 'auth'"):
        signing.send_task("proj.t", [1])
    signing.setup_security()
    signing.send_task("proj.t", [1])
    message = only(signing)
    assert kind(message) == ("application/data", "utf-8", None)
    assert lease(signing).args == [1]
    signing.send_task("proj.t", [1], serializer="json")
    with pytest.raises(DecodeError, match="accepted: application/data"):
        lease(signing)


def test_other_apps_do_not_sign(signing: Umbel, app: Umbel) -> None:
    signing.setup_security()
    with pytest.raises(ImproperlyConfigured, match="no serializer 'auth'"):
        app.send_task("proj.t", serializer="auth")


def test_signed_messages_and_their_signals(
    signing: Umbel, published: list[tuple[str, Any]]
) -> None:
    signing.setup_security()
    signing.send_task("proj.t", [1], {})
    assert published[1][1] == ([1], {"added": 1}, dict(NO_EMBED))


def test_typed_arguments_are_signed(signing: Umbel) -> None:
    signing.setup_security(serializer="msgpack")

    @signing.task
    def task(point: Point, key: UUID) -> None: ...

    task.delay(Point(1), UUID(int=1))
    assert lease(signing).args == [{"x": 1, "y": 0}, "00000000-0000-0000-0000-000000000001"]


def test_results_can_be_signed(signing: Umbel) -> None:
    signing.setup_security()
    put(signing, "plain", "SUCCESS", 1)
    signing.conf.result_serializer = "auth"
    put(signing, "signed", "SUCCESS", 2)
    assert signing.AsyncResult("signed").get(timeout=5) == 2
    assert signing.AsyncResult("plain").get(timeout=5) == 1


def test_setup_security_refuses_what_would_not_protect(signing: Umbel, app: Umbel) -> None:
    with pytest.raises(ImproperlyConfigured, match="task_serializer='auth' and accept_content"):
        app.setup_security()
    signing.conf.update(accept_content=["auth", "json"])
    with pytest.raises(ImproperlyConfigured, match="nothing unsigned is sent or run"):
        signing.setup_security()
    signing.conf.update(accept_content=["auth"])
    del signing.conf.security_cert_store
    with pytest.raises(ImproperlyConfigured, match="signing needs security_cert_store"):
        signing.setup_security()


@pytest.mark.setting(
    "security_cert_store",
    "security_certificate",
    "security_digest",
    "security_key",
    "security_key_password",
)
def test_security_settings_and_arguments(signing: Umbel, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    bob = make_signer(elsewhere, "bob", password=b"secret", days=100_000)
    signing.conf.update(
        security_key=str(bob.key),
        security_certificate=str(bob.certificate),
        security_digest="sha512",
    )
    with pytest.raises(ImproperlyConfigured, match="security_key_password"):
        signing.setup_security()
    signing.conf.security_key_password = "secret"
    signing.setup_security()
    signing.send_task("proj.t", [1])
    with pytest.raises(Exception, match="whose certificate isn't in security_cert_store"):
        lease(signing)
    signing.setup_security(store=str(elsewhere))
    signing.send_task("proj.t", [1])
    message = only(signing)
    assert lease(signing).args == [1]
    signing.conf.security_digest = "sha256"
    signing.setup_security(store=str(elsewhere))
    with pytest.raises(Exception, match="security_digest"):
        signing.call_reader().call(message)


def test_what_signing_needs_is_loaded_by_who_signs_alone() -> None:
    code = (
        "import sys, umbel; print(*{'cryptography', 'yaml', 'pickle', 'lzma', 'bz2', 'brotli', "
        "'umbel.security', 'pydantic'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
