"""ScaleJoin with physical sources that add their tuples to the gate themselves: every pair once, in the one order.

left source 0   1     3 3     7
left source 1     2   3     6       tuples of one time: left before right, then by source, then by position
right source 0    2   3   5
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from counterflow.lockfree.scale_gate import FIRST_TIME, LAST_TIME
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.protocols.machine import Machine
from counterflow.protocols.past import Past, has_room, horizon, remember
from counterflow.protocols.sources import SourceFeed, early, gate_time, position_of, source_of, tie_of, time_of
from counterflow.reference import reference_pairs
from counterflow.spec.join_spec import build_spec
from counterflow.spec.window_sizes import Window, rows
from counterflow.windows.store import Batch
from counterflow.windows.vectors import from_arrow_column
from effort import THOROUGH
from inputs import PREDICATES, retimed, tables, windows
from physical_sources import found_by_schedule, found_on_threads, sources_of
from schedules import EXPLORED

# An index of each kind, a scan, one-sided conditions (tuples that count in windows and match nothing), texts.
KINDS = ["two bands", "two equalities", "inequality", "filters", "residual"]
CLOCKS = ["timestamps", "integers", "the beginning of time", "the end of time", "both ends of time"]
EXAMPLES = 300 if THOROUGH else 12


@st.composite
def sourced_joins(draw, kind, rows_max):
    """Two tables, a call's options, and a design with some sources a side."""
    clock = draw(st.sampled_from(CLOCKS))
    left, right = (retimed(draw(tables(rows_max)), clock) for _ in range(2))
    options = dict(where=PREDICATES[kind], time="ts", window=draw(windows("seconds" if clock == "timestamps" else "")))
    spec = build_spec(left.schema, right.schema, **options)
    design = Design(
        "scalejoin",
        draw(st.integers(1, 4)),
        batch_rows=draw(st.sampled_from([1, 2, 3, 16])),
        access=draw(st.sampled_from(["auto", "scan"])),
        in_flight=draw(st.sampled_from([1, 2, 5, 64])),
        outbox_rows=draw(st.sampled_from([1, 4, 64])),
        ordered_output=draw(st.booleans()),
        nullable=spec.has_null_matches,
        capacity_min=4,
        sources=sources_of(spec, draw(st.integers(1, 5)), draw(st.integers(1, 5))),
    )
    return spec, left, right, design


def check(find, spec, left, right, design, seed, expected=None):
    """Oracle. What compiled code is unsure of may be too much, and is checked elsewhere."""
    expected = expected or {(le, ri) for le, ri, _ in reference_pairs(spec, left, right)}
    found = [(le, ri) for le, ri, unsure in find(spec, left, right, design, seed) if not unsure or (le, ri) in expected]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=EXAMPLES, deadline=None, phases=EXPLORED)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_any_schedule(kind, data, seed):
    check(found_by_schedule, *data.draw(sourced_joins(kind, 24)), seed)


