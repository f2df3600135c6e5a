"""The laboratory (`counterflow.lab`) measures, simulates and reproduces; a join runs without it.

Commands that need it import it when they are called, and `main` turns its absence into one line.
"""

from __future__ import annotations

import importlib.util

LABORATORY = "counterflow.lab"
MISSING = (
    f"this command needs the laboratory ({LABORATORY}), which is not installed: joins work without it; "
    "install the whole package for it, with pip install --force-reinstall counterflow"
)


def has_laboratory() -> bool:
    return importlib.util.find_spec(LABORATORY) is not None


def is_missing_laboratory(error: ModuleNotFoundError) -> bool:
    """Say whether the whole laboratory is missing, and not a module that it needs."""
    return error.name == LABORATORY
