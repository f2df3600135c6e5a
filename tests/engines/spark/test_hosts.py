"""Hot windows across processes: other workers reach them, and nobody believes them if they are not the directory's."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from counterflow.engines.spark.cell.cell import BEGIN
from counterflow.engines.spark.cell.row_window_cell import new_cell
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.query.layout import choose_layout
from counterflow.engines.spark.state import answers, channel, hosts
from counterflow.engines.spark.state.answers import Answer
from counterflow.engines.spark.state.blobs import from_blob, to_blob
from counterflow.engines.spark.state.chunks import new_chunk
from counterflow.engines.spark.state.hosts import Host, HostIsGone, Job, NotHosted, ask, run_job
from counterflow.engines.spark.state.hot_files import HotFiles
from counterflow.errors import EvaluationError
from counterflow.spec.join_spec import build_spec
from inputs import table_of
from live import wait_until

SPAWN = multiprocessing.get_context("spawn")


def rows(*keys: int) -> pa.Table:
    return table_of([(second, key, key, 1.0, "a") for second, key in enumerate(keys)])


SPEC = build_spec(rows(1).schema, rows(1).schema, where="l.k = r.k", time="ts", window="1 minute")


def empty_cell():
    return new_cell(SPEC, choose_layout(SPEC, Spark(layout="1x1"), 1).grids[0])


def job(number: int, left: pa.Table, right: pa.Table) -> Job:
    new = [("left", to_blob(left), True), ("right", to_blob(right), True)]
    return Job("cell", f"v{number}", f"v{number + 1}", new, BEGIN, BEGIN)


def pairs_of(answer: Answer) -> int:
    assert answer.outcome is not None and answer.outcome.rows == sum(len(from_blob(b)) for b in answer)
    return answer.outcome.rows


def ask_for_pairs(asked: Job, folder: Path) -> int:
    """In another process."""
    return pairs_of(ask(asked, folder))


def never(*_) -> None:
    raise AssertionError("the windows are hot: nothing is to be built")


@pytest.fixture(autouse=True)
def host(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "local"))
    host = Host()
    monkeypatch.setattr(hosts, "HOST", host)
    return host


def host_elsewhere(folder: Path, told) -> None:
    """In a process of its own: host a cell with one left row, in version v1."""
    run_job(job(0, rows(1), rows()), folder, empty_cell)
    told.put(os.getpid())
    time.sleep(600)


@pytest.fixture
def elsewhere(tmp_path):
    """A process that hosts the cell."""
    told = SPAWN.Queue()
    process = SPAWN.Process(target=host_elsewhere, args=(tmp_path, told), daemon=True)
    process.start()
    told.get(timeout=60)
    yield process
    process.kill()
    process.join()


def test_another_process_uses_the_windows(tmp_path):
    answer, hot = run_job(job(0, rows(1, 2), rows(1)), tmp_path, empty_cell)
    assert not hot and pairs_of(answer) == 1
    with SPAWN.Pool(1) as other:
        for _ in range(2):  # a batch that runs again gets the same answer
            assert other.apply(ask_for_pairs, (job(1, rows(), rows(2, 1)), tmp_path)) == 2
        with pytest.raises(HostIsGone):  # but an older one does not: the windows have moved on
            other.apply(ask_for_pairs, (job(0, rows(), rows(2, 1)), tmp_path))
    with pytest.raises(NotHosted):  # and what was left of it is gone
        hosts.HOST.run(job(2, rows(), rows(2)))


def test_the_process_that_hosts_asks_itself(tmp_path):
    run_job(job(0, rows(1), rows()), tmp_path, empty_cell)
    for _ in range(2):
        answer, hot = run_job(job(1, rows(), rows(1)), tmp_path, never)
        assert hot and pairs_of(answer) == 1


def test_a_job_that_failed_half_way_is_not_believed(tmp_path, monkeypatch):
    run_job(job(0, rows(1), rows(1)), tmp_path, empty_cell)
    cell = hosts.HOST._cells["cell"].cell
    with monkeypatch.context() as broken:
        broken.setattr(cell, "forget", never)
        with pytest.raises(AssertionError):
            hosts.HOST.run(job(1, rows(1), rows(1)))
    for version in (0, 1, 2):
        with pytest.raises(NotHosted):
            hosts.HOST.run(job(version, rows(), rows(1)))


def test_an_error_in_the_host_is_the_asker_s(tmp_path, monkeypatch):
    run_job(job(0, rows(1), rows(1)), tmp_path, empty_cell)

    def fails(*_):
        raise EvaluationError("a division by zero in l.x / r.x")

    monkeypatch.setattr(hosts.HOST._cells["cell"].cell, "step", fails)
    with SPAWN.Pool(1) as other, pytest.raises(EvaluationError, match="division by zero"):
        other.apply(ask_for_pairs, (job(1, rows(), rows(2)), tmp_path))


def test_large_answers_go_to_a_file(monkeypatch):
    monkeypatch.setattr(answers, "MEMORY_BYTES_MAX", 10)
    blobs = [b"abc", b"defghijk", b"lmnopqrstuvw", b"xyz"]
    answer = Answer()
    for blob in blobs:
        answer.add(blob)
    assert list(answer) == list(answer) == blobs and answer.nbytes == 6


def test_a_host_that_is_gone_or_not_ours(tmp_path):
    with pytest.raises(HostIsGone):  # nobody has published anything
        ask(job(0, rows(), rows()), tmp_path)
    hosts.HOST.publish(tmp_path)
    address = json.loads((tmp_path / "host").read_text())
    assert (tmp_path / "host").stat().st_mode & 0o077 == 0, "the key is nobody else's"
    assert Path(address["socket"]).stat().st_mode & 0o077 == 0
    assert Path(address["socket"]).parent.stat().st_mode & 0o077 == 0
    forged = [
        *({**address, **change} for change in ({"pid": 2**22 + 1}, {"pid": os.getppid()}, {"started": None})),
        *({**address, "pid": 1, **change} for change in ({"pid": "x"}, {"key": 5}, {"key": "zz"}, {"socket": None})),
    ]
    for text in ["", "{", "[]", "null", "[" * 100_000, '"x"', *map(json.dumps, forged)]:
        (tmp_path / "host").write_text(text)
        with pytest.raises(HostIsGone):
            ask(job(0, rows(), rows()), tmp_path)


def test_a_host_that_hangs_is_left_alone(tmp_path, elsewhere, monkeypatch):
    """The task waits as long as is said, and then builds the windows itself."""
    monkeypatch.setattr(channel, "SILENCE_S", 0.3)
    os.kill(elsewhere.pid, signal.SIGSTOP)
    with pytest.raises(HostIsGone):
        ask(job(1, rows(), rows(1)), tmp_path)
    built = []
    answer, hot = run_job(job(1, rows(), rows(1)), tmp_path, lambda: built.append(1) or empty_cell())
    assert not hot and built and pairs_of(answer) == 0


def test_a_host_that_works_for_long_says_so(tmp_path, monkeypatch):
    """Silence ends the wait, work does not: the host's signs of life prolong it, up to the deadline of the job."""
    run_job(job(0, rows(1), rows()), tmp_path, empty_cell)
    monkeypatch.setattr(channel, "ALIVE_S", 0.05)
    cell = hosts.HOST._cells["cell"].cell
    step, finish = cell.step, threading.Event()
    monkeypatch.setattr(cell, "step", lambda *job: finish.wait(60) and step(*job))
    with SPAWN.Pool(1, initializer=be_impatient, initargs=(1.0,)) as other:
        asked = other.apply_async(ask_for_pairs, (job(1, rows(), rows(1)), tmp_path))
        wait_until(lambda: any(t.name == "counterflow-alive" for t in threading.enumerate()))
        time.sleep(1.5)  # longer than the asker's patience with silence
        finish.set()
        assert asked.get(60) == 1


