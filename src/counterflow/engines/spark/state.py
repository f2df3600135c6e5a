"""A cell's durable state: a directory of immutable chunks, and the chunks by id.

The directory (one small JSON value) says which chunks are live, and has the checksum of each; a chunk is written once
and never changes. A micro-batch writes its own chunks and the directory, and now and then one chunk in place of small
ones.

**What a batch writes is a function of its input**, to the byte. Spark runs a batch again after a crash, or a task that
was lost, and may keep what the first run wrote while it goes on from what the second one has. So a chunk is named by
the batch, its side and its position, never by chance; rows are brought into one order, whatever a shuffle delivers; and
the directory's version is a hash of the one before and of what came.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa

from counterflow.engines.spark.blobs import BLOB_ROWS_MAX, from_blob, to_blob
from counterflow.engines.spark.routing import SOURCE, TIE
from counterflow.errors import StateError
from counterflow.predicate.expression import Side, quoted
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.times import time_values
from counterflow.windows.vectors import Array

DIRECTORY_SCHEMA = "directory STRING"
CHUNK_KEY_SCHEMA = "id STRING"
CHUNK_SCHEMA = "payload BINARY"
FORMAT = 3
MERGE_CHUNKS = 8  # this many chunks of a size become one
MERGE_SPAN = 4  # a merged chunk spans at most this part of the window, so little is kept too long
DIGEST_BYTES = 16
CHUNK_ID = re.compile(r"[0-9]{8,19}-(left|right)-[0-9]{4,10}")
DIGEST = re.compile(r"[0-9a-f]{32}")
START_ANEW = "start with a new checkpointLocation"


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
    digest: str

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
    null_times_left: int = 0
    null_times_right: int = 0

    def count_null_times(self, side: Side, rows: int) -> None:
        """Count rows that were dropped because their time is null: not among those that were read."""
        if side == "left":
            self.null_times_left += rows
        else:
            self.null_times_right += rows

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
    version: str = ""  # another one whenever the windows change
    batches: int = 0  # commits so far

    def to_json(self) -> str:
        """Write the directory behind its own checksum."""
        text = json.dumps({"format": FORMAT, **asdict(self)})
        return f"{_digest_of(text.encode())} {text}"


def read_directory(text: str | None, fingerprint: str) -> Directory | None:
    """Return the directory as last written, or None for a new cell. Another join's state is refused."""
    if text is None:
        return None
    try:
        directory = _checked_directory(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"the checkpoint's join state cannot be read ({error}): {START_ANEW}") from error
    if directory.fingerprint != fingerprint:
        raise StateError(
            "the checkpoint belongs to another join. It was written by:\n"
            f"  {directory.fingerprint}\nand is now read by:\n  {fingerprint}\n"
            "Keep the same predicate, windows, columns and layout (engine=cf.Spark(layout=...)), or start with a new "
            "checkpointLocation"
        )
    return directory


def _checked_directory(text: str) -> Directory:
    """Raises a ValueError, KeyError or TypeError for whatever this version does not write."""
    digest, _, body = text.partition(" ")
    if digest != _digest_of(body.encode()):
        found = re.match(r'\{"format": (\d+)', text)  # before format 3 there was no checksum
        if found:
            raise StateError(
                f"the checkpoint's join state has format {found[1]}, this version reads {FORMAT}: {START_ANEW}"
            )
        raise ValueError("its checksum is wrong")
    data = json.loads(body)
    found_format = data.pop("format")
    if found_format != FORMAT:
        raise StateError(
            f"the checkpoint's join state has format {found_format}, this version reads {FORMAT}: {START_ANEW}"
        )
    entries = [ChunkEntry(**entry) for entry in data.pop("chunks")]
    directory = Directory(totals=Totals(**data.pop("totals")), chunks=entries, **data)
    numbers = [directory.batches, *vars(directory.totals).values()]
    numbers += [n for e in entries for n in (e.rows, e.bytes, e.time_min, e.time_max)]
    if directory.watermark_us is not None:
        numbers.append(directory.watermark_us)
    if not all(type(n) is int for n in numbers):
        raise ValueError("a number is none")
    for e in entries:  # ids become names of files
        if not (CHUNK_ID.fullmatch(e.id) and DIGEST.fullmatch(e.digest) and e.side in ("left", "right")):
            raise ValueError(f"chunk {e.id!r} is not one that was written here")
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


