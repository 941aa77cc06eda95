"""Where a message goes: who wins, what matches first, and what is refused with which sentence."""

from __future__ import annotations

import pickle
import re
import threading
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umbel.exceptions import (
    ImproperlyConfigured,
    LaterSetting,
    QueueNotFound,
    RoutingKeyAlone,
    Unroutable,
)
from umbel.exchanges import Binding
from umbel.routing import (
    Address,
    Broadcast,
    Call,
    Exchange,
    Queue,
    Router,
    binding,
    queue_name,
    worker_direct,
)


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
    assert router.route("t", {"exchange": "x", "routing_key": "k"}).address == (
        "x",
        "k",
        "main",
        None,
    )


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
        ({"exchange": "field"}, "farm"),
        ({"exchange": "", "routing_key": "cats"}, "cats"),
        ({"exchange": "", "routing_key": "brand_new"}, "brand_new"),
        ({"exchange": ""}, "celery"),
        ({"queue": "farm", "routing_key": "cat"}, "farm"),
        ({"queue": "farm", "exchange": "pets"}, "farm"),
        ({"exchange": Exchange("field")}, "farm"),
        ({"exchange": "field", "exchange_type": "direct"}, "farm"),
    ],
)
def test_what_leads_to_a_queue_goes_there_by_its_name(
    options: dict[str, object], queue: str
) -> None:
    assert Router(queues=BOUND).route("t", options) == (to(queue), {})
    assert Router({"t": options}, BOUND).route("t") == (to(queue), {})


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"exchange": "pets", "routing_key": "dog"}, ("pets", "dog", "dogs")),
        ({"exchange": Named("pets"), "routing_key": "cat"}, ("pets", "cat", "cats")),
        ({"exchange": "plain", "routing_key": "plain"}, ("plain", "plain", "plain")),
        ({"queue": "farm", "exchange": "pets", "routing_key": "cat"}, ("pets", "cat", "farm")),
        ({"queue": "new", "exchange": "new", "routing_key": "new"}, ("new", "new", "new")),
        ({"exchange": "pets", "routing_key": "mouse"}, ("pets", "mouse", "")),
        ({"exchange": "zoo"}, ("zoo", "", "")),
        ({"exchange": "zoo", "exchange_type": "topic", "routing_key": "a"}, ("zoo", "a", "")),
    ],
)
def test_an_exchange_with_a_key_is_left_to_the_bindings(
    options: dict[str, object], address: tuple[str, str, str]
) -> None:
    assert Router(queues=BOUND).route("t", options).address[:3] == address
    assert Router({"t": options}, BOUND).route("t").address[:3] == address


def test_an_exchange_of_several_queues_needs_more() -> None:
    sentence = "exchange 'pets' leads to more than one queue: 'cats', 'dogs'. Say which"
    with pytest.raises(Unroutable, match=re.escape(sentence)):
        Router(queues=BOUND).route("t", {"exchange": "pets"})


def test_a_key_of_the_call_completes_the_exchange_of_the_route() -> None:
    router = Router({"t": {"exchange": "pets", "routing_key": "dog"}, "u": "farm"}, BOUND)
    assert queue_of(router, "t", routing_key="cat") == "cats"
    assert queue_of(router, "u", exchange="pets", routing_key="cat") == "cats"
    assert queue_of(router, "u", exchange="plain") == "plain"
    assert queue_of(router, "u", routing_key="cat") == "farm"


def test_answers_do_not_depend_on_earlier_calls() -> None:
    router = Router()
    assert queue_of(router, "t", queue="late") == "late"
    with pytest.warns(RoutingKeyAlone):
        assert queue_of(router, "t", routing_key="late") == "celery"


# A routing key alone


