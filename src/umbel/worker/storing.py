"""Results into a store that isn't the broker's database: before their deliveries are settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from umbel.exceptions import BackendStoreError
from umbel.message import Result, Settlement
from umbel.ports import ResultStore

Instead = Callable[[Settlement, BackendStoreError], Settlement]


def store_first(
    store: ResultStore, settlements: Sequence[Settlement], instead: Instead
) -> list[Settlement]:
    """Store the results of `settlements`; what is left to be settled.

    `instead` gives the settlement of one whose result the store refuses for good (it is too
    large, say). Raises `OperationalError` where the store is away; may then be repeated.
    """
    results = [result for settlement in settlements for result in settlement.results]
    try:
        if results:
            store.put(results)
    except BackendStoreError:
        return [_store_one(store, settlement, instead) for settlement in settlements]
    return [without_results(settlement) for settlement in settlements]


def without_results(settlement: Settlement) -> Settlement:
    """What is left once the results are stored, or can't be."""
    return replace(settlement, result=None, others=())


def _store_one(store: ResultStore, settlement: Settlement, instead: Instead) -> Settlement:
    try:
        if settlement.result is not None:
            store.put([settlement.result])
    except BackendStoreError as error:
        settlement = instead(settlement, error)
        # If that is refused as well, its dead letter says what happened.
        _store_what_can_be(store, settlement.results)
    else:
        _store_what_can_be(store, settlement.others)
    return without_results(settlement)


def _store_what_can_be(store: ResultStore, results: Sequence[Result]) -> None:
    for result in results:
        with suppress(BackendStoreError):
            store.put([result])
