"""The registry of settings, the checks of their values, and what is shown of them."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import ImproperlyConfigured, LaterSetting, UnknownSetting
from umbel.settings import (
    CELERY_SETTINGS,
    SETTINGS,
    UMBEL_SETTINGS,
    UNDECLARED_CELERY_SETTINGS,
    Setting,
    Settings,
    State,
    censored,
    from_environment,
    resolve_acks_on_failure,
    resolve_acks_on_timeout,
)

NAMES = st.sampled_from(sorted(SETTINGS))
HONOURED = sorted(n for n, s in SETTINGS.items() if s.state is State.HONOURED)
OWN = "Values of your own belong in a module of your own"
WARNED = sorted(n for n, s in SETTINGS.items() if s.warns)


def set_quietly(conf: Settings, name: str, value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LaterSetting)
        conf[name] = value


# The registry


def test_every_celery_setting_is_known_once() -> None:
    assert len(CELERY_SETTINGS) == 207
    assert len({s.name for s in CELERY_SETTINGS}) == 207
    assert len({s.old_name for s in CELERY_SETTINGS}) == 207
    assert len(SETTINGS) == 207 + len(UNDECLARED_CELERY_SETTINGS) + len(UMBEL_SETTINGS)
    assert list(SETTINGS) == sorted(SETTINGS)


@pytest.mark.parametrize(
    ("name", "old_name", "default"),
    [
        ("accept_content", "CELERY_ACCEPT_CONTENT", ("json",)),
        ("beat_schedule", "CELERYBEAT_SCHEDULE", {}),
        ("broker_url", "BROKER_URL", None),
        ("cassandra_table", "CASSANDRA_TABLE", None),
        ("database_url", "CELERY_RESULT_DBURI", None),
        ("redis_socket_timeout", "CELERY_REDIS_SOCKET_TIMEOUT", 120.0),
        ("result_backend_max_retries", "CELERY_RESULT_BACKEND_MAX_RETRIES", float("inf")),
        ("result_cache_max", "CELERY_MAX_CACHED_RESULTS", -1),
        ("result_expires", "CELERY_TASK_RESULT_EXPIRES", 86_400.0),
        ("task_acks_late", "CELERY_ACKS_LATE", False),
        ("task_compression", "CELERY_MESSAGE_COMPRESSION", None),
        ("task_default_queue", "CELERY_DEFAULT_QUEUE", "celery"),
        ("task_time_limit", "CELERYD_TASK_TIME_LIMIT", None),
        ("worker_concurrency", "CELERYD_CONCURRENCY", None),
        ("worker_direct", "CELERY_WORKER_DIRECT", False),
        ("worker_send_task_events", "CELERY_SEND_EVENTS", False),
    ],
)
def test_a_handful_of_celery_settings(name: str, old_name: str, default: object) -> None:
    setting = Settings().describe(name)
    assert (setting.name, setting.old_name, setting.default) == (name, old_name, default)


def test_umbel_settings_and_their_defaults() -> None:
    assert {s.name: s.default for s in UMBEL_SETTINGS} == {
        "worker_lease_time": 30.0,
        "task_max_redeliveries": 3,
        "task_dead_letters": True,
        "dead_letters_max_count": 10_000,
        "dead_letters_max_age": 1_209_600.0,
        "dead_letters_max_bytes": 67_108_864,
        "result_keep": None,
        "task_unknown_wait": 300.0,
        "task_max_message_size": 16_777_216,
        "task_eta_in_broker": True,
        "worker_log_json": False,
        "worker_processes": 1,
        "redis_priority_order": "high-first",
    }
    assert Settings().worker_prefetch_multiplier is None


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda s: str(s.name))
def test_each_says_what_it_is_and_takes_its_own_default(setting: Setting) -> None:
    assert setting.meaning
    assert setting.type
    assert bool(setting.sentence) == (setting.state is not State.HONOURED)
    assert setting.kind.accept(setting.default) == setting.default


def test_what_is_honoured_has_a_type_for_type_checkers_and_nothing_else() -> None:
    annotated = {n for n in get_type_hints(Settings) if not n.startswith("_")}
    assert annotated == set(HONOURED)


def test_no_setting_hides_a_method() -> None:
    assert not set(SETTINGS) & set(dir(Settings))


# Reading


def test_values_are_plain_attributes() -> None:
    conf = Settings()
    conf.task_acks_late = True
    assert vars(conf)["task_acks_late"] is True
    assert conf["task_acks_late"] is True
    assert "task_acks_late" in conf
    assert "task_ack_late" not in conf
    assert (list(conf), len(conf)) == (list(SETTINGS), len(SETTINGS))


def test_two_objects_share_no_default() -> None:
    one, other = Settings(), Settings()
    assert isinstance(one.beat_schedule, dict)
    one.beat_schedule["nightly"] = {"task": "t"}
    assert other.beat_schedule == {}
    assert one.non_defaults() == {"beat_schedule": {"nightly": {"task": "t"}}}


def test_deleting_brings_the_default_back() -> None:
    conf = Settings()
    conf.task_default_queue = "mine"
    del conf.task_default_queue
    assert conf.task_default_queue == "celery"
    with pytest.raises(UnknownSetting):
        del conf.task_default_quue


@pytest.mark.parametrize(
    "clone", [copy.copy, copy.deepcopy, lambda c: pickle.loads(pickle.dumps(c))]
)
def test_copies_and_pickles(clone: Callable[[Settings], Settings]) -> None:
    conf = Settings()
    conf.update(task_time_limit=5, imports=["a"])
    other = clone(conf)
    assert other.non_defaults() == {"task_time_limit": 5.0, "imports": ("a",)}
    other.task_time_limit = 6
    assert conf.task_time_limit == 5.0


# Unknown names


def unknown(name: str) -> str:
    conf = Settings()
    messages = set()
    with pytest.raises(UnknownSetting) as caught:
        conf.update({name: 1})
    messages.add(str(caught.value))
    with pytest.raises(UnknownSetting) as caught:
        conf[name] = 1
    messages.add(str(caught.value))
    with pytest.raises(AttributeError) as by_attribute:
        getattr(conf, name)
    messages.add(str(by_attribute.value))
    with pytest.raises(KeyError) as by_item:
        conf[name]
    messages.add(str(by_item.value))
    with pytest.raises(UnknownSetting) as caught:
        setattr(conf, name, 1)
    messages.add(str(caught.value))
    assert conf.non_defaults() == {}
    (message,) = messages
    return message


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("task_ack_late", "'task_acks_late'"),
        ("worker_lease_tim", "'worker_lease_time'"),
        ("dead_letter_max", "'dead_letters_max_age'"),
        ("CELERY_ACK_LATE", "'task_acks_late'"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(name: str, near: str) -> None:
    message = unknown(name)
    assert message.startswith(f"setting {name!r} doesn't exist; did you mean '")
    assert near in message
    assert 1 <= message.count("' or '") + 1 <= 3


def test_one_wrong_letter_gets_one_answer() -> None:
    assert unknown("task_ack_late") == (
        f"setting 'task_ack_late' doesn't exist; did you mean 'task_acks_late'? {OWN}"
    )


def test_a_name_like_no_other() -> None:
    assert unknown("zzz") == (
        f"setting 'zzz' doesn't exist; `umbel settings` lists those that do. {OWN}"
    )


@pytest.mark.parametrize("name", ["my_own", "CELERY_MY_OWN"])
def test_a_setting_of_ones_own_is_told_where_it_belongs(name: str) -> None:
    assert unknown(name).endswith(OWN)


@pytest.mark.filterwarnings("ignore::umbel.exceptions.LaterSetting")
@pytest.mark.parametrize("setting", CELERY_SETTINGS, ids=lambda s: str(s.name))
def test_an_old_name_is_the_same_setting(setting: Setting) -> None:
    old = setting.old_name
    assert old is not None
    conf = Settings()
    assert old in conf
    assert conf[old] == getattr(conf, old) == setting.default
    conf.update({old: setting.default})
    assert conf.value_set_for(setting.name)
    del conf[old]
    assert not conf.value_set_for(old)


@pytest.mark.parametrize(
    "name", ["CELERY_TASK_ACKS_LATE", "TASK_ACKS_LATE", "UMBEL_TASK_ACKS_LATE", "Task_Acks_Late"]
)
def test_a_prefixed_name_is_told_the_plain_one(name: str) -> None:
    assert unknown(name) == f"setting {name!r} doesn't exist; write 'task_acks_late'"


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(UnknownSetting, match="setting 3 doesn't exist"):
        Settings().update({3: 1})  # type: ignore[arg-type]  # what a careless caller does


def test_underscored_names_are_ordinary_attribute_errors() -> None:
    assert not hasattr(Settings(), "_anything")


# Setting


def test_update_is_all_or_nothing() -> None:
    conf = Settings()
    conf.task_acks_late = True
    for wrong in (
        {"task_ack_late": 1},
        {"task_time_limit": "long"},
    ):
        with pytest.raises(ImproperlyConfigured):
            conf.update({"task_default_queue": "q", "beat_schedule": {}}, imports=["m"], **wrong)
        assert conf.non_defaults() == {"task_acks_late": True}


def test_update_takes_mappings_pairs_and_keywords() -> None:
    conf = Settings()
    conf.update({"task_default_queue": "a"}, task_acks_late=True)
    conf.update([("task_default_queue", "b")])
    conf.update()
    assert conf.non_defaults() == {"task_default_queue": "b", "task_acks_late": True}


SENTINEL = object()
DAY = timedelta(days=1)


@dataclass
class Named:
    name: str


QUEUE = Named("q")


@pytest.mark.parametrize(
    ("name", "given_value", "stored"),
    [
        ("result_expires", DAY, 86_400.0),
        ("result_expires", 60, 60.0),
        ("result_expires", 0, None),
        ("result_expires", None, None),
        ("task_time_limit", timedelta(minutes=2), 120.0),
        ("task_soft_time_limit", 0, None),
        ("worker_lease_time", 5, 5.0),
        ("task_unknown_wait", 0, 0.0),
        ("worker_max_tasks_per_child", 0, None),
        ("worker_max_tasks_per_child", 7, 7),
        ("worker_concurrency", "auto", None),
        ("worker_concurrency", 4, 4),
        ("worker_prefetch_multiplier", 0, 0),
        ("worker_pool", "processes", "prefork"),
        ("worker_pool", "solo", "solo"),
        ("worker_redirect_stdouts_level", "info", "INFO"),
        ("worker_redirect_stdouts_level", 25, 25),
        ("imports", "one", ("one",)),
        ("imports", ["one", "two"], ("one", "two")),
        ("include", (), ()),
        ("accept_content", ["application/json"], ("json",)),
        ("accept_content", "json", ("json",)),
        ("task_serializer", "application/json", "json"),
        ("task_serializer", "my own", "my own"),
        ("accept_content", ["json", "pickle"], ("json", "pickle")),
        ("task_compression", "gzip", "zlib"),
        ("result_compression", "application/zstd", "zstd"),
        ("task_protocol", 2, 2),
        ("timezone", "Europe/Berlin", "Europe/Berlin"),
        ("timezone", UTC, UTC),
        ("task_default_priority", 9, 9),
        ("task_queues", ["a", QUEUE], ["a", QUEUE]),
        ("task_queues", {"a": "a", "b": {}}, {"a": "a", "b": {}}),
        ("task_queues", None, None),
        ("task_routes", {"a.*": "q", "b": {"queue": "r"}}, {"a.*": "q", "b": {"queue": "r"}}),
        ("task_routes", [("a", "q")], [("a", "q")]),
        ("broker_url", "memory://", "memory://"),
        ("broker_url", ["memory://"], "memory://"),
        ("result_backend", "cache+memcached://a;b/", "cache+memcached://a;b/"),
        ("task_default_delivery_mode", "transient", 1),
        (
            "task_publish_retry_policy",
            {"max_retries": None, "interval_step": timedelta(seconds=2), "retry_errors": OSError},
            {
                "max_retries": None,
                "interval_start": 0.0,
                "interval_max": 1.0,
                "interval_step": 2.0,
                "retry_errors": (OSError,),
            },
        ),
    ],
)
def test_values_are_brought_into_one_form(name: str, given_value: object, stored: object) -> None:
    conf = Settings()
    conf[name] = given_value
    assert conf[name] == stored
    assert type(conf[name]) is type(stored)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("task_acks_late", 1, "expected True or False"),
        ("task_acks_late", None, "expected True or False"),
        ("task_acks_on_failure", "no", "expected True or False, or None"),
        ("task_max_redeliveries", -1, "expected a whole number from 0"),
        ("task_max_redeliveries", True, "expected a whole number from 0"),
        ("task_max_redeliveries", 2.5, "expected a whole number from 0"),
        ("dead_letters_max_count", 0, "expected a whole number from 1"),
        ("task_default_priority", 10, "expected a whole number from 0 to 9, or None"),
        ("worker_lease_time", 0, "expected a number of seconds above 0, or a timedelta"),
        ("worker_lease_time", float("nan"), "expected a number of seconds above 0"),
        ("result_expires", -1, "expected a number of seconds, or a timedelta, or None"),
        ("result_expires", float("inf"), "expected a number of seconds"),
        ("result_expires", timedelta(seconds=-1), "expected a number of seconds"),
        ("task_time_limit", "60", "expected a number of seconds"),
        ("task_default_queue", "", "expected a str that isn't empty"),
        ("task_default_queue", b"q", "expected a str that isn't empty"),
        ("imports", [1], "expected a list of names"),
        ("imports", {"a": 1}, "expected a list of names"),
        ("broker_url", "", "expected a URL, several of Redis, or None"),
        ("broker_url", ["redis://a", "amqp://b"], "another queue, where nobody looks. Name one"),
        ("broker_url", "sqlite:///a;sqlite:///b", "another queue, where nobody looks. Name one"),
        ("broker_url", [], "expected a URL, several of Redis, or None"),
        ("timezone", 2, "expected the name of a zone such as 'Europe/Berlin'"),
        ("task_serializer", "", "expected the name of a serializer, such as 'json'"),
        ("task_serializer", ["json"], "expected the name of a serializer, such as 'json'"),
        ("result_serializer", None, "expected the name of a serializer, such as 'json'"),
        ("accept_content", ["json", 1], "expected a list of names of serializers"),
        ("task_compression", "zlip", "which isn't known; did you mean 'zlib' or 'gzip'?"),
        ("result_compression", 9, "expected the name of a compression, such as 'zlib', or None"),
        ("accept_content", [], "an empty list would refuse every message"),
        ("task_protocol", 1, "expected 2; version 1 went with Celery 4"),
        ("task_protocol", 2.0, "expected 2"),
        ("worker_pool", "gevent", "greenlets are honoured by a later release"),
        ("worker_pool", "eventlet", "won't be supported"),
        ("worker_pool", "my.pool:Pool", "expected 'prefork', 'threads', 'asyncio' or 'solo'"),
        ("worker_concurrency", 0, "expected a whole number from 1, or None (or 'auto')"),
        ("worker_redirect_stdouts_level", "LOUD", "expected a log level such as 'WARNING'"),
        ("task_queues", "a", "expected a list of queues"),
        ("task_queues", [Named("")], "expected a list of queues"),
        ("task_queues", [3], "expected a list of queues"),
        ("task_queues", {3: None}, "expected a list of queues"),
        ("task_queues", {"a": None}, "expected a list of queues"),
        ("task_routes", 3, "expected a dict of task name or glob"),
        ("task_publish_retry_policy", {"max_retry": 1}, "the key 'max_retry' isn't known"),
        ("task_publish_retry_policy", {"max_retries": -1}, "its 'max_retries' can't be -1"),
        ("task_publish_retry_policy", {"interval_max": "1"}, "its 'interval_max' can't be '1'"),
        ("task_publish_retry_policy", {"retry_errors": [1]}, "its 'retry_errors' can't be [1]"),
        ("task_publish_retry_policy", 3, "expected a dict with any of max_retries"),
        ("beat_schedule", [], "expected a dict"),
        ("redis_priority_order", "high", "expected 'high-first' or 'low-first'"),
    ],
)
def test_a_wrong_value_names_setting_value_and_what_was_expected(
    name: str, value: object, expected: str
) -> None:
    conf = Settings()
    before = conf[name]
    with pytest.raises(ImproperlyConfigured) as caught:
        conf[name] = value
    assert str(caught.value).startswith(f"setting {name!r} can't be {value!r}: expected ")
    assert expected in str(caught.value)
    assert conf[name] == before


def test_a_wrong_value_does_not_show_a_password() -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        Settings().update(broker_url=["redis://:hunter2@host/0", "amqp://other"])
    assert "hunter2" not in str(caught.value)


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.timedeltas(),
    st.lists(st.one_of(st.text(), st.integers(), st.none())),
    st.dictionaries(st.one_of(st.text(), st.integers()), st.one_of(st.text(), st.none())),
)


@given(NAMES, ANYTHING)
def test_any_value_is_taken_or_refused_and_what_is_taken_stays_as_it_is(
    name: str, value: object
) -> None:
    conf = Settings()
    try:
        set_quietly(conf, name, value)
    except ImproperlyConfigured:
        assert conf.non_defaults() == {}
        return
    stored = conf[name]
    set_quietly(conf, name, stored)
    assert conf[name] == stored
    assert set(conf.non_defaults()) <= {name}


@given(st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=10_000)))
def test_durations_are_float_seconds(value: timedelta) -> None:
    conf = Settings()
    conf.update(worker_lease_time=value, task_time_limit=value)
    assert conf.worker_lease_time == conf.task_time_limit == value.total_seconds()


# What isn't honoured


@pytest.mark.parametrize("name", WARNED)
def test_setting_what_has_no_effect_warns_once_and_keeps_the_value(name: str) -> None:
    conf = Settings()
    setting = SETTINGS[name]
    value = another(setting)
    with pytest.warns(LaterSetting) as caught:
        conf.update({name: value})
    (warning,) = caught
    assert repr(name) in str(warning.message)
    assert setting.sentence in str(warning.message)
    assert warning.filename == __file__
    conf[name] = value
    assert conf[name] == value


def another(setting: Setting) -> object:
    """A value that the setting can have and hasn't by itself."""
    for value in (True, False, 77, "json", "spawn", ["a:b"], {"a": {"task": "t"}}, "x:y", None):
        try:
            accepted = setting.kind.accept(value)
        except ValueError:
            continue
        if accepted != setting.default:
            return accepted
    raise AssertionError(f"add a value of the kind of {setting}")