@pytest.mark.parametrize(
    ("key", "queue", "sentence"),
    [
        ("cow", "farm", "and no exchange: it leads to queue 'farm'. Write queue='farm'"),
        ("dog", "dogs", "it leads to queue 'dogs'"),
        ("emails", "emails", "it leads to queue 'emails'"),
        ("cot", "celery", "it is left aside, and the message goes to queue 'celery'. Write queue="),
        ("twice", "celery", "it is left aside"),
    ],
)
def test_a_key_without_an_exchange_warns_and_says_what_to_write(
    key: str, queue: str, sentence: str
) -> None:
    twice = [Queue(name, routing_key="twice") for name in ("one", "two")]
    router = Router({"other": "emails"}, [*BOUND, *twice])
    with pytest.warns(RoutingKeyAlone, match=re.escape(sentence)) as caught:
        assert [router.route("t", {"routing_key": key}) for _ in "12"] == [(to(queue), {})] * 2
    assert len(caught) == 1
    assert f"task 't' is sent with routing_key={key!r}" in str(caught[0].message)
    with pytest.warns(RoutingKeyAlone, match="task 'u'"):
        router.route("u", {"routing_key": key})
    with pytest.warns(RoutingKeyAlone, match="task 't'"):
        assert Router({"t": {"routing_key": key}, "other": "emails"}, [*BOUND, *twice]).route("t")


def test_a_key_alone_is_for_the_exchange_of_the_default_queue() -> None:
    router = Router(
        default_queue="main",
        default_exchange="tasks",
        default_exchange_type="topic",
        default_routing_key="task.#",
    )
    assert router.route("t").address[:2] == ("tasks", "task.#")
    assert router.route("t", {"routing_key": "task.video"}).address[:2] == ("tasks", "task.video")
    assert router.queues[0].links == (Binding("main", "tasks", "topic", "task.#"),)


# Other exchanges

NEWS = Exchange("news", "topic")
KINDS = [
    Queue("sport", NEWS, routing_key="sport.#"),
    Queue("all", Exchange("all", "fanout")),
    Queue("all too", Exchange("all", "fanout"), max_priority=3),
    Queue("pdf", Exchange("files", type="headers"), binding_arguments={"kind": "pdf"}),
]


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"queue": "sport"}, ("news", "sport.#")),
        ({"queue": "sport", "routing_key": "sport.goal"}, ("news", "sport.goal")),
        ({"exchange": "news", "routing_key": "sport"}, ("news", "sport")),
        ({"exchange": NEWS, "routing_key": "sport"}, ("news", "sport")),
        ({"exchange": "news"}, ("news", "sport.#")),
        ({"exchange": "all"}, ("all", "")),
        ({"exchange": "all", "routing_key": "any"}, ("all", "any")),
        ({"queue": "all"}, ("all", "")),
        ({"queue": "pdf", "headers": {"kind": "pdf"}}, ("files", "")),
        ({"exchange": Exchange("elsewhere", "fanout")}, ("elsewhere", "")),
        ({"queue": Queue("q", Exchange("x", "topic"), "a.*"), "routing_key": "a.b"}, ("x", "a.b")),
        ({"queue": Named("q", exchange=Named("x", "topic"), routing_key="k")}, ("x", "k")),
    ],
)
def test_queues_of_other_exchanges(options: dict[str, object], address: tuple[str, str]) -> None:
    assert Router(queues=KINDS).route("t", options).address[:2] == address
    assert Router({"t": options}, KINDS).route("t").address[:2] == address


def test_a_queue_object_of_a_call_is_declared_with_it() -> None:
    made = Queue("q", Exchange("x", "topic"), "a.*")
    routed = Router().route("t", {"queue": made, "declare": ["other"], "priority": 3})
    assert routed.options == {"declare": [Queue("other"), made], "priority": 3}
    assert Router({"t": made}).route("t").options == {"declare": [made]}
    assert Router().route("t", {"declare": [NEWS]}).options == {"declare": [NEWS]}


def test_the_bindings_that_a_broker_is_told() -> None:
    assert Queue("q").links == ()
    assert Queue("q", "q", "q").links == ()
    assert Queue("q", "x").links == (Binding("q", "x", "direct", "q"),)
    many = Queue("q", [binding(NEWS, "a.#"), binding("x", "k")])
    assert many.links == (Binding("q", "news", "topic", "a.#"), Binding("q", "x", "direct", "k"))
    more = Queue("q", "x", "k", bindings=[binding(NEWS, "a.#", {"x": 1})])
    assert more.links[1] == Binding("q", "news", "topic", "a.#", (("x", 1),))
    assert Queue("q", exchange_type="fanout").links == (Binding("q", "q", "fanout"),)


def test_what_stands_behind_an_exchange() -> None:
    router = Router(queues=[*KINDS, Broadcast("call", exchange="all"), "plain"])
    assert router.behind("all")[0] == ["all", "all too"]
    assert router.behind("plain") == (["plain"], [])
    assert router.behind("nothing") == ([], [])
    router.route("t", {"queue": "new", "exchange": "new", "routing_key": "new"})
    assert router.behind("new") == (["new"], [])


