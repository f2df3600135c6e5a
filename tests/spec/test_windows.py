"""Windows: every form that a call can ask for, what the tests draw of them, and what they mean for one tuple."""

from __future__ import annotations

import random
from itertools import product

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings

import counterflow as cf
from counterflow.lab.simulator.window_forms import BOUNDED, FORMS, KINDS, LEAVING, Form, draw_form, draw_window
from counterflow.reference.join import Tuple, _in_window
from counterflow.spec.join_spec import build_spec
from counterflow.windows.times import INT64, horizon_of, time_bounds
from inputs import form_of, windows

# --- every form is drawn


def test_forms_are_all_that_a_call_can_say():
    """What each side can be, open or closed: tried through the public function, not listed by hand."""
    sizes = {"zero": 0, "short": 3, "huge": 2**63 - 1, "one row": cf.rows(1), "few rows": cf.rows(2)}
    sizes |= {"many rows": cf.rows(2**63 - 1), "unbounded": None}
    assert set(sizes) == set(KINDS)
    said = {form_of((left, right)) for left, right in product(sizes.values(), repeat=2)}
    bounded = [size for size in sizes.values() if size is not None]  # None is not given, so zero
    for left, right, closed in product(bounded, bounded, (True, False)):
        said.add(form_of(cf.window(before=right, after=left, closed=closed)))
    assert said == set(FORMS)
    assert set(BOUNDED) == {form for form in FORMS if "unbounded" not in form.kinds}


@pytest.mark.parametrize("unit", ["", "seconds"])
@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_drawn_has_its_form(form, unit):
    for seed in range(30):
        assert form_of(draw_window(form, random.Random(seed), unit), integer_time=not unit) == form


def test_every_way_to_write_a_window_is_drawn():
    def ways(form):
        return {str(draw_window(form, random.Random(seed))) for seed in range(300)}

    assert ways(Form("zero", "zero")) == {"0", "(0, 0)", "WindowPair(left=0, right=0, closed=True)"}
    assert ways(Form("one row", "zero")) == {"(Rows(n=1), 0)", "WindowPair(left=Rows(n=1), right=0, closed=True)"}
    assert ways(Form("one row", "zero", False)) == {"WindowPair(left=Rows(n=1), right=0, closed=False)"}
    assert ways(Form("unbounded", "unbounded")) == {"None", "(None, None)"}


@pytest.mark.parametrize("forms", [FORMS, BOUNDED])
def test_seeds_draw_every_form(forms):
    drawn = [draw_form(random.Random(seed), forms) for seed in range(2000)]
    assert set(drawn) == set(forms)
    assert sum(form in LEAVING for form in drawn) > 900


@pytest.mark.parametrize("forms", [FORMS, BOUNDED])
def test_hypothesis_draws_every_form(forms):
    drawn = set()

    @settings(max_examples=1500, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    @given(windows("", forms))
    def draw(window):
        drawn.add(form_of(window))

    draw()
    assert drawn == set(forms)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "3", 2**63, 10**23])
def test_numbers_of_rows_that_make_no_sense(wrong):
    with pytest.raises(cf.WindowError, match=r"rows\("):
        cf.rows(wrong)


# --- what they mean

ENDS = [0, 1, 2, 3, INT64.max, INT64.max - 1, INT64.max - 2, INT64.min, INT64.min + 1, INT64.min + 2]
TIMES = st.lists(st.sampled_from([int(t) for t in ENDS]), max_size=12).map(sorted)
SCHEMA = pa.schema({"t": pa.int64()})


def tuples(left, right):
    return [
        [Tuple(side, time, position, {}) for position, time in enumerate(times)]
        for side, times in (("left", left), ("right", right))
    ]


@settings(deadline=None, max_examples=300)
@given(window=windows(""), left=TIMES, right=TIMES)
def test_a_horizon_is_the_oldest_in_the_window_and_never_beyond_what_has_arrived(window, left, right):
    spec = build_spec(SCHEMA, SCHEMA, where="true", time="t", window=window)
    sides = tuples(left, right)
    ranks = {id(t): i for side in sides for i, t in enumerate(side)}
    for mine, others in (sides, sides[::-1]):
        times = np.array([t.time for t in others], np.int64)
        for t in mine:
            arrived = sum(other.order < t.order for other in others)
            met = [other for other in others[:arrived] if _in_window(spec, *_pair(t, other), *sides, ranks)]
            window_of_others = spec.side("right" if t.side == "left" else "left").window
            args = np.array([t.time]), np.array([arrived]), lambda values, times=times: np.searchsorted(times, values)
            assert horizon_of(window_of_others, *args).tolist() == [met[0].position if met else arrived]


@settings(deadline=None, max_examples=300)
@given(window=windows("", tuple(f for f in FORMS if "row" not in str(f))), left=TIMES, right=TIMES)
def test_bounds_of_time_are_those_of_the_window(window, left, right):
    """On Spark rows come in any order, so a row looks for those before and after it at once."""
    spec = build_spec(SCHEMA, SCHEMA, where="true", time="t", window=window)
    sides = tuples(left, right)
    ranks = {id(t): i for side in sides for i, t in enumerate(side)}
    for mine, others in (sides, sides[::-1]):
        if not mine:
            continue
        low, high = time_bounds(spec, mine[0].side, np.array([t.time for t in mine]))
        for t, least, greatest in zip(mine, low.tolist(), high.tolist(), strict=True):
            met = [other.time for other in others if _in_window(spec, *_pair(t, other), *sides, ranks)]
            assert met == [other.time for other in others if least <= other.time <= greatest]


def _pair(a, b):
    return (a, b) if a.side == "left" else (b, a)


@pytest.mark.parametrize("is_stream", [False, True])
def test_nothing_is_in_an_open_window_of_zero_at_the_end_of_time(is_stream):
    for time in (INT64.max, INT64.min):
        table = pa.table({"t": pa.array([int(time)], pa.int64())})
        for window, pairs in ((cf.window(0, closed=False), 0), (0, 1), (cf.window(after=1, closed=False), 1)):
            sides = [cf.stream([table]) if is_stream else table for _ in range(2)]
            joined = cf.window_join(*sides, where="true", time="t", window=window)
            assert (sum(batch.num_rows for batch in joined) if is_stream else len(joined)) == pairs
