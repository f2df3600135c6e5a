"""Hot windows: the worker process that hosts a cell, and how the other workers of the machine reach it.

A cell's windows and indexes are in the memory of one Python worker. Spark gives a cell's task to any of its workers:

    worker A (runs the task)                      worker B (hosts the cell)
      which worker hosts it?  -> file "host" -> address
      job: version, new rows   ------------->    is this my version?  join, and take the job's version
      results                  <-------------

The state store decides what is true: each commit gives the cell's directory a new version, and windows are used only
if they have the directory's version. A job that is never committed (a failed, killed or speculative attempt) leaves
windows behind that no directory refers to. If the host is gone, busy or behind, the asking worker builds the windows
from the chunks and hosts them from then on. Workers end when Spark no longer needs them, and the windows with them.
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hmac import compare_digest
from itertools import chain
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path

from counterflow.engines.spark.blobs import from_blob, gathered, to_blob
from counterflow.engines.spark.cell import Cell, NewRows
from counterflow.spec.expression import Side

UNUSED_S = 600  # windows that nobody asked for in so long are dropped
BUFFER_BYTES_MAX = 256 << 20  # results that are held back until the host has done the whole job
HOST_FILE = "host"
BACKLOG = 64
GREETING_S = 10  # a connection that has not shown the key by then is closed


def hosted_bytes_max() -> int:
    """Of all windows in one worker: its part, for each core one, of half the memory; at least half a gibibyte."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # a container may have less ("max" if not)
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(1 << 29, memory // 2 // (os.cpu_count() or 1))


@dataclass(frozen=True)
class Job:
    """A micro-batch for one cell."""

    cell: str
    version: str  # of the windows before
    new_version: str  # and after
    new: list[tuple[Side, bytes, bool]]  # rows as blobs, and whether they are stored
    before: int  # watermarks
    watermark: int


@dataclass
class Outcome:
    needless: dict[Side, int]  # times up to which no row is needed
    rows: int = 0  # results
    hosted_bytes: int = 0
    join_us: int = 0


class NotHosted(Exception):
    """The cell is not here in this version."""


class HostIsGone(Exception):
    pass


@dataclass
class Hosted:
    cell: Cell
    nbytes: int = 0  # after its last job
    version: str | None = None  # None while it is changed: what a failed task leaves behind must not be believed
    used: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Host:
    """The cells of this worker process; the least recently used go first when they are too large."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = hosted_bytes_max() if bytes_max is None else bytes_max
        self._cells: OrderedDict[str, Hosted] = OrderedDict()
        self._lock = threading.Lock()
        self._address: dict[str, object] | None = None

    def run(self, job: Job, windows: Cell | None = None) -> Iterator[bytes | Outcome]:
        """The results as blobs, then the outcome. `windows` that were built for the job are hosted from now on."""
        with self._lock:
            if windows is not None:
                self._cells[job.cell] = Hosted(windows, version=job.version)
            hosted = self._cells.get(job.cell)
            if hosted is None or not hosted.lock.acquire(blocking=False):
                raise NotHosted
        try:
            if hosted.version != job.version:
                self._drop(job.cell, hosted)  # no directory will ever have its version again
                raise NotHosted
            began, hosted.used = time.perf_counter_ns(), time.monotonic()
            hosted.version = None
            new = [NewRows(side, from_blob(blob), stored) for side, blob, stored in job.new]
            rows = 0
            for table in gathered(hosted.cell.step(new, job.before, job.watermark)):
                rows += len(table)
                yield to_blob(table)
            needless = hosted.cell.forget(job.watermark)
            hosted.version = job.new_version
            hosted.nbytes = hosted.cell.nbytes
            self._evict(job.cell, hosted)
            yield Outcome(needless, rows, hosted.nbytes, (time.perf_counter_ns() - began) // 1000)
        finally:
            hosted.lock.release()

    def _evict(self, cell: str, hosted: Hosted) -> None:
        """Drop windows that are unused, or least recently used where all are too much."""
        with self._lock:
            if self._cells.get(cell) is hosted:
                self._cells.move_to_end(cell)
            for name, other in list(self._cells.items()):
                too_much = sum(c.nbytes for c in self._cells.values()) > self.bytes_max
                if not other.lock.locked() and (too_much or hosted.used - other.used > UNUSED_S):
                    del self._cells[name]

    def _drop(self, cell: str, hosted: Hosted) -> None:
        with self._lock:
            if self._cells.get(cell) is hosted:
                del self._cells[cell]

    def clear(self) -> None:
        self._cells.clear()

    # --- for the other workers

    def publish(self, folder: Path) -> None:
        """Say in the cell's folder that it is hosted here. If that fails, the others build it themselves."""
        try:
            if self._address is None:
                self._address = self._listen()
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = folder / f".{HOST_FILE}.{os.getpid()}"
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(self._address, file)
            temporary.rename(folder / HOST_FILE)
        except OSError:
            pass

    def _listen(self) -> dict[str, object]:
        key = secrets.token_hex(16)
        listener = Listener(("127.0.0.1", 0), backlog=BACKLOG)
        arguments = (listener, key.encode())
        threading.Thread(target=self._accept, args=arguments, name="counterflow-host", daemon=True).start()
        return {"port": listener.address[1], "key": key, "pid": os.getpid(), "started": _started(os.getpid())}

    def _accept(self, listener: Listener, key: bytes) -> None:
        while True:
            with suppress(OSError):  # a connection that was closed at once
                threading.Thread(target=self._serve, args=(listener.accept(), key), daemon=True).start()

    def _serve(self, connection: Connection, key: bytes) -> None:
        with connection:
            try:
                if not connection.poll(GREETING_S) or not compare_digest(connection.recv_bytes(len(key)), key):
                    return  # somebody else
                for answer in self.run(pickle.loads(connection.recv_bytes())):
                    connection.send_bytes(answer if isinstance(answer, bytes) else pickle.dumps(answer))
                connection.send_bytes(b"")
            except (NotHosted, OSError, EOFError):
                pass  # the connection ends without the empty message: the asking worker takes over
            except Exception as error:
                connection.send_bytes(pickle.dumps(error))
                connection.send_bytes(b"")


HOST = Host()


def ask(job: Job, folder: Path) -> Iterator[bytes | Outcome]:
    """Let the cell's host, if there is one, run the job. Raises HostIsGone before the first result, or not at all.

    Results are held back until the job is done, as far as memory allows.
    """
    try:
        address = json.loads((folder / HOST_FILE).read_text())
        if address["pid"] == os.getpid() or address["started"] != _started(address["pid"]):
            raise HostIsGone
        connection = Client(("127.0.0.1", address["port"]))
        connection.send_bytes(address["key"].encode())
    except Exception as error:
        raise HostIsGone from error
    answers: list[bytes] = []
    flowing = False
    with connection:
        try:
            connection.send_bytes(pickle.dumps(job))
            while answer := connection.recv_bytes():
                answers.append(answer)
                if flowing or sum(map(len, answers)) > BUFFER_BYTES_MAX:
                    flowing = True
                    yield from _decoded(answers[:-1])
                    answers = answers[-1:]
        except (OSError, EOFError) as error:
            if flowing:
                raise RuntimeError("the worker that hosts this cell has ended in the middle of its answer") from error
            raise HostIsGone from error
    yield from _decoded(answers)


def _started(pid: int) -> str | None:
    """When a process started, so that another one that has its number (or its port) is not taken for it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _decoded(answers: Iterable[bytes]) -> Iterator[bytes | Outcome]:
    for answer in answers:
        if answer[:1] != b"\x80":  # not a pickle: results
            yield answer
            continue
        value = pickle.loads(answer)
        if isinstance(value, Exception):
            raise value
        yield value


def run_job(job: Job, folder: Path, build: Callable[[], Cell]) -> tuple[Iterator[bytes | Outcome], bool]:
    """Run a job where its cell is hot, or else build it here. The answers, and whether it was hot."""
    for run in (lambda: HOST.run(job), lambda: ask(job, folder)):
        answers = run()
        try:
            return chain([next(answers)], answers), True
        except (NotHosted, HostIsGone):
            continue
    answers = HOST.run(job, build())
    first = next(answers)  # the windows are this job's before anybody is told of them
    HOST.publish(folder)
    return chain([first], answers), False
