"""Which test shows that a setting or an option is honoured: the tests say so themselves.

    @pytest.mark.setting("task_acks_late")
    @pytest.mark.option("acks_late")
    def test_late_tasks_run_again(place: Place) -> None: ...

Read from the sources, so that nothing is imported and nothing can name a test that isn't there.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from umbel import keywords
from umbel.keywords import CallKeywords, TaskKeywords
from umbel.settings import SETTINGS, State

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
OPTIONS: Final = tuple(
    dict.fromkeys(sorted((*TaskKeywords.__annotations__, *CallKeywords.__annotations__)))
)
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "confirm_timeout": "later, with the release that brings RabbitMQ",
    "connection": "taken as Celery does; sending goes through the app's own connection",
    "exchange_type": "taken; an exchange is of the type that it was declared with",
    "lazy": "taken; a task is made at once",
    "mandatory": "taken; a message that no queue takes is always an error",
    "producer": "taken as Celery does; sending goes through the app's own connection",
    "publisher": "taken as Celery does; sending goes through the app's own connection",
    "rate_limit": "later, with the release that brings rate limits",
    "send_events": "later, with the release that brings events and remote control",
    "timeout": "later, with the release that brings RabbitMQ",
}
"""Options that a task or a call may have and that change nothing, with the reason."""
_NOT_RUN: Final = ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail")

What = Literal["setting", "option"]
Shown = Mapping[str, list[str]]


def shown_by(what: What = "setting", folder: Path = TESTS) -> Shown:
    """The tests of each setting (or option) that any names, as ``tests/file.py::test_name``.

    Raises `ValueError` for a marker that isn't on a test, or whose names aren't plain text.
    """
    marker = f"pytest.mark.{what}"
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if f"{marker}(" not in source:
            continue
        file = f"{folder.name}/{path.relative_to(folder).as_posix()}"
        tree = ast.parse(source)
        markers = sum(_is_marker(node, marker) for node in ast.walk(tree))
        for test, names in _marked(tree.body, file, marker):
            markers -= len(names)
            for name in (name for each in names for name in each):
                found.setdefault(name, []).append(test)
        if markers:
            raise ValueError(f"{file} has {marker}(…) on something that isn't a test that runs")
    return found


def complaints(shown: Shown, what: What = "setting") -> list[str]:
    """What is wrong between the settings (or options) and the tests that name them."""
    known: Collection[str] = SETTINGS if what == "setting" else OPTIONS
    honoured = {name for name in known if _is_honoured(name, what)}
    found = [
        f"{what} {name!r} is honoured, and no test has @pytest.mark.{what}({name!r})"
        for name in sorted(honoured - shown.keys())
    ]
    for name in sorted(shown.keys() - honoured):
        problem = "isn't honoured" if name in known else "doesn't exist"
        found.append(f"{shown[name][0]} shows {what} {name!r}, which {problem}")
    if what == "option":
        gone = sorted(WITHOUT_EFFECT.keys() - set(OPTIONS))
        found += [f"option {name!r} is said to have no effect, and doesn't exist" for name in gone]
    return found


def _is_honoured(name: str, what: What) -> bool:
    if what == "setting":
        return SETTINGS[name].state is State.HONOURED
    return name not in WITHOUT_EFFECT


def _marked(
    body: list[ast.stmt], prefix: str, marker: str
) -> Iterator[tuple[str, list[list[str]]]]:
    """(test, the names of each of its markers), of functions and of classes of tests."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marked(node.body, f"{prefix}::{node.name}", marker)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = node.decorator_list
            if not node.name.startswith("test_") or any(map(_is_not_run, decorators)):
                continue
            test = f"{prefix}::{node.name}"
            yield test, [_names(each, test) for each in decorators if _is_marker(each, marker)]


def _is_marker(node: ast.AST, marker: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == marker


def _is_not_run(node: ast.expr) -> bool:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node) in _NOT_RUN


def _names(marker: ast.expr, test: str) -> list[str]:
    assert isinstance(marker, ast.Call)
    values = [each.value if isinstance(each, ast.Constant) else None for each in marker.args]
    names = [value for value in values if isinstance(value, str)]
    if not names or len(names) != len(values) or marker.keywords:
        raise ValueError(f"{test}: {ast.unparse(marker)} should name what it shows as plain text")
    return names


def meanings(path: Path = Path(keywords.__file__)) -> Mapping[str, str]:
    """What the source says of options, in the text below each."""
    found = {}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name.endswith("Keywords"):
            for entry, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(entry, ast.AnnAssign) and isinstance(below, ast.Expr):
                    assert isinstance(below.value, ast.Constant)
                    text = " ".join(str(below.value.value).split())
                    found[ast.unparse(entry.target)] = text.replace("``", "`")
    return found


def default_setting(option: str) -> str:
    """The setting that a task without this option has; empty where there is none."""
    candidates = (f"task_{option}", f"task_default_{option}", f"task_publish_{option}")
    return next((name for name in candidates if name in SETTINGS), "")
