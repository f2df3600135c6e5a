"""The answer to a job: its results as blobs, which can be read again, and what the job came to."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

from counterflow.engines.spark.state.hot_files import local_directory
from counterflow.folders import private_folder
from counterflow.predicate.expression import Side

MEMORY_BYTES_MAX = 64 << 20  # the results beyond it go to a file without a name


@dataclass(frozen=True)
class JobOutcome:
    """What a job came to, beside its results."""

    needless: dict[Side, int]  # for each side, the time up to which no row is needed any more
    rows: int = 0  # result rows
    hosted_bytes: int = 0  # the memory of the cell's windows, with this answer
    join_us: int = 0


@dataclass
class Answer:
    """The results of a job, in memory and in a file."""

    outcome: JobOutcome | None = None  # None until the job is done
    nbytes: int = 0  # the results in memory
    _parts: list[bytes | tuple[int, int]] = field(default_factory=list)  # blobs, or where they are in the file
    _file: IO[bytes] | None = None

    def add(self, blob: bytes) -> None:
        if self.nbytes + len(blob) > MEMORY_BYTES_MAX:
            try:
                self._parts.append(self._written(blob))
                return
            except OSError:
                pass  # a full disk is no reason to fail
        self._parts.append(blob)
        self.nbytes += len(blob)

    def _written(self, blob: bytes) -> tuple[int, int]:
        if self._file is None:
            folder = private_folder(local_directory() / "answers")
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it lives as long as the answer
        begin = self._file.seek(0, os.SEEK_END)
        self._file.write(blob)
        self._file.flush()
        return begin, len(blob)

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                yield part
            else:
                assert self._file is not None
                begin, length = part
                blob = os.pread(self._file.fileno(), length, begin)
                if len(blob) != length:
                    raise OSError(f"a result file ended after {len(blob)} of {length} bytes")
                yield blob
