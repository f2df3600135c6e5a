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
from dataclasses import asdict, dataclass, field

import pyarrow as pa

from counterflow.engines.spark.state.blobs import NewBlob
from counterflow.engines.spark.state.chunks import CHUNK_ID, DIGEST, DIGEST_BYTES, START_ANEW, ChunkEntry, digest_of
from counterflow.engines.spark.state.counters import Totals
from counterflow.errors import StateError
from counterflow.predicate.expression import SIDES, quoted
from counterflow.spec.join_spec import JoinSpec, SideSpec

DIRECTORY_SCHEMA = "directory STRING"
CHUNK_KEY_SCHEMA = "id STRING"
CHUNK_SCHEMA = "payload BINARY"
FORMAT = 3


@dataclass
class Directory:
    """What a cell keeps from batch to batch."""

    fingerprint: str  # which join wrote it
    watermark_us: int | None = None  # the one that this cell's last batch ran with
    totals: Totals = field(default_factory=Totals)
    chunks: list[ChunkEntry] = field(default_factory=list)
    version: str = ""  # another one whenever the windows change
    batches: int = 0  # commits so far

    def to_json(self) -> str:
        """Return the directory as JSON text, behind its own checksum."""
        text = json.dumps({"format": FORMAT, **asdict(self)})
        return f"{digest_of(text.encode())} {text}"


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
    """Return the directory in a text. Raises a ValueError, KeyError or TypeError if this version did not write it."""
    digest, _, body = text.partition(" ")
    if digest != digest_of(body.encode()):
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
        raise ValueError("a number is not an integer")
    for e in entries:  # ids become names of files
        if not (CHUNK_ID.fullmatch(e.id) and DIGEST.fullmatch(e.digest) and e.side in SIDES):
            raise ValueError(f"chunk {e.id!r} is not one that was written here")
    return directory


def fingerprint_of(spec: JoinSpec, layout: object) -> str:
    """Return what must not change between restarts, readable in the error that says it has.

    Two joins that differ have two texts: names are quoted, and constants are written to the last digit.
    """

    def side(s: SideSpec) -> str:
        columns = ", ".join(f"{quoted(field.name)} {_type_text(field.type)}" for field in s.schema)
        return f"{quoted(s.time_column)}, window {s.window.kind} {s.window}, of ({columns})"

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


def next_version(version: str, new: list[NewBlob], before: int, watermark: int) -> str:
    """Return the version that the windows of `version` have after these rows and this watermark."""
    hashed = hashlib.blake2b(f"{version} {before} {watermark}".encode(), digest_size=DIGEST_BYTES)
    for side, blob, stored in new:
        hashed.update(f" {side} {stored} {digest_of(blob)}".encode())
    return hashed.hexdigest()
