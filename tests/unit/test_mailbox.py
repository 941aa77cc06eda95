"""Commands and answers as they travel, read with patience."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from msgspec.structs import replace

from umbel.exceptions import DecodeError
from umbel.mailbox import (
    Audience,
    Command,
    ReplyTo,
    pack_answer,
    pack_command,
    read_answer,
    read_command,
)
from umbel.serialization import JSON, find_serializer
from umbel.serializers import Serializer

JSON_ALONE = {JSON.content_type: JSON}
TO = ReplyTo("reply.celery.pidbox", "key")


def envelope(body: object, headers: object = None, properties: object = None) -> bytes:
    """As Celery's client writes it."""
    encoded = base64.b64encode(json.dumps(body).encode()).decode()
    return json.dumps(
        {
            "body": encoded,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {} if headers is None else headers,
            "properties": {} if properties is None else properties,
        }
    ).encode()


PING = {
    "method": "ping",
    "arguments": {},
    "destination": ["a@h"],
    "pattern": None,
    "matcher": None,
    "ticket": "t",
    "reply_to": {"exchange": "reply.celery.pidbox", "routing_key": "oid"},
}


def test_what_celery_sends_is_read() -> None:
    headers = {"clock": 7, "expires": 1234.5}
    command = read_command(envelope(PING, headers, {"delivery_tag": "tag"}), JSON_ALONE)
    assert command == Command(
        "ping",
        audience=Audience(["a@h"]),
        ticket="t",
        reply_to=ReplyTo("reply.celery.pidbox", "oid"),
        expires_at=1234.5,
        tag="tag",
    )


def test_what_is_sent_is_celerys() -> None:
    command = Command("revoke", {"task_id": ["a"]}, Audience(None, "w*", "glob"), tag="tag")
    sent = json.loads(pack_command(replace(command, is_logged=True), "shop", JSON))
    assert json.loads(base64.b64decode(sent["body"])) == {
        "method": "revoke",
        "arguments": {"task_id": ["a"]},
        "destination": None,
        "pattern": "w*",
        "matcher": "glob",
    }
    assert sent["headers"]["clock"] == sent["headers"]["expires"] == 0
    assert sent["properties"]["delivery_info"] == {"exchange": "shop.pidbox", "routing_key": ""}
    assert sent["properties"]["delivery_tag"] == "tag"
    assert read_command(json.dumps(sent).encode(), JSON_ALONE) == replace(command, is_logged=True)


def test_an_answer_carries_the_ticket() -> None:
    packed = pack_answer("w@h", {"ok": "pong"}, "t", TO, "tag", JSON)
    assert json.loads(packed)["headers"] == {"ticket": "t", "clock": 0}
    assert read_answer(packed, "t", JSON_ALONE) == {"w@h": {"ok": "pong"}}
    assert read_answer(packed, "other", JSON_ALONE) is None
    assert read_answer(envelope([], {"ticket": "t"}), "t", JSON_ALONE) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"{}",
        envelope([]),
        envelope({}),
        envelope({"method": 1}),
        envelope({"method": "ping", "arguments": []}),
        envelope({"method": "ping", "destination": [1]}),
        envelope({**PING, "reply_to": "key"}),
        envelope(PING).replace(b"application/json", b"application/x-python-serialize"),
    ],
)
def test_what_isnt_a_command_is_one_error(payload: bytes) -> None:
    with pytest.raises(DecodeError):
        read_command(payload, JSON_ALONE)


@pytest.mark.parametrize("expires", [None, 0, "soon", [], -1.0])
def test_a_command_without_an_end_is_never_late(expires: Any) -> None:
    command = read_command(
        envelope({**PING, "destination": "a@h"}, {"expires": expires}), JSON_ALONE
    )
    assert not command.is_late(1e12)
    assert command.audience.has("a@h")
    assert not command.audience.has("a")


def test_clocks_may_differ_by_a_minute() -> None:
    command = Command("ping", expires_at=1000.0)
    assert not command.is_late(1059.0)
    assert command.is_late(1061.0)


def test_a_command_without_a_tag_has_that_of_its_content() -> None:
    one, same, other = (
        read_command(envelope({"method": method}), JSON_ALONE).tag for method in ("a", "a", "b")
    )
    assert one == same != other


@pytest.mark.parametrize(
    ("audience", "has"),
    [
        (Audience(), ["one@h", "two@h"]),
        (Audience(["two@h"], "one*"), ["two@h"]),
        (Audience([]), []),
        (Audience(None, "o*"), ["one@h"]),
        (Audience(None, "*h", "glob"), ["one@h", "two@h"]),
        (Audience(None, "t.o", "pcre"), ["two@h"]),
    ],
)
def test_whom_a_command_is_for(audience: Audience, has: list[str]) -> None:
    assert [node for node in ("one@h", "two@h") if audience.has(node)] == has


@pytest.mark.parametrize("audience", [Audience(None, "(", "pcre"), Audience(None, "x", "sql")])
def test_a_pattern_that_cant_be_one(audience: Audience) -> None:
    with pytest.raises(DecodeError):
        audience.has("w@h")


@pytest.mark.parametrize("name", ["pickle", "yaml", "msgpack"])
def test_commands_are_of_the_serializer_of_tasks(name: str) -> None:
    serializer: Serializer = find_serializer(name)
    packed = pack_command(Command("ping", tag="tag"), "celery", serializer)
    accepted = {**JSON_ALONE, serializer.content_type: serializer}
    assert read_command(packed, accepted) == Command("ping", tag="tag")
    with pytest.raises(DecodeError, match="isn't accepted here"):
        read_command(packed, JSON_ALONE)
