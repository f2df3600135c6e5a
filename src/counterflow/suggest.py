"""The second half of an error message: what the user may have meant."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches


def did_you_mean(name: str, choices: Sequence[str]) -> str:
    """Return `; did you mean 'x'? (there are: a, b, x)`, or nothing where no choice is near and there are many."""
    close = get_close_matches(name.lower(), [c.lower() for c in choices], n=1)
    guess = next((c for c in choices if close and c.lower() == close[0]), None)
    hint = f"; did you mean '{guess}'?" if guess else ""
    return f"{hint} (there are: {', '.join(choices)})" if len(choices) <= 30 else hint