def test_priorities_are_capped_by_the_queue_else_by_the_setting() -> None:
    assert Router(queues=KINDS).route("t", {"queue": "all too"}).address.top == 3
    assert Router(queues=KINDS).route("t", {"queue": "all"}).address.top is None
    router = Router(queues=[*KINDS, Queue("q", queue_arguments={"x-max-priority": 10})])
    assert router.route("t", {"queue": "q"}).address.top == 9
    capped = Router(queues=KINDS, max_priority=5)
    tops = [capped.route("t", {"queue": name}).address.top for name in ("all too", "all", "new")]
    assert tops == [3, 5, 5]


def test_the_type_of_a_missing_queues_exchange() -> None:
    router = Router(missing_exchange_type="topic")
    assert router.route("t", {"queue": "new"}).address[:2] == ("new", "new")
    assert router.route("t").address[:2] == ("", "celery")
    assert router.links("new") == (Binding("new", "new", "topic", "new"),)


def test_a_broadcast_goes_to_its_exchange() -> None:
    calls = Broadcast("calls")
    router = Router({"to.all": "calls"}, ["celery", calls])
    assert router.route("to.all").address == ("calls", "", "calls", None)
    assert router.route("t", {"queue": "calls"}).address[:2] == ("calls", "")
    assert calls.of_run("r1") == Queue("bcast.calls.r1", Exchange("calls", "fanout"))
    assert calls.of_run("r1").links == (Binding("bcast.calls.r1", "calls", "fanout"),)
    assert router.behind("calls") == ([], [])
    shared = Broadcast("calls", queue="q")
    assert (shared.name, shared.shared, Broadcast("calls", "q", unique=True).shared) == (
        "q",
        True,
        False,
    )
    for each in (calls, shared, Queue("q", NEWS, "k", bindings=[binding("x", "y", {"a": 1})])):
        copied = pickle.loads(pickle.dumps(each))
        assert copied == each
        assert copied.per_run == each.per_run
    assert Router(queues=[shared]).route("t", {"queue": "calls"}).address[:3] == ("calls", "", "q")
    assert [each.name for each in Router(queues=[shared]).select(["calls"])] == ["q"]


def test_a_broadcast_of_kombu_is_one_of_ours() -> None:
    class Foreign:
        name = "bcast.1234"
        alias = "calls"
        exchange = Named("calls", "fanout")

    Foreign.__name__ = "Broadcast"
    (queue,) = Router(queues=[Foreign()]).queues
    assert isinstance(queue, Broadcast)
    assert (queue.name, queue.exchange, queue.shared) == (
        "calls",
        Exchange("calls", "fanout"),
        False,
    )


def test_the_queue_of_one_worker() -> None:
    queue = worker_direct("w1@host")
    assert (queue.name, queue.exchange.name, queue.routing_key) == (
        "w1@host.dq2",
        "C.dq2",
        "w1@host",
    )
    assert worker_direct(queue) is queue


# Functions


def by_name(name: str, args: Any, kwargs: Any, options: Any, task: Any = None, **_: Any) -> Any:
    """Asked about each call; says what it was told."""
    if name == "nothing":
        return None
    if name == "options":
        return {"queue": "q", "priority": options["priority"] - 1}
    return f"{name}.{len(args)}.{kwargs.get('k')}.{task}"


class OldRouter:
    def route_for_task(self, name: str, args: Any = None, kwargs: Any = None) -> Any:
        return {"queue": f"old.{args[0]}"} if name == "old" else None


@pytest.mark.parametrize(
    "routes",
    [
        [by_name],
        by_name,
        (by_name,),
        [OldRouter(), by_name],
        f"{__name__}.by_name",
        [f"{__name__}:by_name"],
        [{"other": "x"}, f"{__name__}.OldRouter", [by_name]],
    ],
)
def test_functions_are_asked_about_each_call(routes: object) -> None:
    router = Router(routes)
    for k in (1, 2):
        assert router.route("f", {}, Call((1, 2), {"k": k}, "T")).address == to(f"f.2.{k}.T")
    assert router.route("f").address == to("f.0.None.None")
    assert router.route("nothing").address == to("celery")
    assert router.route("f", {"queue": "mine"}).address == to("mine")
    routed = router.route("options", {"priority": 3, "shadow": "s"})
    assert routed == (to("q"), {"priority": 3, "shadow": "s"})


