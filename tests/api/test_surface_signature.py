"""Every name of a Celery signature's surface."""

from __future__ import annotations

import pytest
from tests.api.looking import waiting

from umbel import Signature, Task, Umbel, signature
from umbel.exceptions import NotProvided

NAMES = (
    "__call__", "delay", "apply", "apply_async", "clone", "partial", "freeze", "replace", "set",
    "set_immutable", "link", "link_error", "on_error", "flatten_links", "stamp", "stamp_links",
    "reprcall", "__or__", "__invert__", "from_dict", "name", "task", "args", "kwargs", "options",
    "subtask_type", "immutable", "id", "parent_id", "root_id", "type", "app", "AsyncResult",
    "adelay", "aapply_async",
)  # fmt: skip


@pytest.fixture
def add(app: Umbel) -> Task[[int, int], int]:
    @app.task(name="add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    return add


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chained", [False, True])
def test_a_name_is_there(app: Umbel, add: Task[[int, int], int], name: str, chained: bool) -> None:
    sig: Signature = add.s(1) | add.s(2) if chained else add.s(1)
    if chained and name == "type":
        return  # a chain is no task of its own here
    getattr(sig, name)


@pytest.mark.parametrize(("name", "hint"), [("election", "Events"), ("register_type", "fixed")])
def test_what_is_not_there_says_so(add: Task[[int, int], int], name: str, hint: str) -> None:
    with pytest.raises(NotProvided, match=rf"signature\.{name} .*{hint}"):
        getattr(add.s(1), name)


def test_it_reads_as_its_form(add: Task[[int, int], int]) -> None:
    sig = add.s(1).set(queue="mail")
    assert dict(sig) == dict(sig.items()) == {key: sig[key] for key in sig}
    assert list(sig.values()) == list(dict(sig).values())
    assert (sig["task"], sig.get("options"), sig.get("nope", 3)) == ("add", {"queue": "mail"}, 3)
    assert "task" in sig
    assert "nope" not in sig
    sig["args"] = [5]
    sig["immutable"] = True
    assert (sig.args, sig.immutable) == ((5,), True)
    with pytest.raises(KeyError, match="it has task, args"):
        sig["arg"] = [5]
    assert sig == Signature.from_dict(dict(sig))


def test_ids(add: Task[[int, int], int]) -> None:
    sig = add.s(1)
    assert (sig.id, sig.parent_id, sig.root_id) == (None, None, None)
    result = sig.freeze(root_id="r", parent_id="p")
    assert [sig.id, sig.parent_id, sig.root_id] == [result.id, "p", "r"]
    assert sig.AsyncResult("x").task_name == "add"


def test_none_in_a_call_is_left_to_the_signature(app: Umbel) -> None:
    @app.task(queue="own")
    def owned(x: int) -> None: ...

    owned.s(1).apply_async(queue=None)
    owned.s(1).set(queue="other").apply_async(queue=None)
    (owned.s(1) | owned.si(2)).apply_async(queue=None, task_id=None)
    owned.apply_async((1,), queue=None)  # of a task, None takes back what it says
    owned.s(1).set(queue=None).apply_async()
    assert {name: len(waiting(app, name)) for name in ("own", "other", "celery")} == {
        "own": 2, "other": 1, "celery": 2,
    }  # fmt: skip


def test_inverted_it_is_its_value(app: Umbel, add: Task[[int, int], int]) -> None:
    app.conf.task_always_eager = True
    assert ~add.s(1, 2) == 3
    assert ~(add.s(1, 2) | add.s(4)) == 7


def test_what_is_linked_in_one_list(app: Umbel, add: Task[[int, int], int]) -> None:
    inner = add.s(2)
    inner.link(add.s(3))
    sig = add.s(1)
    sig.link(add.s(4))
    sig.link(inner)
    assert [each.args for each in sig.flatten_links()] == [(1,), (4,), (2,), (3,)]


def test_how_a_call_looks(app: Umbel, add: Task[[int, int], int]) -> None:
    assert add.s(1).reprcall(4, y=2) == "add(4, 1, y=2)"
    assert repr(signature("add", (1,), {"y": 2}, app=app)) == "add(1, y=2)"
    assert (add.s(1) | add.s(2)).reprcall(0) == "add(0, 1) | add(2)"