def be_impatient(seconds: float) -> None:
    channel.SILENCE_S = seconds


def test_an_impostor_learns_nothing(tmp_path, elsewhere):
    """A process that took the host's place without its key gets neither rows nor belief."""
    address = json.loads((tmp_path / "host").read_text())
    path = tmp_path / "impostor"
    with channel.listen(path, 4) as listener:
        (tmp_path / "host").write_text(json.dumps({**address, "socket": str(path)}))
        seen = []

        def pretend() -> None:
            with listener.accept()[0] as asker:
                seen.append(asker.recv(1000))
                asker.sendall(bytes(64))
                seen.append(asker.recv(1000))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(HostIsGone):
            ask(job(1, rows(), rows(1)), tmp_path)
        thread.join()
    assert [len(data) for data in seen] == [channel.NONCE_BYTES, 0]


@pytest.mark.parametrize("first", [b"", b"x", bytes(32)])
def test_connections_without_the_key_keep_nobody_waiting(tmp_path, elsewhere, monkeypatch, first):
    """A hundred of them, each with some bytes and then silence; they get no answer, and cost no more than places."""
    address = json.loads((tmp_path / "host").read_text())
    idle = [channel.connect(Path(address["socket"])) for _ in range(hosts.CONNECTIONS_MAX - 1)]
    try:
        for connection in idle:
            connection.sendall(first)
        assert pairs_of(ask(job(1, rows(), rows(1)), tmp_path)) == 1
        more = [channel.connect(Path(address["socket"])) for _ in range(10)]
        held = 0
        for connection in more:  # of those beyond the limit each is closed at once
            connection.settimeout(0.2)
            try:
                held += connection.recv(1) != b""
            except TimeoutError:
                held += 1
            except OSError:
                pass
            connection.close()
        assert held <= 2
        assert len(os.listdir(f"/proc/{elsewhere.pid}/task")) < hosts.CONNECTIONS_MAX + 40
    finally:
        for connection in idle:
            connection.close()


