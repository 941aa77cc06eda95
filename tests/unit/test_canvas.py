"""Signatures and chains as values: their forms, partial arguments, links, flattening."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel import Umbel
from umbel.canvas import (
    KEYS,
    Signature,
    chain,
    chord,
    chunks,
    from_dict,
    group,
    signature,
    xmap,
    xstarmap,
)
from umbel.exceptions import ImproperlyConfigured
from umbel.serialization import dumps

app = Umbel("canvas", broker="memory://canvas", set_as_current=False)


@app.task(name="add")
def add(x: int, y: int = 0) -> int:
    return x + y


FORM = {
    "task": "add",
    "args": [2],
    "kwargs": {"y": 3},
    "options": {"queue": "q"},
    "subtask_type": None,
    "immutable": False,
}


def test_the_form_has_six_keys() -> None:
    made = add.signature((2,), {"y": 3}, queue="q")
    assert dict(made) == FORM
    assert tuple(made.keys()) == KEYS
    assert json.loads(dumps({"link": made})) == {"link": FORM}
    assert made == FORM
    assert made == from_dict(FORM, app)
    assert made != add.s(2)
    assert made["task"] == made.name == "add"
    assert repr(made) == "add(2, y=3)"
    assert dict(add.si(1))["immutable"] is True


def test_the_form_of_a_chain() -> None:
    made = add.s(1, 2) | add.s(3)
    form = dict(made)
    assert form == {
        "task": "celery.chain",
        "args": [],
        "kwargs": {"tasks": [dict(add.s(1, 2)), dict(add.s(3))]},
        "options": {},
        "subtask_type": "chain",
        "immutable": False,
    }
    assert isinstance(from_dict(form, app), chain)
    assert from_dict(form, app) == made
    assert from_dict({**form, "args": [9]}, app).args == (9,)


def test_arguments_of_the_call_come_first_and_named_ones_win() -> None:
    made = add.s(5).clone((1,), {"y": 2}, queue="q")
    assert (made.args, made.kwargs, made.options) == ((1, 5), {"y": 2}, {"queue": "q"})
    assert add.signature((), {"y": 1}).clone((), {"y": 2}).kwargs == {"y": 2}
    fixed = add.si(5).clone((1,), {"y": 2}, queue="q")
    assert (fixed.args, fixed.kwargs, fixed.options) == ((5,), {}, {"queue": "q"})
    assert add.s(2)(1) == 3
    assert add.si(2)(1) == 2


def test_a_group_id_is_kept() -> None:
    made = add.signature((1,), group_id="g", queue="q")
    assert made.clone((), {}, group_id="h", queue="r").options == {"group_id": "g", "queue": "r"}


def test_links_are_added_once_and_are_plain() -> None:
    made = add.s(1)
    assert made.link(add.s(2)) == add.s(2)
    made.link(add.s(2))
    made.link(dict(add.s(3)))
    assert made.on_error(add.s(4)) is made
    assert made.options == {
        "link": [dict(add.s(2)), dict(add.s(3))],
        "link_error": [dict(add.s(4))],
    }
    assert add.signature((1,), link=add.s(2)).options["link"] == [dict(add.s(2))]


def test_copies_share_nothing() -> None:
    steps = add.s(1) | add.s(2)
    steps.link(add.s(3))
    before = copy.deepcopy(dict(steps))
    other = steps.clone((7,))
    other.link(add.s(4))
    other.freeze()
    other.tasks[0].set(queue="q")
    assert dict(steps) == before


def test_set_and_replace() -> None:
    made = add.s(1).set(immutable=True, queue="q", link=add.s(2))
    assert made.immutable
    assert made.options == {"queue": "q", "link": [dict(add.s(2))]}
    other = made.replace(args=(3,), options={})
    assert (other.args, other.options, made.args) == ((3,), {}, (1,))


def test_freeze_gives_an_id_that_stays() -> None:
    assert add.s(1).id is None
    made = add.s(1)
    result = made.freeze()
    assert made.freeze("other").id == result.id == made.id
    assert set(made.options) == {"task_id", "reply_to"}
    steps = add.s(1) | add.s(2)
    last = steps.freeze("last", root_id="root", parent_id="parent")
    assert last.id == "last"
    assert steps.tasks[0].options["parent_id"] == "parent"
    assert {step.options["root_id"] for step in steps.tasks} == {"root"}


numbers = st.recursive(
    st.integers(0, 9), lambda inner: st.lists(inner, min_size=1, max_size=3), max_leaves=12
)


def built(shape: Any) -> Signature:
    return add.s(shape) if isinstance(shape, int) else chain([built(each) for each in shape])


def flat(shape: Any) -> list[int]:
    return [shape] if isinstance(shape, int) else [n for each in shape for n in flat(each)]


@given(numbers, numbers)
def test_chains_are_flat_however_they_were_put_together(one: Any, other: Any) -> None:
    steps = built(one) | built(other)
    assert [step.args for step in steps.tasks] == [(n,) for n in flat(one) + flat(other)]
    assert len(steps) == len(flat(one)) + len(flat(other))
    assert from_dict(dict(steps), app) == steps


def test_what_a_chain_is_given_goes_to_its_steps() -> None:
    inner = add.s(1) | add.s(2)
    inner.link(add.s(8))
    inner.link_error(add.s(9))
    inner.set(task_id="inner")
    outer = inner | add.s(3)
    first, second, third = outer.tasks
    assert first.options == {"link_error": [dict(add.s(9))]}
    assert second.options == {
        "link": [dict(add.s(8))],
        "link_error": [dict(add.s(9))],
        "task_id": "inner",
    }
    assert third.options == {}


def test_a_chain_of_none_or_one() -> None:
    assert chain(app=app).apply_async() is None
    assert len(chain(add.s(1))) == 1
    assert chain(iter([add.s(1), add.s(2)])) == add.s(1) | add.s(2)
    assert repr(add.s(1) | add.s(2)) == "add(1) | add(2)"
    with pytest.raises(ValueError, match="no steps"):
        chain(app=app).freeze()


@pytest.mark.parametrize("later", [group, chord, chunks, xmap, xstarmap])
def test_what_comes_later_says_so_when_it_is_called(later: Any) -> None:
    with pytest.raises(ImproperlyConfigured, match="comes with the release 'Workflows'"):
        later([add.s(1)])


@pytest.mark.parametrize("kind", ["group", "chord", "chunks", "xmap", "xstarmap"])
def test_forms_of_what_comes_later(kind: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=f"{kind} comes with the release"):
        from_dict({"task": f"celery.{kind}", "subtask_type": kind})
    with pytest.raises(ImproperlyConfigured, match="chord comes with"):
        from_dict({"task": "t", "options": {"chord": {}}})


@given(
    st.dictionaries(
        st.sampled_from(KEYS),
        st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.none()),
    )
)
def test_a_strangers_form_is_read_or_refused(form: dict[str, Any]) -> None:
    try:
        made = from_dict(form, app)
    except (TypeError, ImproperlyConfigured):
        return
    assert made.task == form["task"]


@pytest.mark.parametrize("wrong", [None, 5, b"add"])
def test_no_signature(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"is no signature; expected one such as add\.s"):
        signature(wrong)
    with pytest.raises(TypeError, match="is no signature"):
        add.s(1).link(wrong)
    with pytest.raises(TypeError):
        _ = add.s(1) | wrong