def test_functions_and_maps_are_asked_in_the_order_written() -> None:
    router = Router([("a", "pair"), OldRouter(), {"old": "too late", "c": "map"}, by_name])
    old = router.route("old", {}, Call(("arg",)))
    assert old.address == to("old.arg")
    assert queue_of(router, "a") == "pair"
    assert queue_of(router, "c") == "map"
    assert queue_of(router, "d") == "d.0.None.None"


def test_what_a_function_says_must_be_a_route() -> None:
    with pytest.raises(ImproperlyConfigured, match="said of task 't' is 7; expected a queue name"):
        Router(lambda *_, **__: 7).route("t")
    with pytest.raises(ImproperlyConfigured, match="did you mean 'queue'"):
        Router(lambda *_, **__: {"queu": "q"}).route("t")


def test_what_a_function_raises_reaches_the_caller() -> None:
    def refuse(*_: object, **__: object) -> None:
        raise LookupError("no route")

    with pytest.raises(LookupError, match="no route"):
        Router(refuse).route("t")


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


@pytest.mark.parametrize(
    ("routes", "sentence"),
    [
        ("proj.routes.by_name", "is 'proj.routes.by_name', and there is nothing of that name"),
        ([{"a": "b"}, "proj.routes.by_name"], "task_routes[1] is 'proj.routes.by_name'"),
        ("by_name", "there is nothing of that name to import"),
        (f"{__name__}.nothing", "there is nothing of that name to import"),
        (f"{__name__}.__name__", "which is a text again"),
        (7, "task_routes is 7; expected a dict"),
        ([7], "task_routes[0] is 7; expected a dict"),
        ({7: "q"}, "task_routes has the key 7"),
        ({"t": 7}, "task_routes['t'] is 7; expected a queue name"),
        ({"t": {"que": "q"}}, "option 'que', which doesn't exist; did you mean 'queue'?"),
        ({"t": {"exchange": "x", "exchange_type": "topik"}}, "of type 'topik'; expected one of"),
    ],
)
def test_wrong_routes_are_refused(routes: object, sentence: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=re.escape(sentence)):
        Router(routes)


def test_queue_objects_and_dicts_of_them_are_taken_over() -> None:
    given_queue = Named("news", exchange=Named("x"), routing_key="k", max_priority=9)
    expected = Queue("news", "x", "k", max_priority=9)
    assert Router(queues=[given_queue]).queues == (expected,)
    assert Router(queues={"news": given_queue}).queues == (expected,)
    assert Router(queues=[expected, given_queue]).queues == (expected,)


def test_dicts_as_values_of_task_queues() -> None:
    router = Router(
        queues={
            "sport": {"exchange": "news", "exchange_type": "topic", "binding_key": "sport.#"},
            "k": {"exchange": "x", "routing_key": "key", "durable": True},
            "plain": {},
            "none": None,
            "high": {"queue_arguments": {"x-max-priority": 4}},
        }
    )
    assert router.queues == (
        Queue("sport", NEWS, "sport.#"),
        Queue("k", "x", "key"),
        Queue("plain"),
        Queue("none"),
        Queue("high", max_priority=4),
    )
    with pytest.raises(ImproperlyConfigured, match=r"'a'\] has the key 'exchang'.*mean"):
        Router(queues={"a": {"exchang": "x"}})


def test_what_only_servers_can_do_is_said() -> None:
    with pytest.warns(LaterSetting, match="queue 'a' has message_ttl, max_length, which no broker"):
        Router(queues=[Queue("a", message_ttl=3, max_length=5, durable=False)])
    with pytest.raises(ImproperlyConfigured, match="there are no channels"):
        Queue("a", channel=object())


def test_contradicting_declarations_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="declares 'a' twice"):
        Router(queues=["a", Queue("a", routing_key="k")])
    with pytest.raises(ValueError, match="max_priority of queue 'a' is 256"):
        Queue("a", max_priority=256)
    with pytest.raises(ImproperlyConfigured, match=r"'x' is of type 'topic' for queue 'a' and"):
        Router(queues=[Queue("a", "x", exchange_type="topic"), Queue("b", "x")])


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
