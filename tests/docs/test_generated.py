"""The parts of the pages that follow from the code are what they should be, and complete."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
from docs.shown import WITHOUT_EFFECT, shown_by

from docs import build
from umbel.keywords import CallKeywords, TaskKeywords
from umbel.outcome import End, Options, decide
from umbel.settings import SETTINGS, State

NAMES = ("settings.md", "architecture.md", "options.md")


def test_pages_are_up_to_date() -> None:
    assert build.stale() == [], "write them anew: .venv/bin/python docs/build.py"


@pytest.mark.parametrize(("name", "old"), [("settings.md", "30.0"), ("architecture.md", "FAILURE")])
def test_a_stale_page_is_found(name: str, old: str, tmp_path: Path) -> None:
    for each in NAMES:
        shutil.copy(build.FOLDER / each, tmp_path)
    assert build.stale(tmp_path) == []
    page = tmp_path / name
    before, _, after = page.read_text().partition(build.BEGIN if name == NAMES[1] else "\n")
    page.write_text(f"{before}{build.BEGIN if name == NAMES[1] else ''}\n{after.replace(old, 'X')}")
    assert build.stale(tmp_path) == [name]


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="doesn't have"):
        build.with_part("# A page", "a part")


def test_every_setting_is_on_the_page_and_each_honoured_one_with_a_test() -> None:
    shown = shown_by()
    page = build.settings_page(shown)
    assert [name for name in SETTINGS if page.count(f"| `{name}` | ") != 1] == []
    lines = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    for name, setting in SETTINGS.items():
        assert f"`{name}` | {setting.state.value} |" in lines[name]
        tests = [f"`{test}`" for test in shown.get(name, [])]
        assert bool(tests) is (setting.state is State.HONOURED)
        assert all(test in lines[name] for test in tests)


def test_every_option_is_on_the_page() -> None:
    page = build.options_page(shown_by("option"))
    for name in (*TaskKeywords.__annotations__, *CallKeywords.__annotations__):
        (line,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` | ")]
        assert ("tests/" in line) is (name not in WITHOUT_EFFECT)
        assert name not in WITHOUT_EFFECT or WITHOUT_EFFECT[name] in line
    assert "| `acks_late` | task | `task_acks_late` | settle a message after its execution" in page
    assert "| `attempts` | task |  | All runs: `max_retries` and one. |" in page


def test_an_option_without_a_test_is_told() -> None:
    shown = {**shown_by("option"), "lazy": ["t::a"], "layz": ["t::b"]}
    del shown["countdown"]
    with pytest.raises(ValueError, match="option 'countdown' is honoured") as caught:
        build.options_page(shown)
    assert str(caught.value).splitlines()[1:] == [
        "t::b shows option 'layz', which doesn't exist",
        "t::a shows option 'lazy', which isn't honoured",
    ]


@pytest.mark.parametrize("end", list(End))
def test_every_verdict_is_in_the_table(end: End) -> None:
    """Whatever the options and counts, what `decide` says of this end is printed for it."""
    printed: dict[str, list[object]] = {}
    current: list[object] = []
    for name, verdicts in build.rows():
        if not name.startswith("…"):
            current = printed.setdefault(name, [])
        current.extend(verdicts)
    switches = product([False, True], repeat=6)
    for late, reject, on_failure, on_timeout, on_lost, waited in switches:
        options = Options(
            acks_late=late,
            reject_on_worker_lost=reject,
            acks_on_failure=on_failure,
            acks_on_timeout=on_timeout,
            retry_on_worker_lost=on_lost,
        )
        for retries, redeliveries, stored in product([0, 3], [0, 2, 3], ["", "SUCCESS", "FAILURE"]):
            verdict = decide(
                end,
                options,
                retries=retries,
                redeliveries=redeliveries,
                waited_long=waited,
                stored_state=stored,
            )
            assert verdict in printed[end.value], (options, retries, redeliveries)


def test_without_dead_letters_only_they_are_missing() -> None:
    """What the page says below the table."""
    for end, mode in product(End, build.MODES.values()):
        kept = decide(end, Options(**mode))
        lost = decide(end, Options(**mode, dead_letters=False))
        if end is not End.UNREADABLE:
            assert not lost.dead
        assert (lost.state, lost.settle, lost.announce) == (kept.state, kept.settle, kept.announce)
