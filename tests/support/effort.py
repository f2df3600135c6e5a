"""How much the tests try: little in an ordinary run, everything with `--thorough`.

conftest.py sets it before any test file is imported, in pytest's own process and in the workers of xdist. A process
that a test starts knows nothing of it.
"""

from __future__ import annotations

THOROUGH = False


def examples(thorough: int) -> int:
    """Return how many examples a property is tried with: a third, unless there is time."""
    return thorough if THOROUGH else thorough // 3
