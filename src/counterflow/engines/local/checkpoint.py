"""Durable joins: what a join needs to go on after its process has ended, in one file that is replaced as a whole.

    sides     the rows that may still be in a result, in order, and what is known of each (whether it has a match)
    sources   the position of each, how far it is, and its rows that are not due yet
    output    how many results were handed out, and those that were made and not handed out

A resumed join is a new one whose first rows are those of the file: windows, indexes and nodes are filled by feeding
them again, and of the pairs that are found again those before `rank` are left out. So a checkpoint says nothing of
algorithms, and another one may go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from counterflow.engines.local.input.sources import Source
from counterflow.engines.local.input.streams import delay_ticks
from counterflow.errors import OptionError, StateError
from counterflow.predicate.conditions import functions_of
from counterflow.predicate.expression import SIDES, Side
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.vectors import Array

NAME = "join.checkpoint"
MAGIC = b"counterflow checkpoint\n"
FORMAT = 1
LENGTH = 8  # bytes of the header's length
DIGEST = 32  # bytes of its checksum


@dataclass(frozen=True)
class SourceState:
    """How far a source is (`order.SourceProgress`), and its rows that are not due yet, in order."""

    side: Side
    rows: int
    reached: int
    newest: int
    promised: int | None
    excused: int
    waiting: pa.RecordBatch | None


@dataclass(frozen=True)
class SavedSide:
    """The rows of a side that may still be in a result, and what is known of each."""

    rows: pa.RecordBatch
    facts: dict[str, Array]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a join between two results. All results of ranks before `rank` were handed out, or are `pending`.

    The rank counts the rows of both sides, from the first one that is saved.
    """

    identity: dict[str, str]
    sources: list[SourceState]
    sides: tuple[SavedSide, SavedSide]
    rank: int
    pending: list[pa.RecordBatch]
    output_position: int

    def positions(self) -> dict[Side, list[int]]:
        """Return how many rows were taken of each source."""
        return {side: [source.rows for source in self.sources if source.side == side] for side in SIDES}

    def schema(self, side: Side) -> pa.Schema:
        """Return the columns of a side."""
        return self.sides[SIDES.index(side)].rows.schema


def identity_of(spec: JoinSpec, sources: Sequence[Source]) -> dict[str, str]:
    """Return what must be the same when a join goes on, by name."""
    found = {"where": " ".join(spec.where.split()), "how": spec.how}
    for side in (spec.left, spec.right):
        time = pa.int64() if side.is_table else side.time_type
        own = [s for s in sources if s.side == side.side]
        found |= {
            f"{side.side} columns": ", ".join(f"{field.name} {field.type}" for field in side.schema),
            f"{side.side} time": side.time or "none, as a table",
            f"{side.side} window": str(side.window),
            f"{side.side} names in the result": ", ".join(str(name) for name in side.output_names),
            f"{side.side} delays": ", ".join(str(delay_ticks(s.delay, time, s.label)) for s in own),
        }
    if functions := functions_of(spec.predicate):  # SQL has none, so that its checkpoints are as they were
        found["functions"] = ", ".join(f"{function.name} {function.digest}" for function in functions)
    return found


# --- the folder


