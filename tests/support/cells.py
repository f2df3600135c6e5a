"""A cell's operator without Spark: micro-batches, timers and state are a test's own."""

from __future__ import annotations

import copy
import zlib
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa

from counterflow.engines.spark.cell.row_order import SOURCE, TIE, is_order_sensitive
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.cell_operator import CounterflowCell
from counterflow.engines.spark.query.layout import Layout, choose_layout
from counterflow.engines.spark.state.blobs import from_blob, to_blob
from counterflow.engines.spark.state.directory import read_directory


class FakeHandle:
    """Spark's state and timers for one cell, in dictionaries."""

    def __init__(self) -> None:
        self.value: Any = None
        self.map: dict[Any, Any] = {}
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: str) -> Any:
        return SimpleNamespace(get=lambda: self.value, update=lambda v: setattr(self, "value", v))

    def getMapState(self, name: str, key: str, value: str) -> Any:
        return SimpleNamespace(getValue=self.map.get, updateValue=self.map.__setitem__, removeKey=self.map.pop)

    def registerTimer(self, at: int) -> None:
        self.timers.add(at)


def hashed(spec: Any, table: pa.Table) -> pa.Table:
    """The rows as `pack` sends them: each with a hash, and with its stream's number where order matters."""
    ties = [zlib.crc32(repr(row).encode()) for row in table.to_pylist()]
    table = table.append_column(TIE, pa.array(ties, pa.int64()))
    return table.append_column(SOURCE, pa.array([0] * len(table))) if is_order_sensitive(spec) else table


def layout_of(spec: Any, name: str = "1x1") -> Layout:
    return choose_layout(spec, Spark(layout=name), 1)


class Cell:
    """Runs micro-batches as Spark does: rows first, then timers that the watermark has passed."""

    def __init__(self, spec: Any, threads: int = 1) -> None:
        self.spec, self.handle = spec, FakeHandle()
        self.operator = CounterflowCell(spec, layout_of(spec), threads=threads)
        self.pairs: list[pa.Table] = []

    def restarted(self, spec: Any) -> Cell:
        """The same cell after a restart, with another spec and with no windows in memory."""
        other = Cell(spec)
        other.handle, other.pairs = self.handle, self.pairs
        return other

    def attempt(self) -> Cell:
        """Another run of the task, on a copy of the state."""
        other = copy.copy(self)
        other.handle, other.pairs = copy.deepcopy(self.handle), []
        return other

    def batch(
        self, left: pa.Table, right: pa.Table, watermark_ms: int, stop_early: bool = False, delivered: Any = None
    ) -> None:
        """`delivered` says in which order and in which messages a shuffle brings the rows."""
        operator = copy.copy(self.operator)  # Spark sends it anew for each task
        operator.init(self.handle)  # type: ignore[arg-type]
        key, clock = (operator.layout.keys[0],), SimpleNamespace(getCurrentWatermarkInMs=lambda: watermark_ms)
        messages = [(side, hashed(self.spec, t)) for side, t in (("left", left), ("right", right)) if len(t)]
        sides = [(side, True, True, to_blob(t)) for side, t in (delivered or list)(messages)]
        rows = pd.DataFrame([*sides, ("none", True, True, None)], columns=["side", "stored", "counted", "payload"])
        frames = operator.handleInputRows(key, iter([rows]), clock)
        if stop_early:
            next(frames)
            return
        self._collect(frames)
        for timer in [t for t in self.handle.timers if t <= watermark_ms]:
            self._collect(operator.handleExpiredTimer(key, clock, None))
            self.handle.timers.remove(timer)

    def _collect(self, frames: Any) -> None:
        self.pairs += [from_blob(p) for frame in frames for p in frame["payload"] if p is not None]

    @property
    def directory(self) -> Any:
        return read_directory(self.handle.value[0], self.operator.identity)
