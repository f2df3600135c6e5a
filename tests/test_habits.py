"""The habits of the tests themselves, checked: where a test lives, and what it may import."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

from places import PACKAGE, SUPPORT, TESTS

FILES = sorted(TESTS.rglob("*.py"))


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module} if node.module else {alias.name for alias in node.names}
    return found


def test_folders_are_those_of_the_package():
    for folder in {path.parent for path in FILES} - {TESTS, SUPPORT}:
        assert (PACKAGE / folder.relative_to(TESTS)).is_dir(), f"{folder} tests no folder of the package"


def test_only_support_holds_helpers():
    for path in FILES:
        is_test = path.name.startswith("test_") or path.name == "conftest.py"
        assert is_test == (path.parent != SUPPORT), f"{path}: tests are outside of {SUPPORT}, helpers inside"


def test_no_file_imports_from_a_test_file():
    tests = {path.stem for path in FILES if path.parent != SUPPORT}
    for path in FILES:
        assert not {name.split(".")[-1] for name in imports_of(path)} & tests, (
            f"{path}: move what is shared to {SUPPORT}"
        )


def test_names_are_unique():
    """pytest imports a file by its name alone."""
    assert [name for name, files in Counter(path.name for path in FILES).items() if files > 1] == []
