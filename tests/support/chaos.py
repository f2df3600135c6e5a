"""A streaming join as a process of its own, to be maltreated: `python chaos.py FOLDER LAYOUT HOW MASTER FILES [again]`.

It joins the files in FOLDER/left and FOLDER/right, one micro-batch a file, into FOLDER/out, and ends when all are done.
FILES is the class of Spark's file manager, by its short name. With `again`, every task fails once, after it has
committed its state. What the tests do to it is here too: they find its executors and Python workers in /proc, and its
hot copies on disk.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FILE_MANAGERS = {  # Spark's default, and the one that keeps the first of two files and says nothing
    "default": "FileContextBasedCheckpointFileManager",
    "rename": "FileSystemBasedCheckpointFileManager",
}


def file_manager(name: str) -> str:
    return f"org.apache.spark.sql.execution.streaming.checkpointing.{FILE_MANAGERS[name]}"


def options_of(layout: str, how: str) -> dict:
    """The join's options; `how` may be "ordered", for an inner join in order."""
    band = "abs(l.x - r.a) <= 10 AND abs(l.y - r.b) <= 10"
    kind = dict(how="inner", ordered=True) if how == "ordered" else dict(how=how)
    return dict(where="l.x = r.a" if layout.startswith("hash") else band, time="ts", window="15 minutes", **kind)


def join(spark, folder: Path, layout: str, how: str):
    import counterflow as cf
    from streams import read_stream

    like = {side: pq.read_table(next((folder / side).glob("*.parquet"))) for side in ("left", "right")}
    streams = [read_stream(spark, folder / side, like[side]) for side in ("left", "right")]
    return cf.window_join(*streams, engine=cf.Spark(layout=layout), **options_of(layout, how))


def fails_once(batches):
    """What comes last in a task: when the join has no more rows, its state is committed."""
    from pyspark import TaskContext

    yield from batches
    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("this task is to run again")


@contextmanager
def full_disk():
    """In the cells' workers no file can grow beyond 100 bytes: hot copies fail as they do on a full disk."""
    from counterflow.engines.spark.query import cell_operator as operator

    original = operator.CounterflowCell

    class CellOnFullDisk(original):
        def init(self, handle) -> None:
            import resource

            _, most = self.limits = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
            super().init(handle)

        def close(self) -> None:
            import resource

            resource.setrlimit(resource.RLIMIT_FSIZE, self.limits)
            super().close()

    operator.CounterflowCell = CellOnFullDisk
    try:
        yield
    finally:
        operator.CounterflowCell = original


def run(folder: Path, layout: str, how: str, master: str, files: str, again: str = "") -> None:
    from counterflow.engines.spark.session import local_session
    from streams import run_available

    settings = {"spark.local.dir": str(folder / "local"), "spark.executor.memory": "700m"}
    settings |= {FILE_MANAGER: file_manager(files), "spark.task.maxFailures": "20"}
    spark = local_session("victim", partitions=4, master=master, settings=settings)
    joined = join(spark, folder, layout, how)
    run_available(joined.mapInArrow(fails_once, joined.schema) if again else joined, folder)
    spark.stop()


class Victim:
    def __init__(self, folder: Path, layout: str, how: str, master: str, files: str, again: bool = False) -> None:
        self.folder = folder
        with open(folder / "log", "ab") as log:
            arguments = [sys.executable, __file__, str(folder), layout, how, master, files, *(["again"] * again)]
            self.process = subprocess.Popen(arguments, start_new_session=True, stdout=log, stderr=log)

    @property
    def done(self) -> bool:
        return self.process.poll() is not None

    def committed(self) -> int:
        log = self.folder / "checkpoint" / "commits"
        return len([p for p in log.glob("*") if p.name.isdigit()]) if log.exists() else 0

    def wait_for(self, batches: int, timeout_s: float = 240) -> None:
        until = time.monotonic() + timeout_s
        while self.committed() < batches and not self.done:
            assert time.monotonic() < until, f"stuck at {self.committed()} batches: {self.tail()}"
            time.sleep(0.02)

    def tail(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    # --- what can happen to it

    def kill_driver(self, rng: random.Random) -> bool:
        """Driver, JVM, executors and workers, all at once."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.bury()
        return True

    def kill_jvm(self, rng: random.Random) -> bool:
        """The driver's JVM; its Python process then ends by itself."""
        killed = _kill(_choice(rng, self._pids(lambda command: "SparkSubmit" in command)))
        if killed:
            self.bury()
        return killed

    def bury(self) -> None:
        """End what is left of it: nothing of a driver that is gone may still write when the next one starts."""
        for pid in self._pids(lambda _: True):
            _kill(pid)
        self.process.wait()

    def kill_worker(self, rng: random.Random) -> bool:
        """A Python worker, not the daemon that forks them."""
        daemons = self._daemons()
        return _kill(_choice(rng, [pid for pid in daemons if _parent(pid) in daemons]))

    def kill_daemon(self, rng: random.Random) -> bool:
        daemons = self._daemons()
        return _kill(_choice(rng, [pid for pid in daemons if _parent(pid) not in daemons]))

    def kill_executor(self, rng: random.Random) -> bool:
        return _kill(_choice(rng, self._pids(lambda command: "CoarseGrainedExecutorBackend" in command)))

    def _daemons(self) -> set[int]:
        return set(self._pids(lambda command: "pyspark.daemon" in command))

    def lose_directory(self, rng: random.Random) -> bool:
        folders = list((self.folder / "local").glob("**/counterflow/cells/*"))
        for folder in folders:
            subprocess.run(["rm", "-rf", str(folder)], check=False)
        return bool(folders)

    def corrupt_copies(self, rng: random.Random) -> bool:
        """All hot copies, each in one byte; and the hosts' workers are killed, so that the copies are needed."""
        copies = list((self.folder / "local").glob("**/counterflow/cells/*/[0-9]*"))
        for path in copies:
            try:
                data = bytearray(path.read_bytes())
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
            except OSError:
                pass  # removed meanwhile
        self.kill_worker(rng)
        return bool(copies)

    def _pids(self, wanted) -> list[int]:
        """Of its own processes: they inherit the folder in their environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"COUNTERFLOW_VICTIM={self.folder}".encode() in environment and wanted(command):
                found.append(int(entry.name))
        return found


def forget_last_commit(folder) -> None:
    """As if the driver had been killed: the newest batch with rows is committed in the state store only."""
    commits = folder / "checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    with_rows = newest - 1  # the last batch only moved the watermark
    for log, first in (
        (commits, with_rows),
        (folder / "checkpoint/offsets", newest),
        (folder / "out/_spark_metadata", with_rows),
    ):
        for path in log.iterdir():
            number = re.fullmatch(r"\.?(\d+)(\.compact)?(\.crc)?", path.name)
            if number and int(number[1]) >= first:
                path.unlink()
    for path in (folder / "checkpoint/state").rglob(f"{newest + 1}.changelog*"):
        path.unlink()  # of the batch without rows
    for path in (folder / "checkpoint/state").rglob(f".{newest + 1}.changelog*"):
        path.unlink()


def _choice(rng: random.Random, pids: list[int]) -> int | None:
    return rng.choice(sorted(pids)) if pids else None


def _kill(pid: int | None) -> bool:
    try:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid is not None
    except ProcessLookupError:
        return False


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


if __name__ == "__main__":
    run(Path(sys.argv[1]), *sys.argv[2:])
