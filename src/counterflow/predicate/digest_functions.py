"""Digests and codings of texts and bytes, on one row (Spark's meaning). A text counts as its bytes in UTF-8."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib

from counterflow.predicate.registry import TEXT_OR_BINARY, function, typed_function
from counterflow.predicate.text_functions import bytes_of
from counterflow.predicate.types import BIGINT, BINARY, INT, STRING, SqlType

_LINE = 76  # letters of base64 in a line, as MIME has it
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]*", re.ASCII)
_SHA2 = {0: "sha256", 224: "sha224", 256: "sha256", 384: "sha384", 512: "sha512"}


def sha2(s: str | bytes, bits: int) -> str | None:
    return hashlib.new(_SHA2[bits], bytes_of(s)).hexdigest() if bits in _SHA2 else None


def to_hex(value: str | bytes | int) -> str:
    """Return a text's or bytes' digits, or those of the 64 bits of an integer."""
    if not isinstance(value, int):
        return bytes_of(value).hex().upper()
    if not -(2**63) <= value < 2**63:
        raise OverflowError("it does not fit a BIGINT")
    return f"{value & 0xFFFFFFFFFFFFFFFF:X}"


def from_hex(digits: str) -> bytes | None:
    if not _HEXADECIMAL.fullmatch(digits):
        return None
    return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))


def to_base64(s: str | bytes) -> str:
    coded = base64.b64encode(bytes_of(s)).decode()
    return "\r\n".join(coded[i : i + _LINE] for i in range(0, len(coded), _LINE))


def _hexed(given: tuple[SqlType, ...]) -> tuple[tuple[SqlType, ...], SqlType] | None:
    kept = given[0] if given[0].name != "NULL" else STRING
    return ((kept,), STRING) if kept.is_integer or kept in (STRING, BINARY) else None


function("md5", TEXT_OR_BINARY, returns=STRING)(lambda s: hashlib.md5(bytes_of(s), usedforsecurity=False).hexdigest())
function("sha1 sha", TEXT_OR_BINARY, returns=STRING)(
    lambda s: hashlib.sha1(bytes_of(s), usedforsecurity=False).hexdigest()
)
function("sha2", TEXT_OR_BINARY, INT, returns=STRING)(sha2)
function("crc32", TEXT_OR_BINARY, returns=BIGINT)(lambda s: zlib.crc32(bytes_of(s)))
typed_function("hex", (1, 1), _hexed, "(STRING|BINARY|BIGINT) -> STRING")(to_hex)
function("unhex", STRING, returns=BINARY)(from_hex)
function("base64", TEXT_OR_BINARY, returns=STRING)(to_base64)
