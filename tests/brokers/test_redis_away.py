"""`delay()` while the broker is away, in every way that it can be: one clear error, within 2 s."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from redis import Redis as Client
from tests.servers import Redis
from tests.settings.test_redis_connections import black_hole

from umbel import Umbel
from umbel.brokers.redis import RedisBroker
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured, PublishUnknown
from umbel.ports import BrokerOptions
from umbel.retry.publishing import BOUND
from umbel.testing.contract.rig import QUEUE, posting

_LOADING = b"-LOADING Redis is loading the dataset in memory\r\n"


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """The URL of a server that says this to whatever it is asked; None ends the connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=talk, args=(server.accept()[0],), daemon=True).start()

        def talk(client: socket.socket) -> None:
            with client, contextlib.suppress(OSError):
                while answer is not None and (asked := client.recv(65536)):
                    client.sendall(answer * asked.count(b"*"))  # once for each command

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def sends_in_time(url: str, match: str, *, before: Callable[[Umbel], object] | None = None) -> None:
    with Umbel("client", broker=url, set_as_current=False) as app:

        @app.task
        def add(x: int, y: int) -> int:
            return x + y

        if before is not None:
            before(app)
        started = time.monotonic()
        with pytest.raises((BrokerUnavailable, PublishUnknown), match=match):
            add.delay(1, 2)
        assert time.monotonic() - started < BOUND


def test_refused() -> None:
    sends_in_time("redis://127.0.0.1:1", "can't be reached; nothing was done")


def test_no_socket_file() -> None:
    sends_in_time("redis+socket:///nowhere/at/all", "can't be reached; nothing was done")


def test_nobody_takes_the_connection() -> None:
    with black_hole() as url:
        sends_in_time(url, "can't be reached; nothing was done")


def _crowd_is_told_in_time(app: Umbel) -> None:
    """More threads than there are connections."""
    took: list[float] = []

    def send() -> None:
        started = time.monotonic()
        with pytest.raises((BrokerUnavailable, PublishUnknown)):
            app.send_task("t")
        took.append(time.monotonic() - started)

    threads = [threading.Thread(target=send) for _ in range(40)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(took) == 40
    assert max(took) < BOUND + 0.5  # for the threads of one interpreter


def test_a_crowd_before_a_server_that_is_away() -> None:
    with black_hole() as url, Umbel("client", broker=url, set_as_current=False) as app:
        _crowd_is_told_in_time(app)


def test_a_crowd_before_a_server_that_stands_still() -> None:
    server = Redis()
    try:
        server.start()
        with Umbel("client", broker=server.url, set_as_current=False) as app:
            app.send_task("t")
            server.freeze()
            _crowd_is_told_in_time(app)
            server.thaw()
    finally:
        server.remove()


@pytest.mark.parametrize("count", [1, 2500])
def test_coroutines_before_a_server_that_is_away(count: int) -> None:
    """More of them than go out in one step."""

    async def send(app: Umbel) -> float:
        started = time.monotonic()
        with pytest.raises(BrokerUnavailable):
            await app.asend_task("t")
        return time.monotonic() - started

    async def send_all(app: Umbel) -> list[float]:
        return await asyncio.gather(*[send(app) for _ in range(count)])

    with black_hole() as url, Umbel("client", broker=url, set_as_current=False) as app:
        took = asyncio.run(send_all(app))
    # Making and answering thousands takes a while, too.
    assert max(took) < BOUND + (0.0 if count == 1 else 2.0)


def test_somebody_takes_it_and_says_nothing() -> None:
    with answering(b"") as url:
        sends_in_time(url, "can't be reached|its answer was lost")


def test_somebody_takes_it_and_ends_it() -> None:
    with answering(None) as url:
        sends_in_time(url, "can't be reached|its answer was lost")


def test_it_speaks_another_language() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        sends_in_time(url, "can't be reached|its answer was lost")


def test_it_is_loading() -> None:
    with answering(_LOADING) as url:
        sends_in_time(url, "is still loading its data; nothing was done")


def test_a_name_that_is_not_known() -> None:
    sends_in_time("redis://nowhere.invalid", "can't be reached; nothing was done")


def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    look_up = socket.getaddrinfo

    def never(host: Any, *args: Any) -> Any:
        if host == "slow.invalid":
            done.wait(20)
        return look_up(host, *args)

    monkeypatch.setattr(socket, "getaddrinfo", never)
    try:
        sends_in_time("redis://slow.invalid", "the name 'slow.invalid' wasn't resolved in time")
    finally:
        done.set()


def test_a_name_whose_first_address_leads_nowhere(
    redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up = socket.getaddrinfo
    with black_hole() as hole:
        ports = int(hole.rpartition(":")[2]), redis_server.port

        def two(host: Any, *args: Any) -> Any:
            if host != "two.invalid":
                return look_up(host, *args)
            return [each for port in ports for each in look_up("127.0.0.1", port, *args[1:])]

        monkeypatch.setattr(socket, "getaddrinfo", two)
        with Umbel("client", broker="redis://two.invalid", set_as_current=False) as app:
            started = time.monotonic()
            app.send_task("t")
            assert time.monotonic() - started < BOUND


@pytest.mark.parametrize("is_connected", [True, False])
def test_it_stands_still(is_connected: bool) -> None:
    server = Redis()
    try:
        server.start()

        def freeze(app: Umbel) -> None:
            if is_connected:
                app.send_task("t")
            server.freeze()

        said = "its answer was lost" if is_connected else "can't be reached|its answer was lost"
        sends_in_time(server.url, said, before=freeze)
    finally:
        server.thaw()
        server.remove()


def test_something_else_lies_under_our_keys(redis_server: Redis) -> None:
    redis_server.flush()
    driver = RedisBroker(redis_server.url, BrokerOptions())
    driver.open()
    driver.declare([QUEUE])
    with Client(port=redis_server.port) as client:
        client.set(QUEUE, "another program's")
    with pytest.raises(BrokerUnavailable, match="another program's under one of our keys"):
        driver.publish([posting("a")])
    driver.close()
    redis_server.flush()


def test_a_replica_is_said_to_be_one(redis_server: Redis) -> None:
    replica = Redis("--replicaof", "127.0.0.1", str(redis_server.port))
    try:
        replica.start()
        sends_in_time(replica.url, "is a replica, which can't be written to|without its primary")
    finally:
        replica.remove()


def test_a_server_that_is_too_old_is_named() -> None:
    hello = b"*4\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n6.0.9\r\n"
    with answering(hello) as url:
        driver = RedisBroker(url, BrokerOptions())
        with pytest.raises(ImproperlyConfigured, match=r"is Redis 6\.0\.9; expected Redis 6\.2"):
            driver.open()
