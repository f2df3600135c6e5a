"""One cell's chunks during a micro-batch: durable in Spark's state, with copies on the executor's disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa

from counterflow.engines.spark.state.chunks import ChunkEntry, conformed, decode_chunk, mergeable, merged, new_chunk
from counterflow.engines.spark.state.directory import Directory
from counterflow.engines.spark.state.hot_files import HotFiles
from counterflow.predicate.expression import Side
from counterflow.spec.join_spec import JoinSpec, SideSpec


class ChunkStore:
    """The chunks that a directory lists. `durable` is Spark's map state; reads and failed copies go into `counts`."""

    def __init__(
        self, spec: JoinSpec, directory: Directory, durable: Any, files: HotFiles, counts: dict[str, int]
    ) -> None:
        self.spec, self.directory, self.durable, self.files, self.counts = spec, directory, durable, files, counts
        self._positions = itertools.count()

    def making(self, side: SideSpec, rows: pa.Table) -> Callable[[], tuple[ChunkEntry, bytes]]:
        """Return what makes a chunk, in any thread. It has a name already: of this batch, and its position in it."""
        return partial(new_chunk, side, rows, self.directory.batches, next(self._positions))

    def add(self, entry: ChunkEntry, blob: bytes) -> None:
        """Store a chunk, with a copy."""
        self.durable.updateValue((entry.id,), (blob,))
        self.directory.chunks.append(entry)
        self.counts["copies_failed"] += not self.files.write(entry.id, blob)

    def tables(self) -> list[tuple[Side, pa.Table]]:
        """Return the rows of all chunks."""
        return [(entry.side, self._read(entry)) for entry in self.directory.chunks]

    def expire(self, needless: dict[Side, int]) -> None:
        """Forget the chunks without a row after these times, which are no longer needed."""
        self._forget([e for e in self.directory.chunks if e.time_max <= needless[e.side]])

    def merge_small(self, needless: dict[Side, int]) -> None:
        """Write one chunk in place of several small ones, where there are enough of them."""
        oldest = min((entry.time_min for entry in self.directory.chunks), default=0)
        for group in list(mergeable(self.directory.chunks, self.spec, max(min(needless.values()), oldest))):
            rows = merged([self._read(entry) for entry in group])
            self.add(*self.making(self.spec.side(group[0].side), rows)())
            self._forget(group)

    def _read(self, entry: ChunkEntry) -> pa.Table:
        """Return a chunk's rows, from its copy or else from Spark's state, with the columns of today."""
        blob = self.files.read(entry)
        self.counts["chunks_read" if blob is None else "chunks_copied"] += 1
        if blob is None:
            value = self.durable.getValue((entry.id,))
            blob = None if value is None else bytes(value[0])
        return conformed(self.spec.side(entry.side), decode_chunk(entry, blob))

    def _forget(self, entries: list[ChunkEntry]) -> None:
        for entry in entries:
            self.directory.chunks.remove(entry)
            self.durable.removeKey((entry.id,))
        self.files.remove([entry.id for entry in entries])
