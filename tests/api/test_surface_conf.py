"""`app.conf` as Celery's users know it."""

from __future__ import annotations

import pytest

from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured, UnknownSetting


def test_items_attributes_and_update_are_the_same(app: Umbel) -> None:
    conf = app.conf
    conf["task_acks_late"] = True
    conf.update({"task_default_queue": "mail"}, worker_concurrency=2)
    assert conf.task_acks_late is conf["task_acks_late"] is conf["CELERY_ACKS_LATE"] is True
    assert (conf.get("task_default_queue"), conf.get("nope", 7)) == ("mail", 7)
    assert "task_acks_late" in conf
    assert "CELERY_ACKS_LATE" in conf
    assert "nope" not in conf
    with pytest.raises(UnknownSetting, match="task_acks_late"):
        conf["task_acks_lat"] = True
    del conf["task_acks_late"]
    assert conf.task_acks_late is False


def test_iteration(app: Umbel) -> None:
    conf = app.conf
    assert list(conf) == list(conf.keys())
    assert list(zip(conf.keys(), conf.values(), strict=True)) == conf.items()
    assert dict(conf)["task_default_queue"] == "celery"
    assert len(conf) == len(conf.items()) > 207


def test_defaults_are_below_everything(app: Umbel) -> None:
    conf = app.conf
    conf.task_time_limit = 5
    conf.add_defaults({"task_time_limit": 1, "task_soft_time_limit": 0.5})
    conf.add_defaults(lambda: {"CELERY_DEFAULT_QUEUE": "low"})
    assert (conf.task_time_limit, conf.task_soft_time_limit) == (5, 0.5)
    assert conf.task_default_queue == "low"
    with pytest.raises(ImproperlyConfigured):
        conf.add_defaults({"CELERY_ACKS_LATE": True, "task_time_limit": 3})
    assert conf.setdefault("task_time_limit", 9) == 5
    assert conf.setdefault("worker_concurrency", 3) == conf.worker_concurrency == 3


@pytest.mark.parametrize(
    ("name", "namespace", "found"),
    [
        ("acks_late", "task", ("task", "acks_late")),
        ("acks_late", "", ("task", "acks_late")),
        ("task_acks_late", "", ("task", "acks_late")),
        ("CELERY_ACKS_LATE", "", ("task", "acks_late")),
        ("ACKS_LATE", "TASK", ("task", "acks_late")),
        ("concurrency", "", ("worker", "concurrency")),
        ("timezone", "", ("timezone", "")),
    ],
)
def test_find_option(app: Umbel, name: str, namespace: str, found: tuple[str, str]) -> None:
    option = app.conf.find_option(name, namespace)
    assert (option.namespace, option.name) == found
    assert option.option.name == "_".join(part for part in found if part)


def test_find_option_of_nothing(app: Umbel) -> None:
    with pytest.raises(UnknownSetting, match="'nope' doesn't exist"):
        app.conf.find_option("nope")


def test_what_was_set(app: Umbel) -> None:
    conf = app.conf
    conf.broker_url = "memory://x"
    conf.security_key_password = "hush-hush"
    assert conf.get_by_parts("task", "default", "queue") == "celery"
    assert conf.value_set_for("security_key_password")
    assert not conf.value_set_for("task_default_queue")
    changed = conf.without_defaults()
    assert changed["security_key_password"] == "hush-hush"
    assert "task_default_queue" not in changed
    assert "hush-hush" not in str(conf.table().values())
    assert conf.table(censored=False)["security_key_password"] == "hush-hush"
    assert conf.table(with_defaults=True)["task_default_queue"] == "celery"
    assert "broker_url: 'memory://x'" in conf.humanize().splitlines()
    assert "hush-hush" not in conf.humanize(with_defaults=True)
