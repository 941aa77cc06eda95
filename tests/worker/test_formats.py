"""Serializers, compression, signing and typed arguments through a real worker."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.unit.golden_bodies import ARGS, BODIES, KWARGS
from tests.unit.signers import make_signer
from tests.worker import formats_app
from tests.worker.formats_app import Colour, Order
from tests.worker.harness import Worker, until
from tests.worker.living import Place

from umbel import Umbel, states
from umbel.exceptions import EncodeError
from umbel.message import Message, Posting

APP = "tests.worker.formats_app"
ORDER = Order(UUID(int=7), Decimal("1.10"), Colour.RED, (Path("/a"),), frozenset({"x"}))


@pytest.fixture
def app(place: Place) -> Iterator[Umbel]:
    """The workers' app, as a client of theirs."""
    app = formats_app.app
    app.conf.broker_url = place.url
    yield app
    app.close()
    del app.conf.broker_url


def start(place: Place, **settings: Any) -> Worker:
    """A worker with these settings, which the place's client has, too."""
    place.app.conf.update(settings)
    env = {"SETTINGS": json.dumps(settings), "C_FORCE_ROOT": "1"}
    return place.worker("-c", "1", app=APP, env=env)


def dead_of(place: Place, task_id: str) -> Any:
    return until(lambda: place.app.dead.get(task_id), what=f"a dead letter; {place.logs()}")


def test_typed_arguments(place: Place, app: Umbel) -> None:
    worker = start(place, accept_content=["json", "msgpack"])
    result = formats_app.kinds.delay(ORDER, Path("a"), colours={Colour.RED})
    assert result.get(timeout=30) == ["Order", "PosixPath", "set"]
    assert formats_app.kinds.delay(None).get(timeout=30) == ["NoneType", "NoneType"]
    assert formats_app.total.delay(ORDER).get(timeout=30) == "1.10"
    assert formats_app.again.delay(ORDER).get(timeout=30) == "2.10"
    # Handlers and signals see what the message holds.
    assert place.counts("prerun") == {"dict": 4, "NoneType": 1}
    assert worker.stop() == 0, worker.text


MADE = {
    "id": UUID(int=7),
    "total": Decimal("1.10"),
    "colour": "red",
    "files": ["/a"],
    "tags": ["x"],
}


def test_typed_return_values(place: Place, app: Umbel) -> None:
    """What is annotated is made plain: for whoever waits, for handlers, for what follows."""
    place.worker("-c", "1", app=APP)
    result = place.send("formats.made", 7)
    assert result.get(timeout=20) == MADE
    store = place.app.store
    assert store is not None
    (kept,) = store.get([result.id])
    assert kept is not None
    plain = json.loads(kept.meta)["result"]
    assert (plain["colour"], plain["files"], plain["tags"]) == ("red", ["/a"], ["x"])
    assert place.send("formats.made_later", 1).get(timeout=20) == ["red"]
    assert place.send("formats.made_later", 0).get(timeout=20) is None
    following = formats_app.made.s(7) | formats_app.total.s()
    assert following.delay().get(timeout=20) == "1.10"
    with pytest.raises(EncodeError, match="return value"):
        place.send("formats.made_untyped", 7).get(timeout=20)


def test_a_return_value_that_can_not_be_made_plain_is_a_failure(place: Place) -> None:
    place.worker("-c", "1", app=APP)
    result = place.send("formats.made_of_what_is_not_plain")
    with pytest.raises(TypeError, match=r"value is \[<object .* can't be made plain") as said:
        result.get(timeout=20)
    assert "list[" in str(said.value)
    assert result.retries in (0, None)  # another try would not be plain either
    assert "can't be made plain" in dead_of(place, result.id).reason


def test_an_argument_that_does_not_fit_is_no_case_for_another_try(place: Place) -> None:
    worker = start(place)
    wrong = place.send("formats.strict", "no key at all")
    with pytest.raises(TypeError, match="the argument 'key' is 'no key at all', which isn't UUID"):
        wrong.get(timeout=30)
    assert wrong.state == states.FAILURE
    dead = dead_of(place, wrong.id)
    assert dead.error == "TypeError"
    assert "the argument 'key'" in dead.reason
    right = str(UUID(int=1))
    assert place.send("formats.strict", right).get(timeout=30) == right
    assert place.counts("ran") == {right: 1}
    assert place.counts("prerun") == {"str": 2}
    assert place.counts("postrun") == {"FAILURE": 1, "SUCCESS": 1}
    assert place.send("formats.loose", "no key at all").get(timeout=30) == "str"
    assert worker.stop() == 0, worker.text


