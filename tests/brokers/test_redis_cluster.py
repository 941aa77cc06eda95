"""A broker on a cluster while its slot goes from node to node, and what its errors say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from redis.crc import key_slot
from tests.servers import Cluster, Redis

from umbel import Umbel
from umbel.exceptions import BrokerUnavailable, ImproperlyConfigured
from umbel.testing.contract.rig import (
    OTHER,
    QUEUE,
    Background,
    Hand,
    eventually,
    ids,
    posting,
)
from umbel.testing.contract.storing import result

SLOT = key_slot(b"umbel")


@pytest.fixture
def app(redis_cluster: Cluster) -> Iterator[Umbel]:
    redis_cluster.flush()
    with Umbel("client", broker=redis_cluster.url, set_as_current=False) as app:
        yield app


def _next(cluster: Cluster) -> Redis:
    """A node that doesn't have the slot."""
    owner = cluster.owner(SLOT)
    return next(node for node in cluster.nodes if node is not owner)


def test_all_keys_are_in_one_slot(app: Umbel, redis_cluster: Cluster) -> None:
    assert app.store is not None
    app.send_task("t", task_id="a", queue="q")
    app.send_task("t", task_id="b", countdown=60)
    app.store.put([result("a")])
    owner = redis_cluster.owner(SLOT)
    names = redis_cluster.tell(owner, "KEYS", "*")
    assert {key_slot(name.encode()) for name in names} == {SLOT}
    assert {"{umbel}q", "{umbel}celery-task-meta-a"} <= set(names)
    for node in redis_cluster.nodes:
        assert node is owner or redis_cluster.tell(node, "DBSIZE") == 0
    assert app.broker.location == app.store.location


@pytest.mark.setting("broker_transport_options")
@pytest.mark.parametrize(
    ("given", "used"), [("shop:", "shop:{umbel}"), ("{shop}:", "{shop}:"), ("{a}{b}", "{a}{b}")]
)
def test_the_tag_stands_behind_the_prefix_unless_that_has_one(
    app: Umbel, redis_cluster: Cluster, given: str, used: str
) -> None:
    app.conf.broker_transport_options = {"global_keyprefix": given}
    app.send_task("t")
    owner = redis_cluster.owner(key_slot(used.encode()))
    assert redis_cluster.tell(owner, "LLEN", f"{used}celery") == 1


@pytest.mark.parametrize("prefix", ["{}", "a{", "{}{b}"])
def test_a_prefix_whose_brace_begins_no_tag_is_refused(app: Umbel, prefix: str) -> None:
    app.conf.broker_transport_options = {"global_keyprefix": prefix}
    with pytest.raises(ImproperlyConfigured, match="whose brace begins no hash tag"):
        app.send_task("t")


def test_a_slot_that_is_moved(app: Umbel, redis_cluster: Cluster) -> None:
    """Nothing is done in between, on either side; then all goes on, and nobody is told."""
    broker, store = app.broker, app.store
    assert store is not None
    broker.declare([QUEUE, OTHER])
    broker.publish([posting("a"), posting("b"), posting("c")])
    broker.enlist("run", "run#1", b"")
    hand = Hand(broker, "run#1")
    first = hand.take_one()
    store.put([result("a")])

    def wait() -> bool:
        while True:
            with contextlib.suppress(BrokerUnavailable):
                return broker.wait([OTHER], 60.0)

    waiting = Background(wait)
    eventually(lambda: bool(broker.waiting))  # type: ignore[attr-defined]  # a driver's
    target = _next(redis_cluster)

    redis_cluster.begin_to_move(SLOT, target)
    source = redis_cluster.owner(SLOT)
    [some] = redis_cluster.tell(source, "CLUSTER", "GETKEYSINSLOT", SLOT, 1)
    moved = "MIGRATE", "127.0.0.1", target.port, some, 0, 5000
    redis_cluster.tell(source, *moved)
    before = redis_cluster.tell(source, "DBSIZE"), redis_cluster.tell(target, "DBSIZE")
    for call in (
        lambda: broker.publish([posting("d")]),
        lambda: hand.ack(first),
        lambda: broker.beat("run"),
    ):
        with pytest.raises(BrokerUnavailable, match="is moving our keys to another node"):
            call()
    assert before == (redis_cluster.tell(source, "DBSIZE"), redis_cluster.tell(target, "DBSIZE"))
    redis_cluster.move(SLOT, target)

    broker.publish([posting("e")])
    assert hand.again().lost == frozenset()
    assert hand.ack(first).lost == frozenset()
    assert ids(hand.take()) == ["b", "c", "e"]
    assert store.get(["a"]) == [result("a")]
    store.put([result("b")])
    broker.publish([posting("f", OTHER)])
    assert waiting.result() is True


def test_what_listens_goes_on_listening_where_the_slot_is(
    app: Umbel, redis_cluster: Cluster
) -> None:
    """Broadcasts are heard on all nodes."""
    hearing = app.broker.subscribe(["control"])
    target = _next(redis_cluster)
    redis_cluster.begin_to_move(SLOT, target)
    redis_cluster.move(SLOT, target)
    app.broker.broadcast("control", b"x")
    assert hearing.get(5.0) == ("control", b"x")
    hearing.close()


def test_a_server_that_is_in_no_cluster_is_said(redis_server: Redis) -> None:
    url = f"redis+cluster://127.0.0.1:{redis_server.port}"
    with (
        Umbel("client", broker=url, set_as_current=False) as app,
        pytest.raises(BrokerUnavailable, match="cluster support disabled"),
    ):
        app.send_task("t")


def test_a_cluster_that_is_addressed_as_a_server_is_said(redis_cluster: Cluster) -> None:
    url = redis_cluster.nodes[0].url
    with (
        Umbel("client", broker=url, set_as_current=False) as app,
        pytest.raises(BrokerUnavailable, match=r"Write redis\+cluster:// in place of redis://"),
    ):
        app.send_task("t")
