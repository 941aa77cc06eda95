"""What the pages show is run: every ``python``, ``console`` and ``sh`` block of a page, in order.

A page is one session in one empty folder, as a reader would have it::

    ```python tasks.py           the file tasks.py; the later blocks find it
    ```python                    a program; it must end without an exception
    ```console                   commands after "$ ", each followed by all that it prints
    ```console worker            one command in a terminal of its own; it goes on running until the
                                 end of the page, and must then end by SIGTERM with exit code 0
    ```sh                        a script in the page's shell; no line of it may fail
    ```sh no-run: why            shown only, for the reason that is given

In what a command prints, ``…`` stands for any text, and alone on a line for any lines. A command
that the page shows no output of must succeed; one that fails is recognised by what it prints.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

LANGUAGES: Final = ("python", "console", "sh")
PATIENCE: Final = 60.0

_BLOCK: Final = re.compile(r"^```(\w+)[ \t]*(.*)\n((?:.*\n)*?)```[ \t]*$", re.MULTILINE)
_MARK: Final = re.compile(rb"\x1e(\d+)\x1e\n")


class PageError(AssertionError):
    """A page shows what isn't so."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block; `words` is what stands behind the language, `line` that of the fence."""

    page: str
    line: int
    language: str
    words: str
    body: str

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """Raises `PageError` for a block that is only shown and doesn't say why."""
        if self.language not in LANGUAGES:
            return False
        if not self.words.startswith("no-run"):
            return True
        if not re.fullmatch(r"no-run: \S.*", self.words):
            raise PageError(f"{self.where}: say why, as in: no-run: it needs a mail server")
        return False


def blocks_of(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page.name, text.count("\n", 0, found.start()) + 1, *found.groups())
        for found in _BLOCK.finditer(text)
    ]


def commands_in(block: Block) -> Iterator[tuple[str, str]]:
    """(command, expected output) of a console block; a command may go on after a backslash."""
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        lines = part.splitlines()
        last = next(i for i, line in enumerate(lines) if not line.endswith("\\"))
        yield "\n".join(lines[: last + 1]), "".join(f"{line}\n" for line in lines[last + 1 :])


def pattern_of(expected: str) -> re.Pattern[str]:
    """Matches the output that a page shows; spaces at the ends of lines don't count."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line).replace("…", ".*") + r"[ \t]*\n"
        for line in expected.rstrip("\n").splitlines()
    ]
    return re.compile("".join(lines))


class PageSession:
    """The reader's terminals, in `folder`; left behind is nothing but files in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = 0
        self._terminals: list[tuple[Block, subprocess.Popen[bytes], Path]] = []
        clean = {name: value for name, value in os.environ.items() if not name.startswith("UMBEL_")}
        tools = str(Path(sys.executable).parent)
        self._environment = {
            **clean,
            "PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}",
            "COLUMNS": "200",
            "TZ": "UTC",
        }
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._shell.kill()
        self._shell.communicate()
        codes = [self._stop(process) for _, process, _ in self._terminals]
        if error is not None:
            return
        for (block, _, output), code in zip(self._terminals, codes, strict=True):
            if code != 0:
                raise PageError(f"{block.where}: ended with {code}:\n{output.read_text()}")

    def run(self, block: Block) -> None:
        """Raises `PageError` where the block doesn't do what the page says."""
        if block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._expect(block, f"( set -e\n{block.body}\n)", "")
        elif block.words == "worker":
            self._open_terminal(block)
        else:
            for command, expected in commands_in(block):
                self._expect(block, command, expected)

    def _python(self, block: Block) -> None:
        if block.words:
            (self._folder / block.words).write_text(block.body)
            return
        self._programs += 1
        program = f"program_{self._programs}.py"
        (self._folder / program).write_text(block.body)
        self._expect(block, f"python -W error {program}", "")

    def _expect(self, block: Block, command: str, expected: str) -> None:
        printed, code = self._type(block, command)
        if not expected.strip():
            if code != 0:
                raise PageError(f"{block.where}: `{command}` ended with {code}:\n{printed}")
        elif not pattern_of(expected).fullmatch(printed):
            raise PageError(
                f"{block.where}: `{command}` printed\n{printed}\nand the page shows\n{expected}"
            )

    def _type(self, block: Block, command: str) -> tuple[str, int]:
        """What a command in the page's shell prints, on both streams, and its exit code."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        line = f"{{ {command}\n}} </dev/null; printf '\\036%d\\036\\n' $?\n"
        self._shell.stdin.write(line.encode())
        self._shell.stdin.flush()
        printed = b""
        deadline = time.monotonic() + PATIENCE
        while (found := _MARK.search(printed)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._shell.stdout], [], [], left)[0]:
                raise PageError(f"{block.where}: `{command}` didn't end in {PATIENCE:g} s")
            data = os.read(self._shell.stdout.fileno(), 65536)
            if not data:
                raise PageError(f"{block.where}: `{command}` ended the shell")
            printed += data
        return printed[: found.start()].decode(), int(found[1])

    def _open_terminal(self, block: Block) -> None:
        ((command, expected),) = commands_in(block)
        output = self._folder / f"terminal-{len(self._terminals)}.log"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                env=self._environment,
            )
        self._terminals.append((block, process, output))
        pattern = pattern_of(expected)
        deadline = time.monotonic() + PATIENCE
        while not pattern.match(output.read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise PageError(
                    f"{block.where}: `{command}` printed\n{output.read_text()}\n"
                    f"and the page shows\n{expected}"
                )
            time.sleep(0.02)

    @staticmethod
    def _stop(process: subprocess.Popen[bytes]) -> int:
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def run_page(page: Path, folder: Path) -> int:
    """Run all that a page shows; how many blocks that were. Raises `PageError`."""
    blocks = [block for block in blocks_of(page) if block.runs]
    with PageSession(folder) as session:
        for block in blocks:
            session.run(block)
    return len(blocks)