class CheckpointFolder:
    """The folder of one durable join, which no other join may use meanwhile, and the checkpoint found in it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        import fcntl  # not on every system

        self.path = Path(folder) / NAME
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise OptionError(f"checkpoint={str(folder)!r}: give a folder that can be written to ({error})") from error
        try:
            fcntl.flock(self._folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.found = _read(self.path)
        except BaseException as error:
            os.close(self._folder)
            if isinstance(error, BlockingIOError):
                raise StateError(
                    f"checkpoint={str(folder)!r} is in use by another join: close that one, or give another folder"
                ) from error
            raise

    def positions(self, side: Side, sources: int) -> list[int]:
        """Return where the sources of a side begin."""
        if self.found is None:
            return [0] * sources
        found = self.found.positions()[side]
        if len(found) != sources:
            raise StateError(
                f"{self.path} was written by a join of {len(found)} {side} streams, and this one has {sources}: make "
                "the same join, or give another folder"
            )
        return found

    def check(self, identity: dict[str, str]) -> None:
        """Refuse to go on with another join."""
        for name, now in identity.items() if self.found is not None else ():
            assert self.found is not None
            if (before := self.found.identity.get(name)) != now:
                raise StateError(
                    f"{self.path} was written by another join: its {name} was {before!r} and is {now!r} now. Make the "
                    "same join, or give another folder"
                )

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint by this one, as a whole; if that fails, the one before stays."""
        part = self.path.with_suffix(".part")
        try:
            with part.open("wb") as file:
                for piece in _written(checkpoint):
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, self.path)
            os.fsync(self._folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                part.unlink()
            raise StateError(f"{self.path} could not be written, and the one before stays: {error}") from error

    @property
    def closed(self) -> bool:
        return self._folder < 0

    def close(self) -> None:
        """Let other joins use the folder."""
        if not self.closed:
            os.close(self._folder)
            self._folder = -1


# --- the file: MAGIC, the header's length, its checksum, the header, and the parts that it lists with their checksums


def _written(checkpoint: Checkpoint) -> Iterator[bytes]:
    batches: dict[str, list[pa.RecordBatch]] = {"pending": checkpoint.pending}
    for side, saved in zip(SIDES, checkpoint.sides, strict=True):
        batches[f"{side} rows"] = [saved.rows]
        batches[f"{side} facts"] = [pa.record_batch(saved.facts)] if saved.facts else []
    for rank, source in enumerate(checkpoint.sources):
        batches[f"waiting {rank}"] = [] if source.waiting is None else [source.waiting]
    parts = {name: _stream(some) for name, some in batches.items()}
    header = {
        "format": FORMAT,
        "identity": checkpoint.identity,
        "rank": checkpoint.rank,
        "output_position": checkpoint.output_position,
        "sources": [asdict(source) | {"waiting": None} for source in checkpoint.sources],
        "parts": [[name, len(part), hashlib.sha256(part).hexdigest()] for name, part in parts.items()],
    }
    text = json.dumps(header).encode()
    yield MAGIC + len(text).to_bytes(LENGTH, "little") + hashlib.sha256(text).digest() + text
    yield from parts.values()


def _stream(batches: list[pa.RecordBatch]) -> bytes:
    if not batches:
        return b""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _read(path: Path) -> Checkpoint | None:
    """Return what is in a file, of which nothing is believed without its checksum; None if there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error}") from error
    start = len(MAGIC) + LENGTH + DIGEST
    size = int.from_bytes(data[len(MAGIC) : len(MAGIC) + LENGTH], "little")
    text = data[start : start + size]
    if data[: len(MAGIC)] != MAGIC:
        raise StateError(f"{path} is no checkpoint of a join: give another folder, or move that file away")
    if hashlib.sha256(text).digest() != data[start - DIGEST : start]:
        raise _damaged(path, "its head")
    header = json.loads(text)
    if header["format"] != FORMAT:
        raise StateError(
            f"{path} has format {header['format']}, and this version reads {FORMAT}: go on with the version that wrote "
            "it"
        )
    at, parts = start + size, {}
    for name, length, digest in header["parts"]:
        part = data[at : at + length]
        if hashlib.sha256(part).hexdigest() != digest:
            raise _damaged(path, name)
        parts[name] = list(pa.ipc.open_stream(part)) if length else []
        at += length
    if at != len(data):
        raise _damaged(path, "its end")
    return _from_parts(header, parts)


def _from_parts(header: dict[str, Any], parts: dict[str, list[pa.RecordBatch]]) -> Checkpoint:
    sides = []
    for side in SIDES:
        facts = {
            name: np.asarray(column.to_numpy(zero_copy_only=False))
            for batch in parts[f"{side} facts"]
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        sides.append(SavedSide(parts[f"{side} rows"][0], facts))
    sources = [
        SourceState(**source | {"waiting": next(iter(parts[f"waiting {rank}"]), None)})
        for rank, source in enumerate(header["sources"])
    ]
    return Checkpoint(
        header["identity"], sources, (sides[0], sides[1]), header["rank"], parts["pending"], header["output_position"]
    )


def _damaged(path: Path, what: str) -> StateError:
    return StateError(
        f"{path} is damaged ({what} is not as it was written): put a copy of it back, or give another folder and begin "
        "anew"
    )