@pytest.mark.parametrize("name", WARNED)
def test_what_is_set_to_its_default_loses_nothing(name: str) -> None:
    conf = Settings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        conf[name] = getattr(conf, name)
        conf.update({name: SETTINGS[name].default})
    with pytest.warns(LaterSetting, match=f"setting {name!r} has no effect"):
        conf[name] = another(SETTINGS[name])


class Uncomparable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]  # as of an array


def test_a_value_that_cannot_be_compared_is_another_one() -> None:
    with pytest.warns(LaterSetting, match="'worker_autoscaler'"):
        Settings().worker_autoscaler = Uncomparable()


def test_the_sentence_of_a_later_and_of_a_never_setting() -> None:
    conf = Settings()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        conf.beat_schedule = {"x": {"task": "t"}}
        conf["worker_lost_wait"] = 3
        conf.update(mongodb_backend_settings={})
    assert [str(w.message) for w in caught] == [
        "setting 'beat_schedule' has no effect yet: it is honoured by the release that brings "
        "the scheduler",
        "setting 'worker_lost_wait' has no effect and never will: the death of a process is "
        "noticed at once, there is nothing to wait for",
        "setting 'mongodb_backend_settings' has no effect and never will: no result store on "
        "MongoDB is planned; use SQLAlchemy (db+…) or Redis",
    ]
    assert {w.filename for w in caught} == {__file__}
    assert conf.worker_lost_wait == 3.0


