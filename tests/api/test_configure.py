"""Where settings come from: objects, modules, variables, old names, and what wins."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured, LaterSetting, UnknownSetting


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Writes a module of this name's own with this text; its name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str, suffix: str = "") -> str:
        name = f"conf_of_{request.node.originalname}{suffix}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def new(**more: Any) -> Umbel:
    return Umbel("a", set_as_current=False, **more)


class Production:
    task_acks_late = True
    task_default_queue = "prod"
    helper = staticmethod(len)
    _secret_name = "not a setting"
    banner = "nor this"


def test_an_object(module: Any) -> None:
    app = new()
    app.config_from_object(Production)
    assert (app.conf.task_acks_late, app.conf.task_default_queue) == (True, "prod")
    assert app.conf.non_defaults() == {"task_acks_late": True, "task_default_queue": "prod"}


def test_a_module_by_name_read_when_needed(module: Any) -> None:
    name = module("import os\nfrom math import sin\ntask_acks_late = True\nimports = ['os']\n")
    app = new()
    app.config_from_object(name)
    import sys

    assert name not in sys.modules
    assert app.conf.task_acks_late is True
    assert app.conf.imports == ("os",)
    eager = new()
    eager.config_from_object(module("task_ignore_result = True", "_2"), force=True)
    assert f"{name}_2" in sys.modules
    assert eager.conf.task_ignore_result is True


def test_an_object_in_a_module_by_name(module: Any) -> None:
    name = module("class Prod:\n    class Deep:\n        task_acks_late = True\n")
    for text in (f"{name}:Prod.Deep", f"{name}:Prod.Deep"):
        app = new(config_source=text)
        assert app.conf.task_acks_late is True
    app = new(config_source=module("class Prod:\n    task_default_queue = 'x'\n", "_2") + ".Prod")
    assert app.conf.task_default_queue == "x"


def test_a_dict_has_to_be_known_as_a_whole() -> None:
    app = new(config_source={"task_acks_late": True})
    assert app.conf.task_acks_late is True
    app.config_from_object({"banner": 1})
    with pytest.raises(UnknownSetting, match="'banner'"):
        _ = app.conf
    with pytest.raises(UnknownSetting, match="'banner'"):
        _ = app.conf  # and again: the app isn't half configured


def test_a_misspelt_name_in_an_object_is_told() -> None:
    app = new(config_source=types.SimpleNamespace(task_acks_lat=True))
    with pytest.raises(UnknownSetting, match="did you mean 'task_acks_late'"):
        _ = app.conf


def test_a_namespace() -> None:
    django = types.SimpleNamespace(
        CELERY_TASK_ACKS_LATE=True, CELERY_TIMEZONE="Europe/Oslo", DEBUG=True, task_ignore_result=1
    )
    app = new()
    app.config_from_object(django, namespace="CELERY")
    assert app.conf.non_defaults() == {"task_acks_late": True, "timezone": "Europe/Oslo"}
    assert new(config_source=django, namespace="CELERY").conf.task_acks_late is True
    django.CELERY_TASK_ACK_LATE = True
    app.config_from_object(django, namespace="CELERY")
    with pytest.raises(UnknownSetting, match="task_acks_late"):
        _ = app.conf


def test_old_names() -> None:
    old = types.SimpleNamespace(
        CELERY_ACKS_LATE=True, CELERYD_CONCURRENCY=3, BROKER_URL="memory://o"
    )
    conf = new(config_source=old).conf
    assert (conf.task_acks_late, conf.worker_concurrency, conf.broker_url) == (
        True,
        3,
        "memory://o",
    )
    loose: Any = conf
    assert loose.CELERY_ACKS_LATE is True
    loose.CELERYD_CONCURRENCY = 5
    conf.update({"CELERY_DEFAULT_QUEUE": "q"}, CELERY_IGNORE_RESULT=True)
    assert (conf.worker_concurrency, conf.task_default_queue, conf.task_ignore_result) == (
        5,
        "q",
        True,
    )
    assert new(changes={"CELERY_ACKS_LATE": True}).conf.task_acks_late is True


@pytest.mark.parametrize(
    ("given", "namespace", "text"),
    [
        ({"CELERY_ACKS_LATE": 1, "task_ignore_result": 1}, "", "CELERY_ACKS_LATE is now task_acks"),
        (
            {"CELERY_ACKS_LATE": 1, "CELERY_TASK_IGNORE_RESULT": 1},
            "CELERY",
            "CELERY_ACKS_LATE is now CELERY_TASK_ACKS_LATE",
        ),
        ({"CELERY_ACKS_LATE": 1, "task_acks_late": 1}, "", "'task_acks_late' is given twice"),
    ],
)
def test_old_and_new_names_do_not_mix(given: Any, namespace: str, text: str) -> None:
    app = new(config_source=given, namespace=namespace)
    with pytest.raises(ImproperlyConfigured, match=text):
        _ = app.conf
    if not namespace:
        with pytest.raises(ImproperlyConfigured, match=text):
            new().conf.update(given)


def test_a_module_that_is_not_there(module: Any) -> None:
    app = new()
    app.config_from_object("no_such_settings_module")
    with pytest.raises(ImproperlyConfigured, match="there is no module 'no_such_settings_module'"):
        _ = app.conf
    app.config_from_object("no_such_settings_module", silent=True)
    assert app.conf.non_defaults() == {}
    app.config_from_object(module("import no_such_thing_in_it"), silent=True)
    with pytest.raises(ModuleNotFoundError, match="no_such_thing_in_it"):
        _ = app.conf


def test_a_variable_names_the_module(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    app = new()
    with pytest.raises(ImproperlyConfigured, match="APP_SETTINGS isn't set"):
        app.config_from_envvar("APP_SETTINGS")
    app.config_from_envvar("APP_SETTINGS", silent=True)
    monkeypatch.setenv("APP_SETTINGS", module("task_acks_late = True"))
    app.config_from_envvar("APP_SETTINGS", force=True)
    assert app.conf.task_acks_late is True


def test_what_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UMBEL_TASK_DEFAULT_QUEUE", "environment")
    names = ("task_default_queue", "security_digest", "security_key", "result_keep", "timezone")
    given = {
        "task_default_queue": "object",
        "security_digest": "object",
        "security_key": "object",
        "result_keep": 1,
    }
    app = new(security_digest="keyword", task_default_queue="keyword")
    app.config_from_object(given)
    app.add_defaults({"security_key": "defaults", "timezone": "Asia/Tokyo", "result_keep": 5})
    app.add_defaults(lambda: {"timezone": "Europe/Oslo"})
    app.conf.result_keep = 2
    assert [app.conf[name] for name in names] == [
        "environment",
        "keyword",
        "object",
        2,
        "Europe/Oslo",
    ]
    app.config_from_object({"security_digest": "newer"})
    assert (app.conf.security_key, app.conf.result_keep) == ("defaults", 2)
    del app.conf.result_keep
    del app.conf.security_digest
    assert (app.conf.result_keep, app.conf.security_digest) == (5, "newer")


def test_settings_hold_for_what_is_sent(module: Any) -> None:
    from tests.api.looking import only

    name = module("broker_url = 'memory://from-a-module'\ntask_default_queue = 'm'\n")
    with new(config_source=name) as app:
        app.send_task("x")
        assert only(app, "m").task == "x"


def test_a_settings_module_may_look_at_the_app(module: Any) -> None:
    app = new()
    name = module("import builtins\ntask_acks_late = not builtins.the_app.conf.task_acks_late\n")
    import builtins

    builtins.the_app = app  # type: ignore[attr-defined]
    try:
        app.config_from_object(name)
        assert app.conf.task_acks_late is True
    finally:
        del builtins.the_app  # type: ignore[attr-defined]


def test_what_has_no_effect_warns_wherever_it_comes_from() -> None:
    app = new(config_source={"worker_pool_start_method": "spawn"})
    with pytest.warns(LaterSetting, match="worker_pool_start_method"):
        _ = app.conf


def test_tables() -> None:
    conf = new(broker="redis://me:secret@host/1").conf
    assert conf.table() == {"broker_url": "redis://me:********@host/1"}
    assert conf.table(censored=False) == {"broker_url": "redis://me:secret@host/1"}
    assert conf.humanize() == "broker_url: 'redis://me:********@host/1'"
    assert "task_acks_late: False" in conf.humanize(with_defaults=True).splitlines()
    assert "secret" in conf.humanize(censored=False)
    assert conf.get_by_parts("task", "acks_late") is False
    assert (conf.get("task_acks_late"), conf.get("nothing", 3)) == (False, 3)
    assert (conf.value_set_for("broker_url"), conf.value_set_for("timezone")) == (True, False)
    assert dict(conf)["task_serializer"] == "json"


def test_strict_typing_is_the_default_of_typing() -> None:
    app = new(strict_typing=False, broker="memory://loose")

    @app.task
    def loose(x: int) -> None: ...

    @app.task(typing=True)
    def strict(x: int) -> None: ...

    assert (loose.typing, strict.typing) == (False, True)