def test_a_greeting_has_a_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "GREETING_S", 0.2)
    hosts.HOST.publish(tmp_path)
    address = json.loads((tmp_path / "host").read_text())
    with channel.connect(Path(address["socket"])) as connection:
        connection.sendall(b"x")
        connection.settimeout(30)
        assert connection.recv(1) == b"", "closed by the host"


def test_a_message_has_a_limit(tmp_path):
    a, b = socket.socketpair()
    with a, b:
        sender, receiver = (channel.Channel(end, time.monotonic() + 30) for end in (a, b))
        sender.send(b"R", b"1234")
        assert receiver.receive(4) == (b"R", b"1234")
        sender.send(b"R", b"12345")
        with pytest.raises(OSError, match="5 bytes"):
            receiver.receive(4)
        with pytest.raises(TimeoutError):
            channel.Channel(b, time.monotonic() - 1).receive()


def test_a_long_path_has_a_socket_too(tmp_path, monkeypatch):
    """Executors' directories are long; a socket's address is not."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / ("long" * 30)))
    run_job(job(0, rows(1), rows()), tmp_path, empty_cell)
    with SPAWN.Pool(1) as other:
        assert other.apply(ask_for_pairs, (job(1, rows(), rows(1)), tmp_path)) == 1


def test_sockets_of_dead_workers_are_removed(tmp_path, monkeypatch, elsewhere):
    folder = tmp_path / "local" / "counterflow" / "sockets"
    elsewhere.kill()
    elsewhere.join()
    assert [p.name for p in folder.iterdir()] == [str(elsewhere.pid)]
    hosts.HOST.publish(tmp_path)
    assert [p.name for p in folder.iterdir()] == [str(os.getpid())]


def test_windows_that_are_too_large_or_unused_are_dropped(tmp_path):
    small = Host(bytes_max=0)
    for cell in ("a", "b"):
        small.run(Job(cell, "v0", "v1", [("left", to_blob(rows(1)), True)], BEGIN, BEGIN), empty_cell())
    with pytest.raises(NotHosted):
        small.run(Job("a", "v1", "v2", [], BEGIN, BEGIN))
    assert small.run(Job("b", "v1", "v2", [], BEGIN, BEGIN)).outcome


def test_a_copy_is_believed_only_if_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    files = HotFiles("c" * 32)
    (entry, blob), (other, _) = (new_chunk(SPEC.left, rows(n), batch=3, position=n) for n in (0, 1))
    assert files.read(entry) is None
    assert files.write(entry.id, blob) and files.read(entry) == blob
    path = tmp_path / "counterflow" / "cells" / ("c" * 32) / entry.id
    flipped = [bytes([*blob[:i], blob[i] ^ 4, *blob[i + 1 :]]) for i in range(len(blob))]
    for damaged in (blob[:-1], blob + b"x", b"", *flipped):
        path.write_bytes(damaged)
        assert files.read(entry) is None
    path.write_bytes(blob)
    path.rename(path.with_name(other.id))
    assert files.read(other) is None, "another chunk's copy"
    assert files.write(entry.id, blob)
    files.sweep({entry.id})
    assert [p.name for p in path.parent.iterdir()] == [entry.id]
    files.remove([entry.id])
    assert not list(path.parent.iterdir())
    path.parent.rmdir()
    path.parent.write_text("a file where the folder should be")
    assert not files.write(entry.id, blob)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc", "a/b", "c" * 31, "C" * 32, "c" * 32 + "\n", "~"])
def test_names_that_lead_elsewhere_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match="not a cell's name"):
        HotFiles(name)
    files = HotFiles("c" * 32)
    with pytest.raises(ValueError, match="not a chunk's id"):
        files.write(name, b"")
    with pytest.raises(ValueError, match="not a chunk's id"):
        files.remove([name])


def test_sweeping_leaves_alone_what_is_not_ours(tmp_path):
    """Files and folders beside the cells', however old, and what a link leads to."""
    files = HotFiles("c" * 32)
    entry, blob = new_chunk(SPEC.left, rows(1))
    files.write(entry.id, blob)
    mine, elsewhere = files.folder.parent, tmp_path / "documents"
    elsewhere.mkdir()
    (elsewhere / "thesis").write_text("x")
    (mine / ("d" * 32)).symlink_to(elsewhere)
    (mine / "notes").mkdir()
    (mine / ("e" * 32)).mkdir()
    (files.folder / "notes").write_text("x")
    for path in (mine / "notes", mine / ("e" * 32), elsewhere, files.folder / "notes"):
        os.utime(path, (1, 1))
    files.sweep(set())
    assert (elsewhere / "thesis").exists() and (mine / "notes").exists() and (files.folder / "notes").exists()
    assert not (mine / ("e" * 32)).exists() and not (files.folder / entry.id).exists()


def test_a_cell_in_use_is_not_dropped_for_another(monkeypatch):
    small = Host(bytes_max=0)
    new = [("left", to_blob(rows(1)), True), ("right", to_blob(rows(1)), True)]
    cell = empty_cell()
    step = cell.step

    def step_while_another_runs(*job):
        small.run(Job("b", "v0", "v1", new, BEGIN, BEGIN), empty_cell())
        return step(*job)

    monkeypatch.setattr(cell, "step", step_while_another_runs)
    assert pairs_of(small.run(Job("a", "v0", "v1", new, BEGIN, BEGIN), cell)) == 1
    assert pairs_of(small.run(Job("a", "v0", "v1", new, BEGIN, BEGIN))) == 1  # it is still there: the same answer
