"""What the pages show is so; and what would not be so is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.snippets import PageError, blocks_of, commands_in, pattern_of, run_page

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
APP = """\
```python tasks.py
from umbel import Umbel

app = Umbel("tasks", broker="sqlite:///tasks.db")

@app.task
def add(x, y):
    return x + y
```
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_the_page_shows_is_so(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


def test_the_first_page_shows_something() -> None:
    assert sum(block.runs for block in blocks_of(ROOT / "README.md")) >= 5


def run(text: str, folder: Path) -> int:
    page = folder / "page.md"
    page.write_text(text)
    session = folder / "session"
    session.mkdir()
    return run_page(page, session)


def test_a_page_with_a_worker(tmp_path: Path) -> None:
    text = (
        "```console worker\n$ umbel -A tasks worker -l INFO\n…\n[…] … ready.\n```\n"
        "```python\nfrom tasks import add\nassert add.delay(2, 3).get(timeout=20) == 5\n```\n"
        "```console\n$ N=5\n$ echo $N\n5\n```\n"
    )
    assert run(APP + text, tmp_path) == 4


@pytest.mark.parametrize(
    "text",
    [
        "```python\nraise ValueError\n```\n",
        "```python\nassert 2 + 2 == 5\n```\n",
        "```python\nimport warnings\nwarnings.warn('old')\n```\n",
        "```console\n$ echo 4\n5\n```\n",
        "```console\n$ echo 4\n4\n5\n```\n",
        "```console\n$ printf '4\\n5\\n'\n4\n```\n",
        "```console\n$ false\n```\n",
        "```console\n$ exit 1\n```\n",
        "```sh\nfalse\ntrue\n```\n",
        "```sh no-run\nfalse\n```\n",
        "```console worker\n$ umbel -A nowhere worker\n… ready.\n```\n",
        "```console worker\n$ python -uc 'print(1); import time; time.sleep(99)'\n1\n```\n",
    ],
)
def test_what_is_not_so_is_found(text: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=r"page\.md:1: "):
        run(text, tmp_path)


def test_what_need_not_run_does_not(tmp_path: Path) -> None:
    text = "```sh no-run: it would take a day\nfalse\n```\n```text\nnothing\n```\n"
    assert run(text, tmp_path) == 0


def test_commands_and_what_they_print(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Text.\n```console\n$ one \\\n  more\nsaid\n$ two\n```\n")
    (block,) = blocks_of(page)
    assert block.where == "page.md:2"
    assert list(commands_in(block)) == [("one \\\n  more", "said\n"), ("two", "")]


def test_dots_stand_for_any_text() -> None:
    pattern = pattern_of("a … c\n…\nz\n")
    assert pattern.fullmatch("a b c\nz  \n")
    assert pattern.fullmatch("a  c\nx\ny\nz\n")
    assert not pattern.fullmatch("a b\nz\n")
    assert not pattern.fullmatch("a b c\nz\nmore\n")
