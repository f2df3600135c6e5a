"""Java's regular expressions, written as Python's.

    ^a.$        becomes    ^a[^\\n\\r\\x85\\u2028\\u2029](?=(?:\\r\\n|...)?\\Z)

In Java a line ends with more letters than in Python. What the two read differently, and cannot be said in Python, is
refused; so is what Python reads and Java does not.
"""

from __future__ import annotations

import re

_LINE_ENDS = r"\n\r\x85\u2028\u2029"
_LETTER = f"[^{_LINE_ENDS}]"
_AT_END = r"(?=(?:\r\n|(?<!\r)\n|[\r\x85\u2028\u2029])?\Z)"  # $: also before the text's last line end
_AT_LINE_END = r"(?:\Z|(?=[\r\x85\u2028\u2029])|(?<!\r)(?=\n))"
_AT_LINE_BEGIN = r"(?:(?!\Z)(?:\A|(?<=[\n\x85\u2028\u2029])|(?<=\r)(?!\n)))"  # in Java never where the text ends

_TOKEN = re.compile(
    r"(?P<escape>\\(?:[0-7]{3}|.)?)"
    r"|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<flags>\(\?(?P<on>[A-Za-z]*)(?P<off>-[A-Za-z]*)?(?P<end>[:)]))"
    r"|(?P<foreign>\(\?[P#(])"
    r"|(?P<repeat>\{[0-9]+(?:,[0-9]*)?\})"
    r"|(?P<other>.)",
    re.DOTALL,
)
_NOT_SUPPORTED = re.compile(r"\\([0vZUN]|[0-7]{3})")
_NOT_IN_SETS = re.compile(r"\\[0-9bvUN]")


def python_pattern(pattern: str) -> str:
    """Return what Python has to be asked for a Java pattern. Raises a ValueError where the two differ."""
    parts: list[str] = []
    flags: frozenset[str] = frozenset()
    outside: list[frozenset[str]] = []  # the flags outside of each group that is open
    for token in _TOKEN.finditer(pattern):
        text = token[0]
        match token.lastgroup:
            case "escape":
                parts.append(_escaped(text))
            case "set":
                parts.append(_checked_set(text))
            case "flags":
                if text.endswith(":"):
                    outside.append(flags)
                flags = (flags | _known_flags(token["on"])) - _known_flags((token["off"] or "")[1:])
                parts.append(text)
            case "foreign":
                raise ValueError(f"{text} is not Java's and not supported in a pattern")
            case "other":
                if text == "(":
                    outside.append(flags)
                elif text == ")" and outside:
                    flags = outside.pop()
                parts.append(_plain(text, flags))
            case _:
                parts.append(text)
    return "".join(parts)


def _escaped(text: str) -> str:
    if _NOT_SUPPORTED.fullmatch(text):
        raise ValueError(f"{text} is not supported in a pattern")
    return r"(?!\b)" if text == r"\B" else text  # alone, Python finds no \B in an empty text


def _checked_set(text: str) -> str:
    inner = re.sub(r"\\.", "", text[1:-1], flags=re.DOTALL)
    if "[" in inner or "&&" in inner:
        raise ValueError(f"the set {text} has another one in it, which is not supported in a pattern")
    escape = _NOT_IN_SETS.search(re.sub(r"\\\\", "", text))
    if escape:
        raise ValueError(f"{escape[0]} is not supported in a set of a pattern")
    return text


def _known_flags(letters: str) -> frozenset[str]:
    unknown = set(letters) - set("ims")
    if unknown:
        raise ValueError(f"the flag {min(unknown)} is not supported in a pattern: only i, m and s")
    return frozenset(letters)


def _plain(letter: str, flags: frozenset[str]) -> str:
    """Return what Python has for a letter that is no part of anything longer."""
    match letter:
        case ".":
            return letter if "s" in flags else _LETTER
        case "$":
            return _AT_LINE_END if "m" in flags else _AT_END
        case "^":
            return _AT_LINE_BEGIN if "m" in flags else letter
        case "{":
            raise ValueError("{ begins no number of times, as in {2,3}: write \\\\{ for the letter itself")
    return letter
