"""Functions of texts, on one row (Spark's meaning). Patterns are in `pattern_functions`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from counterflow.predicate.casts import castable
from counterflow.predicate.registry import TEXT_MAX, TEXT_OR_BINARY, function, typed_function
from counterflow.predicate.types import BIGINT, BINARY, BOOLEAN, INT, STRING, SqlType


def substring(s: str, start: int, length: int = 2**31 - 1) -> str:
    begin = start - 1 if start > 0 else (len(s) + start if start < 0 else 0)
    end = begin + max(length, 0)
    return s[max(begin, 0) : max(end, 0)]


def _repeated(s: str, n: int) -> str:
    _check_length(len(s) * n)
    return s * max(n, 0)


def _check_length(characters: int) -> None:
    if characters > TEXT_MAX:
        raise ValueError(f"it would have {characters:,} characters, more than {TEXT_MAX:,}")


def _pad(s: str, width: int, fill: str, *, left: bool) -> str:
    if width <= len(s) or not fill:
        return s[: max(width, 0)]
    _check_length(width)
    padding = (fill * (width - len(s)))[: width - len(s)]
    return padding + s if left else s + padding


def levenshtein(a: str, b: str) -> int:
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def initcap(s: str) -> str:
    """Return the text with each word's first letter in title case; only blanks part words."""
    return " ".join(map(str.capitalize, s.split(" ")))


@functools.lru_cache(1000)
def translation(letters: str, replacements: str) -> dict[int, str | None]:
    """Return what `str.translate` needs: the first of two equal letters counts, one without a replacement goes."""
    table: dict[int, str | None] = {}
    for i, letter in enumerate(letters):
        table.setdefault(ord(letter), replacements[i] if i < len(replacements) else None)
    return table


def locate(part: str, s: str, begin: int) -> int:
    """Return where a part of a text begins, from one on; an empty part is found at the beginning."""
    if begin < 1:
        return 0
    return s.find(part, begin - 1) + 1 if part else 1


def split_part(s: str, delimiter: str, number: int) -> str:
    parts = s.split(delimiter) if delimiter else [s]
    if number == 0:
        raise ValueError("the parts are numbered from 1 on, and from -1 on from the end")
    index = number - 1 if number > 0 else len(parts) + number
    return parts[index] if 0 <= index < len(parts) else ""


def substring_index(s: str, delimiter: str, count: int) -> str:
    """Return what stands before the count-th delimiter, or if that is negative after it from the end.

    Delimiters may overlap, as Spark goes on one letter after the begin of the last one.
    """
    if not delimiter or not count:
        return ""
    at = -1 if count > 0 else len(s) - len(delimiter) + 1
    for _ in range(abs(count)):
        at = s.find(delimiter, at + 1) if count > 0 else s.rfind(delimiter, 0, max(at - 1 + len(delimiter), 0))
        if at < 0:
            return s
    return s[:at] if count > 0 else s[at + len(delimiter) :]


def overlay(s: str, replacement: str, begin: int, length: int = -1) -> str:
    """Return the text with a part replaced: as many letters as the replacement has, unless a length says otherwise."""
    length = length if length >= 0 else len(replacement)
    return substring(s, 1, begin - 1) + replacement + substring(s, begin + length)


def find_in_set(word: str, words: str) -> int:
    """Return which one of a list with commas between them a word is; 0 if it is none of them."""
    listed = words.split(",")
    return listed.index(word) + 1 if word in listed else 0


def letter_of(code: int) -> str:
    return "" if code < 0 else chr(code & 0xFF)


