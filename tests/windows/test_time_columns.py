"""Oracle tests: parts of dates and clocks on whole columns beside the same on one row."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.predicate.expression import Call, Column
from counterflow.predicate.functions import FUNCTIONS, call_function
from counterflow.predicate.types import DATE, TIMESTAMP_NTZ
from counterflow.windows.evaluate import Frame, evaluate
from counterflow.windows.time_columns import FIRST_DAY, LAST_DAY, TIME_COLUMNS
from counterflow.windows.vectors import from_python, to_python
from effort import examples

CLOCK = {"hour", "minute", "second"}
DAYS = st.one_of(st.integers(FIRST_DAY, LAST_DAY), st.sampled_from([FIRST_DAY, LAST_DAY, -1, 0, 365, FIRST_DAY - 1]))
MOMENTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**70), 2**70))


@pytest.mark.parametrize("name", TIME_COLUMNS)
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_columns_mean_what_rows_do(name, data):
    type_, values = (TIMESTAMP_NTZ, MOMENTS) if name in CLOCK else (DATE, DAYS)
    rows = data.draw(st.lists(st.one_of(st.none(), values), min_size=1, max_size=5))
    result = FUNCTIONS[name].signature((type_,))
    kind = result[1] if result is not None else FUNCTIONS["hour"].signature((type_,))[1]
    call = Call(name, (Column("left", "t", type_),), kind)
    frame = Frame(len(rows), left=({"t": from_python(type_, rows)}, None))
    try:
        want = [None if value is None else call_function(name, value) for value in rows]
    except cf.EvaluationError:
        with pytest.raises(cf.EvaluationError):
            evaluate(call, frame)
        return
    got = evaluate(call, frame)
    assert [v if ok else None for v, ok in zip(to_python(got), got.mask(), strict=True)] == want
