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
from dataclasses import asdict, dataclass, field

from counterflow.engines.spark.state.blobs import NewBlob
from counterflow.engines.spark.state.chunks import CHUNK_ID, DIGEST, DIGEST_BYTES, START_ANEW, ChunkEntry, digest_of
from counterflow.engines.spark.state.counters import Totals
from counterflow.engines.spark.state.identity import Identity, check_identity, check_same_join
from counterflow.engines.spark.state.migrations import FORMAT, migrated, refuse_unreleased
from counterflow.errors import StateError
from counterflow.predicate.expression import SIDES
from counterflow.version import __version__

DIRECTORY_SCHEMA = "directory STRING"
CHUNK_KEY_SCHEMA = "id STRING"
CHUNK_SCHEMA = "payload BINARY"


@dataclass
class Directory:
    """What a cell keeps from batch to batch."""

    identity: Identity  # which join wrote it
    origin: str  # a name of that join as it was first started, for files that are found again after a restart
    watermark_us: int | None = None  # the one that this cell's last batch ran with
    totals: Totals = field(default_factory=Totals)
    chunks: list[ChunkEntry] = field(default_factory=list)
    version: str = ""  # another one whenever the windows change
    batches: int = 0  # commits so far

    def to_json(self) -> str:
        """Return the directory as JSON text, behind its own checksum."""
        text = json.dumps({"format": FORMAT, "counterflow": __version__, **asdict(self)})
        return f"{digest_of(text.encode())} {text}"


def read_directory(text: str | None, identity: Identity) -> Directory | None:
    """Return the directory as last written, or None for a new cell. Another join's state is refused."""
    if text is None:
        return None
    directory = parse_directory(text)
    check_same_join(directory.identity, identity)
    directory.identity = identity  # it may have a column more
    return directory


def parse_directory(text: str) -> Directory:
    """Return the directory in a text, whichever join's it is. One of an earlier format is migrated."""
    try:
        return _checked_directory(text)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"the checkpoint's join state is damaged ({error}): {START_ANEW}") from error


def _checked_directory(text: str) -> Directory:
    """Return the directory in a text. Raises a ValueError, KeyError or TypeError if no version wrote it."""
    if text.startswith('{"format": '):  # before the first release there was no checksum
        refuse_unreleased(json.loads(text)["format"])
    digest, _, body = text.partition(" ")
    if digest != digest_of(body.encode()):
        raise ValueError("its checksum is wrong")
    data = migrated(json.loads(body))
    for name in ("format", "counterflow"):
        data.pop(name, None)
    entries = [ChunkEntry(**entry) for entry in data.pop("chunks")]
    directory = Directory(totals=Totals(**data.pop("totals")), chunks=entries, **data)
    check_identity(directory.identity)
    if type(directory.origin) is not str:
        raise ValueError("its origin is no name")
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


# --- versions


def next_version(version: str, new: list[NewBlob], before: int, watermark: int) -> str:
    """Return the version that the windows of `version` have after these rows and this watermark."""
    hashed = hashlib.blake2b(f"{version} {before} {watermark}".encode(), digest_size=DIGEST_BYTES)
    for side, blob, stored in new:
        hashed.update(f" {side} {stored} {digest_of(blob)}".encode())
    return hashed.hexdigest()
