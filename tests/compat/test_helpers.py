"""The helpers of Celery and Kombu that programs use answer as Celery 5.7's and Kombu 5.7's do."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from umbel import Umbel
from umbel.canvas import signature
from umbel.compat import celery, kombu
from umbel.compat.celery import _state, platforms, signals, states
from umbel.compat.celery.app.log import TaskFormatter
from umbel.compat.celery.canvas import maybe_signature
from umbel.compat.celery.local import PromiseProxy, Proxy, maybe_evaluate, try_import
from umbel.compat.celery.utils import functional, imports, nodenames, serialization, time
from umbel.compat.celery.utils.collections import AttributeDict
from umbel.compat.celery.utils.dispatch import Signal
from umbel.compat.celery.utils.log import mlevel
from umbel.compat.celery.utils.saferepr import saferepr
from umbel.compat.kombu.utils import encoding, json, url
from umbel.compat.kombu.utils.functional import LRUCache, dictfilter, lazy
from umbel.compat.kombu.utils.imports import symbol_by_name
from umbel.exceptions import DecodeError, EncodeError

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 3, 1, 12)  # noqa: DTZ001  # what is made aware here


def test_states_in_their_order() -> None:
    names = ["PENDING", "RETRY", "REVOKED", "SUCCESS", "OWN", "FAILURE", "STARTED", "RECEIVED"]
    assert sorted(names, key=states.precedence) == [
        "SUCCESS", "FAILURE", "OWN", "REVOKED", "STARTED", "RECEIVED", "RETRY", "PENDING",
    ]  # fmt: skip
    pending, success = states.state("PENDING"), states.state("SUCCESS")
    assert pending < success
    assert success > pending
    assert pending <= states.state("PENDING") >= pending
    assert not success < pending
    assert max(pending, success) is success


def test_times() -> None:
    assert time.maybe_timedelta(1.5) == timedelta(seconds=1.5)
    assert time.maybe_timedelta(None) is None
    assert time.is_naive(NOON)
    assert not time.is_naive(NOON.replace(tzinfo=UTC))
    assert time.make_aware(NOON, BERLIN).isoformat() == "2026-03-01T12:00:00+01:00"
    assert time.localize(NOON, BERLIN).isoformat() == "2026-03-01T12:00:00+01:00"
    assert time.localize(time.to_utc(NOON), BERLIN).isoformat() == "2026-03-01T13:00:00+01:00"
    assert time.maybe_make_aware(NOON).isoformat() == "2026-03-01T12:00:00+00:00"
    assert time.maybe_make_aware(NOON, BERLIN).isoformat() == "2026-03-01T13:00:00+01:00"
    in_zone = time.maybe_make_aware(NOON, BERLIN, naive_as_utc=False)
    assert in_zone.isoformat() == "2026-03-01T12:00:00+01:00"
    assert time.maybe_make_aware(None) is None
    assert time.maybe_iso8601("2026-03-01T12:00:00") == NOON == time.maybe_iso8601(NOON)
    assert time.maybe_iso8601(None) is None


def test_backoff() -> None:
    waits = [time.get_exponential_backoff_interval(2, n, 60) for n in range(7)]
    assert waits == [2, 4, 8, 16, 32, 60, 60]
    jittered = {time.get_exponential_backoff_interval(1, 1, 60, True) for _ in range(200)}
    assert jittered == {0, 1, 2}


def test_functional() -> None:
    assert list(functional.chunks(iter(range(7)), 3)) == [[0, 1, 2], [3, 4, 5], [6]]
    assert functional.first(None, [None, 1]) == 1
    assert functional.first(lambda x: x > 1, [1, 2]) == 2
    assert functional.first(None, ()) is None
    assert list(functional.uniq([1, 2, 1, 3])) == [1, 2, 3]
    assert (functional.maybe(int, "1"), functional.maybe(int, None)) == (1, None)
    assert functional.padlist(["a"], 3, default="z") == ["a", "z", "z"]
    assert functional.padlist(["a", "b"], 1) == ["a"]
    assert functional.fun_accepts_kwargs(lambda **more: more)
    assert not functional.fun_accepts_kwargs(lambda a: a)
    given: tuple[Any, ...] = (None, 1, "a", [1], (1,), {"a": 1}, b"x")
    listed = [functional.maybe_list(each) for each in given]
    assert listed == [None, [1], ["a"], [1], (1,), [{"a": 1}], b"x"]
    assert dictfilter({"a": None, "b": 1}, c=None, d=2) == {"b": 1, "d": 2}
    calls: list[int] = []

    def double(n: int) -> int:
        calls.append(n)
        return n * 2

    doubled = functional.memoize()(double)
    assert [doubled(2), doubled(2)] == [4, 4]
    assert calls == [2]
    assert functional.noop(1, a=2) is None  # type: ignore[func-returns-value]


def test_a_cache_forgets_what_was_not_used_for_longest() -> None:
    cache: LRUCache[str, int] = LRUCache(limit=2)
    cache["a"], cache["b"] = 1, 2
    assert cache["a"] == 1
    cache["c"] = 3
    assert sorted(cache) == ["a", "c"]
    assert cache.get("b") is None


def test_lazy() -> None:
    late = lazy(lambda x: x + 1, 1)
    assert (late(), late == 2, str(late), repr(late)) == (2, True, "2", "2")
    assert functional.maybe_evaluate(late) == 2
    assert functional.maybe_evaluate(3) == 3


def test_words_for_true_and_false() -> None:
    assert [serialization.strtobool(each) for each in ("yes", "No", "1", "off", True, None)] == [
        True, False, True, False, True, None,
    ]  # fmt: skip
    with pytest.raises(TypeError, match="'maybe' is neither true nor false"):
        serialization.strtobool("maybe")


def test_names_of_workers() -> None:
    assert nodenames.nodename("a", "b") == "a@b"
    assert tuple(nodenames.nodesplit("a@b")) == ("a", "b")
    assert tuple(nodenames.nodesplit("b")) == (None, "b")
    assert nodenames.worker_direct("w@here").name == "w@here.dq2"


def test_objects_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert symbol_by_name("os.path:join") is symbol_by_name("os.path.join") is os.path.join
    assert symbol_by_name("os.path:") is symbol_by_name("os.path.", default=None) is os.path
    assert symbol_by_name(3) == 3
    assert symbol_by_name("cwd", {"cwd": "os:getcwd"}) is os.getcwd
    assert symbol_by_name("nope.nope:x", default=7) == 7
    assert symbol_by_name("os:nope", default=7) == 7
    with pytest.raises(ModuleNotFoundError):
        symbol_by_name("nope.nope")
    with pytest.raises(AttributeError):
        symbol_by_name("os:nope")
    assert imports.qualname(dict) == "builtins.dict" == imports.qualname({})
    assert imports.qualname(LRUCache).endswith(".functional.LRUCache")
    assert imports.instantiate("collections:OrderedDict", a=1) == {"a": 1}
    app = Umbel("names", set_as_current=False)
    assert imports.gen_task_name(app, "add", "__main__") == "names.add"
    (tmp_path / "beside_me.py").write_text("X = 1\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    assert imports.import_from_cwd("beside_me").X == 1
    assert sys.path == before


def test_urls() -> None:
    text = "redis://user:p%40ss@host:6379/1?a=b"
    assert tuple(url.url_to_parts(text)) == (
        "redis", "host", 6379, "user", "p@ss", "1", {"a": "b"},
    )  # fmt: skip
    assert kombu.parse_url("redis://host") == {
        "transport": "redis",
        "hostname": "host",
        "port": None,
        "userid": None,
        "password": None,
        "virtual_host": None,
    }
    assert url.as_url("redis", "h", 1, "u", "p@", "0") == "redis://u:p%40@h:1/0"
    assert url.as_url("redis", "h", 1, "u", "p", "0", sanitize=True) == "redis://u:**@h:1/0"
    assert url.as_url("redis", "h", password="x") == "redis://:x@h/"
    assert url.as_url("amqp", "h") == "amqp://h/"
    assert url.sanitize_url("redis://:secret@h/0") == "redis://:**@h/0"
    assert url.maybe_sanitize_url("redis://u:secret@h/0") == "redis://u:**@h/0"
    assert url.maybe_sanitize_url("host") == "host"
    assert url.safequote("a/b@") == "a%2Fb%40"


def test_json_as_it_travels() -> None:
    value = {"a": [1, NOON.replace(tzinfo=UTC)], "b": b"raw"}
    assert isinstance(json.dumps(value), str)
    assert json.loads(json.dumps(value)) == json.loads(json.dumps(value).encode()) == value
    with pytest.raises(EncodeError):
        json.dumps(object())
    with pytest.raises(DecodeError):
        json.loads("{")


def test_text_and_bytes() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    assert encoding.str_to_bytes("ä") == "ä".encode()
    assert encoding.bytes_to_str("ä".encode()) == "ä"
    assert encoding.bytes_to_str(b"\xff") == "�"
    assert encoding.safe_str(b"a") == "a"
    assert encoding.safe_str(1) == "1"
    assert "Broken" in encoding.safe_str(Broken())
    assert saferepr([1, "a", {"b": (1, 2)}]) == "[1, 'a', {'b': (1, 2)}]"
    assert len(saferepr("x" * 50, maxlen=20)) <= 24
    assert (mlevel("info"), mlevel(20), mlevel(None)) == (20, 20, None)


def test_proxies() -> None:
    asked: list[int] = []

    def make() -> list[int]:
        """A list."""
        asked.append(1)
        return [7]

    each, once = Proxy(make), PromiseProxy(make)
    assert each == [7] == list(each)
    assert len(asked) >= 2
    asked.clear()
    assert once[0] == 7
    found: object = once.__class__
    assert found is list
    assert maybe_evaluate(once) == [7]
    assert asked == [1]
    assert maybe_evaluate(3) == 3
    assert Proxy(lambda: make).__doc__ == "A list."
    assert try_import("nope_nope") is None
    assert try_import("os") is os


def test_signatures_that_may_be_dicts() -> None:
    app = Umbel("canvas", broker="memory://", set_as_current=False)
    made = signature("add", (1,), app=app)
    assert maybe_signature(None) is None
    assert maybe_signature(made) is made
    copy = maybe_signature(made, clone=True)
    assert copy == made
    assert copy is not made
    again = maybe_signature(dict(made), app=app)
    assert again == made
    assert celery.subtask is celery.signature


def test_signals_of_a_program() -> None:
    heard: list[object] = []
    sold = Signal(providing_args=["order"], name="sold")

    @sold.connect
    def hear(sender: object, **named: object) -> None:
        heard.append((sender, named["order"]))

    sold.send(sender="till", order=7)
    assert heard == [("till", 7)]
    assert sold.name == "sold"
    assert Signal(["order"]).providing_args == {"order"}
    assert Signal.__base__ is type(signals.task_prerun)


def test_the_task_of_a_worker_is_not_one_that_is_called_like_a_function() -> None:
    app = Umbel("state", broker="memory://", set_as_current=False)
    seen: list[object] = []

    @app.task
    def inner() -> None:
        seen.extend((_state.get_current_task(), _state.get_current_worker_task()))

    @app.task
    def outer() -> None:
        inner()

    outer.apply()
    assert seen == [inner, outer]
    assert _state.get_current_worker_task() is None


def test_small_things() -> None:
    box = AttributeDict(a=1)
    box.b = 2
    assert (box.a, box["b"]) == (1, 2)
    with pytest.raises(AttributeError, match="no key 'c'"):
        _ = box.c
    assert platforms.signal_name(15) == "SIGTERM"
    assert not platforms.isatty(object())
    assert len(celery.uuid()) == 36
    assert celery.uuid() != celery.uuid()
    assert celery.VERSION[:3] == (5, 7, 0)
    assert TaskFormatter("%(task_name)s", use_color=False)._fmt == "%(task_name)s"