def test_a_warning_that_is_an_error_changes_nothing() -> None:
    conf = Settings()
    with pytest.raises(LaterSetting):
        conf.update(task_acks_late=True, worker_agent="a")
    assert conf.non_defaults() == {}


# What people see


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("broker_url", "redis://user:pw@host:6379/0", "redis://user:********@host:6379/0"),
        ("broker_url", "redis://:p@w/x@host", "redis://:********@host"),
        ("broker_url", "redis://:a@one;redis://:b@two", "redis://:********@two"),
        ("broker_url", "redis://h/0?password=pw&db=1", "redis://h/0?password=********&db=1"),
        ("broker_url", "sqlite:///a/b@c.db", "sqlite:///a/b@c.db"),
        ("broker_url", "redis://host:6379/0", "redis://host:6379/0"),
        ("broker_url", None, None),
        ("redis_password", "pw", "********"),
        ("security_key_password", b"pw", "********"),
        ("s3_secret_access_key", "pw", "********"),
        ("broker_transport_options", {"password": "pw", "n": 1}, {"password": "********", "n": 1}),
        (
            "broker_transport_options",
            {"sentinel_kwargs": {"password": "pw"}, "urls": ["redis://:pw@h"]},
            {"sentinel_kwargs": {"password": "********"}, "urls": ["redis://:********@h"]},
        ),
        ("imports", ("a", "b"), ("a", "b")),
    ],
)
def test_secrets_are_censored(name: str, value: object, shown: object) -> None:
    assert censored(name, value) == shown


