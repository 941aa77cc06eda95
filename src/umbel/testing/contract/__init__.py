"""The contract suites: one per port, which every driver passes, also a third party's.

A driver's own tests are a module that subclasses them::

    class TestMyDriver(BrokerContract, CoordinatorContract, InspectorContract):
        @staticmethod
        def connect(where: Path, options: BrokerOptions, clock: Clock) -> MyDriver:
            return MyDriver(str(where), options, clock=clock)

    class TestMyStore(ResultStoreContract):
        @staticmethod
        def connect_store(where: Path, clock: Clock) -> MyStore:
            return MyStore(str(where), clock=clock)

`SharedDatabaseContract`, which wants both, is for a store that lies in its broker's database.
What a driver can't do is a flag of its `features`; the suites assert what follows from it.
Needs pytest.
"""

import pytest

# Before the imports, so that a failing assertion shows its values in a driver's tests too.
pytest.register_assert_rewrite(
    *(
        f"{__name__}.{part}"
        for part in (
            "coordinating",
            "crowding",
            "deaths",
            "inspecting",
            "life",
            "publishing",
            "rig",
            "routing",
            "storing",
            "turns",
            "waiting",
        )
    )
)

from umbel.testing.contract.coordinating import CoordinatorContract  # noqa: E402
from umbel.testing.contract.crowding import CrowdingContract  # noqa: E402
from umbel.testing.contract.deaths import (  # noqa: E402
    AbandonContract,
    BurialContract,
    FencingContract,
    ReclaimContract,
)
from umbel.testing.contract.inspecting import DeadLetterContract, PlacesContract  # noqa: E402
from umbel.testing.contract.life import (  # noqa: E402
    EnlistingContract,
    LivenessContract,
    MixedLeasesContract,
    SharingContract,
)
from umbel.testing.contract.publishing import (  # noqa: E402
    AnswerContract,
    BroadcastContract,
    PublishingContract,
    RelayContract,
)
from umbel.testing.contract.routing import (  # noqa: E402
    ExchangeContract,
    OwnQueueContract,
)
from umbel.testing.contract.storing import (  # noqa: E402
    ResultStoreContract,
    SharedDatabaseContract,
)
from umbel.testing.contract.turns import (  # noqa: E402
    BegunContract,
    FollowUpContract,
    GivingBackContract,
    RepetitionContract,
    SettlingContract,
)
from umbel.testing.contract.waiting import WaitingContract  # noqa: E402

__all__ = [
    "BrokerContract",
    "CoordinatorContract",
    "InspectorContract",
    "ResultStoreContract",
    "SharedDatabaseContract",
]


class BrokerContract(
    PublishingContract,
    RelayContract,
    AnswerContract,
    BroadcastContract,
    ExchangeContract,
    OwnQueueContract,
    SettlingContract,
    FollowUpContract,
    RepetitionContract,
    BegunContract,
    GivingBackContract,
    EnlistingContract,
    SharingContract,
    LivenessContract,
    MixedLeasesContract,
    ReclaimContract,
    FencingContract,
    AbandonContract,
    BurialContract,
    WaitingContract,
    CrowdingContract,
):
    """Everything that `umbel.ports.Broker` promises."""


class InspectorContract(PlacesContract, DeadLetterContract):
    """Everything that `umbel.ports.Inspector` promises."""
