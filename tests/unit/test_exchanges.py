"""Which binding takes a message, against a matcher too simple to be wrong."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from umbel.exceptions import ImproperlyConfigured
from umbel.exchanges import (
    Binding,
    Exchange,
    binding_arguments,
    headers_match,
    takers,
    takes,
    topic_matches,
)

words = st.sampled_from(["a", "b", ""])
keys = st.lists(words, max_size=5).map(".".join)
patterns = st.lists(st.sampled_from(["a", "b", "*", "#", ""]), max_size=6).map(".".join)


def split(key: str) -> list[str]:
    return key.split(".") if key else []


def naive(pattern: list[str], key: list[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(naive(pattern[1:], key[skipped:]) for skipped in range(len(key) + 1))
    return bool(key) and pattern[0] in ("*", key[0]) and naive(pattern[1:], key[1:])


@given(patterns, keys)
@example("#.a.#.b", "b.a.a.b")
@example("*.#.*", "a")
@example("", "")
@example("#", "")
@example("*", "")
def test_topics_match_as_the_naive_matcher_says(pattern: str, key: str) -> None:
    assert topic_matches(pattern, key) == naive(split(pattern), split(key))


@pytest.mark.parametrize(
    ("pattern", "taken", "left"),
    [
        ("a.#", ["a", "a.b", "a.b.c"], ["", "ab", "b.a"]),
        ("#.a", ["a", "b.a", "c.b.a"], ["", "ba", "a.b"]),
        ("a.#.b", ["a.b", "a.x.b", "a.x.y.b"], ["a", "b", "ab"]),
        ("*.a", ["b.a"], ["a", "c.b.a"]),
        ("#", ["", "a", "a.b"], []),
        ("a", ["a"], ["a.b", "A", "a."]),
        ("a#", ["a#"], ["a", "ab"]),
        ("a+.b", ["a+.b"], ["aa.b"]),
    ],
)
def test_words_of_a_topic(pattern: str, taken: list[str], left: list[str]) -> None:
    assert [key for key in (*taken, *left) if topic_matches(pattern, key)] == taken


def test_many_wildcards_take_no_time() -> None:
    assert not topic_matches(".".join(["#", "a"] * 40), ".".join(["a"] * 400 + ["b"]))


values = st.sampled_from([None, "x", 1, True])
arguments = st.dictionaries(st.sampled_from(["a", "b", "x-c"]), values)
headers = st.dictionaries(st.sampled_from(["a", "b", "x-c", "d"]), st.sampled_from(["x", 1, True]))


@given(arguments, headers, st.sampled_from([None, "all", "any", "all-with-x", "any-with-x"]))
def test_headers_match_as_said(
    wanted: dict[str, object], found: dict[str, object], match: str | None
) -> None:
    hits, misses = 0, 0
    for name, value in wanted.items():
        if name == "x-c" and match in (None, "all", "any"):
            continue
        hit = name in found and (value is None or (type(value), value) == _typed(found[name]))
        hits, misses = hits + hit, misses + (not hit)
    expected = hits > 0 if match in ("any", "any-with-x") else misses == 0
    asked = wanted if match is None else {**wanted, "x-match": match}
    assert headers_match(binding_arguments(asked, "here"), found) == expected


def _typed(value: object) -> tuple[type, object]:
    return type(value), value


def test_each_type() -> None:
    assert takes(Binding("q", "x", "direct", "k"), "k", {})
    assert not takes(Binding("q", "x", "direct", "#"), "k", {})
    assert takes(Binding("q", "x", "fanout", "k"), "other", {})
    assert takes(Binding("q", "x", "topic", "#"), "k", {})
    assert takes(Binding("q", "x", "headers", "", (("a", 1),)), "k", {"a": 1})
    assert not takes(Binding("q", "x", "headers", "", (("a", 1),)), "k", {})


def test_a_queue_bound_twice_takes_one_copy() -> None:
    bindings = [Binding("q", "x", "topic", "#"), Binding("p", "x", "topic", "a")]
    assert takers([*bindings, Binding("q", "x", "topic", "a")], "a", {}) == ("q", "p")


def test_an_exchange_of_no_known_type() -> None:
    with pytest.raises(ImproperlyConfigured, match="exchange 'x' is of type 'topik'; expected one"):
        Exchange("x", "topik")
    assert Exchange("x", "").type == "direct"


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (7, "the arguments 7; expected a dict"),
        ({"a": []}, "the argument 'a': []; expected a text"),
        ({1: "a"}, "the argument 1"),
        ({"x-match": "some"}, "x-match 'some'; expected one of all, any"),
    ],
)
def test_arguments_that_cannot_be(value: object, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape(sentence)):
        binding_arguments(value, "binding")


def test_arguments_have_one_order() -> None:
    assert binding_arguments({"b": 1, "a": 2}, "") == binding_arguments({"a": 2, "b": 1}, "")
    assert binding_arguments(None, "") == ()