@given(
    st.text(st.characters(exclude_categories=["C", "Z"]), min_size=3).filter(
        lambda password: password not in "redis://user:********@host:6379/0"
    )
)
def test_no_password_of_a_url_is_shown(password: str) -> None:
    shown = censored("broker_url", f"redis://user:{password}@host:6379/0")
    assert isinstance(shown, str)
    assert password not in shown
    assert shown.endswith("@host:6379/0")


def test_the_table_shows_changes_or_everything() -> None:
    conf = Settings()
    conf.update(broker_url="redis://:hunter2@host", task_acks_late=True)
    assert conf.table() == {"broker_url": "redis://:********@host", "task_acks_late": True}
    assert list(conf.table(with_defaults=True)) == list(SETTINGS)
    assert "hunter2" not in repr(conf)
    assert conf.non_defaults()["broker_url"] == "redis://:hunter2@host"


# Fallbacks


@pytest.mark.parametrize(
    ("own", "setting", "own_for_both", "setting_for_both", "acks"),
    [
        (None, None, None, True, True),
        (None, None, None, False, False),
        (None, None, False, True, False),
        (None, True, False, False, True),
        (False, True, True, True, False),
        (True, False, False, False, True),
    ],
)
def test_acks_fall_back(
    own: bool | None,
    setting: bool | None,
    own_for_both: bool | None,
    setting_for_both: bool,
    acks: bool,
) -> None:
    conf = Settings()
    conf.task_acks_on_failure_or_timeout = setting_for_both
    conf.task_acks_on_failure = setting
    conf.task_acks_on_timeout = None if setting is None else not setting
    assert resolve_acks_on_failure(conf, own, own_for_both) is acks
    conf.task_acks_on_failure = None if setting is None else not setting
    conf.task_acks_on_timeout = setting
    assert resolve_acks_on_timeout(conf, own, own_for_both) is acks


