"""Writes the parts of the pages that follow from the code: ``python docs/build.py``.

``settings.md`` and ``options.md`` are written whole, from the code and from the tests that name
what they show; the outcome table in ``architecture.md``, between its two marks, from
`umbel.outcome`. A test fails while a page differs from what this would write.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parent
if __name__ == "__main__":  # as a script it sees this folder, not the one around it
    sys.path.insert(0, str(FOLDER.parent))

from docs.shown import (  # noqa: E402
    OPTIONS,
    WITHOUT_EFFECT,
    Shown,
    complaints,
    default_setting,
    meanings,
    shown_by,
)

from umbel.keywords import RETRY_NAMES, CallKeywords, TaskKeywords  # noqa: E402
from umbel.outcome import End, Options, Settle, Verdict, decide  # noqa: E402
from umbel.settings import SETTINGS, UMBEL_SETTINGS, Setting, State, censored  # noqa: E402

BEGIN: Final = "<!-- written by docs/build.py -->"
END: Final = "<!-- end of what docs/build.py writes -->"


# The outcome table.

MODES: Final[Mapping[str, Mapping[str, bool]]] = {
    "early (default)": {},
    "`acks_late`": {"acks_late": True},
    "late + `reject_on_worker_lost`": {"acks_late": True, "reject_on_worker_lost": True},
}


@dataclass(frozen=True, slots=True)
class Case:
    """What can make the end of an execution count differently, and how it is called."""

    text: str
    options: Mapping[str, Any] = field(default_factory=dict)
    counts: Mapping[str, Any] = field(default_factory=dict)

    def verdict(self, end: End, mode: str) -> Verdict:
        return decide(end, Options(**MODES[mode], **self.options), **self.counts)


USUAL: Final = Case("")
CASES: Final = (
    Case("`acks_on_failure` off", {"acks_on_failure": False}),
    Case("`acks_on_timeout` off", {"acks_on_timeout": False}),
    Case("after `max_redeliveries`", {}, {"redeliveries": 3}),
    Case("after `task_unknown_wait`", {}, {"waited_long": True}),
    Case("`FAILURE` is stored", {}, {"stored_state": "FAILURE"}),
    Case("`retry_on_worker_lost`, retries left", {"retry_on_worker_lost": True}),
    Case("`retry_on_worker_lost`, none left", {"retry_on_worker_lost": True}, {"retries": 3}),
)
_SETTLE: Final = {
    Settle.ACK: "ack",
    Settle.REJECT: "reject",
    Settle.REQUEUE: "requeue, counted",
    Settle.RELEASE: "requeue, uncounted",
    Settle.RELEASE_LATER: "back after a wait, uncounted",
    Settle.AS_DECIDED: "that outcome is applied",
    Settle.NONE: "outcome discarded, logged",
}


def rows() -> list[tuple[str, tuple[Verdict, ...]]]:
    """(what happened, the verdict of each mode): each end as usual, then where a case differs."""
    found = []
    for end in End:
        usual = tuple(USUAL.verdict(end, mode) for mode in MODES)
        found.append((end.value, usual))
        seen = [usual]
        for case in CASES:
            verdicts = tuple(case.verdict(end, mode) for mode in MODES)
            if verdicts not in seen:
                seen.append(verdicts)
                found.append((f"… {case.text}", verdicts))
    return found


def outcome_table() -> str:
    """The table as markdown."""
    lines = [
        f"| ended by | {' | '.join(MODES)} | handlers and signals, in order |",
        "|---|---|---|---|---|",
    ]
    for name, verdicts in rows():
        cells = [_cell(verdict) for verdict in verdicts]
        cells = [cells[0], *("same" if cell == cells[0] else cell for cell in cells[1:])]
        lines.append(f"| {name} | {' | '.join(cells)} | {_announced(verdicts)} |")
    return "\n".join(lines)


def _cell(verdict: Verdict) -> str:
    parts = [verdict.state or "", _SETTLE[verdict.settle]]
    parts += ["next message" if verdict.again else "", "DL" if verdict.dead else ""]
    return ", ".join(filter(None, parts))


def _announced(verdicts: tuple[Verdict, ...]) -> str:
    lists = [", ".join(f"`{name}`" for name in verdict.announce) or "none" for verdict in verdicts]
    if len(set(lists)) == 1:
        return lists[0]
    parts: dict[str, list[str]] = {}
    for mode, text in zip(("early", "late", "late + reject"), lists, strict=True):
        parts.setdefault(text, []).append(mode)
    return "; ".join(f"{', '.join(modes)}: {text}" for text, modes in parts.items())


# The settings.

INTRODUCTION: Final = """\
# Settings

Written by `docs/build.py` from the registry that the code itself uses. All of Celery's names are
known: those of the first two tables are honoured, the others say what becomes of them. An unknown
name is an error that names the nearest known one, a value that can't be is an error that says what
was expected, and neither changes anything.

```python
from umbel import Umbel
from umbel.exceptions import ImproperlyConfigured

app = Umbel("tasks", broker="memory://", task_acks_late=True)
app.conf.update(task_time_limit=300, task_soft_time_limit=280)
app.conf.worker_lease_time = 10

try:
    app.conf.task_ack_late = True
except ImproperlyConfigured as error:
    assert str(error).startswith(
        "setting 'task_ack_late' doesn't exist; did you mean 'task_acks_late'?"
    )
```

