"""Copies of chunks beside the state store: files in the executor's local directory, for all its workers.

A copy is a convenience: it is believed only if it has the checksum that the directory in the state store names, and
whoever misses one reads the chunk back from the state store. So a full disk, a lost directory or a damaged file costs
time, never a row.

    <executor's local directory>/counterflow/cells/<cell>/<chunk id>
    <executor's local directory>/counterflow/sockets/<process number>      how workers reach one that hosts cells
"""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from counterflow.engines.spark.state.chunks import CHUNK_ID, ChunkEntry, is_whole
from counterflow.folders import private_folder, private_temporary_directory

HALF_WRITTEN_S = 60  # a temporary file younger than this may still be written to
ABANDONED_S = 3600  # after that without a write a cell's folder is removed: its query has ended or moved elsewhere
CELL_NAME = re.compile(r"[0-9a-f]{32}")


def local_directory() -> Path:
    """Return our part of the executor's own directory, which Spark removes with the executor."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return (Path(given) if given else private_temporary_directory()) / "counterflow"


def socket_folder() -> Path:
    return local_directory() / "sockets"


class HotFiles:
    """The copies of one cell's chunks."""

    def __init__(self, cell: str) -> None:
        if not CELL_NAME.fullmatch(cell):
            raise ValueError(f"{cell!r} is not a cell's name")
        self.folder = local_directory() / "cells" / cell

    def write(self, chunk: str, blob: bytes) -> bool:
        """Write a copy; return whether that worked, since a full disk is no reason to fail."""
        path = self._path(chunk)
        temporary = self.folder / f".{chunk}.{os.getpid()}"
        try:
            private_folder(self.folder)
            try:
                temporary.write_bytes(blob)
                temporary.rename(path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        except OSError:
            return False
        return True

    def read(self, entry: ChunkEntry) -> bytes | None:
        """Return the chunk's bytes, or None if there is no copy, or one that is damaged."""
        try:
            blob = self._path(entry.id).read_bytes()
        except OSError:
            return None
        return blob if is_whole(entry, blob) else None

    def remove(self, chunks: list[str]) -> None:
        for chunk in chunks:
            with suppress(OSError):  # what cannot be removed now is swept later
                self._path(chunk).unlink(missing_ok=True)

    def sweep(self, live: set[str]) -> None:
        """Remove what uncommitted attempts and abandoned cells have left behind."""
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if entry.name.startswith("."):
                    needless = time.time() - entry.stat(follow_symlinks=False).st_mtime > HALF_WRITTEN_S
                else:
                    needless = entry.name not in live and bool(CHUNK_ID.fullmatch(entry.name))
                if needless:
                    with suppress(OSError):
                        os.unlink(entry.path)
            for entry in os.scandir(self.folder.parent):
                is_cell = entry.is_dir(follow_symlinks=False) and CELL_NAME.fullmatch(entry.name)
                if is_cell and time.time() - entry.stat(follow_symlinks=False).st_mtime > ABANDONED_S:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _path(self, chunk: str) -> Path:
        """Return a copy's path. Raises a ValueError if it is not a chunk's id, which could lead out of the folder."""
        if not CHUNK_ID.fullmatch(chunk):
            raise ValueError(f"{chunk!r} is not a chunk's id")
        return self.folder / chunk
