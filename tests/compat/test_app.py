"""An app that was made by the compatible `Celery`: its parameters and its defaults."""

from __future__ import annotations

import inspect
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.api.looking import only
from tests.cli.helpers import shell
from tests.settings.celerys import CELERYS

import umbel
from umbel import Umbel
from umbel.compat.celery import Celery
from umbel.compat.celery.app import app_or_default, base
from umbel.compat.kombu import Exchange, Queue
from umbel.compat.kombu.common import Broadcast
from umbel.exceptions import ImproperlyConfigured
from umbel.settings import UMBEL_SETTINGS

OWN = {"task_eta_in_broker": False, "redis_priority_order": "low-first"}
"""The settings of Umbel's own whose defaults are others here."""
BETTER = {"worker_prefetch_multiplier": None}
"""Celery's settings whose defaults are Umbel's here too, and why that can't harm a Celery worker
that shares the queue: what an adaptive worker reserves is never more than it soon runs."""


_numbers = itertools.count(1)


@pytest.fixture
def app() -> Iterator[Celery]:
    broker = f"memory://compat-{next(_numbers)}"
    with Celery("compat", broker=broker, set_as_current=False) as made:
        yield made


def test_umbels_celery_is_umbel_itself() -> None:
    assert umbel.Celery is Umbel
    assert Celery is not Umbel
    assert issubclass(Celery, Umbel)
    assert base.App is Celery


@pytest.mark.parametrize(("name", "default"), [(name, default) for name, default, _ in CELERYS])
def test_defaults_are_celerys(name: str, default: object) -> None:
    conf = Celery("compat", set_as_current=False).conf
    assert conf[name] == BETTER.get(name, default)


def test_of_umbels_own_settings_two_have_other_defaults() -> None:
    conf = Celery("compat", set_as_current=False).conf
    defaults = {each.name: each.default for each in UMBEL_SETTINGS}
    assert {name: conf[name] for name in defaults if conf[name] != defaults[name]} == OWN
    plain = Umbel("plain", set_as_current=False).conf
    assert {name: plain[name] for name in OWN} == {
        "task_eta_in_broker": True,
        "redis_priority_order": "high-first",
    }


def in_broker(app: Celery) -> bool:
    """Whether what `app` sends for later waits in the broker."""
    return app.conf.task_eta_in_broker


def test_a_default_is_below_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Celery("compat", set_as_current=False)
    assert not app.conf.value_set_for("task_eta_in_broker")
    app.add_defaults({"task_eta_in_broker": True})
    assert in_broker(app)
    app = Celery("compat", set_as_current=False)
    app.config_from_object({"task_eta_in_broker": True})
    assert in_broker(app)
    app.config_from_object({})
    assert not in_broker(app)
    app.conf.task_eta_in_broker = True
    assert in_broker(app)
    del app.conf.task_eta_in_broker
    assert not in_broker(app)
    assert in_broker(Celery("x", set_as_current=False, task_eta_in_broker=True))
    monkeypatch.setenv("UMBEL_TASK_ETA_IN_BROKER", "true")
    assert in_broker(Celery("x", set_as_current=False))


def test_what_is_due_later_travels_as_celerys(app: Celery) -> None:
    app.send_task("later", countdown=600)
    assert only(app).headers["eta"] is not None
    app.broker.purge(["celery"])
    app.conf.task_eta_in_broker = True
    app.send_task("later", countdown=600)
    (stats,) = app.broker.queues()
    assert (stats.ready, stats.delayed) == (0, 1)


def test_without_a_broker_it_is_celerys_and_the_error_says_what_to_write() -> None:
    app = Celery("compat", set_as_current=False)
    assert app.connections.broker_url == "amqp://"
    assert app.conf.broker_url is None
    with pytest.raises(ImproperlyConfigured) as error:
        app.send_task("nowhere")
    assert str(error.value) == (
        "no broker is named, and this app's default is Celery's, amqp://, which comes with the "
        "release 'RabbitMQ'. Name one, for example with broker='sqlite:///tasks.db', the setting "
        "broker_url or the environment variable CELERY_BROKER_URL"
    )


def test_a_worker_without_a_broker(tmp_path: Path) -> None:
    (tmp_path / "bare.py").write_text("from celery import Celery\n\napp = Celery('bare')\n")
    ended = shell("--as-celery", "-A", "bare", "worker", cwd=tmp_path)
    assert ended.code == 78
    assert "amqp://" in ended.sentence
    assert "sqlite:///" in ended.sentence


def test_parameters_are_celerys() -> None:
    names = list(inspect.signature(Celery).parameters)
    assert names[:19] == [
        "main", "loader", "backend", "amqp", "events", "log", "control", "set_as_current", "tasks",
        "broker", "include", "changes", "config_source", "fixups", "task_cls", "autofinalize",
        "namespace", "strict_typing", "config_source_silent",
    ]  # fmt: skip
    app = Celery("compat", None, "memory://results", set_as_current=False, fixups=[])
    assert app.main == "compat"
    assert app.conf.result_backend == "memory://results"


@pytest.mark.parametrize("part", ["loader", "amqp", "events", "log", "control", "tasks"])
def test_parts_are_not_replaced(part: str) -> None:
    given: dict[str, Any] = {part: object()}
    with pytest.raises(ImproperlyConfigured, match=rf"\({part}=…\)"):
        Celery("compat", set_as_current=False, **given)


def test_the_class_of_tasks_by_name() -> None:
    app = Celery("compat", set_as_current=False, task_cls=f"{__name__}:Named")
    assert isinstance(app.task(print), Named)


class Named(umbel.Task):  # type: ignore[type-arg]  # as programs write it
    """A class of tasks."""


def test_it_stays_a_celery_in_another_process() -> None:
    app = Celery("compat", broker="memory://compat", set_as_current=False)
    copy = pickle.loads(pickle.dumps(app))
    assert type(copy) is Celery
    assert copy.conf.broker_url == "memory://compat"
    assert copy.conf.task_eta_in_broker is False


def test_the_current_app_where_none_is_given(app: Celery) -> None:
    assert app_or_default(app) is app
    app.set_current()
    assert app_or_default() is app


def test_kombus_queues_route_as_they_say(app: Celery) -> None:
    app.conf.update(
        task_queues=(
            Queue("orders", Exchange("orders"), routing_key="orders"),
            Queue("mail", Exchange("post", type="topic"), routing_key="post.#"),
            Broadcast("all"),
        ),
        task_default_queue="orders",
    )
    app.send_task("order")
    assert only(app, "orders").task == "order"
    app.send_task("letter", exchange="post", routing_key="post.letter")
    assert only(app, "mail").task == "letter"
