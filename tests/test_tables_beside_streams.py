"""A side that is a table without a time: `time=("ts", None)`, in process. Spark has `test_spark_tables.py`.

Streams beside tables, with every algorithm, are among the joins of `test_generated_joins.py`.
"""

from __future__ import annotations

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
from counterflow.predicate.expression import SIDES
from counterflow.reference import reference_pairs
from counterflow.reference.one_pair import evaluate
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import build_spec
from inputs import CLOCKS, PREDICATES, retimed, tables, windows
from oracle import expected, results

KEEPING = {"right": ["inner", "left", "semi", "anti"], "left": ["inner", "right"]}  # by the side that is a table
TIMES = {"right": ("ts", None), "left": (None, "ts")}
CASES = [(side, how) for side, hows in KEEPING.items() for how in hows]


@settings(deadline=None)
@given(tables(), tables(), st.sampled_from(list(PREDICATES)), windows(), st.sampled_from(list(TIMES)))
def test_the_reference_looks_at_the_predicate_alone(left, right, kind, window, side):
    """Oracle test of the oracle: any row of the table may meet any row of the stream, whatever window is given."""
    spec = build_spec(left.schema, right.schema, where=PREDICATES[kind], time=TIMES[side], window=window)
    rows = [tuples_of(spec, spec.side(s), table) for s, table in zip(SIDES, (left, right), strict=True)]
    stream = 0 if side == "right" else 1
    want = [
        (le.position, ri.position, (le, ri)[stream].time)
        for le in rows[0]
        for ri in rows[1]
        if evaluate(spec.predicate, le.row, ri.row) is True
    ]
    in_order = sorted(want, key=lambda pair: (pair[2], pair[stream], pair[1 - stream]))
    assert reference_pairs(spec, left, right) == in_order


@settings(deadline=None)
@given(
    tables(),
    tables(),
    st.sampled_from([kind for kind in PREDICATES if kind != "time in the predicate"]),
    st.sampled_from(CASES),
    st.sampled_from([clock for clock in CLOCKS if clock not in ("the beginning of time", "both ends of time")]),
)
def test_tables_in_process(left, right, kind, case, clock):
    """Differential test: the results of two tables, one without a time, are the reference's, in its order."""
    side, how = case
    left, right = (retimed(left, clock), right) if side == "right" else (left, retimed(right, clock))
    options = dict(where=PREDICATES[kind], time=TIMES[side], how=how, ordered=True)
    assert results(cf.window_join(left, right, **options), how) == expected(left, right, **options)


PORTS = pa.table({"port": ["Brest", "Cork"], "x": [10, 20]})


def ships(*rows: tuple[int, int]) -> list[pa.Table]:
    return [pa.table({"ts": [ts], "x": [x]}) for ts, x in rows]


def test_a_stream_meets_the_whole_table_whenever_it_comes():
    """
    table   Brest 10, Cork 20      always
    stream  ts 1: 11   ts 100: 19   ts 10^15: 12
    """
    stream = cf.stream(ships((1, 11), (100, 19), (10**15, 12)))
    joined = cf.window_join(stream, PORTS, where="abs(l.x - r.x) <= 2", time=("ts", None))
    assert [(row["ts"], row["port"], row["pair_time"]) for row in joined.rows()] == [
        (1, "Brest", 1),
        (100, "Cork", 100),
        (10**15, "Brest", 10**15),
    ]


def test_a_row_that_is_pushed_gets_its_pairs_and_its_padding_at_once():
    stream = cf.stream(schema=pa.schema({"ts": pa.int64(), "x": pa.int64()}))
    joined = cf.window_join(stream, PORTS, where="abs(l.x - r.x) <= 2", time=("ts", None), how="left")
    for ts, x, port in ((1, 11, "Brest"), (2, 50, None), (3, 21, "Cork")):
        stream.push({"ts": ts, "x": x})
        assert [(row["ts"], row["port"]) for row in joined.poll(timeout=60).to_pylist()] == [(ts, port)]
    stream.close()
    assert list(joined) == []


def test_a_durable_join_beside_a_table(tmp_path):
    def join():
        return cf.window_join(
            cf.stream(lambda position: iter(ships(*[(i, i % 30) for i in range(60)])[position:])),
            PORTS,
            where="l.x = r.x",
            time=("ts", None),
            engine=cf.Local(checkpoint=tmp_path, batch_rows=8),
        )

    with join() as joined:
        found = next(joined).to_pylist()
        joined.checkpoint()
    with join() as joined:
        found += [row for batch in joined for row in batch.to_pylist()]
    assert [(row["ts"], row["port"]) for row in found] == [(10, "Brest"), (20, "Cork"), (40, "Brest"), (50, "Cork")]


def test_an_input_with_a_pair_time_is_no_table():
    chained = pa.table({"pair_time": [5], "x": [10]})
    joined = cf.window_join(ships((1, 10))[0], chained, where="l.x = r.x", time=("ts", None), window=3)
    assert len(joined) == 0  # four apart: the window counts


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (dict(time=("ts", None), how="right"), "how='right' keeps rows of the right side, which is a table"),
        (dict(time=("ts", None), how="full"), "never final while the stream goes on"),
        (dict(time=(None, "ts"), how="semi"), "how='semi' keeps rows of the left side"),
        (dict(time=(None, None)), "time= is missing for the left input"),
        (dict(time=None), "time= is missing for the left input"),
    ],
)
def test_what_is_refused(options, said):
    inputs = ships((1, 10))[0], PORTS
    inputs = inputs[::-1] if options["time"] == (None, "ts") else inputs
    with pytest.raises(cf.CounterflowError, match=said):
        cf.window_join(*inputs, where="l.x = r.x", **options)


def test_a_stream_needs_a_time():
    with pytest.raises(cf.CounterflowError, match="time= is missing for the right stream: only a table"):
        list(cf.window_join(PORTS, cf.stream(ships((1, 10))), where="l.x = r.x", time=("x", None)))


def test_nothing_is_before_the_least_time():
    for left in (ships((-(2**63), 10))[0], cf.stream(ships((-(2**63), 10)))):
        with pytest.raises(cf.CounterflowError, match="the least 64-bit integer"):
            list(cf.window_join(left, PORTS, where="l.x = r.x", time=("ts", None)))
