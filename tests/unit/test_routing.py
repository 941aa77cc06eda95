"""Where a message goes: who wins, what matches first, and what is refused with which sentence."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import ImproperlyConfigured, QueueNotFound, Unroutable
from umbel.routing import Address, Queue, Router, queue_name


def to(name: str) -> Address:
    return Address("", name, name)


def queue_of(router: Router, task: str, **options: object) -> str:
    return router.route(task, options).address.queue


@dataclass
class Named:
    """An exchange or queue object as another library has them."""

    name: str
    type: str = "direct"
    exchange: Any = None
    routing_key: str = ""
    max_priority: int | None = None


words = st.text("abc_", min_size=1, max_size=6)
names = st.lists(words, min_size=1, max_size=3).map(".".join)


# Defaults


def test_no_settings_lead_to_the_default_queue() -> None:
    assert Router().route("proj.add") == (to("celery"), {})
    assert Router().queues == (Queue("celery", "celery", "celery"),)


def test_another_default_queue() -> None:
    router = Router(default_queue="main", default_exchange="x", default_routing_key="k")
    assert queue_of(router, "t") == "main"
    assert router.queues == (Queue("main", "x", "k"),)
    assert queue_of(router, "t", exchange="x", routing_key="k") == "main"


def test_declared_queues_replace_the_default_one() -> None:
    router = Router(queues=["a", "b"])
    assert [queue.name for queue in router.queues] == ["a", "b"]
    assert queue_of(router, "t") == "celery"
    with pytest.raises(QueueNotFound, match="'celery' isn't declared; known: 'a', 'b'"):
        Router(queues=["a", "b"], create_missing=False).route("t")


# Routes


def test_exact_then_globs_in_the_order_written() -> None:
    router = Router(
        {"proj.*": "globbed", "proj.mail.*": "too late", "proj.mail.send": "exact", "*.x?": "q"}
    )
    assert queue_of(router, "proj.mail.send") == "exact"
    assert queue_of(router, "proj.mail.read") == "globbed"
    assert queue_of(router, "other.x1") == "q"
    assert queue_of(router, "other.x12") == "celery"


@given(names, st.lists(names, max_size=4))
def test_an_exact_name_beats_every_glob(name: str, others: list[str]) -> None:
    globs = {f"{other[:2]}*": "globbed" for other in others}
    assert queue_of(Router({"*": "all", **globs, name: "exact"}), name) == "exact"
    assert queue_of(Router({name: "exact", **globs, "*": "all"}), name) == "exact"


@given(names, st.lists(st.integers(0, 8), min_size=1, max_size=5, unique=True))
def test_the_first_matching_glob_wins(name: str, cuts: list[int]) -> None:
    globs = list(dict.fromkeys(f"{name[:cut]}*" for cut in cuts))
    router = Router([(glob, f"q{number}") for number, glob in enumerate(globs)])
    assert queue_of(router, name) == "q0"


@given(names)
def test_a_glob_covers_the_whole_name(name: str) -> None:
    router = Router({f"{name}?": "longer", f"[{name[0]}]{name[1:]}": "same"})
    assert queue_of(router, name) == "same"
    assert queue_of(router, f"{name}d") == "longer"
    assert queue_of(router, f"{name}dd") == "celery"


def test_a_compiled_expression_matches_at_the_start() -> None:
    router = Router({re.compile(r"(video|image)\.tasks\."): {"queue": "media"}})
    assert queue_of(router, "video.tasks.cut") == "media"
    assert queue_of(router, "proj.video.tasks.cut") == "celery"


@pytest.mark.parametrize(
    "routes",
    [
        {"a.*": "first", "a.b": "exact"},
        [{"a.*": "first", "a.b": "exact"}],
        [("a.*", "first"), ("a.b", "exact")],
        ([("a.*", {"queue": "first"}), ("a.b", Named("exact"))],),
        [["a.*", "first"], ["a.b", "exact"]],
    ],
)
def test_every_form_of_task_routes(routes: object) -> None:
    router = Router(routes)
    assert (queue_of(router, "a.b"), queue_of(router, "a.c")) == ("exact", "first")


def test_of_several_dicts_the_first_that_matches_answers() -> None:
    router = Router([("a.b", "pair"), {"a.*": "first"}, {"a.c": "second", "b": "second"}])
    assert [queue_of(router, task) for task in ("a.b", "a.c", "b")] == ["pair", "first", "second"]


def test_a_route_sets_other_options_too() -> None:
    router = Router({"t": {"queue": "q", "priority": 7, "expires": None}, "u": {"priority": 2}})
    assert router.route("t") == (to("q"), {"priority": 7})
    assert router.route("u") == (to("celery"), {"priority": 2})


@given(
    st.dictionaries(st.sampled_from(["priority", "expires"]), st.none() | st.integers(0, 9)),
    st.dictionaries(st.sampled_from(["priority", "expires", "shadow"]), st.none() | st.integers()),
)
def test_the_call_wins_option_by_option(route: dict[str, object], call: dict[str, object]) -> None:
    options = Router({"t": {"queue": "q", **route}}).route("t", call).options
    said = {key: value for key, value in route.items() if value is not None}
    said |= {key: value for key, value in call.items() if value is not None}
    assert options == said


@given(names, words, words)
def test_the_queue_of_the_call_wins(task: str, routed: str, called: str) -> None:
    router = Router({task: {"queue": routed, "exchange": "x", "routing_key": "k", "priority": 1}})
    assert router.route(task, {"queue": called}) == (to(called), {"priority": 1})
    assert queue_of(router, task, queue=Named(called)) == called


def test_none_in_a_call_says_nothing() -> None:
    router = Router({"t": "q"})
    assert router.route("t", {"queue": None, "exchange": None, "priority": None}) == (to("q"), {})


# Exchange and routing key

BOUND = [
    Queue("cats", exchange="pets", routing_key="cat"),
    Queue("dogs", exchange="pets", routing_key="dog"),
    Queue("farm", exchange="field", routing_key="cow"),
    "plain",
]


@pytest.mark.parametrize(
    ("options", "queue"),
    [
        ({"exchange": "pets", "routing_key": "dog"}, "dogs"),
        ({"exchange": Named("pets"), "routing_key": "cat"}, "cats"),
        ({"routing_key": "cow"}, "farm"),
        ({"exchange": "field"}, "farm"),
        ({"exchange": "plain", "routing_key": "plain"}, "plain"),
        ({"exchange": "", "routing_key": "cats"}, "cats"),
        ({"exchange": "", "routing_key": "brand_new"}, "brand_new"),
        ({"exchange": ""}, "celery"),
        ({"queue": "farm", "routing_key": "cat"}, "farm"),
        ({"queue": "farm", "exchange": "pets"}, "farm"),
        ({"queue": "farm", "exchange": "pets", "routing_key": "cat"}, "cats"),
        ({"queue": "new", "exchange": "new", "routing_key": "new"}, "new"),
        ({"exchange": "pets", "routing_key": "dog", "exchange_type": "direct"}, "dogs"),
    ],
)
def test_what_a_binding_leads_to(options: dict[str, object], queue: str) -> None:
    assert Router(queues=BOUND).route("t", options) == (to(queue), {})
    assert Router({"t": options}, BOUND).route("t") == (to(queue), {})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"routing_key": "cot"}, "routing key 'cot' leads to no queue. Known: 'cats' (exchange"),
        ({"exchange": "pets", "routing_key": "cow"}, "exchange 'pets' and routing key 'cow' leads"),
        ({"exchange": "zoo"}, "exchange 'zoo' leads to no queue"),
        ({"exchange": "pets"}, "leads to more than one queue: 'cats', 'dogs'. Say which"),
        ({"queue": "new", "exchange": "pets", "routing_key": "new"}, "leads to no queue"),
    ],
)
def test_what_leads_nowhere_is_refused(options: dict[str, object], sentence: str) -> None:
    with pytest.raises(Unroutable, match=re.escape(sentence)):
        Router(queues=BOUND).route("t", options)


def test_a_key_of_the_call_completes_the_exchange_of_the_route() -> None:
    router = Router({"t": {"exchange": "pets", "routing_key": "dog"}, "u": "farm"}, BOUND)
    assert queue_of(router, "t", routing_key="cat") == "cats"
    assert queue_of(router, "u", exchange="pets", routing_key="cat") == "cats"


def test_answers_do_not_depend_on_earlier_calls() -> None:
    router = Router()
    assert queue_of(router, "t", queue="late") == "late"
    with pytest.raises(Unroutable):
        router.route("t", {"routing_key": "late"})


def test_queues_of_routes_can_be_reached_by_their_key() -> None:
    assert queue_of(Router({"other": "emails"}), "t", routing_key="emails") == "emails"


# Missing queues


def test_a_missing_queue_is_made_only_if_it_may_be() -> None:
    strict = Router(queues=["default", "emails", "slow"], create_missing=False)
    assert queue_of(strict, "t", queue="slow") == "slow"
    with pytest.raises(QueueNotFound) as caught:
        strict.route("t", {"queue": "email"})
    assert "queue 'email' isn't declared; known: 'emails', 'default', 'slow'." in str(caught.value)
    assert queue_of(Router(queues=["emails"]), "t", queue="email") == "email"


def test_a_long_list_of_known_queues_is_cut() -> None:
    strict = Router(queues=[f"q{number:02}" for number in range(50)], create_missing=False)
    with pytest.raises(QueueNotFound) as caught:
        strict.queue("zzz")
    assert str(caught.value).count("'q") == 10
    assert "…" in str(caught.value)


def test_select() -> None:
    router = Router(queues=["a", "b", "c"])
    assert [queue.name for queue in router.select()] == ["a", "b", "c"]
    assert [queue.name for queue in router.select(["c", "new", "a", "c"])] == ["c", "new", "a"]
    assert [queue.name for queue in router.select(exclude=["b", "new"])] == ["a", "c"]
    assert [queue.name for queue in router.select(["a", "b"], ["b"])] == ["a"]
    assert [queue.name for queue in router.queues] == ["a", "b", "c"]


def test_select_refuses_unknown_names_and_an_empty_rest() -> None:
    strict = Router(queues=["emails", "slow"], create_missing=False)
    with pytest.raises(QueueNotFound, match="known: 'emails', 'slow'"):
        strict.select(["email"])
    with pytest.raises(QueueNotFound, match="known: 'slow', 'emails'"):
        strict.select(exclude=["slw"])
    with pytest.raises(ImproperlyConfigured, match="of 'slow', 'slow' are excluded"):
        strict.select(["slow"], ["slow"])


# Wrong input


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("", "isn't empty"),
        (7, "7 can't be a queue name"),
        (None, "None can't be"),
        ("a{b}", "a brace"),
        ("a\x06\x16", "control character"),
        ("a\nb", "control character"),
        ("a\ud800", "half of one"),
        ("é" * 128, "256 bytes"),
    ],
)
def test_names_that_no_broker_could_carry(name: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        queue_name(name)


@pytest.mark.parametrize("name", ["a{b}", "", "a\nb"])
def test_wrong_names_are_refused_wherever_they_stand(name: str) -> None:
    makers = (
        lambda: Router({"t": name}),
        lambda: Router(queues=[name]),
        lambda: Router(default_queue=name),
        lambda: Router().route("t", {"queue": name}),
        lambda: Router().select([name]),
    )
    for make in makers:
        with pytest.raises(ValueError, match="can't be a queue name"):
            make()


@given(st.text(max_size=300))
def test_a_name_is_refused_or_kept_as_it_is(name: str) -> None:
    try:
        assert queue_name(name) == name
    except ValueError:
        return
    assert 0 < len(name.encode()) <= 255
    assert not set(name) & set("{}\x06\x16\n")


def route_by_name(name: str, *_: object, **__: object) -> str:
    return "q"


@pytest.mark.parametrize(
    ("routes", "sentence"),
    [
        (route_by_name, "a routing function; those are called from the release"),
        ([route_by_name], "task_routes[0] is <function"),
        ("proj.routes.by_name", "a routing function"),
        ([{"a": "b"}, "proj.routes.by_name"], "task_routes[1] is 'proj.routes.by_name'"),
        (7, "task_routes is 7; expected a dict"),
        ([7], "task_routes[0] is 7; expected a dict"),
        ({7: "q"}, "task_routes has the key 7"),
        ({"t": 7}, "task_routes['t'] is 7; expected a queue name"),
        ({"t": {"que": "q"}}, "option 'que', which doesn't exist; did you mean 'queue'?"),
        ({"t": {"exchange": "x", "exchange_type": "topic"}}, "of type 'topic'"),
    ],
)
def test_wrong_routes_are_refused(routes: object, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape(sentence)):
        Router(routes)


def test_other_kinds_of_exchange_are_refused() -> None:
    topic = Named("news", exchange=Named("x", type="topic"))
    with pytest.raises(ImproperlyConfigured, match="'direct' exchanges only"):
        Router(queues=[topic])
    with pytest.raises(ImproperlyConfigured, match="'direct' exchanges only"):
        Router().route("t", {"exchange": "x", "routing_key": "k", "exchange_type": "fanout"})


def test_queue_objects_and_dicts_of_them_are_taken_over() -> None:
    given_queue = Named("news", exchange=Named("x"), routing_key="k", max_priority=9)
    expected = Queue("news", "x", "k", 9)
    assert Router(queues=[given_queue]).queues == (expected,)
    assert Router(queues={"news": given_queue}).queues == (expected,)
    assert Router(queues=[expected, given_queue]).queues == (expected,)


def test_contradicting_declarations_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="declares 'a' twice"):
        Router(queues=["a", Queue("a", routing_key="k")])
    with pytest.raises(ValueError, match="max_priority of queue 'a' is 256"):
        Queue("a", max_priority=256)


# Memory and threads


def test_made_up_names_do_not_fill_the_memory() -> None:
    router = Router({"t.*": "q"})
    for number in range(25_000):
        router.route(f"t.{number}")
    assert len(router._plain) <= 10_000
    assert queue_of(router, "t.0") == "q"


def test_a_repeated_name_gives_the_same_answer_object() -> None:
    router = Router({"t.*": {"queue": "q", "priority": 3}})
    first = router.route("t.a")
    assert router.route("t.a") is first
    with pytest.raises(TypeError):
        first.options["priority"] = 9  # type: ignore[index]  # that it can't be set is the test


def test_threads_share_a_router() -> None:
    router = Router({"t.*": "q", "u": "v"})
    wrong: list[object] = []

    def work() -> None:
        for number in range(2000):
            answer = queue_of(router, f"t.{number}", queue=f"n{number}" if number % 2 else None)
            if answer != (f"n{number}" if number % 2 else "q"):
                wrong.append(answer)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
