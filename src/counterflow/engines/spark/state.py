"""A cell's durable state: a directory of immutable chunks, and the chunks by id.

The directory (one small JSON value) says which chunks are live; a chunk is written once, under an id that is
never used again, and never changes. So copies of chunks cannot be stale; and since each change gives the directory a
version of its own, neither can windows in a worker's memory that have this version: the directory in the state store
decides. A micro-batch writes its own chunks and the directory, and now and then one chunk in place of small ones.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from counterflow.engines.spark.blobs import BLOB_ROWS_MAX, from_blob, to_blob
from counterflow.errors import StateError
from counterflow.kernels.times import time_values
from counterflow.spec.expression import Side, quoted
from counterflow.spec.join_spec import JoinSpec, SideSpec

DIRECTORY_SCHEMA = "directory STRING"
CHUNK_KEY_SCHEMA = "id STRING"
CHUNK_SCHEMA = "payload BINARY"
FORMAT = 2
MERGE_CHUNKS = 8  # this many chunks of a size become one
MERGE_SPAN = 4  # a merged chunk spans at most this part of the window, so little is kept too long


# What a cell tells of each batch: whether its windows were found hot or had to be built, the chunks that took from
# copies or from the state store, copies that could not be written, the memory of all windows in the host's process;
# and where the time went: unpacking rows, joining them (in the host), waiting for the host, writing state and copies.
CELL_COUNTERS = (
    "hot_hits",
    "rebuilds",
    "chunks_copied",
    "chunks_read",
    "copies_failed",
    "hosted_bytes",
    "unpack_us",
    "join_us",
    "host_us",
    "state_us",
)


@dataclass(frozen=True)
class ChunkEntry:
    id: str
    side: Side
    rows: int
    bytes: int
    time_min: int
    time_max: int

    @property
    def tier(self) -> int:
        """Chunks of a tier are of about the same size: within a factor of MERGE_CHUNKS."""
        return self.rows.bit_length() // (MERGE_CHUNKS.bit_length() - 1)


@dataclass
class Totals:
    """Since the query first started, over all restarts. A side's rows are counted in one cell only."""

    rows_left: int = 0
    rows_right: int = 0
    late_left: int = 0
    late_right: int = 0
    pairs: int = 0

    def count(self, side: Side, rows: int, late: int) -> None:
        if side == "left":
            self.rows_left, self.late_left = self.rows_left + rows, self.late_left + late
        else:
            self.rows_right, self.late_right = self.rows_right + rows, self.late_right + late


@dataclass
class Directory:
    fingerprint: str
    watermark_us: int | None = None  # the one that this cell's last batch ran with
    totals: Totals = field(default_factory=Totals)
    chunks: list[ChunkEntry] = field(default_factory=list)
    cell: str = field(default_factory=lambda: uuid.uuid4().hex)  # a name of this cell of this query alone
    version: str = ""  # another one whenever the windows change
    batches: int = 0  # commits so far

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)})


def read_directory(text: str | None, fingerprint: str) -> Directory | None:
    """The directory as last written, or None for a new cell. Another join's state is refused."""
    if text is None:
        return None
    try:
        data = json.loads(text)
        found = data.pop("format")
        if found != FORMAT:
            raise StateError(f"the checkpoint's join state has format {found}, this version reads {FORMAT}: start anew")
        chunks = [ChunkEntry(**entry) for entry in data.pop("chunks")]
        directory = Directory(totals=Totals(**data.pop("totals")), chunks=chunks, **data)
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(
            f"the checkpoint's join state cannot be read ({error}): start with a new checkpointLocation"
        ) from error
    if directory.fingerprint != fingerprint:
        raise StateError(
            "the checkpoint belongs to another join. It was written by:\n"
            f"  {directory.fingerprint}\nand is now read by:\n  {fingerprint}\n"
            "Keep the same predicate, windows, columns and layout (engine=cf.Spark(layout=...)), or start with a new "
            "checkpointLocation"
        )
    return directory


def fingerprint_of(spec: JoinSpec, layout: object) -> str:
    """Return what must not change between restarts, readable in the error that says it has.

    Two joins that differ have two texts: names are quoted, and constants are written to the last digit.
    """

    def side(s: SideSpec) -> str:
        columns = ", ".join(f"{quoted(field.name)} {_type_text(field.type)}" for field in s.schema)
        return f"{quoted(s.time)}, window {s.window.kind} {s.window}, of ({columns})"

    how = f"{spec.how} ordered" if spec.ordered else spec.how
    return f"layout {layout}; how {how}; where {spec.predicate}; left {side(spec.left)}; right {side(spec.right)}"


def _type_text(type_: pa.DataType) -> str:
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{quoted(field.name)}: {_type_text(field.type)}' for field in type_)}>"
    if pa.types.is_map(type_):
        return f"map<{_type_text(type_.key_type)}, {_type_text(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"list<{_type_text(type_.value_type)}>"
    return str(type_)


def new_chunk(side: SideSpec, table: pa.Table) -> tuple[ChunkEntry, bytes]:
    blob = to_blob(table)
    times = time_values(side, table)
    span = int(times.min()), int(times.max())
    return ChunkEntry(uuid.uuid4().hex, side.side, len(table), len(blob), *span), blob


def mergeable(entries: list[ChunkEntry], spec: JoinSpec, needless: int) -> Iterator[list[ChunkEntry]]:
    """Groups of small chunks of a side that should be one, so that a cell never has many of them.

    A row is rewritten once for each tier, so writing stays proportional to the rows; and since a chunk is kept
    until its last row expires, a merged one must not span more than a part of the window.
    """
    groups: dict[tuple[Side, int], list[ChunkEntry]] = {}
    delay = max((entry.time_max for entry in entries), default=0) - needless  # rows wait for the watermark, too
    for entry in entries:
        if entry.rows * MERGE_CHUNKS > BLOB_ROWS_MAX:
            continue
        window = spec.side(entry.side).window
        group = groups.setdefault((entry.side, entry.tier), [])
        times = [t for e in (*group, entry) for t in (e.time_min, e.time_max)]
        if window.kind == "duration" and max(times) - min(times) > max(window.size, delay) // MERGE_SPAN:
            group.clear()
        group.append(entry)
        if len(group) == MERGE_CHUNKS:
            yield group
            groups[entry.side, entry.tier] = []


def decode_chunk(entry: ChunkEntry, blob: bytes | None) -> pa.Table:
    """A chunk as it comes from the state store, or from a copy of it."""
    if blob is None:
        raise StateError(
            f"chunk {entry.id} of the join's state is missing in the checkpoint: it is damaged; start anew"
        )
    try:
        table = from_blob(bytes(blob))
    except (pa.ArrowInvalid, OSError) as error:
        raise StateError(
            f"chunk {entry.id} of the join's state is damaged ({error}): start with a new checkpoint"
        ) from error
    if len(table) != entry.rows:
        raise StateError(f"chunk {entry.id} of the join's state has {len(table)} rows instead of {entry.rows}")
    return table