_SOUNDS = dict(zip("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "01230127022455012623017202", strict=True))
_UNSOUNDED = "HW"  # they part no letters that sound alike; vowels do


def soundex(s: str) -> str:
    """Return the letter and three digits of how a word sounds; a text that begins with no English letter stays."""
    if not s or s[0].upper() not in _SOUNDS or not s[0].isascii():
        return s
    found, last = s[0].upper(), _SOUNDS[s[0].upper()]
    for letter in s[1:]:
        upper = letter.upper() if letter.isascii() else ""
        if upper and upper in _UNSOUNDED:
            continue
        digit = _SOUNDS.get(upper, "0")
        if digit not in ("0", last):
            found += digit
        last = digit
    return f"{found[:4]:0<4}"


def bytes_of(s: str | bytes) -> bytes:
    """Return bytes, or a text's bytes in UTF-8."""
    return s.encode("utf-8", "surrogatepass") if isinstance(s, str) else s


def alike(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    """Return BINARY if all are that; otherwise all become texts, if they can."""
    if given and all(t == BINARY for t in given):
        return given, BINARY
    return (tuple(STRING for _ in given), STRING) if all(castable(t, STRING) for t in given) else None


def _texts(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    return (tuple(STRING for _ in given), STRING) if {t.name for t in given} <= {"STRING", "NULL"} else None


def concat(*parts: str | bytes) -> str | bytes:
    return type(parts[0])().join(parts) if parts else ""  # type: ignore[arg-type]


def out_of_bounds(number: int, count: int) -> None:
    """Refuse a number that elt() has no value for; its form has the values."""
    raise ValueError(f"the values are numbered from 1 to {count}")


def _elements(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    values = alike(given[1:])
    number = given[0] if given[0].name != "NULL" else INT
    return ((number, *values[0]), values[1]) if values is not None and number.is_integer else None


def _stripped(strip: Callable[..., str]) -> Callable[..., str]:
    """Return trim(s), and trim(letters, s): there the letters stand first."""
    return lambda *args: strip(args[-1], " " if len(args) == 1 else args[0])


function("upper ucase", STRING, returns=STRING)(str.upper)
function("lower lcase", STRING, returns=STRING)(str.lower)
function("initcap", STRING, returns=STRING)(initcap)
function("length len char_length character_length", TEXT_OR_BINARY, returns=INT)(len)
function("octet_length", TEXT_OR_BINARY, returns=INT)(lambda s: len(bytes_of(s)))
function("bit_length", TEXT_OR_BINARY, returns=INT)(lambda s: 8 * len(bytes_of(s)))
for _name, _strip in {"trim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}.items():
    typed_function(_name, (1, 2), _texts, "([STRING, ]STRING) -> STRING")(_stripped(_strip))
function("btrim", STRING, STRING, returns=STRING, optional=1)(lambda s, letters=" ": s.strip(letters))
function("reverse", STRING, returns=STRING)(lambda s: s[::-1])
function("substring substr", STRING, INT, INT, returns=STRING, optional=1)(substring)
function("left", STRING, INT, returns=STRING)(lambda s, n: s[: max(n, 0)])
function("right", STRING, INT, returns=STRING)(lambda s, n: s[-n:] if n > 0 else "")
function("replace", STRING, STRING, STRING, returns=STRING, optional=1)(
    lambda s, old, new="": s.replace(old, new) if old else s
)
function("repeat", STRING, INT, returns=STRING)(_repeated)
function("lpad", STRING, INT, STRING, returns=STRING, optional=1)(lambda s, n, f=" ": _pad(s, n, f, left=True))
function("rpad", STRING, INT, STRING, returns=STRING, optional=1)(lambda s, n, f=" ": _pad(s, n, f, left=False))
function("space", INT, returns=STRING)(lambda n: _repeated(" ", n))
function("overlay", STRING, STRING, INT, INT, returns=STRING, optional=1)(overlay)
function("translate", STRING, STRING, STRING, returns=STRING)(lambda s, a, b: s.translate(translation(a, b)))
function("split_part", STRING, STRING, INT, returns=STRING)(split_part)
function("substring_index", STRING, STRING, INT, returns=STRING)(substring_index)
function("ascii", STRING, returns=INT)(lambda s: ord(s[0]) if s else 0)
function("chr char", BIGINT, returns=STRING)(letter_of)
function("soundex", STRING, returns=STRING)(soundex)
function("startswith starts_with", STRING, STRING, returns=BOOLEAN)(str.startswith)
function("endswith ends_with", STRING, STRING, returns=BOOLEAN)(str.endswith)
function("contains", STRING, STRING, returns=BOOLEAN)(lambda s, part: part in s)
function("instr", STRING, STRING, returns=INT)(lambda s, part: s.find(part) + 1)
function("locate position", STRING, STRING, INT, returns=INT, optional=1)(locate)
function("find_in_set", STRING, STRING, returns=INT)(find_in_set)
function("levenshtein", STRING, STRING, returns=INT)(levenshtein)
typed_function("concat", (0, 99), alike, "(STRING, ...) -> STRING")(concat)
typed_function("elt", (2, 99), _elements, "(INT, STRING, ...) -> STRING")(out_of_bounds)
