"""The tests that name the settings they show: read from the sources, and checked."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.shown import complaints, shown_by

from docs import build
from umbel.settings import SETTINGS, State

HEAD = "import pytest\n\n"


def shown(tmp_path: Path, source: str) -> dict[str, list[str]]:
    folder = tmp_path / "tests"
    folder.mkdir(exist_ok=True)
    (folder / "test_it.py").write_text(HEAD + source)
    return dict(shown_by("setting", folder))


def test_markers_are_found_on_functions_and_methods(tmp_path: Path) -> None:
    found = shown(
        tmp_path,
        """
@pytest.mark.setting("a", "b")
@pytest.mark.parametrize("x", [1])
def test_one(x): ...

@pytest.mark.setting("a")
@pytest.mark.setting("c")
async def test_two(): ...

class TestThem:
    @pytest.mark.setting("b")
    def test_three(self): ...
""",
    )
    one, two, three = (
        f"tests/test_it.py::{name}" for name in ("test_one", "test_two", "TestThem::test_three")
    )
    assert found == {"a": [one, two], "b": [one, three], "c": [two]}


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.setting("a")\ndef helper(): ...\n',
        'pytestmark = pytest.mark.setting("a")\n',
        '@pytest.mark.setting("a")\nclass TestThem:\n    def test_one(self): ...\n',
        '@pytest.mark.setting("a")\n@pytest.mark.skip\ndef test_one(): ...\n',
        '@pytest.mark.skipif(True, reason="x")\n@pytest.mark.setting("a")\ndef test_one(): ...\n',
        'def test_one():\n    pytest.mark.setting("a")\n',
        'X = [pytest.param(1, marks=pytest.mark.setting("a"))]\n',
    ],
)
def test_a_marker_on_what_is_no_test_that_runs_is_refused(tmp_path: Path, source: str) -> None:
    with pytest.raises(ValueError, match=r"tests/test_it.py has pytest.mark.setting\(…\) on some"):
        shown(tmp_path, source)


@pytest.mark.parametrize("names", ["", "NAME", '"a", 3', 'f"a{1}"', 'name="a"'])
def test_a_marker_that_names_no_plain_text_is_refused(tmp_path: Path, names: str) -> None:
    with pytest.raises(ValueError, match="should name what it shows as plain text"):
        shown(tmp_path, f"@pytest.mark.setting({names})\ndef test_one(): ...\n")


def test_what_does_not_fit_is_complained_about() -> None:
    found = {
        **{name: ["t::c"] for name, each in SETTINGS.items() if each.state is State.HONOURED},
        "beat_schedule": ["t::a"],
        "task_ack_late": ["t::b"],
    }
    assert len(complaints(found)) == 2
    del found["task_acks_late"]
    assert complaints(found) == [
        "setting 'task_acks_late' is honoured, and no test has "
        "@pytest.mark.setting('task_acks_late')",
        "t::a shows setting 'beat_schedule', which isn't honoured",
        "t::b shows setting 'task_ack_late', which doesn't exist",
    ]


def test_the_page_cannot_be_built_without_a_test_for_each() -> None:
    found = dict(shown_by())
    del found["task_acks_late"]
    with pytest.raises(ValueError, match="setting 'task_acks_late' is honoured, and no test has"):
        build.settings_page(found)


def test_a_build_that_fails_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> dict[Path, str]:
        raise ValueError("no test")

    monkeypatch.setattr(build, "pages", fail)
    assert build.main() == 1
    assert "nothing is written:\nno test" in capsys.readouterr().err


def test_every_test_on_the_page_exists() -> None:
    """Collected as pytest would: by file and by name."""
    for tests in shown_by().values():
        for test in tests:
            file, _, name = test.partition("::")
            source = (build.FOLDER.parent / file).read_text(encoding="utf-8")
            assert f"def {name.rpartition('::')[2]}(" in source
