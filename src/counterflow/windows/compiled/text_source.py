"""What a predicate's source says about texts, of which it knows the words (`windows.text_words`).

Each piece is code on names of words; of texts that are longer it says where it does not know.
"""

from __future__ import annotations

from counterflow.predicate.expression import Call, Expression
from counterflow.windows.text_words import LENGTH_BITS, LONGER, WORD_BYTES, text_word

ON_WORDS = ("startswith", "is_null", "<=>")  # functions that words are enough for, besides comparisons


def begins_with(text: str, prefix: str) -> tuple[str, str]:
    """Return whether a text may begin with another one; and whether that one is longer than its word, if it may."""
    size = f"({prefix} & uint64({LENGTH_BITS}))"
    after = f"(uint64({2**64 - 1}) >> (uint64(8) * min({size}, uint64({WORD_BYTES}))))"
    found = f"(({text} ^ {prefix}) <= {after}) & ({size} <= ({text} & uint64({LENGTH_BITS})))"
    return found, f"({size} == uint64({LONGER}))"


def alike(a: str, b: str) -> str:
    """Return whether texts begin alike, and both are longer than their words."""
    return f"({a} == {b}) & (({a} & uint64({LENGTH_BITS})) == uint64({LONGER}))"


def word_constant(text: str) -> int:
    """Return a text's word as a kernel's argument, which has a sign."""
    word = text_word(text)
    return word - (word >> 63 << 64)


def is_hashed(condition: Expression) -> bool:
    """Return whether a condition is an equality of texts: the hashes that kernels compare say more than words do."""
    return isinstance(condition, Call) and condition.op in ("=", "<=>") and condition.args[0].type.name == "STRING"
