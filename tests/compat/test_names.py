"""Every public name of Celery 5.7 and Kombu 5.7: here, or an error that says what to use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import umbel
import umbel.result
import umbel.signals
import umbel.states
from umbel import exceptions
from umbel.compat import missing
from umbel.compat.names import MODULES, NAMES
from umbel.exceptions import NotProvided

LIST = Path(__file__).parent / "celery_5_7_names.txt"
HOME = "umbel.compat."


def listed() -> dict[str, list[str]]:
    """The marked names of each module."""
    modules: dict[str, list[str]] = {}
    for line in LIST.read_text().splitlines():
        if line.startswith(" "):
            modules[list(modules)[-1]] += line.split()
        elif line and not line.startswith("#"):
            modules[line] = []
    return modules


ALL = listed()


def imported(module: str, name: str) -> object:
    """What ``from module import name`` gives."""
    found: dict[str, object] = {}
    exec(f"from {HOME}{module} import {name} as found", found)
    return found["found"]


def marked(mark: str) -> Iterator[tuple[str, str]]:
    for module, names in ALL.items():
        yield from ((module, name[1:]) for name in names if name[0] == mark)


def test_the_list_is_whole() -> None:
    assert len(ALL) > 180
    assert sum(map(len, ALL.values())) > 1000
    assert {name[0] for names in ALL.values() for name in names} == {"+", "-"}


@pytest.mark.parametrize("module", ALL)
def test_every_public_module_can_be_imported(module: str) -> None:
    found = importlib.import_module(HOME + module)
    assert found.__name__ == HOME + module
    # What it says that it has, it has.
    exec(f"from {HOME}{module} import *", {})


def test_a_name_that_is_here() -> None:
    here = list(marked("+"))
    assert len(here) > 250
    for module, name in here:
        found = imported(module, name)
        assert getattr(importlib.import_module(HOME + module), name) is found, (module, name)


def test_a_name_that_is_missing_says_what_to_use() -> None:
    for module, name in marked("-"):
        of = importlib.import_module(HOME + module)
        assert not hasattr(of, name), (module, name)
        sentence = f"{module}.{name} isn't in Umbel: "
        with pytest.raises(NotProvided) as read:
            getattr(of, name)
        assert str(read.value).startswith(sentence)
        assert len(str(read.value)) > len(sentence) + 15
        with pytest.raises(ImportError) as error:
            imported(module, name)
        assert str(error.value) == str(read.value)


def test_a_submodule_that_is_missing_can_be_caught() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"Umbel's celery\.app has no 'nope'"):
        importlib.import_module("umbel.compat.celery.app.nope")


def test_a_misspelt_name() -> None:
    for module, name, meant in (
        ("celery", "shared_tasks", "'shared_task'"),
        ("celery.result", "AsyncResults", "'AsyncResult'"),
        ("celery.signals", "task_preruns", "'task_prerun'"),
        ("kombu", "Queues", "'Queue'"),
    ):
        sentence = rf"Umbel's {module} has no '{name}'; did you mean {meant}"
        with pytest.raises(ImportError, match=sentence):
            imported(module, name)
        with pytest.raises(NotProvided, match=sentence):
            getattr(importlib.import_module(HOME + module), name)
    with pytest.raises(ImportError, match=r"has no 'zzz'; it has: AsyncResult, EagerResult"):
        imported("celery.result", "zzz")


def test_advice_is_for_names_that_celery_has() -> None:
    assert set(MODULES) <= set(ALL)
    known = {f"{module}.{name}" for module, name in marked("-")}
    assert set(NAMES) <= known, set(NAMES) - known


def test_names_that_a_later_release_brings_name_it() -> None:
    for name, release in (
        ("celery.schedules.crontab", "'Scheduler'"),
        ("celery.beat.PersistentScheduler", "'Scheduler'"),
        ("celery.result.ResultBase", "'Workflows'"),
        ("celery.events.EventReceiver", "'Events and remote control'"),
        ("celery.app.control.flatten_reply", "'Events and remote control'"),
        ("celery.backends.redis.RedisBackend", "'Redis'"),
    ):
        assert release in missing.why_missing(name)


def test_dunder_names_are_nobodys() -> None:
    with pytest.raises(AttributeError, match="__nothing__") as error:
        _ = importlib.import_module("umbel.compat.celery").__nothing__
    assert not isinstance(error.value, NotProvided)


@pytest.mark.parametrize("name", ["group", "chord", "chunks", "xmap", "xstarmap"])
def test_groups_and_chords_raise_when_they_are_called(name: str) -> None:
    for module in ("celery", "celery.canvas"):
        found = imported(module, name)
        assert found is getattr(umbel, name)
        assert callable(found)
        with pytest.raises(exceptions.ImproperlyConfigured, match="'Workflows'"):
            found()


def test_the_results_of_a_group_raise_when_they_are_made() -> None:
    found: Any = imported("celery.result", "GroupResult")
    assert found is umbel.result.GroupResult is umbel.Umbel.GroupResult
    app = umbel.Umbel("groups", broker="memory://", set_as_current=False)
    several = umbel.result.ResultSet([app.AsyncResult("a")], app)
    for each in (app.AsyncResult("id"), several):
        assert not isinstance(each, found)
    assert umbel.result.ResultSet in found.__mro__
    mine: Any = type("Mine", (found,), {})
    for call in (found, found.restore, app.GroupResult, mine):
        with pytest.raises(exceptions.ImproperlyConfigured, match="'Workflows'"):
            call()
        with pytest.raises(exceptions.ImproperlyConfigured, match="'Workflows'"):
            call("id", [])


def test_signals_states_and_exceptions_are_umbels_own() -> None:
    for module, own, least in (
        ("celery.signals", umbel.signals, 34),
        ("celery.states", umbel.states, 14),
        ("celery.exceptions", exceptions, 38),
    ):
        theirs = importlib.import_module(HOME + module)
        same = [name for name in theirs.__all__ if hasattr(own, name) and name != "Signal"]
        assert len(same) >= least
        assert set(theirs.__all__) - set(same) <= {"precedence", "state", "reraise", "Signal"}
        for name in same:
            assert getattr(theirs, name) is getattr(own, name)
    kombu = importlib.import_module("umbel.compat.kombu.exceptions")
    assert kombu.OperationalError is exceptions.OperationalError
    assert issubclass(exceptions.OperationalError, kombu.KombuError)
    assert issubclass(exceptions.EncodeError, kombu.KombuError)


def test_loggers_are_umbels() -> None:
    log = importlib.import_module("umbel.compat.celery.utils.log")
    logger = log.get_task_logger("proj.tasks")
    assert logger.parent is log.task_logger
    assert [each.name for each in (log.base_logger, log.task_logger, log.worker_logger)] == [
        "umbel",
        "umbel.task",
        "umbel.worker",
    ]


def test_exceptions_of_kombu_catch_umbels() -> None:
    kombu = importlib.import_module("umbel.compat.kombu.exceptions")
    serialization = importlib.import_module("umbel.compat.kombu.serialization")
    content_type, encoding, body = serialization.dumps({"a": 1}, "pickle")
    with pytest.raises(kombu.ContentDisallowed, match="isn't accepted here"):
        serialization.loads(body, content_type, encoding)
    assert serialization.loads(body, content_type, encoding, accept=["pickle"]) == {"a": 1}
    with pytest.raises(kombu.EncodeError):
        serialization.dumps(object())
    with pytest.raises(kombu.DecodeError):
        serialization.loads(b"{", "application/json")
    with pytest.raises(kombu.SerializerNotInstalled):
        serialization.loads(b"", "application/x-unknown")
    assert serialization.loads(*(serialization.dumps([1])[i] for i in (2, 0, 1))) == [1]
