"""Help: fast, complete, and with commands that can be typed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest
from tests.cli.helpers import shell

from umbel import __version__
from umbel.cli import COMMANDS, main, umbel


def all_commands() -> list[tuple[str, ...]]:
    return [
        (),
        *((name,) for name in COMMANDS),
        *(("dead", name) for name in ("list", "show", "requeue", "delete")),
    ]


@pytest.mark.parametrize("path", all_commands(), ids=" ".join)
def test_help_ends_with_examples_that_parse(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*path, "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.split("\n")]
    examples = lines[lines.index("Examples:") + 1 :]
    commands = [line for line in examples if line.startswith("umbel ")]
    assert commands
    for command in commands:
        check_parses(shlex.split(command)[1:])


def check_parses(arguments: list[str]) -> None:
    """Raises `click.UsageError` for what can't be typed."""
    group = umbel.make_context("umbel", [*arguments])
    command: click.Command = umbel
    words = [word for word in arguments if word in COMMANDS][:1]
    rest = arguments[arguments.index(words[0]) + 1 :] if words else []
    if words:
        command = import_module(f"umbel.cli.{words[0].replace('-', '_')}").command
    if isinstance(command, click.Group) and rest:
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context("command", rest, parent=group)


def test_bare_umbel_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    bare = capsys.readouterr().out
    assert main(["-h"]) == 0
    assert capsys.readouterr().out == bare
    assert main(["dead"]) == 0
    assert "requeue" in capsys.readouterr().out


def test_help_loads_no_command_and_no_driver(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom umbel.cli import main\nmain(['--help'])\n"
        "late = {'rich.console', 'sqlite3', 'umbel.cli.demo', 'umbel.worker.boot', 'asyncio'}\n"
        "sys.exit(repr(late & set(sys.modules)) if late & set(sys.modules) else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(tmp_path: Path) -> None:
    ended = shell("--version", cwd=tmp_path)
    assert (ended.code, ended.out) == (0, f"umbel {__version__}\n")


@pytest.mark.parametrize("path", [[], ["worker"], ["dead", "list"]])
def test_help_as_a_word(path: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*path, "--help"]) == 0
    as_option = capsys.readouterr().out
    assert main(["help", *path]) == 0
    assert capsys.readouterr().out == as_option


def test_help_for_what_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "wroker"]) == 64
    assert "did you mean 'worker'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "suggestions"),
    [
        (["wor"], ["worker"]),
        (["worker", "--reload"], ["--reload", "--reload-dir"]),
        (["dead", "re"], ["requeue"]),
        (["nonsense", "--x"], []),
    ],
)
def test_a_shell_completes_commands_and_options(
    tmp_path: Path, words: list[str], suggestions: list[str]
) -> None:
    ended = shell(
        cwd=tmp_path,
        _UMBEL_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(["umbel", *words]),
        COMP_CWORD=str(len(words)),
    )
    assert [line.partition(",")[2] for line in ended.out.split()] == suggestions
    assert ended.err == ""