# The environment


def test_umbel_and_celery_variables() -> None:
    found = from_environment(
        {
            "UMBEL_BROKER_URL": "sqlite:///a.db",
            "CELERY_BROKER_URL": "redis://b",
            "CELERY_RESULT_BACKEND": "redis://c",
            "UMBEL_WORKER_LEASE_TIME": "5",
            "UMBEL_TASK_ACKS_LATE": "Yes",
            "UMBEL_TASK_TIME_LIMIT": "none",
            "UMBEL_RESULT_EXPIRES": "60.5",
            "UMBEL_WORKER_CONCURRENCY": "auto",
            "UMBEL_WORKER_MAX_TASKS_PER_CHILD": "9",
            "UMBEL_WORKER_PREFETCH_MULTIPLIER": "4",
            "UMBEL_WORKER_POOL": "solo",
            "UMBEL_WORKER_REDIRECT_STDOUTS_LEVEL": "error",
            "UMBEL_TASK_DEFAULT_QUEUE": "none",
            "UMBEL_TASK_DEFAULT_EXCHANGE": "",
            "UMBEL_APP": "proj",
            "CELERY_TASK_ACKS_LATE": "0",
        }
    )
    assert found == {
        "broker_url": "sqlite:///a.db",
        "result_backend": "redis://c",
        "worker_lease_time": 5.0,
        "task_acks_late": True,
        "task_time_limit": None,
        "result_expires": 60.5,
        "worker_concurrency": None,
        "worker_max_tasks_per_child": 9,
        "worker_prefetch_multiplier": 4,
        "worker_pool": "solo",
        "worker_redirect_stdouts_level": "ERROR",
        "task_default_queue": "none",
    }
    Settings().update(found)


