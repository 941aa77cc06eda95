"""Every setting of Celery's by its new and by its old name; what its default is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.settings.celerys import CELERYS

from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured
from umbel.settings import CELERY_SETTINGS, SETTINGS, Settings, from_environment
from umbel.settings_kinds import WrongValue

DIFFERENCES = Path(__file__).parents[2] / "docs" / "differences.md"
OTHER_DEFAULTS = {"worker_prefetch_multiplier": None}
BOTH = [(name, old or name.upper()) for name, _, old in CELERYS]
CANDIDATES: tuple[Any, ...] = (
    True, False, 7, 1, "other", ["other"], {"a": 1}, "zlib", "solo", "INFO", "topic", "spawn",
    {"max_retries": 9},
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.LaterSetting")
each = pytest.mark.parametrize(("name", "old"), BOTH)


def another(name: str) -> Any:
    """A value that isn't the default; the default of `task_protocol`, which has no other."""
    setting = SETTINGS[name]
    for value in CANDIDATES:
        try:
            accepted = setting.kind.accept(value)
        except WrongValue:
            continue
        if accepted != setting.default:
            return value
    assert name == "task_protocol"
    return setting.default


def stored(name: str) -> object:
    return SETTINGS[name].kind.accept(another(name))


def test_all_of_celerys_settings_are_known_and_no_more() -> None:
    assert len(BOTH) == 207
    assert {setting.name: setting.old_name for setting in CELERY_SETTINGS} == dict(BOTH)


@pytest.mark.parametrize(("name", "default"), [(name, default) for name, default, _ in CELERYS])
def test_the_default_is_celerys_or_a_listed_difference(name: str, default: object) -> None:
    conf = Settings()
    if name in OTHER_DEFAULTS:
        assert conf[name] == OTHER_DEFAULTS[name] != default
        assert f"`{name}`" in DIFFERENCES.read_text()
    else:
        assert conf[name] == default


@each
def test_the_new_name_sets_it(name: str, old: str) -> None:
    conf = Settings()
    conf.update({name: another(name)})
    assert conf[name] == conf[old] == getattr(conf, name) == getattr(conf, old) == stored(name)
    assert conf.value_set_for(name)
    assert conf.value_set_for(old)


@each
def test_the_old_name_sets_it(name: str, old: str) -> None:
    conf = Settings()
    conf.update({old: another(name)})
    assert conf[name] == stored(name)
    assert set(conf.non_defaults()) <= {name}
    del conf[old]
    assert conf[name] == SETTINGS[name].default
    setattr(conf, old, another(name))
    assert conf[name] == stored(name)


@each
def test_an_object_with_the_old_name_sets_it(name: str, old: str) -> None:
    app = Umbel("proj", set_as_current=False, config_source=SimpleNamespace(**{old: another(name)}))
    assert app.conf[name] == stored(name)


@each
def test_an_object_with_a_namespace_sets_it(name: str, old: str) -> None:
    source = SimpleNamespace(**{f"CELERY_{name.upper()}": another(name)})
    app = Umbel("proj", set_as_current=False, config_source=source, namespace="CELERY")
    assert app.conf[name] == stored(name)


@each
def test_the_name_set_last_wins(name: str, old: str) -> None:
    conf = Settings()
    conf[old] = another(name)
    conf[name] = SETTINGS[name].default
    assert conf[name] == SETTINGS[name].default
    conf[old] = another(name)
    assert conf[name] == stored(name)


@each
def test_both_names_at_once_are_refused(name: str, old: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"setting '{name}' is given twice"):
        Settings().update({name: another(name), old: another(name)})


@each
def test_an_old_name_among_new_ones_is_refused(name: str, old: str) -> None:
    other = "task_serializer" if name != "task_serializer" else "timezone"
    with pytest.raises(ImproperlyConfigured, match="old and new names of settings are mixed") as e:
        Umbel("proj", set_as_current=False, changes={other: "json", old: another(name)})
    assert f"{old} is now {name}" in str(e.value)


@each
def test_what_is_assigned_wins_over_an_object_with_the_old_name(name: str, old: str) -> None:
    app = Umbel("proj", set_as_current=False, config_source={old: another(name)})
    assert app.conf[name] == stored(name)
    app.conf[name] = SETTINGS[name].default
    assert app.conf[name] == SETTINGS[name].default
    app.config_from_object({old: another(name)}, force=True)
    assert app.conf[name] == SETTINGS[name].default


# The environment

TEXTS = (
    "true",
    "false",
    "7",
    "1",
    "other",
    "zlib",
    "solo",
    "INFO",
    "none",
    "topic",
    "low-first",
    "spawn",
)
WORDS = [name for name, setting in SETTINGS.items() if setting.kind.parse is not None]


def in_words(name: str) -> tuple[str, object]:
    """A text for the environment and its value, which isn't the default where there is another."""
    kind = SETTINGS[name].kind
    assert kind.parse is not None
    for text in TEXTS:
        try:
            value = kind.accept(kind.parse(text))
        except ValueError:
            continue
        if value != SETTINGS[name].default:
            return text, value
    assert name == "task_protocol"
    return "2", 2


@pytest.mark.parametrize("name", WORDS)
def test_a_variable_sets_it_above_keywords_and_below_assignments(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, value = in_words(name)
    monkeypatch.setenv(f"UMBEL_{name.upper()}", text)
    default = SETTINGS[name].default
    app = Umbel("proj", set_as_current=False, changes={name: default})
    assert app.conf[name] == value
    app.conf[name] = default
    assert app.conf[name] == default


def test_what_no_word_can_carry_is_not_read() -> None:
    lists = sorted(set(SETTINGS) - set(WORDS))
    assert from_environment({f"UMBEL_{name.upper()}": "x" for name in lists}) == {}
    assert {"imports", "task_routes", "beat_schedule", "database_engine_options"} <= set(lists)