A setting that one word can carry is also read from the environment: `UMBEL_` and its name in upper
case (`UMBEL_WORKER_LEASE_TIME=10`), and `CELERY_BROKER_URL`, `CELERY_BROKER_READ_URL`,
`CELERY_BROKER_WRITE_URL` and `CELERY_RESULT_BACKEND` as Celery does. The environment wins over what
the app is made with, an assignment to `app.conf` over both. `umbel -A tasks settings` shows what an
app has changed, `umbel settings NAME` explains a setting.

Durations are in seconds. Beside each honoured setting stands a test that changes it and sees what
follows; this page can't be built while one has none. Options of tasks and calls, which go above
settings, have [a page of their own](options.md).
"""


def settings_page(shown: Shown) -> str:
    """settings.md. Raises `ValueError` where settings and the tests that show them don't fit."""
    if wrong := complaints(shown):
        raise ValueError("\n".join(wrong))
    own = {setting.name for setting in UMBEL_SETTINGS}
    groups: tuple[tuple[str, str, Callable[[Setting], bool]], ...] = (
        (
            "Umbel's own",
            "Celery doesn't have them.",
            lambda s: s.state is State.HONOURED and s.name in own,
        ),
        (
            "Celery's, honoured",
            "They mean what they mean in Celery, but for what [differs](differences.md).",
            lambda s: s.state is State.HONOURED and s.name not in own,
        ),
        (
            "Later",
            "Known and checked, without effect yet; setting one to another value than the default "
            "warns, once.",
            lambda s: s.state is State.LATER,
        ),
        (
            "Never",
            "Known, so that a configuration of Celery's can be taken over as it is; setting one "
            "to another value than the default warns, once.",
            lambda s: s.state is State.NEVER,
        ),
    )
    parts = [INTRODUCTION]
    for heading, sentence, belongs in groups:
        chosen = [setting for setting in SETTINGS.values() if belongs(setting)]
        parts.append(f"## {heading}\n\n{sentence}\n\n{_settings_table(chosen, shown)}\n")
    return "\n".join(parts)


def _settings_table(settings: Iterable[Setting], shown: Shown) -> str:
    lines = ["| setting | state | default | takes | meaning | test |", "|---|---|---|---|---|---|"]
    for setting in settings:
        meaning = setting.meaning + (f"; {setting.sentence}" if setting.sentence else "")
        default = repr(censored(setting.name, setting.default))
        cells = (
            f"`{setting.name}`",
            setting.state.value,
            f"`{default}`",
            setting.type,
            meaning,
            ", ".join(f"`{test}`" for test in shown.get(setting.name, [])),
        )
        lines.append(_row(cells))
    return "\n".join(lines)


# The options.

OPTIONS_INTRODUCTION: Final = """\
# Options of tasks and calls

Written by `docs/build.py` from the code and from the tests that show the options. A *task* has
them in `@app.task(…)`, in its class or as attributes; a *call* in `apply_async(…)`, `send_task(…)`,
a signature or a route; a *retry* in `self.retry(…)`. What a call says wins over what its task says,
and that over the setting. An option that doesn't exist is a `TypeError` that names the nearest one.

| option | of | setting below it | meaning | test |
|---|---|---|---|---|
"""


def options_page(shown: Shown) -> str:
    """options.md. Raises `ValueError` where options and the tests that show them don't fit."""
    if wrong := complaints(shown, "option"):
        raise ValueError("\n".join(wrong))
    said = meanings()
    lines = []
    for name in OPTIONS:
        places = (
            ("task", TaskKeywords.__annotations__),
            ("call", CallKeywords.__annotations__),
            ("retry", RETRY_NAMES),
        )
        setting = default_setting(name)
        meaning = SETTINGS[setting].meaning if setting == f"task_{name}" else ""
        cells = (
            f"`{name}`",
            ", ".join(place for place, names in places if name in names),
            f"`{setting}`" if setting else "",
            WITHOUT_EFFECT.get(name) or said.get(name) or meaning,
            ", ".join(f"`{test}`" for test in shown.get(name, [])),
        )
        lines.append(_row(cells))
    return OPTIONS_INTRODUCTION + "\n".join(lines) + "\n"


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# The pages.


def with_part(page: str, part: str) -> str:
    """`page` with `part` between the two marks. Raises `ValueError` where they aren't there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page doesn't have {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def pages(folder: Path = FOLDER) -> dict[Path, str]:
    """What each page should be."""
    architecture = folder / "architecture.md"
    return {
        folder / "settings.md": settings_page(shown_by()),
        folder / "options.md": options_page(shown_by("option")),
        architecture: with_part(architecture.read_text(encoding="utf-8"), outcome_table()),
    }


def stale(folder: Path = FOLDER) -> list[str]:
    """The names of the pages that aren't what they should be."""
    return [
        path.name
        for path, text in pages(folder).items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def main() -> int:
    try:
        written = pages()
    except ValueError as error:
        print(f"docs/build.py: nothing is written:\n{error}", file=sys.stderr)  # noqa: T201
        return 1
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
