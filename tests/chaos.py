"""A streaming join as a process of its own, to be maltreated: `python chaos.py FOLDER LAYOUT HOW MASTER`.

It joins the files in FOLDER/left and FOLDER/right, one micro-batch a file, into FOLDER/out, and ends when all are done.
What the tests do to it is here too: they find its executors and Python workers in /proc, and its hot copies on disk.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq


def options_of(layout: str) -> dict:
    band = "abs(l.x - r.a) <= 10 AND abs(l.y - r.b) <= 10"
    return dict(where="l.x = r.a" if layout.startswith("hash") else band, time="ts", window="15 minutes")


def join(spark, folder: Path, layout: str, how: str):
    import counterflow as cf
    from streams import read_stream

    like = {side: pq.read_table(next((folder / side).glob("*.parquet"))) for side in ("left", "right")}
    streams = [read_stream(spark, folder / side, like[side]) for side in ("left", "right")]
    return cf.window_join(*streams, how=how, engine=cf.Spark(layout=layout), **options_of(layout))


@contextmanager
def full_disk():
    """In the cells' workers no file can grow beyond 100 bytes: hot copies fail as they do on a full disk."""
    from counterflow.engines.spark import operator

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


def run(folder: Path, layout: str, how: str, master: str) -> None:
    from counterflow.engines.spark.session import local_session
    from streams import run_available

    settings = {"spark.local.dir": str(folder / "local"), "spark.executor.memory": "700m"}
    spark = local_session("victim", partitions=4, master=master, settings=settings)
    run_available(join(spark, folder, layout, how), folder)
    spark.stop()


class Victim:
    def __init__(self, folder: Path, layout: str, how: str, master: str) -> None:
        self.folder = folder
        with open(folder / "log", "ab") as log:
            arguments = [sys.executable, __file__, str(folder), layout, how, master]
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

    def kill_driver(self) -> bool:
        os.killpg(self.process.pid, signal.SIGKILL)  # driver, JVM, executors and workers
        for pid in self._pids(lambda _: True):
            _kill(pid)
        self.process.wait()
        return True

    def kill_worker(self, rng: random.Random) -> bool:
        """A Python worker, not the daemon that forks them."""
        daemons = set(self._pids(lambda command: "pyspark.daemon" in command))
        return _kill(_choice(rng, [pid for pid in daemons if _parent(pid) in daemons]))

    def kill_executor(self, rng: random.Random) -> bool:
        return _kill(_choice(rng, self._pids(lambda command: "CoarseGrainedExecutorBackend" in command)))

    def lose_directory(self, rng: random.Random) -> bool:
        folders = list((self.folder / "local").glob("**/counterflow/*"))
        for folder in folders:
            subprocess.run(["rm", "-rf", str(folder)], check=False)
        return bool(folders)

    def corrupt_copies(self, rng: random.Random) -> bool:
        """All hot copies, each in one byte; and the hosts' workers are killed, so that the copies are needed."""
        copies = [p for p in (self.folder / "local").glob("**/counterflow/*/*") if len(p.name) == 32]
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
