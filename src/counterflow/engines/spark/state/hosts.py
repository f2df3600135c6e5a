"""Hot windows: the worker process that hosts a cell, and how the other workers of the machine reach it.

A cell's windows and indexes are in the memory of one Python worker. Spark gives a cell's task to any of its workers:

    worker A (runs the task)                      worker B (hosts the cell)
      which worker hosts it?  -> file "host" -> address
      job: version, new rows   ------------->    is this my version?  join, and take the job's version
      answer                   <-------------

The state store decides what is true: each change of the windows gives the cell's directory a new version, a hash of
the old one and of what came; windows are used only if they have the directory's version. So what a failed, killed or
speculative attempt leaves behind is believed only if it is what the directory means. A job that runs again, as Spark
runs a batch again for each action of `foreachBatch`, gets the same answer again. If the host is gone, busy, behind or
silent, the asking worker builds the windows from the chunks and hosts them from then on. Workers end when Spark no
longer needs them, and the windows with them.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from counterflow import errors
from counterflow.engines.spark.cell.cell import Cell, NewRows
from counterflow.engines.spark.state.answers import Answer, JobOutcome
from counterflow.engines.spark.state.blobs import NewBlob, from_blob, gathered, to_blob
from counterflow.engines.spark.state.channel import Channel, connect, greet_asker, greet_host, listen
from counterflow.engines.spark.state.hot_files import socket_folder
from counterflow.folders import private_folder

UNUSED_S = 600  # windows are dropped when nobody has asked for them for this long
JOB_S = 600  # the longest that a worker waits for a host's answer, however alive the host is
HOST_FILE = "host"
CONNECTIONS_MAX = 64  # more are closed at once; a worker has one task at a time
REFUSED_S = 0.1  # the wait after a connection that could not be accepted: perhaps descriptors become free
HEADER_BYTES_MAX = 1 << 20
JOB, ROWS, RESULT, OUTCOME, ERROR = b"J", b"N", b"R", b"O", b"E"  # kinds of messages


def hosted_bytes_max() -> int:
    """Return the memory one worker may use: half of the machine's, divided by its cores, but at least 512 MiB."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # a container may have less ("max" if not)
        memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return max(1 << 29, memory // 2 // (os.cpu_count() or 1))


@dataclass(frozen=True)
class Job:
    """A micro-batch for one cell."""

    cell: str
    version: str  # which the windows have before the job
    new_version: str  # and after it: a hash of all that is here
    new: list[NewBlob]
    before: int  # the watermark of the batch before
    watermark: int


class NotHosted(Exception):
    """The cell is not here in this version."""


class HostIsGone(Exception):
    """No host has answered; the asking worker builds the windows itself."""


@dataclass
class Hosted:
    """A cell in this process, and what is known of it."""

    cell: Cell
    version: str | None  # None while it is changed: what a failed task leaves behind must not be believed
    answer: Answer | None = None  # to the job that made this version
    nbytes: int = 0  # after its last job
    used: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Host:
    """The cells of this worker process; the least recently used go first when they are too large."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self.bytes_max = hosted_bytes_max() if bytes_max is None else bytes_max
        self._cells: OrderedDict[str, Hosted] = OrderedDict()
        self._lock = threading.Lock()
        self._address: dict[str, object] | None = None

    def run(self, job: Job, windows: Cell | None = None) -> Answer:
        """Do a job, or return its answer again if it was the last. `windows` built for it are hosted from now on."""
        with self._lock:
            if windows is not None:
                self._cells[job.cell] = Hosted(windows, job.version)
            hosted = self._cells.get(job.cell)
            if hosted is None or not hosted.lock.acquire(blocking=False):
                raise NotHosted
        try:
            if hosted.answer is not None and hosted.version == job.new_version:
                return hosted.answer
            if hosted.version != job.version:
                self._drop(job.cell, hosted)
                raise NotHosted
            began, hosted.used = time.perf_counter_ns(), time.monotonic()
            hosted.version = hosted.answer = None
            answer, rows = Answer(), 0
            new = [NewRows(side, from_blob(blob), stored) for side, blob, stored in job.new]
            tables = gathered(hosted.cell.step(new, job.before, job.watermark))
            for count, blob in hosted.cell.crew.in_turn(partial(_counted_blob, table) for table in tables):
                rows += count
                answer.add(blob)
            needless = hosted.cell.forget(job.watermark)
            hosted.nbytes = hosted.cell.nbytes + answer.nbytes
            took_us = (time.perf_counter_ns() - began) // 1000
            answer.outcome = JobOutcome(needless, rows, hosted.nbytes, took_us)
            hosted.version, hosted.answer = job.new_version, answer
            self._evict(job.cell, hosted)
            return answer
        finally:
            hosted.lock.release()

    def _evict(self, cell: str, hosted: Hosted) -> None:
        """Drop windows that nobody uses any more, and the least recently used while all together are too large."""
        with self._lock:
            if self._cells.get(cell) is hosted:
                self._cells.move_to_end(cell)
            total = sum(c.nbytes for c in self._cells.values())
            for name, other in list(self._cells.items()):
                unused = hosted.used - other.used > UNUSED_S
                if not unused and total <= self.bytes_max:
                    break  # those that follow were used later
                if not other.lock.locked():
                    total -= other.nbytes
                    del self._cells[name]

    def _drop(self, cell: str, hosted: Hosted) -> None:
        with self._lock:
            if self._cells.get(cell) is hosted:
                del self._cells[cell]

    def clear(self) -> None:
        self._cells.clear()

    # --- for the other workers

    def publish(self, folder: Path) -> None:
        """Say in the cell's folder that it is hosted here. If that fails, the other workers build it themselves."""
        with suppress(OSError):
            if self._address is None or self._address["pid"] != os.getpid():  # a fork has no thread that accepts
                self._address = self._listen()
            private_folder(folder)
            temporary = folder / f".{HOST_FILE}.{os.getpid()}"
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(self._address, file)
            temporary.rename(folder / HOST_FILE)

    def _listen(self) -> dict[str, object]:
        """Start to accept connections; return the address that other workers need."""
        key, folder = secrets.token_hex(32), private_folder(socket_folder())
        for path in folder.iterdir():  # workers that were killed have left theirs
            if path.name.isdigit() and _started(int(path.name)) is None:
                path.unlink(missing_ok=True)
        path = folder / str(os.getpid())
        path.unlink(missing_ok=True)
        arguments = (listen(path, CONNECTIONS_MAX), bytes.fromhex(key))
        threading.Thread(target=self._accept, args=arguments, name="counterflow-host", daemon=True).start()
        return {"socket": str(path), "key": key, "pid": os.getpid(), "started": _started(os.getpid())}

    def _accept(self, listener: socket.socket, key: bytes) -> None:
        places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed at once, or no descriptor is free
                time.sleep(REFUSED_S)
                continue
            if not places.acquire(blocking=False):
                connection.close()
                continue
            try:
                threading.Thread(target=self._serve, args=(connection, key, places), daemon=True).start()
            except RuntimeError:  # no thread can be started
                places.release()
                connection.close()

    def _serve(self, connection: socket.socket, key: bytes, places: threading.BoundedSemaphore) -> None:
        """Answer one worker. If the connection ends before the outcome, the asking worker takes over."""
        try:
            with connection, suppress(NotHosted, OSError, EOFError):
                greet_asker(connection, key)
                channel = Channel(connection, time.monotonic() + JOB_S)
                try:
                    job = _receive_job(channel)
                    with channel.says_it_is_alive():
                        answer = self.run(job)
                    for blob in answer:
                        channel.send(RESULT, blob)
                    channel.send(OUTCOME, json.dumps(asdict(_done(answer))).encode())
                except (NotHosted, OSError, EOFError):
                    raise
                except Exception as error:
                    said = {"kind": type(error).__name__, "message": str(error)}
                    channel.send(ERROR, json.dumps(said).encode())
        finally:
            places.release()


HOST = Host()


def run_job(job: Job, folder: Path, build: Callable[[], Cell]) -> tuple[Answer, bool]:
    """Run a job where its cell is hot, or else build it here. Return the answer, and whether it was hot."""
    for run in (lambda: HOST.run(job), lambda: ask(job, folder)):
        with suppress(NotHosted, HostIsGone):
            return run(), True
    answer = HOST.run(job, build())
    HOST.publish(folder)
    return answer, False


def ask(job: Job, folder: Path) -> Answer:
    """Return the answer of the cell's host. Raises HostIsGone if there is none, or if it does not finish the job."""
    try:
        path, key = _read_address(folder)
        with connect(path) as connection:
            greet_host(connection, key)
            channel = Channel(connection, time.monotonic() + JOB_S)
            _send_job(channel, job)
            return _receive_answer(channel)
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise HostIsGone from error


def _read_address(folder: Path) -> tuple[Path, bytes]:
    """Return a host's socket and key.

    Raises an OSError if the host has ended or is this process, a ValueError if the file is not one of ours.
    """
    try:
        address = json.loads((folder / HOST_FILE).read_text())
        pid, started, key, path = (address[name] for name in ("pid", "started", "key", "socket"))
        if not (isinstance(pid, int) and isinstance(path, str)):
            raise TypeError("pid or socket")
        key = bytes.fromhex(key)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"the file '{HOST_FILE}' is not one of ours") from error
    if pid == os.getpid() or started is None or started != _started(pid):
        raise ProcessLookupError("nobody hosts the cell")
    return Path(path), key