def test_celery_read_and_write_urls_are_seen() -> None:
    found = from_environment(
        {"CELERY_BROKER_WRITE_URL": "memory://a", "CELERY_BROKER_READ_URL": "memory://b"}
    )
    assert found == {"broker_write_url": "memory://a", "broker_read_url": "memory://b"}
    Settings().update(found)


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("UMBEL_TASK_ACKS_LATE", "perhaps", "expected True or False; write true or false"),
        ("UMBEL_WORKER_LEASE_TIME", "long", "expected a number of seconds above 0"),
        ("UMBEL_WORKER_LEASE_TIME", "-3", "expected a number of seconds above 0"),
        ("UMBEL_TASK_COMPRESSION", "zip", "expected the name of a compression"),
        ("UMBEL_WORKER_CONCURRENCY", "many", "expected a whole number from 1"),
    ],
)
def test_a_wrong_variable_names_itself(variable: str, text: str, expected: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        from_environment({variable: text})
    assert f"environment variable {variable} can't be {text!r}: {expected}" in str(caught.value)


@given(st.sampled_from(HONOURED), st.text(min_size=1, max_size=12))
def test_any_text_in_the_environment_is_a_setting_or_a_clear_error(name: str, text: str) -> None:
    try:
        found = from_environment({f"UMBEL_{name.upper()}": text})
    except ImproperlyConfigured:
        return
    conf = Settings()
    conf.update(found)
    assert set(found) <= {name}
