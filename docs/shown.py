"""Which test shows that a setting is honoured: the tests say so themselves.

    @pytest.mark.setting("task_acks_late")
    def test_late_tasks_run_again(place: Place) -> None: ...

Read from the sources, so that nothing is imported and nothing can name a test that isn't there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from umbel.settings import SETTINGS, State

TESTS: Final = Path(__file__).resolve().parent.parent / "tests"
MARKER: Final = "pytest.mark.setting"
_NOT_RUN: Final = ("pytest.mark.skip", "pytest.mark.skipif", "pytest.mark.xfail")

Shown = Mapping[str, list[str]]


def shown_by(folder: Path = TESTS) -> Shown:
    """The tests of each setting that any test names, as ``tests/file.py::test_name``.

    Raises `ValueError` for a marker that isn't on a test, or whose names aren't plain text.
    """
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if f"{MARKER}(" not in source:
            continue
        file = f"{folder.name}/{path.relative_to(folder).as_posix()}"
        tree = ast.parse(source)
        markers = sum(_is_marker(node) for node in ast.walk(tree))
        for test, names in _marked(tree.body, file):
            markers -= len(names)
            for name in (name for marker in names for name in marker):
                found.setdefault(name, []).append(test)
        if markers:
            raise ValueError(f"{file} has {MARKER}(…) on something that isn't a test that runs")
    return found


def complaints(shown: Shown) -> list[str]:
    """What is wrong between the settings and the tests that name them, a sentence each."""
    honoured = {name for name, each in SETTINGS.items() if each.state is State.HONOURED}
    found = [
        f"setting {name!r} is honoured, and no test has @{MARKER}({name!r})"
        for name in sorted(honoured - shown.keys())
    ]
    for name in sorted(shown.keys() - honoured):
        what = "isn't honoured" if name in SETTINGS else "doesn't exist"
        found.append(f"{shown[name][0]} shows setting {name!r}, which {what}")
    return found


def _marked(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, list[list[str]]]]:
    """(test, the names of each of its markers), of functions and of classes of tests."""
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from _marked(node.body, f"{prefix}::{node.name}")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            decorators = node.decorator_list
            if not node.name.startswith("test_") or any(map(_is_not_run, decorators)):
                continue
            test = f"{prefix}::{node.name}"
            yield test, [_names(each, test) for each in decorators if _is_marker(each)]


def _is_marker(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == MARKER


def _is_not_run(node: ast.expr) -> bool:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node) in _NOT_RUN


def _names(marker: ast.expr, test: str) -> list[str]:
    assert isinstance(marker, ast.Call)
    values = [each.value if isinstance(each, ast.Constant) else None for each in marker.args]
    names = [value for value in values if isinstance(value, str)]
    if not names or len(names) != len(values) or marker.keywords:
        raise ValueError(f"{test}: {ast.unparse(marker)} should name settings as plain text")
    return names
