"""Where things are in the repository, so that a test may move without looking for them anew."""

from __future__ import annotations

from pathlib import Path

SUPPORT = Path(
    __file__
).parent  # on the path of pytest's processes, but of no other: those that import from here need it
TESTS = SUPPORT.parent
ROOT = TESTS.parent
PACKAGE = ROOT / "src" / "counterflow"