@pytest.mark.parametrize("kind", ["two bands", "two equalities", "filters"])
@settings(max_examples=EXAMPLES // 2, deadline=None, phases=EXPLORED)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_threads(kind, data, seed):
    check(found_on_threads, *data.draw(sourced_joins(kind, 60)), seed)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("window", [9, (rows(7), rows(30)), (0, 200)], ids=str)
def test_rings_that_go_round_many_times(window, ordered):
    """Sources overwrite tuples only when all nodes have them; what nodes remember grows with the window."""
    rng = np.random.default_rng(7)
    left, right = (pa.table({"t": np.sort(rng.integers(0, 150, 200)), "k": rng.integers(0, 9, 200)}) for _ in range(2))
    spec = build_spec(left.schema, right.schema, where="l.k = r.k AND l.k > 1", time="t", window=window)
    expected = {(le, ri) for le, ri, _ in reference_pairs(spec, left, right)}
    for seed in range(20 if THOROUGH else 1):
        for in_flight, batch_rows, sides in ((1, 3, (3, 3)), (3, 16, (2, 1)), (8, 1, (1, 3))):
            design = Design(
                "scalejoin", 3, batch_rows, in_flight=in_flight, ordered_output=ordered, outbox_rows=64,
                sources=sources_of(spec, *sides),
            )  # fmt: skip
            check(found_by_schedule, spec, left, right, design, seed, expected)
            check(found_on_threads, spec, left, right, design, seed, expected)


# --- one source


def source_of_numbers(in_flight=4):
    table = pa.table({"t": np.arange(3), "k": np.arange(3)})
    spec = build_spec(table.schema, table.schema, where="l.k = r.k", time="t", window=2)
    design = Design("scalejoin", 1, batch_rows=2, in_flight=in_flight, sources=sources_of(spec, 2, 1))
    return SourceFeed(Machine(spec.predicate, spec.parts, design), 0)


@pytest.mark.parametrize(
    "promised, times",
    [(FIRST_TIME, [3, 2]), (5, [5]), (LAST_TIME, [9]), (FIRST_TIME, [FIRST_TIME])],
    ids=["not sorted", "not after the watermark", "after the end", "at the beginning of time"],
)
def test_a_source_refuses_what_it_cannot_add(promised, times):
    feed = source_of_numbers()
    feed.advance(promised)
    with pytest.raises(ValueError, match="source 0 are out of order, or late"):
        feed.offer(np.array(times), None)


def test_only_a_protocol_with_a_gate_has_sources():
    spec = build_spec(pa.schema({"t": pa.int64()}), pa.schema({"t": pa.int64()}), where="true", time="t", window=2)
    with pytest.raises(ValueError, match="llhj has no gate"):
        Design("llhj", 2, sources=sources_of(spec, 1, 1))
    with pytest.raises(ValueError, match="at least one source"):
        Design("scalejoin", 2, sources=sources_of(spec, 1, 0))


def test_ties_are_ordered_by_source_then_position():
    keys = [(source, position) for source in (0, 1, 7) for position in (0, 5, 2**44 - 1)]
    ties = [int(tie_of(*key)) for key in keys]
    assert ties == sorted(ties) and [(source_of(tie), position_of(tie)) for tie in ties] == keys


def test_the_first_two_times_come_before_the_third_although_the_gate_has_one_time_for_them():
    keys = [
        (time, source, position)
        for time in (FIRST_TIME - 1, FIRST_TIME, FIRST_TIME + 1, FIRST_TIME + 2, -1, 0, LAST_TIME)
        for source in (0, 1, 2**17 - 1)
        for position in (0, 2**44 - 1)
    ]
    gated = [(int(gate_time(t)), int(tie_of(s, p)) + int(early(t))) for t, s, p in keys]
    assert gated == sorted(gated) and min(time for time, _ in gated) > FIRST_TIME
    assert [(time_of(t, tie), source_of(tie), position_of(tie)) for t, tie in gated] == keys


def test_a_source_that_has_reached_a_time_does_not_hold_back_what_comes_before_it_there():
    """Left source 0 has a tuple of the time that the two others have reached: nothing of theirs is before it."""
    feed = source_of_numbers()
    feeds = [feed, *(SourceFeed(feed.machine, k) for k in (1, 2))]
    nothing = np.zeros(1, np.int64)
    column = {"k": from_arrow_column("k", pa.chunked_array([pa.array([5])]))}
    feed.offer(np.array([7]), Batch("left", column, nothing, nothing, nothing, nothing))
    for other in feeds[1:]:
        other.advance(6)
    assert all([each.push() for each in feeds])
    assert feed.machine.step(feed.m, 0) == w.WORKED
    assert feed.m[feed.machine.nodes[0] + w.NODE_DONE] == 1


# --- what a node remembers


@given(
    window=st.one_of(
        st.builds(lambda n: Window("rows", n), st.sampled_from([1, 3, 200, 2**63 - 1])),
        st.builds(
            lambda n, closed: Window("duration", n, closed), st.sampled_from([0, 1, 9, 2**63 - 1]), st.booleans()
        ),
        st.just(Window("unbounded")),
    ),
    events=st.lists(st.tuples(st.booleans(), st.booleans(), st.sampled_from([0, 0, 1, 5])), max_size=300),
    begin=st.sampled_from([FIRST_TIME + 1, -50, 0]),
)
@settings(max_examples=EXAMPLES * 5, deadline=None)
def test_horizons_against_lists(window, events, begin):
    """Oracle: of all tuples that have come, those in the window; numbers count only the ones that pass."""
    m = np.zeros(w.PAST_WORDS, np.int64)
    past, times, passed, now = Past(m, 0, window, np.zeros(1, np.int64)), [], [], begin
    for comes, passes, pause in events:
        now += pause
        if comes:
            if not has_room(m, 0):
                past.grow()
            remember(m, 0, now, passes)
            times.append(now)
            passed.append(passes)
            continue
        arrived = len(times)
        if window.kind == "rows":
            first = max(arrived - window.size, 0)
        elif window.kind == "unbounded":
            first = 0
        else:
            first = next((i for i, t in enumerate(times) if now - t <= window.reach), arrived)
        assert horizon(m, 0, now) == sum(passed[:first])
