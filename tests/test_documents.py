"""Every Python snippet in README and docs runs as it stands, and prints what the text block after it says."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import get_args

import pytest

from counterflow.predicate.forms import FORMS
from counterflow.predicate.functions import FUNCTIONS, INTERNAL
from counterflow.spec.join_spec import _HOW_ALIASES, How
from places import ROOT

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def snippets(document: Path) -> list[tuple[str, str | None]]:
    """Each Python block with the text block that directly follows it, if one does."""
    text = document.read_text()
    blocks = list(BLOCK.finditer(text))
    found = []
    for block, following in zip(blocks, [*blocks[1:], None], strict=False):
        if block[1] == "python":
            directly = (
                following is not None and following[1] == "text" and not text[block.end() : following.start()].strip()
            )
            found.append((block[2], following[2] if directly and following else None))
    return found


def needs_spark(document: Path) -> bool:
    return any("pyspark" in code for code, _ in snippets(document))


@pytest.mark.parametrize(
    "document",
    [pytest.param(document, marks=[pytest.mark.spark] * needs_spark(document)) for document in DOCUMENTS],
    ids=lambda path: path.name,
)
def test_snippets(document, request):
    namespace: dict[str, object] = {}
    for code, output in snippets(document):
        if "pyspark" in code:
            request.getfixturevalue("spark")  # the snippet's getOrCreate() finds this session
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(document), "exec"), namespace)
        if output is not None:
            assert printed.getvalue() == output


def test_links_lead_somewhere():
    for document in [*DOCUMENTS, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_list_of_functions_is_complete():
    line = next(
        line for line in (ROOT / "docs" / "predicates.md").read_text().splitlines() if line.startswith("- Functions:")
    )
    assert set(re.findall(r"`(\w+)`", line)) == (set(FUNCTIONS) | set(FORMS) | {"extract"}) - INTERNAL


def test_every_name_of_how_is_documented():
    page = (ROOT / "docs" / "semantics.md").read_text()
    names = {*get_args(How), *_HOW_ALIASES}
    assert {name for name in names if f"`{name}`" not in page} == set()
    line = next(line for line in page.splitlines() if line.startswith("Spark's other names"))
    for part in line.split(": ", 1)[1].rstrip(".").split("; "):
        aliases, _, name = part.rpartition(" for ")
        for alias in re.findall(r"`(\w+)`", aliases):
            assert _HOW_ALIASES[alias] == name.strip("`")
