"""Where the broker is and how long a worker waits for it."""

from __future__ import annotations

import os
import resource
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.api.looking import waiting
from tests.worker.harness import until
from tests.worker.living import Place

from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured, LaterSetting
from umbel.settings import Settings
from umbel.stores.memory import MemoryStore
from umbel.stores.sql import SqlStore
from umbel.worker.patience import longest_outage

pytestmark = pytest.mark.filterwarnings("ignore::umbel.exceptions.NoWorkerYet")


def names(url: str, queue: str = "celery") -> list[str]:
    with Umbel("look", broker=url, set_as_current=False) as app:
        return [message.task for message in waiting(app, queue)]


def proj(**settings: Any) -> Umbel:
    return Umbel("proj", set_as_current=False, **settings)


# URLs


@pytest.mark.setting("broker_url")
def test_messages_go_to_broker_url() -> None:
    with proj(broker_url="memory://url-a") as app:
        app.send_task("a")
        app.conf.update(broker_url=["memory://url-b"])
        app.send_task("b")
    assert (names("memory://url-a"), names("memory://url-b")) == (["a"], ["b"])


@pytest.mark.setting("broker_write_url")
def test_what_is_sent_goes_to_broker_write_url() -> None:
    with proj(broker_url="memory://w-a", broker_write_url="memory://w-b") as app:
        app.send_task("sent", queue="mine")
        assert waiting(app, "mine") == []
        with app.batch():
            app.send_task("batched", queue="mine")
        app.conf.broker_write_url = None
        app.send_task("later", queue="mine")
    assert names("memory://w-b", "mine") == ["sent", "batched"]
    assert names("memory://w-a", "mine") == ["later"]


@pytest.mark.setting("broker_read_url")
def test_what_is_looked_at_lies_at_broker_read_url() -> None:
    with proj(broker_url="memory://r-a") as other:
        other.send_task("there")
    with proj(broker_url="memory://r-b", broker_read_url="memory://r-a") as app:
        app.send_task("sent")
        assert [message.task for message in waiting(app)] == ["there"]
    assert names("memory://r-b") == ["sent"]


@pytest.mark.setting("broker_read_url", "broker_write_url")
def test_a_worker_reads_and_writes_at_one_broker(place: Place) -> None:
    """Where both name it, it is used; where they don't, the start says why they must."""
    one = {"UMBEL_BROKER_READ_URL": place.url, "UMBEL_BROKER_WRITE_URL": place.url}
    nowhere = f"sqlite:///{place.folder}/nowhere/a.db"
    refused = place.worker(env={"UMBEL_BROKER_WRITE_URL": nowhere}, ready=False)
    place.worker("-c", "1", env={"UMBEL_BROKER_URL": nowhere, **one})
    assert place.send("retry_once", "tag").get(timeout=30) == 1
    assert refused.process.wait(30) == 78
    (line,) = refused.text.splitlines()
    assert f"broker_read_url is '{place.url}' and broker_write_url '{nowhere}'" in line


def test_celerys_variables_name_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_READ_URL", "memory://env-r")
    monkeypatch.setenv("CELERY_BROKER_WRITE_URL", "memory://env-w")
    with proj(broker_url="memory://env-a") as app:
        app.send_task("sent")
        assert waiting(app) == []
    monkeypatch.undo()
    assert names("memory://env-w") == ["sent"]


@pytest.mark.setting("broker_transport", "broker_host")
def test_old_parts_name_a_memory_broker() -> None:
    with proj(broker_transport="memory", broker_host="parts") as app:
        app.send_task("a")
    assert names("memory://parts") == ["a"]


@pytest.mark.setting("broker_transport", "broker_vhost")
def test_old_parts_name_a_file(tmp_path: Path) -> None:
    with proj(broker_transport="sqlite", broker_vhost=f"{tmp_path}/a.db") as app:
        app.send_task("a")
    assert names(f"sqlite:///{tmp_path}/a.db") == ["a"]


@pytest.mark.setting(
    "broker_transport", "broker_host", "broker_port", "broker_user", "broker_password",
    "broker_vhost",
)  # fmt: skip
@pytest.mark.parametrize(
    ("parts", "url"),
    [
        ({}, "sqlite:///umbel.db"),
        ({"host": "rabbit"}, "amqp://rabbit"),
        ({"host": "redis://h:1/2", "port": 5}, "redis://h:1/2"),
        ({"user": "me"}, "amqp://me@localhost"),
        ({"user": "m e", "password": "p@/:"}, "amqp://m%20e:p%40%2F%3A@localhost"),
        ({"host": "h", "port": 5673, "vhost": "shop"}, "amqp://h:5673/shop"),
        ({"transport": "redis", "host": "h", "port": "6380", "vhost": "3"}, "redis://h:6380/3"),
        ({"transport": "memory"}, "memory://"),
    ],
)
def test_old_parts_make_a_url(parts: dict[str, object], url: str) -> None:
    with proj(changes={f"broker_{name}": value for name, value in parts.items()}) as app:
        assert app.connections.broker_url == app.connections.outlet_url == url
        app.conf.broker_url = "memory://wins"
        assert app.connections.broker_url == "memory://wins"


