"""What the documentation points at exists: files, headings, functions, tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)")
FUNCTION = re.compile(r"([\w/]+\.py):(\w+)")


def text_of(page: Path) -> str:
    """A page without its fenced code, where brackets are not links."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def defined(path: Path) -> set[str]:
    """Functions and classes at the top of a module."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if hasattr(node, "name")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    for _, target in LINK.findall(text_of(page)):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path).resolve() if path else page
        assert other.exists(), f"{page.name}: {target}"
        assert other.is_relative_to(ROOT), f"{page.name}: {target} leaves the repository"
        assert not anchor or anchor in anchors(other), f"{page.name}: {target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_functions(page):
    for words, target in LINK.findall(text_of(page)):
        if named := FUNCTION.fullmatch(words):
            path, function = named.groups()
            assert (page.parent / target).resolve() == ROOT / path, f"{page.name}: {words} links to {target}"
            assert function in defined(ROOT / path), f"{page.name}: {path} has no {function}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests(page):
    for path, function in TEST.findall(text_of(page)):
        assert (ROOT / path).is_file(), f"{page.name}: {path}"
        assert function in defined(ROOT / path), f"{page.name}: {path} has no {function}"


def test_every_reported_fault_has_a_test():
    lines = [line for line in text_of(ROOT / "docs" / "reliability.md").splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(line.split("|")[1]) for line in lines] == list(range(1, 24))
    for line in lines:
        assert TEST.search(line), line


def test_every_equation_has_a_function():
    lines = [line for line in text_of(ROOT / "README.md").splitlines() if re.match(r"\| \d+[-, \d]* \|", line)]
    numbers = set()
    for line in lines:
        named = [int(number) for number in re.findall(r"\d+", line.split("|")[1])]
        numbers |= set(range(named[0], named[-1] + 1))
        assert any(FUNCTION.fullmatch(words) for words, _ in LINK.findall(line)), line
    assert numbers == set(range(1, 13))


def test_every_reported_fault_has_its_test():
    rows = [line.split("|") for line in text_of(ROOT / "docs" / "reliability.md").splitlines()]
    faults = {int(row[1]): row for row in rows if len(row) > 4 and row[1].strip().isdecimal()}
    assert list(faults) == list(range(1, 24))
    assert all(TEST.search(row[-2]) for row in faults.values())