def _started(pid: int) -> str | None:
    """Return when a process started, as another one may get its number; None if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _counted_blob(table: pa.Table) -> tuple[int, bytes]:
    return len(table), to_blob(table)


def _done(answer: Answer) -> JobOutcome:
    assert answer.outcome is not None, "an answer is handed out when the job is done"
    return answer.outcome


# --- jobs and answers as messages


def _send_job(channel: Channel, job: Job) -> None:
    header = {name: value for name, value in vars(job).items() if name != "new"}
    header["new"] = [(side, stored) for side, _, stored in job.new]
    channel.send(JOB, json.dumps(header).encode())
    for _, blob, _ in job.new:
        channel.send(ROWS, blob)


def _receive_job(channel: Channel) -> Job:
    kind, header = channel.receive(HEADER_BYTES_MAX)
    _expect(kind, JOB)
    data = json.loads(header)
    new: list[NewBlob] = []
    for side, stored in data.pop("new"):
        kind, blob = channel.receive()
        _expect(kind, ROWS)
        new.append(NewBlob(side, blob, stored))
    return Job(new=new, **data)


def _receive_answer(channel: Channel) -> Answer:
    answer = Answer()
    while True:
        kind, payload = channel.receive()
        if kind == RESULT:
            answer.add(payload)
        elif kind == ERROR:
            raise _error(**json.loads(payload))
        else:
            _expect(kind, OUTCOME)
            answer.outcome = JobOutcome(**json.loads(payload))
            return answer


def _error(kind: str, message: str) -> Exception:
    """Return the host's error as this process's own, if it is one of ours."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, errors.CounterflowError):
        return found(message)
    return RuntimeError(f"the worker that hosts this cell failed: {kind}: {message}")


def _expect(kind: bytes, expected: bytes) -> None:
    if kind != expected:
        raise ValueError(f"a message of kind {kind!r} where {expected!r} was expected")
