"""Joins whose sources reach ScaleJoin's gate by themselves, with carriers and driver that move when they are told to.

Nodes have their threads. So a test decides what comes when, and with it what is late.
"""

from __future__ import annotations

import datetime as dt
import time

import counterflow as cf
from counterflow.engines.local.changing_gate import changing_gate
from counterflow.engines.local.driver import Inbox
from counterflow.engines.local.gated import GatedDriver
from counterflow.engines.local.input.carriers import CarriedIntake
from counterflow.engines.local.input.intake import End
from counterflow.engines.local.input.sources import open_added, open_side
from counterflow.engines.local.output.results import make_results
from counterflow.spec.join_spec import build_spec
from inputs import table_of
from stepped import BASE, one_batch, rows_of

HANG_SECONDS = 60


class SteppedCarriers:
    """A join of streams of which only the nodes run by themselves; `out` has the results that are certain."""

    def __init__(self, fed, workers=2, batch_rows=64, cores=2, **options):
        left, right = ([f.stream for f in fed if f.side == side] for side in ("left", "right"))
        opened = {"left": open_side(left, "left"), "right": open_side(right, "right")}
        sources = opened["left"][0] + opened["right"][0]
        self.columns = {side: columns for side, (_, columns) in opened.items()}
        schema = table_of([]).schema
        self.spec = build_spec(schema, schema, streaming=True, **options)
        engine = cf.Local("scalejoin", workers=workers, batch_rows=batch_rows)
        self.intake, self.inbox = CarriedIntake(sources, 1 << 30, shed=False, cores=cores), Inbox(1 << 30)
        self.core = changing_gate(self.spec, engine, self.intake)
        self.driver = GatedDriver(self.spec, engine, self.intake, self.inbox, self.core)
        self.results = make_results(self.spec, self.core.in_order)
        self.out: list = []

    def happen(self, event, tables, seen):
        """One event (`stepped.events_of`): its source's carrier takes it in, and the others hear of it."""
        i, what, joins = event
        if what is None:
            self.intake._end(i, End())
        elif isinstance(what, int):
            self.intake._put(i, cf.watermark(BASE + dt.timedelta(seconds=what)))
        else:
            rows, seen[i] = tables[i].slice(seen[i], len(what)), seen[i] + len(what)
            self.intake._put(i, one_batch(rows))
        for carrier in self.driver.carriers:
            if i in carrier.sources:
                carrier._round()
        for carrier in self.driver.carriers:
            if carrier.live and carrier._lags():
                carrier._round()
        if joins:
            self.join()

    def add(self, fed):
        """Add a source; its carrier lets it take part at once. Return its rank, or None if its side has ended."""
        source = open_added(fed.stream, fed.side, len(self.intake.sources), self.columns[fed.side])
        rank = self.driver.add_source(source)
        for carrier in self.driver.carriers:
            if carrier._coming:
                carrier._round()
        return rank

    def join(self):
        """Let the driver catch up with the carriers, and take what is certain then."""
        while (polled := self.driver.intake.poll(range(len(self.driver.carriers)), 1 << 30)) is not None:
            self.driver.take(*polled)
        self.driver.join_due()
        self._collect(lambda: self.core.gate._complete == self.core.gate._known)

    def end(self):
        self.driver.core.finish()
        self._collect(lambda: self.core.finished)

    def _collect(self, is_done):
        """Take results until nodes are done with all that the driver knows: it knows nothing that they do not get."""
        deadline = time.monotonic() + HANG_SECONDS
        while True:
            done = is_done()
            found = self.core.collect(0 if done else 0.01)
            self.inbox.drain(self.results.add)
            for batch in self.results.found(found):
                assert batch.schema == self.spec.output_schema
                self.out += rows_of(batch)
            if done:
                return
            assert time.monotonic() < deadline, "nodes do not get what the driver has"

    def close(self):
        self.intake.stop()
        self.core.close()
