"""The core of the contracts on the oldest server that is supported, and on the newest ones.

All of the contracts: ``./dev test tests/brokers/all_redis_versions.py``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis import Redis as Client
from tests.brokers.redis_versions import SERVERS, OtherRedis
from tests.brokers.test_redis_contract import connect, serve

from umbel.testing.contract.deaths import BurialContract
from umbel.testing.contract.publishing import BroadcastContract, PublishingContract
from umbel.testing.contract.turns import (
    BegunContract,
    FollowUpContract,
    GivingBackContract,
    RepetitionContract,
    SettlingContract,
)
from umbel.testing.contract.waiting import WaitingContract


@pytest.fixture(scope="module", autouse=True, params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[OtherRedis]:
    made = OtherRedis(request.param)
    try:
        made.start()
        serving = serve(made)
        next(serving)
        yield made
        next(serving, None)
    finally:
        made.remove()


def test_it_is_the_server_that_it_should_be(
    server: OtherRedis, request: pytest.FixtureRequest
) -> None:
    kind, version = request.node.callspec.params["server"].split("-")
    with Client(port=server.port, decode_responses=True) as client:
        said = client.info("server")
    assert said[f"{kind}_version"].startswith(version)


class TestCore(
    BegunContract,
    BroadcastContract,
    BurialContract,
    FollowUpContract,
    GivingBackContract,
    PublishingContract,
    RepetitionContract,
    SettlingContract,
    WaitingContract,
):
    connect = staticmethod(connect)