# --- versions


def next_version(version: str, new: list[tuple[Side, bytes, bool]], before: int, watermark: int) -> str:
    """Return the version of the windows after these rows and this watermark have come to those of `version`."""
    hashed = hashlib.blake2b(f"{version} {before} {watermark}".encode(), digest_size=DIGEST_BYTES)
    for side, blob, stored in new:
        hashed.update(f" {side} {stored} {_digest_of(blob)}".encode())
    return hashed.hexdigest()


def _digest_of(content: bytes, key: str = "") -> str:
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES, key=key.encode()).hexdigest()


# --- chunks


def in_one_order(side: SideSpec, table: pa.Table) -> pa.Table:
    """Return the rows in an order, and as arrays, that depend on the rows alone: not on who delivered them when.

    They are ordered by time, physical stream and the hash that each row brings; rows that are alike in all of these by
    what the hash may not see: the bits of floating-point numbers (zeros of both signs), and nested values. `take`
    writes fresh arrays, with zeros where there are NULLs.
    """
    table = table.combine_chunks()
    names = [name for name in (SOURCE, TIE) if name in table.schema.names]
    keys = [time_values(side, table), *(table.column(name).to_numpy() for name in names)]
    order = np.lexsort(keys[::-1])
    alike = np.logical_and.reduce([key[order][1:] == key[order][:-1] for key in keys])
    if alike.any():
        keys += [key for column in table.columns if (key := _hidden_order(column)) is not None]
        order = np.lexsort(keys[::-1])
    return table.take(pa.array(order))


def merged(tables: list[pa.Table]) -> pa.Table:
    """Return the rows of several chunks, in their order, as fresh arrays."""
    table = pa.concat_tables(tables).combine_chunks()
    return table.take(pa.array(np.arange(len(table))))


def _hidden_order(column: pa.ChunkedArray) -> Array | None:
    if pa.types.is_floating(column.type):
        values = column.fill_null(0).to_numpy()
        return values.view(f"i{values.itemsize}")
    if pa.types.is_nested(column.type):
        return np.unique([repr(value) for value in column.to_pylist()], return_inverse=True)[1]
    return None


def new_chunk(side: SideSpec, table: pa.Table, batch: int = 0, position: int = 0) -> tuple[ChunkEntry, bytes]:
    """Return a chunk of these rows and its entry. `batch` and `position` name it among the cell's chunks."""
    name = f"{batch:08d}-{side.side}-{position:04d}"
    blob = to_blob(table)
    times = time_values(side, table)
    span = int(times.min()), int(times.max())
    return ChunkEntry(name, side.side, len(table), len(blob), *span, _digest_of(blob, name)), blob


def is_whole(entry: ChunkEntry, blob: bytes) -> bool:
    return len(blob) == entry.bytes and _digest_of(blob, entry.id) == entry.digest


def decode_chunk(entry: ChunkEntry, blob: bytes | None) -> pa.Table:
    """Return the rows of a chunk that comes from the state store, or from a copy of it."""
    if blob is None:
        raise StateError(f"chunk {entry.id} of the join's state is missing in the checkpoint: {START_ANEW}")
    if not is_whole(entry, blob):
        raise StateError(
            f"chunk {entry.id} of the join's state is not the one that was written: the checkpoint is damaged, or its "
            f"batch ran again and read other rows than the first time (a source or an expression before the join does "
            f"not repeat itself): {START_ANEW}"
        )
    try:
        table = from_blob(blob)
    except (pa.ArrowInvalid, OSError) as error:
        raise StateError(f"chunk {entry.id} of the join's state cannot be read ({error}): {START_ANEW}") from error
    if len(table) != entry.rows:
        raise StateError(f"chunk {entry.id} of the join's state has {len(table)} rows instead of {entry.rows}")
    return table


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