def test_a_broker_made_of_parts_that_comes_later_is_named_without_its_password() -> None:
    with (
        proj(broker_host="rabbit", broker_user="me", broker_password="hunter2") as app,
        pytest.raises(ImproperlyConfigured, match="comes with the release 'RabbitMQ'") as caught,
    ):
        app.send_task("a")
    assert "hunter2" not in str(caught.value)


# Result stores by their older settings


@pytest.mark.setting("database_url")
@pytest.mark.parametrize("backend", [None, "database"])
def test_database_url_keeps_results(tmp_path: Path, backend: str | None) -> None:
    url = f"sqlite:///{tmp_path}/results.db"
    with proj(broker_url="memory://db", result_backend=backend, database_url=url) as app:
        store: Any = app.store
        assert isinstance(getattr(store, "store", store), SqlStore)
        assert store.location == f"db:{url}"
        app.conf.result_backend = "cache+memory://"
        assert isinstance(app.store, MemoryStore)


@pytest.mark.setting("cache_backend")
@pytest.mark.parametrize("backend", [None, "cache"])
@pytest.mark.parametrize(
    ("cache", "location"),
    [
        ("memory", "memory://cache+memory"),
        ("memory://", "memory://cache+memory"),
        ("memcached://a;b:2/", "memcached:a:11211;b:2"),
        ("cache+memcached://a/", "memcached:a:11211"),
    ],
)
def test_cache_backend_keeps_results(backend: str | None, cache: str, location: str) -> None:
    with proj(broker_url="memory://cache", result_backend=backend, cache_backend=cache) as app:
        assert app.store is not None
        assert app.store.location == location


@pytest.mark.parametrize("backend", ["database", "cache"])
def test_an_older_store_without_its_url(backend: str) -> None:
    with (
        proj(broker_url="memory://none", result_backend=backend) as app,
        pytest.raises(ImproperlyConfigured, match=f"result_backend is '{backend}' and .* isn't"),
    ):
        app.store  # noqa: B018


# Transport options


def synchronous(path: Path, open_file: Callable[[], Any]) -> int:
    """The mode that the driver opens the file with: 1 is normal, 2 full."""
    driver = open_file()
    driver = getattr(driver, "store", driver)
    database = getattr(driver, "database", None) or driver._database
    assert os.path.samefile(database.path, path)
    with database.write() as connection:
        mode: int = connection.execute("PRAGMA synchronous").fetchone()[0]
    return mode


@pytest.mark.setting("broker_transport_options")
@pytest.mark.parametrize(
    ("options", "query", "mode"),
    [({}, "", 1), ({"sync": "full"}, "", 2), ({"sync": "full"}, "?sync=normal", 1)],
)
def test_sync_of_the_broker(tmp_path: Path, options: dict[str, str], query: str, mode: int) -> None:
    file = tmp_path / "a.db"
    with proj(broker_url=f"sqlite:///{file}{query}", broker_transport_options=options) as app:
        assert synchronous(file, lambda: app.broker) == mode


@pytest.mark.setting("result_backend_transport_options")
@pytest.mark.parametrize(("options", "mode"), [({}, 1), ({"sync": "full"}, 2)])
def test_sync_of_the_result_store(tmp_path: Path, options: dict[str, str], mode: int) -> None:
    file = tmp_path / "results.db"
    settings = {"result_backend_transport_options": options}
    with proj(broker_url="memory://s", result_backend=f"sqlite:///{file}", **settings) as app:
        assert synchronous(file, lambda: app.store) == mode


