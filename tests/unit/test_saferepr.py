"""Argument representations: as repr where that is small, bounded and unfailing elsewhere."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.saferepr import safe_repr

flat = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.binary(max_size=5)
)
shallow = st.recursive(
    flat,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(flat, inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.sets(flat, max_size=3)
        | st.frozensets(flat, max_size=3)
    ),
    max_leaves=5,
)


class Failing:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Looping:
    def __repr__(self) -> str:
        return repr(self)


class Secret(dict[str, str]):
    def __repr__(self) -> str:
        return "<secret>"


class Rows(list[int]):
    pass


@given(shallow)
def test_small_values_look_as_their_repr(value: Any) -> None:
    assert safe_repr(value, 100_000, 50) == repr(value)


@given(shallow, st.integers(0, 60), st.integers(0, 4))
def test_bounded_for_any_limits(value: Any, maxlen: int, maxlevels: int) -> None:
    text = safe_repr(value, maxlen, maxlevels)
    assert len(text) <= max(maxlen, 3) or not value
    text.encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, 2), "(1, 2)"),
        ((1,), "(1,)"),
        ((), "()"),
        ({}, "{}"),
        (set(), "set()"),
        ({"a": [1, {"b": (2, [3])}]}, "{'a': [1, {'b': (...)}]}"),
        (Secret(password="x"), "<secret>"),
        (Rows([1, 2]), "Rows([1, 2])"),
        (deque([1]), "deque([1])"),
        (defaultdict(int, a=1), "defaultdict({'a': 1})"),
        (OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (Counter("aa"), "Counter({'a': 2})"),
        (frozenset([1]), "frozenset({1})"),
        ([Failing(), 1], "[<Failing object; its repr raised RuntimeError>, 1]"),
        ([Looping()], "[<Looping object; its repr raised RecursionError>]"),
        (1 << 5000, "<int of 5001 bits>"),
        (int, "<class 'int'>"),
        ("\ud800é", "'\\ud800é'"),
    ],
)
def test_forms(value: object, expected: str) -> None:
    assert safe_repr(value) == expected


@pytest.mark.parametrize("cut", ["x" * 10**8, [0] * 10**6, {i: i for i in range(10**5)}])
def test_huge_values_are_cut(cut: Any) -> None:
    text = safe_repr((cut, 1))
    assert len(text) == 1024
    assert text.endswith("...")
    assert text[:900] == repr((cut[:2000] if isinstance(cut, (str, list)) else cut,))[:900]


def test_work_is_bounded_too() -> None:
    seen = 0

    class Counting:
        def __repr__(self) -> str:
            nonlocal seen
            seen += 1
            return "c"

    item = Counting()
    for value in ([item] * 5000, deque([item] * 5000), Rows([item] * 5000), [[item] * 90] * 90):  # type: ignore[list-item]
        seen = 0
        safe_repr(value)
        assert 100 < seen <= 400


def test_a_value_that_contains_itself() -> None:
    value: list[Any] = []
    value.append(value)
    assert safe_repr(value) == "[[[[...]]]]"


def test_a_repr_that_cannot_be_encoded_is_escaped() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "\ud800"

    assert safe_repr([Odd()]) == "[\\ud800]"


def test_containers_that_break_on_reading() -> None:
    class Torn(list[int]):
        def __iter__(self) -> Any:
            raise OSError("gone")

    assert "OSError" in safe_repr(Torn([1]))
