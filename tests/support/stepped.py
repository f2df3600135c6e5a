"""Joins of streams without threads, so that hypothesis decides what comes when; and what must come out, row by row."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

import counterflow as cf
from counterflow.engines.local.checkpoint import Checkpoint, CheckpointFolder
from counterflow.engines.local.core import SequentialCore
from counterflow.engines.local.driver import Driver, Inbox
from counterflow.engines.local.input.intake import End, Intake
from counterflow.engines.local.input.sources import open_side
from counterflow.engines.local.output.results import make_results
from counterflow.lab.simulator.window_forms import BOUNDED
from counterflow.reference import window_join as reference_join
from counterflow.reference.table_rows import tuples_of
from counterflow.spec.join_spec import build_spec
from inputs import PREDICATES, table_of, windows

BASE = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)


@dataclass
class Fed:
    """One physical stream: its rows in the order of their arrival, and what it said of itself."""

    side: str
    delay: int | None  # seconds
    rows: list[tuple]

    @property
    def stream(self) -> cf.Stream:
        delay = None if self.delay is None else f"{self.delay} seconds"
        return cf.stream(iter(()), delay=delay, schema=table_of([]).schema)


_row = st.tuples(
    st.integers(0, 12),
    st.one_of(st.none(), st.integers(-1, 3)),
    st.one_of(st.none(), st.integers(-5, 5)),
    st.sampled_from([None, 0.0, 1.5, -3.0, float("nan")]),
    st.sampled_from([None, "", "a", "ab"]),
)


@st.composite
def feeds(draw: st.DrawFn, side: str, rows_max: int = 8) -> list[Fed]:
    found = []
    for delay in draw(st.lists(st.sampled_from([None, 0, 1, 3, 20]), min_size=1, max_size=2)):
        rows = draw(st.lists(_row, max_size=rows_max))
        found.append(Fed(side, delay, rows if delay is not None else sorted(rows, key=lambda row: row[0])))
    return found


choices = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(-1, 12), st.booleans()), max_size=20)
Event = tuple[int, object, bool]
# What every test of generated streams draws
DRAWN = dict(
    left=feeds("left"),
    right=feeds("right"),
    chosen=choices,
    where=st.sampled_from(list(PREDICATES.values())),
    window=windows(forms=BOUNDED),
)


def events_of(fed: list[Fed], chosen: list[tuple[int, int, int, bool]]) -> list[Event]:
    """(source, what, whether to join then): its next rows, a watermark in seconds, or None, which is its end."""
    left = [list(f.rows) for f in fed]
    live = list(range(len(fed)))
    found: list[Event] = []
    for choice, n, second, joins in [*chosen, *((i, 99, 0, False) for _ in fed for i in (0, 0))]:
        if not live:
            break
        i = live[choice % len(live)]
        if n == 0:
            if fed[i].delay is None:  # a stream in order keeps what it promises; of another one rows are late then
                second = min(second, min((row[0] for row in left[i]), default=20) - 1)
            found.append((i, second, joins))
        elif left[i]:
            found.append((i, left[i][:n], joins))
            left[i] = left[i][n:]
        else:
            found.append((i, None, joins))
            live.remove(i)
    return found


def expected_rows(fed: list[Fed], happened: list[Event]) -> tuple[list[list[int]], list[list[int]]]:
    """The definition: of each source, the positions of its rows that are in time, and of those that are late."""
    reached: list[float] = [-np.inf] * len(fed)  # watermarks
    newest: list[float] = [-np.inf] * len(fed)
    live = [True] * len(fed)
    seen = [0] * len(fed)
    kept: list[list[int]] = [[] for _ in fed]
    late: list[list[int]] = [[] for _ in fed]
    for i, what, _ in happened:
        if what is None:
            live[i] = False
        elif isinstance(what, int):
            reached[i] = max(reached[i], what)
        else:
            for row in what:
                watermark = min(w for w, alive in zip(reached, live, strict=True) if alive)
                is_late = row[0] <= watermark
                (late if is_late else kept)[i].append(seen[i])
                seen[i] += 1
                newest[i] = max(newest[i], row[0])
                delay = fed[i].delay
                reached[i] = max(reached[i], newest[i] - (delay or 0) - 1e-6)  # just below
    return kept, late


def tables_of(fed: list[Fed]) -> list[pa.Table]:
    """With an id of its own for each row of a side."""
    found, ids = [], {"left": 0, "right": 0}
    for f in fed:
        table = table_of(f.rows)
        found.append(table.set_column(0, "id", pa.array(range(ids[f.side], ids[f.side] + len(table)), pa.int64())))
        ids[f.side] += len(table)
    return found


def expected_results(fed, tables, kept, **options):
    spec = build_spec(tables[0].schema, tables[0].schema, **options)
    tuples = {"left": [], "right": []}
    ids = {}
    for source, (f, table, positions) in enumerate(zip(fed, tables, kept, strict=True)):
        for t in tuples_of(spec, spec.side(f.side), table):
            if t.position in positions:
                tuples[f.side].append(replace(t, source=source))
                ids[f.side, source, t.position] = table["id"][t.position].as_py()
    return [
        (
            None if r.left is None else ids["left", r.left.source, r.left.position],
            None if r.right is None else ids["right", r.right.source, r.right.position],
            r.pair_time,
        )
        for r in reference_join(spec, tuples["left"], tuples["right"])
    ]


def rows_of(batch):
    right_ids = batch["id_right"].to_pylist() if "id_right" in batch.schema.names else [None] * batch.num_rows
    return list(zip(batch["id"].to_pylist(), right_ids, batch["pair_time"].cast("int64").to_pylist(), strict=True))


class Stepped:
    """A join of streams without threads: `take` an item, and the results that are certain then are in `out`."""

    def __init__(self, fed, collect=True, folder=None, **options):
        engine = options.pop("engine", cf.Local())
        left, right = ([f.stream for f in fed if f.side == side] for side in ("left", "right"))
        self.folder = None if folder is None else CheckpointFolder(folder)
        sources = open_side(left, "left", self.folder)[0] + open_side(right, "right", self.folder)[0]
        schema = table_of([]).schema
        self.spec = build_spec(schema, schema, streaming=True, **options)
        self.core, self.inbox = SequentialCore(self.spec, 1 << 30), Inbox(1 << 30)
        self.driver = Driver(self.spec, engine, Intake(sources, 1 << 30, False), self.inbox, self.core, self.folder)
        self.results = make_results(self.spec, folder=self.folder)
        self.out: list = []
        self.limit = None
        self.driver.resume()

    def take(self, i, item):
        self.driver.take(i, item)

    def join(self):
        """Join what is due, and collect; everything before `limit` must have come by then."""
        self.driver.join_due()
        found = self.core.collect(0)
        self.inbox.drain(self.results.add)
        limit = self.results.limit
        for batch in self.results.found(found):
            assert batch.schema == self.spec.output_schema
            new = rows_of(batch)
            assert self.limit is None or all(row[2] >= self.limit for row in new), "after its punctuation"
            self.out += new
        assert self.results.limit >= limit
        self.limit = self.results.limit

    def feed(self, happened, tables):
        seen = [0] * len(tables)
        for event in happened:
            self.happen(event, tables, seen)
        self.join()

    def happen(self, event, tables, seen):
        """One event; `seen` are the rows that were taken of each source."""
        i, what, joins = event
        if what is None:
            self.take(i, End())
        elif isinstance(what, int):
            self.take(i, cf.watermark(BASE + dt.timedelta(seconds=what)))
        else:
            self.take(i, one_batch(tables[i].slice(seen[i], len(what))))
            seen[i] += len(what)
        if joins:
            self.join()

    def save(self):
        """Write a checkpoint, and end: another one may go on."""
        self.inbox.drain(self.results.add)  # what the core has found is not collected any more
        sources = [source.saved() for source in self.driver.merging.sources]
        self.folder.write(Checkpoint({}, sources, *self.results.saved(), [], 0))
        self.folder.close()


def one_batch(table):
    return pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], schema=table.schema)
