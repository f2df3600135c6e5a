"""All functions that a predicate may call; the modules named here register them, each on one row."""

from __future__ import annotations

from counterflow.predicate import (
    digest_functions,
    number_functions,
    pattern_functions,
    text_functions,
    time_functions,
)
from counterflow.predicate.registry import FUNCTIONS, TEXT_MAX, Function, call_function

__all__ = [
    "FUNCTIONS",
    "INTERNAL",
    "TEXT_MAX",
    "WALL_CLOCK_FUNCTIONS",
    "Function",
    "call_function",
    "digest_functions",
    "number_functions",
    "pattern_functions",
    "text_functions",
    "time_functions",
]

# These read the wall clock: the binder hands them microseconds local to the timestamp's zone.
WALL_CLOCK_FUNCTIONS = {"hour", "minute", "second", "extract_second"}
# What a predicate gets by its form alone (EXTRACT).
INTERNAL = {"extract_second"}