@pytest.mark.setting("broker_transport_options", "result_backend_transport_options")
def test_transport_options_that_a_driver_lacks_are_named_once() -> None:
    options = {"visibility_timeout": 5, "sync": "full"}
    with (
        proj(
            broker_url="memory://options",
            broker_transport_options=options,
            result_backend_transport_options={"global_keyprefix": "a"},
        ) as app,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for _ in range(2):
            app.send_task("a")
            app.store  # noqa: B018
            app.close()
    assert [(str(each.message), each.category) for each in caught] == [
        (
            f"{setting} has {name!r}, which changes nothing for memory://; known there: nothing",
            LaterSetting,
        )
        for setting, name in (
            ("broker_transport_options", "visibility_timeout"),
            ("broker_transport_options", "sync"),
            ("result_backend_transport_options", "global_keyprefix"),
        )
    ]


def test_a_transport_option_that_cannot_be(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with (
        proj(broker_url=url, broker_transport_options={"sync": "off"}) as app,
        pytest.raises(ImproperlyConfigured, match="broker_transport_options has sync='off'"),
    ):
        app.send_task("a")


# A broker that is away


@pytest.mark.setting("broker_connection_retry_on_startup", "broker_connection_max_retries")
def test_a_worker_may_wait_for_its_broker_when_it_starts(place: Place) -> None:
    folder = place.folder / "later"
    url = f"sqlite:///{folder}/broker.db"
    waits = {"UMBEL_BROKER_URL": url, "UMBEL_BROKER_CONNECTION_RETRY_ON_STARTUP": "1"}
    patient = place.worker("-c", "1", env=waits, ready=False)
    limited = {**waits, "UMBEL_BROKER_CONNECTION_MAX_RETRIES": "1"}
    few = place.worker("-c", "1", env=limited, ready=False)
    plain = place.worker("-c", "1", env={"UMBEL_BROKER_URL": url}, ready=False)
    assert [plain.process.wait(30), few.process.wait(30)] == [69, 69]
    assert [plain.text.count("Trying again"), few.text.count("Trying again in 0.2 s")] == [0, 1]
    until(lambda: patient.text.count("Trying again") > 1, what="the patient one tries again")
    folder.mkdir()
    until(lambda: " ready." in patient.text, what="the broker is there")
    assert patient.stop() == 0


@contextmanager
def disk_full(place: Place, root: int) -> Iterator[None]:
    """No process of a worker can write to the broker's file."""
    pids = place.pids(root)
    full = os.path.getsize(f"{place.file}-wal") // 2
    before = resource.prlimit(pids[0], resource.RLIMIT_FSIZE)
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (full, before[1]))
    yield
    for pid in place.pids(root):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


@pytest.mark.setting("broker_connection_retry")
@pytest.mark.parametrize("retries", [True, False])
def test_a_worker_may_stop_where_its_broker_goes_away(
    make_place: Callable[[float], Place], retries: bool
) -> None:
    place = make_place(1.0)
    env = {
        "UMBEL_BROKER_CONNECTION_RETRY": str(retries),
        "UMBEL_WORKER_SOFT_SHUTDOWN_TIMEOUT": "0.3",
    }
    worker = place.worker("-c", "1", env=env)
    running = place.send("late_gated", "running", str(place.gate()))
    place.noted("start")
    with disk_full(place, worker.pid):
        until(lambda: worker.text.count("No heartbeat") > 2, what="the broker is missed")
        until(lambda: retries or "Warm shutdown (no broker)" in worker.text, what="it stops")
        assert ("Warm shutdown" in worker.text) is not retries
        assert worker.process.poll() is None  # a running task may end
        place.gate().touch()
        place.noted("end")
        if not retries:
            assert worker.process.wait(30) == 74
    if not retries:
        place.worker("-c", "1")
    assert running.get(timeout=30)
    assert place.counts("start") == {"running": 1}


@pytest.mark.setting("broker_connection_max_retries")
def test_a_worker_stops_where_its_broker_stays_away(
    make_place: Callable[[float], Place],
) -> None:
    place = make_place(1.0)
    env = {
        "UMBEL_BROKER_CONNECTION_MAX_RETRIES": "3",  # 0.2 + 0.4 + 0.8 seconds
        "UMBEL_WORKER_SOFT_SHUTDOWN_TIMEOUT": "0.2",
    }
    worker = place.worker("-c", "1", env=env)
    with disk_full(place, worker.pid):
        assert worker.process.wait(30) in (69, 74)
    assert worker.text.count("No heartbeat") > 5
    assert "away for longer than broker_connection_retry" in worker.text


@pytest.mark.setting("broker_connection_max_retries")
@pytest.mark.parametrize(("retries", "seconds"), [(None, None), (0, None), (1, 0.2), (100, 2811.0)])
def test_the_longest_outage(retries: int | None, seconds: float | None) -> None:
    conf = Settings()
    conf.broker_connection_max_retries = retries
    assert longest_outage(conf) == (float("inf") if seconds is None else pytest.approx(seconds))
