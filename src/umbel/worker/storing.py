"""Results into a store that isn't the broker's database: before their deliveries are settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from umbel.exceptions import BackendStoreError
from umbel.message import Settlement
from umbel.ports import ResultStore

Instead = Callable[[Settlement, BackendStoreError], Settlement]


def store_first(
    store: ResultStore, settlements: Sequence[Settlement], instead: Instead
) -> list[Settlement]:
    """Store the results of `settlements`; what is left to be settled.

    `instead` gives the settlement of one whose result the store refuses for good (it is too
    large, say). Raises `OperationalError` where the store is away; may then be repeated.
    """
    results = [settlement.result for settlement in settlements if settlement.result]
    try:
        if results:
            store.put(results)
    except BackendStoreError:
        return [_store_one(store, settlement, instead) for settlement in settlements]
    return [replace(settlement, result=None) for settlement in settlements]


def _store_one(store: ResultStore, settlement: Settlement, instead: Instead) -> Settlement:
    if settlement.result is None:
        return settlement
    try:
        store.put([settlement.result])
    except BackendStoreError as error:
        settlement = instead(settlement, error)
        if settlement.result is not None:
            # If that is refused as well, its dead letter says what happened.
            with suppress(BackendStoreError):
                store.put([settlement.result])
    return replace(settlement, result=None)
