"""What Spark writes about a query: the entries of its logs, in a folder of this machine or behind a URI."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs

from counterflow.errors import OptionError

VERSION = "v1"  # the first line of an entry
COMPACT = re.compile(r"[0-9]+\.compact")


class Folder:
    """A folder that Spark writes to. `for_spark` names it, whatever Spark's own default file system is."""

    def __init__(self, option: str, location: str) -> None:
        try:
            local = re.sub("^file:(//)?(?=/)", "", location)
            if "://" in local:
                self.for_spark = location
                self._system, self._root = fs.FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
            else:
                self._root = str(Path(local).absolute())
                self._system, self.for_spark = fs.LocalFileSystem(), f"file://{self._root}"
        except (pa.ArrowException, OSError) as error:
            raise OptionError(f"{option}={location!r} cannot be reached: {error}") from error

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self._system.get_file_info(self._path(name)).type != fs.FileType.NotFound)

    def names(self, name: str) -> list[str]:
        return [info.base_name for info in self._system.get_file_info(fs.FileSelector(self._path(name)))]

    def numbers(self, name: str) -> list[int]:
        """Return the numbers of the entries of a log, ascending."""
        names = self.names(name) if self.exists(name) else []
        return sorted({int(stem) for stem in (n.removesuffix(".compact") for n in names) if stem.isdecimal()})

    def text(self, name: str) -> str:
        with self._system.open_input_stream(self._path(name)) as stream:
            return bytes(stream.read()).decode()

    def write(self, name: str, text: str) -> None:
        """Write a file so that nobody sees half of it."""
        path = self._path(name)
        head, _, tail = path.rpartition("/")
        temporary = f"{head}/.{tail}.{uuid.uuid4().hex}.tmp"
        with self._system.open_output_stream(temporary) as stream:
            stream.write(text.encode())
        self._system.move(temporary, path)


class FileSinkLog:
    """The log of a folder that a query's file sink writes to: one entry for each batch.

    Every so many batches the entry has the lines of all before it as well, and another name: `19.compact`.
    """

    LOG = "_spark_metadata"

    def __init__(self, location: str, compact_interval: int) -> None:
        self.location, self.folder, self.compact_interval = location, Folder("file_sink", location), compact_interval
        if not self.entries():
            raise OptionError(
                f"file_sink={location!r}: no file sink has written there, since it has no {self.LOG}; give the folder "
                "of the query's writeStream"
            )

    def entries(self) -> list[int]:
        return self.folder.numbers(self.LOG)

    def lacks(self, batch: int) -> bool:
        """Return whether this batch, and no one before it, is missing."""
        return self.entries()[-1] == batch - 1

    def check_is_of(self, batch: int) -> None:
        """Refuse the folder of another query: its last batch is another one."""
        found = self.entries()[-1]
        if found != batch:
            raise OptionError(
                f"file_sink={self.location!r}: the last batch there is {found}, and the checkpoint's is {batch}: give "
                "the folder of this query"
            )

    def add(self, batch: int) -> None:
        """Write an entry without files."""
        compacted = sorted(int(n.removesuffix(".compact")) for n in self.folder.names(self.LOG) if COMPACT.fullmatch(n))
        if (batch + 1) % compact_interval_of(self.compact_interval, compacted):
            self.folder.write(f"{self.LOG}/{batch}", VERSION)
            return
        latest = compacted[-1] if compacted else -1
        names = [f"{latest}.compact"] * (latest >= 0) + [str(number) for number in range(latest + 1, batch)]
        lines = [line for name in names for line in self.folder.text(f"{self.LOG}/{name}").strip("\n").split("\n")[1:]]
        self.folder.write(f"{self.LOG}/{batch}.compact", "\n".join([VERSION, *lines]))


def compact_interval_of(default: int, compacted: list[int]) -> int:
    """Return after how many batches Spark writes all entries as one, given the batches where it did, ascending."""
    if not compacted:
        return default
    if len(compacted) > 1:
        return compacted[-1] - compacted[-2]
    batches = compacted[0] + 1
    if batches // 2 <= default:
        return batches
    return next(n for n in (*range(default, batches // 2 + 1), batches) if batches % n == 0)
