"""Copies of chunks beside the state store: files in the executor's local directory, for all its workers.

A copy is a convenience: it is believed only if its checksum, which also covers the chunk's id, is right, and whoever
misses one reads the chunk back from the state store. So a full disk, a lost directory or a damaged file costs time,
never a row. Chunks are immutable and their ids unique, so a copy cannot be stale.

    <executor's local directory>/counterflow/<cell>/<chunk id>
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from counterflow.folders import private_temporary_directory

DIGEST_BYTES = 16
HALF_WRITTEN_S = 60  # a file that somebody may still be writing
ABANDONED_S = 3600  # a cell's folder that nobody wrote to for so long: its query has ended or has moved elsewhere


def local_directory() -> Path:
    """Spark tells its workers the executor's own directories, and removes them with the executor."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return (Path(given) if given else private_temporary_directory()) / "counterflow"


class HotFiles:
    """One cell's copies."""

    def __init__(self, cell: str) -> None:
        self.folder = local_directory() / cell

    def write(self, chunk: str, blob: bytes) -> bool:
        """Whether there is a copy now: a disk that is full is no reason to fail."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self.folder / f".{chunk}.{os.getpid()}"
            try:
                with open(temporary, "wb") as file:
                    file.write(_digest(chunk, blob))
                    file.write(blob)
                temporary.rename(self.folder / chunk)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        except OSError:
            return False
        return True

    def read(self, chunk: str) -> bytes | None:
        """The chunk's bytes, or None if there is no copy, or one that is damaged."""
        try:
            data = (self.folder / chunk).read_bytes()
        except OSError:
            return None
        blob = data[DIGEST_BYTES:]
        return blob if data[:DIGEST_BYTES] == _digest(chunk, blob) else None

    def remove(self, chunks: list[str]) -> None:
        for chunk in chunks:
            with suppress(OSError):  # what cannot be removed now is swept later
                (self.folder / chunk).unlink(missing_ok=True)

    def sweep(self, live: set[str]) -> None:
        """Remove what attempts that were never committed, and cells that are no more, have left behind."""
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                half_written = entry.name.startswith(".") and time.time() - entry.stat().st_mtime < HALF_WRITTEN_S
                if entry.name not in live and not half_written:
                    self.remove([entry.name])
            for entry in os.scandir(self.folder.parent):
                if entry.is_dir() and time.time() - entry.stat().st_mtime > ABANDONED_S:
                    shutil.rmtree(entry.path, ignore_errors=True)


def _digest(chunk: str, blob: bytes) -> bytes:
    return hashlib.blake2b(blob, digest_size=DIGEST_BYTES, key=chunk.encode()).digest()
