"""Every relative link of every page leads to a file, and to a heading in it."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("bench/**/*.md")])

_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!`)\[[^\]]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)


def prose(page: Path) -> str:
    """The text of ``page`` without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The fragments that a code host makes of the headings of ``page``."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        # The second heading of the same name gets a number.
        number = 0
        name = slug
        while name in found:
            number += 1
            name = f"{slug}-{number}"
        found.add(name)
    return found


def broken(page: Path) -> list[str]:
    """The links of ``page`` that lead nowhere; absolute URLs are not followed."""
    bad: list[str] = []
    for link in _LINK.findall(prose(page)):
        if re.match(r"[a-z][a-z0-9+.-]*:", link):
            continue
        path, _, fragment = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            bad.append(f"{link}: there is no {path}")
        elif fragment and target.suffix == ".md" and fragment not in anchors(target):
            bad.append(f"{link}: {target.name} has no heading #{fragment}")
    return bad


def test_there_are_pages() -> None:
    assert ROOT / "README.md" in PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("[gone](nowhere.md) [out](https://example.org/) [no](#missing)\n# There\n")
    assert [line.split(":")[0] for line in broken(page)] == ["nowhere.md", "#missing"]
