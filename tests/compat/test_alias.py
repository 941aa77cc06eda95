"""``import celery`` as another name of Umbel, in processes of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.cli.helpers import Ended, clean_environment, shell


def python(code: str, cwd: Path, *arguments: str, **environment: str) -> Ended:
    """A program of its own; with `arguments`, what `python` is given before the code's file."""
    path = cwd / "program.py"
    path.write_text(textwrap.dedent(code))
    done = subprocess.run(
        [sys.executable, *arguments, str(path)],
        cwd=cwd,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def passes(code: str, cwd: Path, **environment: str) -> str:
    """What the program prints; it must end well."""
    ended = python(code, cwd, **environment)
    assert ended.code == 0, ended.err
    return ended.out


@pytest.fixture
def celery_on_the_path(tmp_path: Path) -> Path:
    """A folder with a package that pretends to be the real Celery."""
    package = tmp_path / "site" / "celery"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    (package / "result.py").write_text("AsyncResult = 'real'\n")
    return package.parent


def test_modules_are_the_same_objects_under_both_names(tmp_path: Path) -> None:
    passes(
        """
        import sys
        import umbel.compat.celery
        assert "celery" not in sys.modules
        umbel.compat.celery.install()
        import celery, celery.app.task, celery.utils.log, celery.backends.redis, kombu.common
        from celery.app import base
        from umbel.compat import kombu as ours
        assert celery is umbel.compat.celery is sys.modules["celery"]
        assert sys.modules["celery.app.task"] is umbel.compat.celery.app.task
        assert base is sys.modules["umbel.compat.celery.app.base"]
        assert kombu is ours and kombu.common is ours.common
        assert celery.backends.redis is sys.modules["umbel.compat.celery.backends.redis"]
        both = {name: module for name, module in sys.modules.items()
                if name.split(".")[0] in ("celery", "kombu")}
        assert len(both) > 20
        for name, module in both.items():
            assert module is sys.modules["umbel.compat." + name], name
            assert module.__name__ == module.__spec__.name == "umbel.compat." + name
        """,
        tmp_path,
    )


@pytest.mark.parametrize(
    "first",
    ["import kombu.utils.uuid", "import umbel.compat.kombu.utils", "from kombu.utils import uuid"],
)
def test_a_function_is_not_covered_by_the_module_of_its_name(first: str, tmp_path: Path) -> None:
    passes(
        f"""
        import umbel.compat.celery
        umbel.compat.celery.install()
        {first}
        import kombu.utils.uuid
        assert isinstance(kombu.utils.uuid(), str)
        """,
        tmp_path,
    )


def test_installing_twice_and_uninstalling(tmp_path: Path, celery_on_the_path: Path) -> None:
    passes(
        """
        import sys
        from umbel.compat.celery import install, uninstall
        before = list(sys.meta_path)
        install()
        install()
        assert len(sys.meta_path) == len(before) + 1
        import celery.result
        assert celery.result.AsyncResult.__module__.startswith("umbel.")
        uninstall()
        uninstall()
        assert sys.meta_path == before
        assert not [name for name in sys.modules if name.split(".")[0] in ("celery", "kombu")]
        import celery, celery.result
        assert celery.__version__ == "real" and celery.result.AsyncResult == "real"
        """,
        tmp_path,
        PYTHONPATH=str(celery_on_the_path),
    )


def test_the_alias_wins_over_a_celery_that_is_installed(
    tmp_path: Path, celery_on_the_path: Path
) -> None:
    passes(
        """
        import umbel.compat.celery
        umbel.compat.celery.install()
        import celery.result
        assert celery is umbel.compat.celery
        assert celery.result.AsyncResult != "real"
        """,
        tmp_path,
        PYTHONPATH=str(celery_on_the_path),
    )


def test_a_celery_that_is_imported_already_is_not_replaced(
    tmp_path: Path, celery_on_the_path: Path
) -> None:
    said = passes(
        """
        import sys
        import celery
        from umbel.compat.celery import install
        from umbel.exceptions import ImproperlyConfigured
        before = list(sys.meta_path)
        try:
            install()
        except ImproperlyConfigured as error:
            print(error)
        import celery
        assert celery.__version__ == "real" and sys.meta_path == before
        """,
        tmp_path,
        PYTHONPATH=str(celery_on_the_path),
    )
    assert said.startswith(
        f"'celery' is imported already, from {celery_on_the_path / 'celery' / '__init__.py'}, so "
        "it can't become another name of umbel.compat.celery; call install() before anything"
    )


def test_umbel_itself_imports_nothing_of_it(tmp_path: Path) -> None:
    passes(
        """
        import sys
        import umbel, umbel.cli.worker, umbel.worker.boot
        assert not [name for name in sys.modules if "compat" in name and "umbel" in name]
        """,
        tmp_path,
    )


def test_missing_names_through_the_alias(tmp_path: Path) -> None:
    passes(
        """
        import importlib.util
        import umbel.compat.celery
        umbel.compat.celery.install()
        try:
            from celery.schedules import crontab
        except ImportError as error:
            assert "celery.schedules.crontab isn't in Umbel: " in str(error), error
            assert "'Scheduler'" in str(error)
        else:
            raise AssertionError
        try:
            import celery.nope
        except ModuleNotFoundError as error:
            assert str(error).startswith("Umbel's celery has no 'nope'"), error
            assert error.name == "celery.nope"
        else:
            raise AssertionError
        import celery.contrib
        assert not hasattr(celery, "nope") and not hasattr(celery.contrib, "rabbits")
        assert hasattr(celery, "schedules") and not hasattr(celery.schedules, "crontab")
        assert getattr(celery.result, "ResultBase", None) is None
        assert importlib.util.find_spec("celery.app.task") is not None
        """,
        tmp_path,
    )


def test_threads_that_import_under_both_names_get_one_module(tmp_path: Path) -> None:
    passes(
        """
        import importlib, sys, threading
        from umbel.compat.names import MODULES
        from umbel.compat.alias import install
        install()
        names = ["celery", "celery.app.task", "celery.utils.log", "kombu.utils.uuid", *MODULES]
        failed, start = [], threading.Barrier(8)

        def load(number):
            try:
                start.wait(30)
                for name in names[number % 3:] + names[:number % 3]:
                    importlib.import_module(("umbel.compat." if number % 2 else "") + name)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=load, args=(n,), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(40)
        assert not failed and not any(thread.is_alive() for thread in threads), failed
        for name in names:
            assert sys.modules[name] is sys.modules["umbel.compat." + name], name
        """,
        tmp_path,
    )


def test_forks_inherit_the_alias(tmp_path: Path) -> None:
    passes(
        """
        import multiprocessing
        import umbel.compat.celery
        umbel.compat.celery.install()

        def child():
            import celery.app.task
            assert celery.app.task.Task is umbel.Task

        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
        assert process.exitcode == 0, process.exitcode
        """,
        tmp_path,
    )


SCRIPT = """
import os, sys, threading, atexit
import celery
import __main__

def late():
    assert __main__.sys is sys and sys.modules["__main__"] is __main__
    print("late")

class Order:
    pass

if __name__ == "__main__":
    import pickle, beside
    assert type(pickle.loads(pickle.dumps(Order()))) is Order
    assert __main__.Order is Order
    assert __spec__ is None or __spec__.name == "program"
    print(sys.argv[1:], os.path.basename(sys.argv[0]), os.path.basename(__file__))
    print(celery.__name__, beside.NAME, os.environ["UMBEL_AS_CELERY"])
    atexit.register(late)
"""


def runner(cwd: Path, *arguments: str, **environment: str) -> Ended:
    done = subprocess.run(
        [sys.executable, "-m", "umbel.compat.celery", *arguments],
        cwd=cwd,
        env=clean_environment(**environment),
        capture_output=True,
        text=True,
        timeout=60,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def test_a_script_runs_as_the_main_module(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "program.py").write_text(SCRIPT)
    (folder / "beside.py").write_text("NAME = 'beside'\n")
    ended = runner(tmp_path, "elsewhere/program.py", "one", "-m", "--two")
    assert ended.err == ""
    assert ended.out.splitlines() == [
        "['one', '-m', '--two'] program.py program.py",
        "umbel.compat.celery beside 1",
        "late",
    ]


def test_a_module_runs_as_the_main_module(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT.replace("atexit.register(late)", "late()"))
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    ended = runner(tmp_path, "-m", "program", "-x")
    assert ended.err == ""
    assert ended.out.splitlines() == [
        "['-x'] program.py program.py",
        "umbel.compat.celery beside 1",
        "late",
    ]


def test_a_script_ends_as_it_ends(tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text("import celery, sys\nsys.exit(7)\n")
    (tmp_path / "raises.py").write_text("import celery\n\nraise ValueError('no')\n")
    assert runner(tmp_path, "exits.py").code == 7
    raised = runner(tmp_path, "raises.py")
    assert raised.code == 1
    assert 'raises.py", line 3' in raised.err
    assert raised.err.endswith("ValueError: no\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "usage: python -m umbel.compat.celery SCRIPT"),
        (["-m"], "usage: "),
        (["-c", "import celery"], "usage: "),
        (["nowhere.py"], "there is no file 'nowhere.py' in "),
        (["-m", "celery", "-A", "proj", "worker"], "the command is umbel --as-celery -A proj "),
    ],
)
def test_what_can_not_be_run(arguments: list[str], sentence: str, tmp_path: Path) -> None:
    ended = runner(tmp_path, *arguments)
    assert ended.code == 2
    assert ended.sentence.startswith(f"umbel.compat.celery: {sentence}")


APP = "from celery import Celery\napp = Celery('small', broker='sqlite:///small.db')\n"


@pytest.mark.parametrize("order", [["--as-celery", "-A", "small"], ["-A", "small", "--as-celery"]])
def test_a_command_as_celery(order: list[str], tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(APP)
    ended = shell("-q", *order, "settings", "task_eta_in_broker", cwd=tmp_path)
    assert ended.code == 0, ended.err
    assert "False" in ended.out


def test_a_command_reads_the_variable_that_its_parent_sets(tmp_path: Path) -> None:
    (tmp_path / "small.py").write_text(APP)
    without = shell("-A", "small", "settings", "task_eta_in_broker", cwd=tmp_path)
    assert without.code != 0
    assert "No module named 'celery'" in without.sentence
    assert without.sentence.endswith("umbel --as-celery makes `import celery` mean Umbel")
    child = [sys.executable, "-m", "umbel", "-q", "-A", "small", "settings", "task_eta_in_broker"]
    (tmp_path / "parent.py").write_text(f"import subprocess\nsubprocess.run({child}, check=True)\n")
    ended = runner(tmp_path, "parent.py")
    assert ended.code == 0, ended.err
    assert "False" in ended.out


def test_an_app_with_a_name_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "early.py").write_text(f"{APP}from celery.schedules import crontab\n")
    ended = shell("--as-celery", "-A", "early", "worker", cwd=tmp_path)
    assert ended.code != 0
    assert "celery.schedules.crontab isn't in Umbel: " in ended.sentence
    assert f"({tmp_path / 'early.py'}, line 3)" in ended.sentence


def test_the_option_stands_before_the_command(tmp_path: Path) -> None:
    ended = shell("-A", "small", "worker", "--as-celery", cwd=tmp_path)
    assert ended.code == 64
    assert "--as-celery stands before the command" in ended.sentence


def test_a_command_refuses_where_celery_is_imported_already(
    tmp_path: Path, celery_on_the_path: Path
) -> None:
    ended = python(
        """
        import celery
        from umbel.cli import main
        raise SystemExit(main(["--as-celery", "settings"]))
        """,
        tmp_path,
        PYTHONPATH=str(celery_on_the_path),
    )
    assert ended.code != 0
    assert ended.sentence.startswith("umbel: 'celery' is imported already, from ")
