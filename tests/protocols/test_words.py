"""A word's name begins with the structure that it belongs to, and is used on such a structure only.

`m[node + w.SEGMENT_STRIDE]` would read another word without a sign of it, so the package's source is checked: what is
added to an offset of a structure must be named like one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from counterflow.protocols import words

PACKAGE = Path(words.__file__).parents[1]
SIZES = ("WORDS", "MAX")
# What a structure's first word may be called: variables and attributes, functions that return it, and lists of them.
CALLED = {
    "NODE": {"node", "node_at", "nodes"},
    "SEGMENT": {
        "segment",
        "left",
        "right",
        "mine",
        "whole",
        "at",
        "second",
        "segment_at",
        "NODE_SEGMENT",
        "NODE_TRANSIT",
    },
    "OUTBOX": {"box", "at", "NODE_OUTBOX"},
    "FEED": {"f", "feed", "HEADER_FEED"},
    "COLLECT": {"c", "collector", "HEADER_COLLECT"},
    "SOURCE": {"source", "source_at", "sources", "at"},
    "PAST": {"past", "past_at", "own", "opposite", "at"},
    "HEAD": {"head", "heads", "lane_head", "FEED_TABLE"},
}


def operands(node: ast.expr) -> Iterator[ast.expr]:
    """The parts of a sum, or of a difference."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from operands(node.left)
        yield from operands(node.right)
    else:
        yield node


def name_of(node: ast.expr) -> str:
    """What an expression is called: by its variable, its attribute, the function or the list that it comes from."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Subscript):
        if isinstance(node.value, ast.Name | ast.Attribute) and name_of(node.value) == "m":
            return next((name for part in operands(node.slice) if (name := word_of(part))), "")
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def word_of(node: ast.expr) -> str:
    """The name of a word, if that is what the expression is; protocols have some of their own."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "w":
        return node.attr
    return node.id if isinstance(node, ast.Name) and node.id.startswith("NODE_") else ""


def structure_of(word: str) -> str | None:
    first, _, rest = word.partition("_")
    return first if first in (*CALLED, "HEADER") and not rest.endswith(SIZES) else None


def mistakes(text: str) -> list[str]:
    """Uses of a word on something else than its structure."""
    tree, found = ast.parse(text), []
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.BinOp) for part in (node.left, node.right)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.BinOp) or id(node) in inner or not isinstance(node.op, ast.Add | ast.Sub):
            continue
        parts = list(operands(node))
        if all(word_of(part) or isinstance(part, ast.Constant) for part in parts):
            continue  # the word after another
        for structure in {structure_of(word_of(part)) for part in parts} - {None}:
            others = {name_of(part) for part in parts}
            if structure == "HEADER" or not others & CALLED[structure]:
                found.append(ast.unparse(node))
    return found


def test_words_are_used_on_their_own_structure():
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text()
        if "words as w" in text:
            assert mistakes(text) == [], path


@pytest.mark.parametrize(
    "wrong",
    [
        "m[node + w.SEGMENT_STRIDE]",
        "m[segment + w.NODE_DONE + side]",
        "load_acquire(m, node_at(m, k) + w.OUTBOX_SENT)",
        "m[node + w.HEADER_STOP]",
        "m[f + w.COLLECT_DONE]",
        "m[m[node + w.NODE_SEGMENT] + w.NODE_PHASE]",
        "m[source_at(m, k) + w.PAST_FIRST]",
    ],
)
def test_a_word_on_another_structure_is_found(wrong):
    assert mistakes(wrong)


def test_every_word_belongs_to_a_structure():
    values = {"STAMP", "RESULT", "NEED", "TO"}  # a descriptor, a size, and what words may be
    kinds = {"ARRIVAL", "EXPIRY", "ACKNOWLEDGEMENT", "EXPEDITION_END", "BATCH", "TASK"}
    others = kinds | {"IDLE", "WORKED", "NEEDS", "LEFT", "RIGHT"}
    names = {name for name in vars(words) if name.isupper()}
    assert {name for name in names - others if name.partition("_")[0] not in {*CALLED, *values, "HEADER"}} == set()
