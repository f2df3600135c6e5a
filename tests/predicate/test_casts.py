"""Casts that every row survives: which they are, against the casts themselves (oracle test)."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

import counterflow as cf
from counterflow.predicate.casts import EXACT, cast_value, never_fails
from counterflow.predicate.types import INTEGER_BITS, SqlType, decimal_type
from effort import examples

EXTREMES: dict[str, list[Any]] = {
    "BOOLEAN": [True, False],
    **{name: [-(1 << bits - 1), 0, (1 << bits - 1) - 1] for name, bits in INTEGER_BITS.items()},
    **{name: [0.0, -0.0, 9.5, 3.4e38, -1e300, math.inf, math.nan] for name in ("FLOAT", "DOUBLE")},
}
DECIMALS = st.builds(lambda p, s: decimal_type(p, min(p, s)), st.integers(1, 38), st.integers(0, 38))
NUMBERS = st.sampled_from(list(EXTREMES)).map(SqlType) | DECIMALS


def survives(source: SqlType, target: SqlType) -> bool:
    nines = Decimal("9" * (source.precision or 1)).scaleb(-source.scale, EXACT)
    for value in [nines, nines.copy_negate(), Decimal(0)] if source.is_decimal else EXTREMES[source.name]:
        try:
            cast_value(value, source, target)
        except cf.EvaluationError:
            return False
    return True


@settings(max_examples=examples(3000), deadline=None)
@given(source=NUMBERS, target=NUMBERS)
def test_a_cast_that_never_fails(source, target):
    """It has a value at both ends of its source. Of a DECIMAL's CAST to an integer nothing is promised."""
    if never_fails(source, target):
        assert survives(source, target)
    elif not (source.is_decimal and target.is_integer) and source.name != "BIGINT":  # taken for 20 digits, has 19
        assert not survives(source, target)
