"""Texts as numbers: a word has a text's first bytes (UTF-8), and its length where these are all.

    "abc"          61 62 63 00 00 00 00 | 03
    "abcdefg"      61 62 63 64 65 66 67 | 07
    "abcdefgh..."  61 62 63 64 65 66 67 | 08    and all longer ones that begin this way

Words that differ stand in the same order as their texts do, and equal words are equal texts unless they are longer.
Bytes are in the order of letters, also those of half a letter (a surrogate alone).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.predicate.types import SqlType
from counterflow.windows.vectors import Array, kernel_dtype

WORD_BYTES = 7  # of a text's, in a word
LENGTH_BITS = 0xFF  # of a word
LONGER = WORD_BYTES + 1  # the length of those that have more bytes


def encoded_texts(texts: Array) -> tuple[Array, Array]:
    """Return the bytes of some texts side by side, and where each begins, and where the last one ends."""
    try:
        encoded = pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # half a letter
        encoded = pa.array([(text or "").encode("utf-8", "surrogatepass") for text in texts], pa.large_binary())
    _, offsets, data = encoded.buffers()
    places = np.frombuffer(offsets, np.int64, len(texts) + 1) if len(texts) else np.zeros(1, np.int64)
    return np.frombuffer(data or b"", np.uint8)[: places[-1]], places


def column_dtype(type_: SqlType) -> np.dtype[Any] | None:
    """Return how compiled predicates get a column: texts as their words; None if they cannot."""
    return np.dtype(np.uint64) if type_.name == "STRING" else kernel_dtype(type_)


def text_words(texts: Array) -> Array:
    """Return the words of some texts."""
    letters, places = encoded_texts(texts)
    padded = np.zeros(len(letters) + 8, np.uint8)
    padded[: len(letters)] = letters
    eight = np.ndarray(len(letters) + 1, ">u8", padded, strides=(1,))  # from every byte on
    sizes = np.diff(places).view(np.uint64)
    after = np.uint64(2**64 - 1) >> (np.uint64(8) * np.minimum(sizes, np.uint64(WORD_BYTES)))
    words = (eight[places[:-1]].astype(np.uint64) & ~after) | np.minimum(sizes, np.uint64(LONGER))
    return np.asarray(words, np.uint64)


def text_word(text: str) -> int:
    """Return the word of one text."""
    return int(text_words(np.array([text], object))[0])
