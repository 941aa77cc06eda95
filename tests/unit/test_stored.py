"""Stored results and exceptions: Celery's records, and what a stranger's record can't do."""

from __future__ import annotations

import contextlib
import json
import sys
import types
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

import umbel
from umbel import exceptions, states
from umbel.exceptions import (
    BackendGetMetaError,
    DecodeError,
    EncodeError,
    Reject,
    SecurityError,
    SoftTimeLimitExceeded,
    UmbelError,
)
from umbel.serialization import dumps, loads
from umbel.stored import (
    Meta,
    decode_exception,
    decode_meta,
    encode_exception,
    encode_meta,
    format_traceback,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DONE = "2026-11-30T13:38:54.561379+00:00"


class Picky(Exception):
    """Its constructor doesn't take what it passes on."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}", code)
        self.code = code


class Composed(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(f"no {name}")


class Computed(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]  # what users' classes do all the same
        raise RuntimeError("no args")


class Named(Exception):
    """Has its text from what isn't among its arguments."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def __str__(self) -> str:
        return f"nobody is called {self.name}"


class Fixed(Exception):
    def __str__(self) -> str:
        return "always this"


class Textless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Guarded(Exception):
    def __new__(cls, *args: object) -> Guarded:
        raise RuntimeError("never made")


class Outer:
    class Inner(ValueError):
        pass


class NotAnException:
    made = False

    def __init__(self, *args: object) -> None:
        NotAnException.made = True


def stored_and_read(exc: BaseException) -> BaseException:
    return decode_exception(loads(dumps(encode_exception(exc))))


class TestMeta:
    def test_the_record_that_celery_writes(self) -> None:
        data = encode_meta(
            "t1",
            states.SUCCESS,
            {"a": (1, 2)},
            children=[[["c1", None], None]],
            date_done=DONE,
            group_id="g",
            parent_id="p",
            extended={"name": "app.add", "args": [1], "retries": 0},
        )
        record = json.loads(data)
        assert list(record) == [
            *("status", "result", "traceback", "children", "date_done", "group_id", "parent_id"),
            *("name", "args", "retries", "task_id"),
        ]
        assert record["result"] == {"a": [1, 2]}
        assert decode_meta(data) == Meta(
            task_id="t1",
            status="SUCCESS",
            result={"a": [1, 2]},
            children=[[["c1", None], None]],
            date_done=DONE,
            group_id="g",
            parent_id="p",
            extra={"name": "app.add", "args": [1], "retries": 0},
        )

    def test_a_small_record_has_only_the_fixed_keys(self) -> None:
        data = encode_meta("t1", states.STARTED, {"pid": 1, "hostname": "umbel@h"})
        assert list(json.loads(data)) == [
            *("status", "result", "traceback", "children", "date_done", "task_id")
        ]

    @given(json_values, st.none() | st.text(), st.dictionaries(st.text(), json_values, max_size=2))
    def test_round_trip(self, result: Any, trace: str | None, extra: dict[str, Any]) -> None:
        known = set(Meta.__dataclass_fields__)
        extended = {key: value for key, value in extra.items() if key not in known}
        data = encode_meta("t", "CUSTOM", result, trace, [], None, "g", None, extended)
        assert decode_meta(data) == Meta(
            "t", "CUSTOM", result, trace, [], group_id="g", extra=extended
        )

    def test_a_failure_holds_its_exception(self) -> None:
        meta = decode_meta(encode_meta("t", states.FAILURE, KeyError("k", object()), "Traceback"))
        restored = decode_exception(meta.result)
        assert type(restored) is KeyError
        assert restored.args[0] == "k"
        assert restored.args[1].startswith("<object object at ")

    @given(st.lists(json_values | st.binary() | st.just(object()) | st.just({1}), max_size=3))
    def test_no_exception_is_too_odd_to_be_stored(self, args: list[Any]) -> None:
        deep: Any = []
        for _ in range(298):
            deep = [deep]
        data = encode_meta("t", states.FAILURE, ValueError(*args, deep, 10**5000))
        assert type(decode_exception(decode_meta(data).result)) is ValueError

    def test_a_refused_return_value_names_its_place(self) -> None:
        with pytest.raises(EncodeError, match=r"^return value\['a'\]\[1\]: object of type set"):
            encode_meta("t", states.SUCCESS, {"a": [0, {1}]})
        with pytest.raises(EncodeError, match=r"^return value: object of type ValueError"):
            encode_meta("t", states.SUCCESS, ValueError())
        with pytest.raises(EncodeError, match=r"^meta of state PROGRESS\['a'\]: object of type"):
            encode_meta("t", "PROGRESS", {"a": object()})
        with pytest.raises(EncodeError, match=r"^stored result\['stamp'\]: object of type"):
            encode_meta("t", "PROGRESS", None, extended={"stamp": object()})

    def test_a_date_that_was_stored_as_a_date(self) -> None:
        done = datetime(2026, 11, 30, tzinfo=UTC)
        data = dumps({"task_id": "t", "status": "SUCCESS", "date_done": done})
        assert decode_meta(data).date_done == "2026-11-30T00:00:00+00:00"

    @pytest.mark.parametrize(
        "record",
        [
            1,
            {},
            {"task_id": "t"},
            {"status": "SUCCESS"},
            {"task_id": 1, "status": "SUCCESS"},
            {"task_id": "t", "status": "SUCCESS", "traceback": 1},
            {"task_id": "t", "status": "SUCCESS", "children": {}},
            {"task_id": "t", "status": "SUCCESS", "date_done": 1.5},
        ],
    )
    def test_records_of_another_shape(self, record: Any) -> None:
        with pytest.raises(BackendGetMetaError, match="stored result"):
            decode_meta(json.dumps(record).encode())

    @given(st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
    def test_arbitrary_bytes(self, data: bytes) -> None:
        with contextlib.suppress(BackendGetMetaError):
            decode_meta(data)


class TestExceptions:
    @given(st.lists(json_values, max_size=3))
    def test_classes_and_arguments_come_back(self, args: list[Any]) -> None:
        for kind in (ValueError, KeyError, Outer.Inner, exceptions.TimeoutError, SystemExit):
            original = kind(*args)
            restored = stored_and_read(original)
            assert type(restored) is kind
            assert restored.args == original.args

    @pytest.mark.parametrize(
        ("kind", "module", "name"),
        [
            (UmbelError, "celery.exceptions", "CeleryError"),
            (exceptions.Retry, "celery.exceptions", "Retry"),
            (exceptions.UmbelWarning, "celery.exceptions", "CeleryWarning"),
            (SoftTimeLimitExceeded, "billiard.exceptions", "SoftTimeLimitExceeded"),
            (exceptions.TimeLimitExceeded, "billiard.exceptions", "TimeLimitExceeded"),
            (exceptions.WorkerLostError, "billiard.exceptions", "WorkerLostError"),
            (exceptions.Terminated, "billiard.exceptions", "Terminated"),
            (exceptions.OperationalError, "kombu.exceptions", "OperationalError"),
            (EncodeError, "kombu.exceptions", "EncodeError"),
            (exceptions.RunLost, "umbel.exceptions", "RunLost"),
            (ValueError, "builtins", "ValueError"),
            (Outer.Inner, __name__, "Outer.Inner"),
        ],
    )
    def test_names_on_the_wire(self, kind: type[BaseException], module: str, name: str) -> None:
        stored = encode_exception(kind("a"))
        assert list(stored) == ["exc_type", "exc_message", "exc_module"]
        assert (stored["exc_type"], stored["exc_module"]) == (name, module)
        assert type(decode_exception(stored)) is kind

    def test_celery_offers_the_names_of_its_libraries_too(self) -> None:
        stored = {
            "exc_type": "WorkerLostError",
            "exc_message": [],
            "exc_module": "celery.exceptions",
        }
        assert type(decode_exception(stored)) is exceptions.WorkerLostError

    def test_reject(self) -> None:
        stored = encode_exception(Reject("why", requeue=True))
        assert stored["exc_message"] == ["why", True]
        restored = decode_exception(stored)
        assert isinstance(restored, Reject)
        assert (restored.reason, restored.requeue) == ("why", True)

    def test_a_constructor_that_refuses_is_not_called(self) -> None:
        stored = encode_exception(Picky(code=5))
        restored = decode_exception(stored, "Traceback …\n  at home")
        assert type(restored) is Picky
        assert restored.args == ("code 5", 5)
        assert "code 5" in str(restored)
        (note,) = restored.__notes__
        assert note.startswith("Restored without calling Picky('code 5', 5): TypeError(")
        assert note.endswith("It was raised here:\nTraceback …\n  at home")

    def test_a_text_that_is_in_no_argument_is_kept(self) -> None:
        """As of pydantic's errors, whose class can't be made of arguments either."""

        class Model(pydantic.BaseModel):
            number: int

        with pytest.raises(pydantic.ValidationError) as caught:
            Model.model_validate({"number": "x"})
        text = str(caught.value)
        assert not caught.value.args
        assert encode_exception(caught.value) == {
            "exc_type": "ValidationError",
            "exc_message": [text],
            "exc_module": "pydantic_core._pydantic_core",
        }
        restored = stored_and_read(caught.value)
        assert type(restored).__name__ == "ValidationError"
        assert str(restored) == text

        assert encode_exception(Named(name="ann"))["exc_message"] == ["nobody is called ann"]
        assert encode_exception(Textless())["exc_message"] == []

    @pytest.mark.parametrize("make", [Fixed, ValueError, KeyError, Named])
    def test_a_text_that_the_class_gives_needs_no_argument(
        self, make: Callable[[], Exception]
    ) -> None:
        assert encode_exception(make())["exc_message"] == []
        assert str(stored_and_read(make())) == str(make())

    def test_a_message_is_not_composed_twice(self) -> None:
        assert str(stored_and_read(Composed("fuel"))) == "no fuel"

    def test_classes_with_code_of_their_own(self) -> None:
        assert encode_exception(Computed("x"))["exc_message"] == ["Computed('x')"]
        assert type(stored_and_read(Computed("x"))) is Computed
        stored = {"exc_type": "Guarded", "exc_message": ["m"], "exc_module": __name__}
        restored = decode_exception(stored)
        assert type(restored) is Guarded
        assert restored.args == ("m",)

    @pytest.mark.parametrize(
        "exc",
        [
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            FileNotFoundError(2, "gone"),
            KeyError(),
            StopIteration(3),
            ImportError("m"),
        ],
    )
    def test_built_in_classes(self, exc: Exception) -> None:
        restored = stored_and_read(exc)
        assert type(restored) is type(exc)
        assert str(restored) == str(exc)

    def test_an_exception_group_keeps_its_name_and_text(self) -> None:
        restored = stored_and_read(ExceptionGroup("two", [ValueError("a"), KeyError("b")]))
        assert type(restored).__name__ == "ExceptionGroup"
        assert restored.args == ("two", "[ValueError('a'), KeyError('b')]")

    def test_a_message_that_is_no_list(self) -> None:
        stored = {"exc_type": "ValueError", "exc_message": "text", "exc_module": "builtins"}
        assert decode_exception(stored).args == ("text",)

    @pytest.mark.parametrize("module", [None, "not.loaded.here", __name__, "celery.exceptions"])
    def test_an_unknown_class_becomes_a_new_one(self, module: str | None) -> None:
        before = set(sys.modules)
        stored = {"exc_type": "a.<locals>.Gone", "exc_message": ["m"], "exc_module": module}
        restored = decode_exception(stored)
        assert type(restored).__mro__[1:3] == (Exception, BaseException)
        assert type(restored).__module__ == "umbel.exceptions"
        assert (type(restored).__name__, restored.args) == ("a.<locals>.Gone", ("m",))
        assert set(sys.modules) == before

    @pytest.mark.parametrize(
        ("module", "name"),
        [
            ("os", "system"),
            ("builtins", "eval"),
            ("builtins", "object"),
            ("os", "path"),
            (__name__, "NotAnException"),
            (__name__, "Outer"),
            ("builtins", "ValueError.__init__"),
        ],
    )
    def test_what_is_no_exception_is_never_called(self, module: str, name: str) -> None:
        stored = {"exc_type": name, "exc_message": ["true"], "exc_module": module}
        with pytest.raises(SecurityError, match="not an exception class"):
            decode_exception(stored)
        assert not NotAnException.made

    def test_modules_are_not_asked_to_import(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lazy = types.ModuleType("lazy_home")
        asked: list[str] = []
        lazy.__getattr__ = asked.append  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, "lazy_home", lazy)
        stored = {"exc_type": "Gone", "exc_message": [], "exc_module": "lazy_home"}
        assert type(decode_exception(stored)).__name__ == "Gone"
        assert asked == []

    @pytest.mark.parametrize(
        "stored",
        [
            None,
            "text",
            [],
            {},
            {"exc_type": 1},
            {"exc_type": "A", "exc_module": 1},
            {"exc_type": "a\0b"},
            {"exc_type": "\ud800"},
        ],
    )
    def test_other_shapes(self, stored: Any) -> None:
        with pytest.raises(DecodeError, match="stored exception"):
            decode_exception(stored)

    @given(
        st.sampled_from([*sys.modules, "", "x"]) | st.none(),
        st.text() | st.sampled_from(["ValueError", "Exception", "x.y", "..", "__class__"]),
        json_values,
    )
    def test_any_names_of_a_stranger(self, module: str | None, name: str, message: Any) -> None:
        stored = {"exc_type": name, "exc_message": message, "exc_module": module}
        with contextlib.suppress(SecurityError, DecodeError):
            assert isinstance(decode_exception(stored), BaseException)


class TestTraceback:
    def test_it_begins_at_the_tasks_own_code(self) -> None:
        # A frame of the worker's, made by compiling a caller under a file name inside it.
        folder = Path(umbel.__file__).parent / "worker"
        scope: dict[str, Any] = {}
        source = "def execute(function):\n    return function()\n"
        exec(compile(source, str(folder / "executor.py"), "exec"), scope)

        def task() -> None:
            raise ValueError("mine")

        def raised(function: Any) -> BaseException:
            try:
                scope["execute"](function)
            except Exception as exc:
                trace = exc.__traceback__
                return exc.with_traceback(trace and trace.tb_next)
            raise AssertionError("nothing was raised")

        def runs_another() -> None:
            scope["execute"](task)

        text = format_traceback(raised(task))
        assert text.startswith("Traceback (most recent call last):\n")
        assert text.endswith("ValueError: mine\n")
        assert "in task" in text
        assert "in execute" not in text
        assert format_traceback(raised(runs_another)).count("in execute") == 1
        assert format_traceback(raised(None)).startswith("TypeError: 'NoneType'")

    def test_causes_are_shown(self) -> None:
        exc = ValueError("outer")
        exc.__cause__ = KeyError("inner")
        text = format_traceback(exc)
        assert "KeyError: 'inner'" in text
        assert text.endswith("ValueError: outer\n")

    def test_a_text_that_fails(self) -> None:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("no")

        assert format_traceback(Mute()).endswith("Mute: <exception str() failed>\n")