@pytest.mark.setting("accept_content")
def test_every_accepted_kind_of_message_runs_and_no_other(place: Place) -> None:
    place.send("formats.echo", "template")
    (template,) = place.broker.peek("celery", 1)
    assert isinstance(template, Message)
    place.broker.purge(["celery"])
    worker = start(place, accept_content=["json", "yaml", "msgpack", "own"])
    sent = {}
    for number, body in enumerate(BODIES):
        message = msgspec.structs.replace(
            template,
            body=body.data,
            content_type=body.content_type,
            content_encoding=body.content_encoding,
            headers={
                **template.headers,
                "task": "t.add",
                "id": f"body-{number}",
                **({"compression": body.header} if body.header else {}),
            },
        )
        place.broker.publish([Posting(message, "celery")])
        sent[f"body-{number}"] = body
    own = place.send("formats.echo", [1], serializer="own", compression="bzip2")
    assert own.get(timeout=30) == [1]
    refused = {
        task_id: body for task_id, body in sent.items() if body.serializer in ("pickle", "auth")
    }
    for task_id in sent.keys() - refused.keys():
        assert place.app.AsyncResult(task_id).get(timeout=30) == [ARGS, KWARGS]
    for task_id, body in refused.items():
        dead = dead_of(place, task_id)
        assert dead.error == "DecodeError"
        assert f"content of type {body.content_type!r} isn't accepted here" in dead.reason
        assert "accept_content" in dead.reason
    assert place.counts("rejected") == {"DecodeError": len(refused)}
    assert worker.stop() == 0, worker.text
    assert "Traceback" not in worker.text


def test_a_bomb_is_a_dead_letter(place: Place) -> None:
    place.app.conf.task_max_message_size = 10_000_000
    bomb = place.send("formats.echo", "x" * 50_000_000, compression="bzip2")
    worker = start(place, task_max_message_size=100_000)
    place.send("formats.echo", "after").get(timeout=30)
    dead = dead_of(place, bomb.id)
    assert dead.error == "DecodeError"
    assert "16 times task_max_message_size; such content isn't read" in dead.reason
    assert place.counts("ran") == {"echo": 1}
    assert worker.stop() == 0, worker.text


def test_pickle_both_ways(place: Place) -> None:
    worker = start(
        place,
        task_serializer="pickle",
        accept_content=["pickle"],
        result_serializer="pickle",
        result_compression="zlib",
    )
    assert place.send("formats.echo", {1, 2}).get(timeout=30) == {1, 2}
    failed = place.send("formats.fail")
    with pytest.raises(KeyError) as caught:
        failed.get(timeout=30)
    assert caught.value.args == ("k", {1, 2})
    assert failed.traceback is not None
    store = place.app.store
    assert store is not None
    (record,) = store.get([failed.id])
    assert record is not None
    assert record.meta.startswith(b"\0celery-compressed\0application/x-gzip\0")
    assert worker.stop() == 0, worker.text


def test_a_result_that_its_serializer_can_not_carry_is_a_failure(place: Place) -> None:
    worker = start(
        place, task_serializer="pickle", accept_content=["pickle"], result_serializer="json"
    )
    refused = place.send("formats.echo", {1, 2})
    with pytest.raises(TypeError, match="return value: object of type set"):
        refused.get(timeout=30)
    assert worker.stop() == 0, worker.text


@pytest.mark.setting("security_cert_store", "security_certificate", "security_key")
def test_signed_messages_alone_are_run(place: Place, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    alice = make_signer(store, "alice", days=100_000)
    settings = {
        "task_serializer": "auth",
        "accept_content": ["auth"],
        "security_key": str(alice.key),
        "security_certificate": str(alice.certificate),
        "security_cert_store": str(store),
    }
    worker = start(place, **settings)
    place.app.setup_security()
    assert place.send("formats.echo", "signed").get(timeout=30) == "signed"
    unsigned = place.send("formats.echo", "unsigned", serializer="json")
    assert "application/json" in dead_of(place, unsigned.id).reason

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    eve = make_signer(elsewhere, "eve", days=100_000)
    place.app.setup_security(key=str(eve.key), cert=str(eve.certificate))
    forged = place.send("formats.echo", "forged")
    dead = dead_of(place, forged.id)
    assert dead.error == "SecurityError"
    assert "whose certificate isn't in security_cert_store" in dead.reason
    assert place.counts("ran") == {"echo": 1}
    assert place.counts("rejected") == {"DecodeError": 1, "SecurityError": 1}
    assert worker.stop() == 0, worker.text


def test_root_reads_no_pickle(place: Place) -> None:
    env = {"SETTINGS": json.dumps({"accept_content": ["pickle"]}), "C_FORCE_ROOT": ""}
    worker = place.worker("-c", "1", app=APP, env=env, ready=False)
    if os.geteuid() == 0:
        assert worker.process.wait(30) != 0
        assert "this worker runs as root" in worker.text
    else:
        until(lambda: " ready." in worker.text, what="it is ready")
        assert worker.stop() == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accept_content": ["msgpak"]}, "no serializer 'msgpak' is known here"),
        ({"result_serializer": "jason"}, "did you mean 'json'?"),
        ({"task_serializer": "auth"}, "before setup_security() set task_serializer='auth' and"),
    ],
)
def test_a_worker_that_could_not_read_does_not_start(
    place: Place, settings: dict[str, Any], said: str
) -> None:
    worker = place.worker("-c", "1", app=APP, env={"SETTINGS": json.dumps(settings)}, ready=False)
    assert worker.process.wait(30) != 0
    assert said in worker.text
    assert "Traceback" not in worker.text
