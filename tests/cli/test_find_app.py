"""``-A``: which app a text names, and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, hear_interrupts, shell

from umbel.cli.session import Session

Run = Callable[..., Ended]

APP = "from umbel import Umbel\n"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, code in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)


@pytest.mark.parametrize(
    ("text", "files"),
    [
        ("m", {"m.py": APP + "app = Umbel('here')"}),
        ("m", {"m.py": APP + "celery = Umbel('here'); other = Umbel('there')"}),
        ("m", {"m.py": APP + "whatever = Umbel('here'); alias = whatever"}),
        ("m:box.it", {"m.py": APP + "class box: it = Umbel('here')\napp = Umbel('there')"}),
        ("m.it", {"m.py": APP + "it = Umbel('here'); app = Umbel('there')"}),
        ("m.app", {"m.py": APP + "app = Umbel('here')"}),
        ("p", {"p/__init__.py": "", "p/celery.py": APP + "app = Umbel('here')"}),
        ("p", {"p/__init__.py": "", "p/app.py": APP + "x = Umbel('here')", "p/celery.py": "x = 1"}),
        ("p", {"p/__init__.py": "from .app import app", "p/app.py": APP + "app = Umbel('here')"}),
        ("p.app", {"p/__init__.py": "", "p/app.py": APP + "app = Umbel('here')"}),
        ("p.app:app", {"p/__init__.py": "", "p/app.py": APP + "app = Umbel('here')"}),
        ("p.app.app", {"p/__init__.py": "", "p/app.py": APP + "app = Umbel('here')"}),
    ],
)
def test_names_an_app(folder: Path, text: str, files: dict[str, str]) -> None:
    write(folder, files)
    assert Session(app_name=text).named_app().main == "here"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("nope", "", "there is no module 'nope' in "),
        ("bad.nope", "x = 1", "module 'bad' has no attribute 'nope'"),
        ("bad:x", "x = 1", "-A bad:x: that is an int, not an app"),
        ("bad", "x = 1", "it has no app at all: app = Umbel('name') makes one"),
        ("bad", APP + "a = Umbel(); b = Umbel()", "name one of those it has: -A bad:a, -A bad:b"),
        ("bad:c", APP + "a = Umbel()", "-A bad:a"),
        ("ba-d", "", "there is no module 'ba-d'"),
        ("", "", "there is no module ''"),
    ],
)
def test_says_what_it_found_instead(
    folder: Path, umbel: Run, text: str, code: str, said: str
) -> None:
    write(folder, {"bad.py": code})
    ended = umbel("-A", text, "queues")
    assert ended.code == 1
    assert said in ended.sentence


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("\nimport nothing_of_this_name\n", "ModuleNotFoundError: No module named"),
        ("\nx = 1 +\n", "SyntaxError: invalid syntax"),
        ("\n1 / 0\n", "ZeroDivisionError: division by zero"),
        (
            "\nraise type('E', (Exception,), {'__str__': lambda self: 1 / 0})\n",
            "E: (its message can't be shown: ZeroDivisionError)",
        ),
        ("\nraise SystemExit('bye\\nbye')\n", "SystemExit: bye bye"),
        ("\nimport json; json.loads('{')\n", "JSONDecodeError: Expecting property name"),
        ("\nfrom umbel import Umbel; Umbel(broker_ur='x')\n", "did you mean 'broker_url'"),
    ],
)
def test_an_import_error_is_one_sentence_with_its_place(
    folder: Path, umbel: Run, code: str, error: str
) -> None:
    write(folder, {"broken.py": code})
    ended = umbel("-A", "broken", "worker")
    assert ended.code == 1
    assert "module 'broken' can't be imported: " in ended.sentence
    assert error in ended.sentence
    assert f"({folder}/broken.py, line 2)" in ended.sentence


def test_an_error_deeper_down_names_the_file_it_is_in(folder: Path, umbel: Run) -> None:
    write(folder, {"broken.py": "import inner\n", "inner.py": "\n\nint('x')\n"})
    assert f"({folder}/inner.py, line 3)" in umbel("-A", "broken", "queues").sentence


def test_an_error_in_a_package_on_the_way(folder: Path, umbel: Run) -> None:
    write(folder, {"pkg/__init__.py": "1 / 0\n", "pkg/app.py": ""})
    assert "module 'pkg' can't be imported" in umbel("-A", "pkg.app", "queues").sentence


def test_an_included_module_is_treated_alike(folder: Path, umbel: Run) -> None:
    write(folder, {"broken.py": "1 / 0\n"})
    ended = umbel("-A", "proj", "worker", "-I", "broken")
    assert "module 'broken' can't be imported: ZeroDivisionError" in ended.sentence


def test_the_traceback_is_to_be_had(folder: Path) -> None:
    write(folder, {"broken.py": "1 / 0\n"})
    ended = shell("-A", "broken", "queues", cwd=folder, UMBEL_TRACEBACK="1")
    assert ended.code == 1
    assert "Traceback" in ended.err


def test_workdir_and_environment(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    ended = shell("--workdir", str(folder), "call", "proj.boom", cwd=elsewhere, UMBEL_APP="proj")
    assert (ended.code, (folder / "tasks.db").exists()) == (0, True)


def test_an_interrupt_while_an_app_is_imported_ends_with_130(folder: Path) -> None:
    # Python remembers an interrupt of a string that it runs, as it does for every dataclass.
    write(folder, {"m.py": "import signal\nexec('signal.raise_signal(signal.SIGINT)')\n"})
    done = subprocess.run(
        [sys.executable, "-m", "umbel", "-A", "m", "queues"],
        cwd=folder,
        preexec_fn=hear_interrupts,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr.strip()) == (130, "umbel: interrupted")
