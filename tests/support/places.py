"""Where things are in the repository, so that a test may move without looking for them anew."""

from __future__ import annotations

from pathlib import Path

# On the path of pytest's processes, but of no other: those that import from here need it.
SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
PACKAGE = ROOT / "src" / "counterflow"
