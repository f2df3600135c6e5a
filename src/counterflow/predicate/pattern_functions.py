"""Functions of texts and patterns, on one row (Spark's meaning): LIKE, and regular expressions as Java writes them."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Iterator

from counterflow.predicate.java_patterns import python_pattern
from counterflow.predicate.registry import function
from counterflow.predicate.types import BOOLEAN, INT, STRING


def like(s: str, pattern: str, escape: str = "\\") -> bool:
    return like_regex(pattern, escape).fullmatch(s) is not None


@functools.lru_cache(1000)
def like_regex(pattern: str, escape: str) -> re.Pattern[str]:
    parts = [{"%": ".*", "_": "."}[c] if is_wildcard else re.escape(c) for c, is_wildcard in _letters(pattern, escape)]
    return re.compile("".join(parts), re.DOTALL)


def _letters(pattern: str, escape: str) -> Iterator[tuple[str, bool]]:
    """Yield a pattern's letters, and which of them are wildcards."""
    if len(escape) != 1:
        raise ValueError(f"ESCAPE needs one character, not {escape!r}")
    chars = iter(pattern)
    for c in chars:
        if c == escape:
            c = next(chars, "")
            if c not in ("%", "_", escape):
                raise ValueError(f"in a pattern the escape character {escape} comes only before %, _ or itself")
            yield c, False
        else:
            yield c, c in "%_"


def like_part(pattern: str, escape: str) -> tuple[str, str] | None:
    """Return how a pattern looks for one plain part, and the part; None if that is not all of it."""
    letters = list(_letters(pattern, escape))
    wild = [is_wildcard for _, is_wildcard in letters]
    begin = wild.index(False) if False in wild else len(wild)
    end = len(wild) - wild[::-1].index(False) if False in wild else len(wild)
    if any(wild[begin:end]) or any(c == "_" for c, is_wildcard in letters if is_wildcard):
        return None
    how = {(0, 0): "equal", (0, 1): "startswith", (1, 0): "endswith"}.get((begin > 0, end < len(wild)), "contains")
    return how, "".join(c for c, _ in letters[begin:end])


@functools.lru_cache(1000)
def java_regex(pattern: str) -> re.Pattern[str]:
    """Return a Java pattern as Python's. Raises a ValueError or FutureWarning for what the two read differently."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # sets in sets: Python takes the brackets literally
        return re.compile(python_pattern(pattern), re.ASCII)


def regexp_replace(s: str, pattern: str, replacement: str, begin: int = 1) -> str:
    """Replace all that a pattern matches; what is before the letter number `begin` is not looked at."""
    if begin < 1:
        raise ValueError("the position is counted from 1 on")
    if begin > 1 and begin > len(s):
        return s
    regex = java_regex(pattern)
    before, rest = s[: begin - 1], s[begin - 1 :]
    return before + regex.sub(lambda found: _replacement(found, replacement), rest)


def _replacement(found: re.Match[str], replacement: str) -> str:
    """Return the text for a match: in Java $1 is a group, with as many digits as there is such a group for."""
    parts, i = [], 0
    while i < len(replacement):
        if replacement[i] == "\\":
            if i + 1 == len(replacement):
                raise ValueError("the replacement ends with a backslash")
            parts.append(replacement[i + 1])
            i += 2
        elif replacement[i] == "$":
            group, i = _group_number(found, replacement, i + 1)
            parts.append(found[group] or "")
        else:
            parts.append(replacement[i])
            i += 1
    return "".join(parts)


def _group_number(found: re.Match[str], replacement: str, i: int) -> tuple[int, int]:
    """Return the group that is named at a place of a replacement, and where its number ends."""
    groups = len(found.groups())
    if not replacement[i : i + 1].isdigit() or not replacement[i].isascii():
        raise ValueError("in the replacement a number has to follow $; write \\\\$ for the letter itself")
    group, i = int(replacement[i]), i + 1
    while (digit := replacement[i : i + 1]).isdigit() and digit.isascii() and group * 10 + int(digit) <= groups:
        group, i = group * 10 + int(digit), i + 1
    if group > groups:
        raise ValueError(f"the pattern has {groups} groups, and the replacement names group {group}")
    return group, i


def regexp_extract(s: str, pattern: str, group: int = 1) -> str:
    """Return a group of the first match; nothing where there is no match, or where it has no such part."""
    found = java_regex(pattern).search(s)
    if found is None:
        return ""
    if not 0 <= group <= len(found.groups()):
        raise ValueError(f"the pattern has {len(found.groups())} groups")
    return found[group] or ""


def regexp_instr(s: str, pattern: str, group: int = 0) -> int:
    """Return where the first match begins, from one on; the group is ignored, as in Spark."""
    found = java_regex(pattern).search(s)
    return 0 if found is None else found.start() + 1


function("like", STRING, STRING, STRING, returns=BOOLEAN, optional=1)(like)
function("ilike", STRING, STRING, STRING, returns=BOOLEAN, optional=1)(
    lambda s, pattern, escape="\\": like(s.lower(), pattern.lower(), escape)
)
function("rlike regexp regexp_like", STRING, STRING, returns=BOOLEAN)(
    lambda s, pattern: java_regex(pattern).search(s) is not None
)
function("regexp_replace", STRING, STRING, STRING, INT, returns=STRING, optional=1)(regexp_replace)
function("regexp_extract", STRING, STRING, INT, returns=STRING, optional=1)(regexp_extract)
function("regexp_substr", STRING, STRING, returns=STRING)(lambda s, pattern: regexp_extract(s, pattern, 0) or None)
function("regexp_count", STRING, STRING, returns=INT)(
    lambda s, pattern: sum(1 for _ in java_regex(pattern).finditer(s))
)
function("regexp_instr", STRING, STRING, INT, returns=INT, optional=1)(regexp_instr)
