"""The parts of ``umbel demo``: its input, its service, its check."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from umbel.cli.demo import cast_roles
from umbel.cli.demo_app import KILLS, Count
from umbel.cli.demo_check import Tally, what_is_off
from umbel.cli.demo_files import count_in_plain_loop
from umbel.cli.demo_service import FlakyService
from umbel.message import Unreadable
from umbel.ports import DeadLetter, QueueStats


def test_what_counts_as_text(tmp_path: Path) -> None:
    files = {
        "a.txt": b"one two\nthree",
        "sub/deep/b.py": b"\tx = 1\r\n",
        "latin1": "größer als".encode("latin-1"),
        "empty": b"",
        "blob": b"one\0two",
        ".hidden": b"a hidden file is a file",
        ".git/x": b"not looked into",
        "__pycache__/x": b"not looked into",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "again").symlink_to(tmp_path / "a.txt")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    found = count_in_plain_loop(tmp_path)
    assert {os.path.relpath(path, tmp_path): words for path, words in found.words.items()} == {
        ".hidden": 6, "a.txt": 3, "sub/deep/b.py": 3, "latin1": 2, "empty": 0,
    }  # fmt: skip
    assert found.left_out == {"binary": 1, "no plain file": 3}
    assert found.total == 14


def test_a_file_that_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "secret").write_text("b")
    (tmp_path / "secret").chmod(0)
    (tmp_path / os.fsdecode(b"\xff")).write_text("c")
    readable = os.access(tmp_path / "secret", os.R_OK)  # as root
    found = count_in_plain_loop(tmp_path)
    assert len(found.words) == 1 + readable
    assert found.left_out["with a name that isn't Unicode"] == 1
    assert found.left_out["unreadable"] == 1 - readable


@pytest.mark.parametrize(("number", "flaky"), [(1, 0), (2, 1), (3, 1), (22, 2), (2000, 40)])
def test_every_file_has_one_role(number: int, flaky: int) -> None:
    paths = [f"/{n:04}" for n in range(number)]
    roles = cast_roles(paths)
    assert len(roles.flaky) == flaky
    assert sorted([roles.deadly, *roles.flaky, *roles.plain]) == paths


def test_the_service_hands_out_files_in_the_end(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in "abcd"]
    for path in paths:
        path.write_text(f"the words of {path.name}")
    with FlakyService([str(path) for path in paths]) as service:
        for path, url in zip(paths, service.urls, strict=True):
            failures = 0
            while (text := ask(url)) is None:
                failures += 1
                assert failures < 5
            assert text == path.read_text()
            assert failures > 0
        assert service.failures == 6


def ask(url: str) -> str | None:
    """What the service says; None where it refuses or says nothing."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=0.2) as answer:
            return str(answer.read(), "utf-8")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 503:
            return None
        raise
    except TimeoutError:
        return None


def with_redeliveries(number: int) -> DeadLetter:
    return DeadLetter("id", "celery", Unreadable(b"", ""), "x", "E", 0.0, redeliveries=number)


LETTER = with_redeliveries(KILLS - 1)
EXPECTED = {"/a": 3, "/b": 4, "/poison": 5}
GOOD = Tally(
    {"/a": Count(words=3, retries=2), "/b": Count(words=4, retries=0)},
    {"/poison": "WorkerLostError()"},
    [LETTER],
    1.0,
)
REVIVED = Count(words=5, retries=0)
EMPTY = (QueueStats("celery"),)


def test_all_is_well() -> None:
    assert what_is_off(EXPECTED, GOOD, "/poison", REVIVED, 2, EMPTY) == []
    assert (GOOD.words, GOOD.retries, GOOD.rate) == (7, 2, 3.0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tally": replace(GOOD, counts={"/a": Count(words=3, retries=2)})}, "/b has no count"),
        (
            {"tally": replace(GOOD, counts={**GOOD.counts, "/b": Count(words=9, retries=0)})},
            "/b has 4 words by the plain loop and 9 by its task",
        ),
        ({"tally": replace(GOOD, errors={**GOOD.errors, "/c": "X()"})}, "/c ended with X()"),
        ({"tally": replace(GOOD, letters=[])}, "there are 0 dead letters, not 1"),
        ({"tally": replace(GOOD, letters=[LETTER] * 2)}, "there are 2 dead letters, not 1"),
        (
            {"tally": replace(GOOD, letters=[with_redeliveries(7)])},
            "the poison was redelivered 7 times, not 2",
        ),
        ({"failed_requests": 3}, "3 requests failed, and there were 2 retries"),
        ({"revived": None}, "the poison file /poison wasn't counted after it was requeued"),
        ({"revived": Count(words=6, retries=0)}, "/poison has 5 words by the plain loop and 6"),
        ({"queues": (QueueStats("celery", ready=1),)}, "1 messages are left in the broker"),
        ({"queues": (QueueStats("celery", dead=1),)}, "1 messages are left in the broker"),
    ],
)
def test_whatever_is_off_is_said(changes: dict[str, object], said: str) -> None:
    arguments: dict[str, object] = {
        "expected": EXPECTED, "tally": GOOD, "deadly": "/poison", "revived": REVIVED,
        "failed_requests": 2, "queues": EMPTY,
    }  # fmt: skip
    off = what_is_off(**{**arguments, **changes})  # type: ignore[arg-type]
    assert any(said in sentence for sentence in off), off
