"""Hot windows across processes: other workers reach them, and nobody believes them if they are not the directory's."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from pathlib import Path

import pyarrow as pa
import pytest

from counterflow.engines.spark import hosts
from counterflow.engines.spark.blobs import from_blob, to_blob
from counterflow.engines.spark.cell import BEGIN
from counterflow.engines.spark.hosts import Host, HostIsGone, Job, NotHosted, Outcome, ask, run_job
from counterflow.engines.spark.hot_files import HotFiles
from counterflow.engines.spark.layout import choose_layout
from counterflow.engines.spark.options import Spark
from counterflow.engines.spark.ranked import new_cell
from counterflow.spec.join_spec import build_spec
from inputs import table_of


def rows(*keys: int) -> pa.Table:
    return table_of([(second, key, key, 1.0, "a") for second, key in enumerate(keys)])


SPEC = build_spec(rows(1).schema, rows(1).schema, where="l.k = r.k", time="ts", window="1 minute")


def empty_cell():
    return new_cell(SPEC, choose_layout(SPEC, Spark(layout="1x1"), 1).grids[0])


def job(number: int, left: pa.Table, right: pa.Table) -> Job:
    new = [("left", to_blob(left), True), ("right", to_blob(right), True)]
    return Job("cell", f"v{number}", f"v{number + 1}", new, BEGIN, BEGIN)


def pairs_of(answers) -> int:
    *blobs, outcome = answers
    assert isinstance(outcome, Outcome) and outcome.rows == sum(len(from_blob(b)) for b in blobs)
    return outcome.rows


def ask_for_pairs(asked: Job, folder: Path) -> int:
    """In another process."""
    return pairs_of(ask(asked, folder))


def never() -> None:
    raise AssertionError("the windows are hot: nothing is to be built")


@pytest.fixture(autouse=True)
def host(monkeypatch):
    host = Host()
    monkeypatch.setattr(hosts, "HOST", host)
    return host


def test_another_process_uses_the_windows(tmp_path):
    answers, hot = run_job(job(0, rows(1, 2), rows(1)), tmp_path, empty_cell)
    assert not hot and pairs_of(answers) == 1
    with multiprocessing.get_context("spawn").Pool(1) as other:
        assert other.apply(ask_for_pairs, (job(1, rows(), rows(2, 1)), tmp_path)) == 2
        with pytest.raises(HostIsGone):  # the version has moved on: an attempt that runs again is not answered
            other.apply(ask_for_pairs, (job(1, rows(), rows(2, 1)), tmp_path))
    with pytest.raises(NotHosted):  # and what was left of it is gone
        next(hosts.HOST.run(job(2, rows(), rows(2))))


def test_the_process_that_hosts_asks_itself(tmp_path):
    list(run_job(job(0, rows(1), rows()), tmp_path, empty_cell)[0])
    answers, hot = run_job(job(1, rows(), rows(1)), tmp_path, never)
    assert hot and pairs_of(answers) == 1


def test_a_job_left_half_done_is_not_believed(tmp_path):
    answers, _ = run_job(job(0, rows(1), rows(1)), tmp_path, empty_cell)
    next(answers)
    del answers
    for version in (0, 1):
        with pytest.raises(NotHosted):
            next(hosts.HOST.run(job(version, rows(), rows(1))))


def test_a_host_that_is_gone_or_not_ours(tmp_path):
    with pytest.raises(HostIsGone):  # nobody has published anything
        next(ask(job(0, rows(), rows()), tmp_path))
    hosts.HOST.publish(tmp_path)
    address = json.loads((tmp_path / "host").read_text())
    assert (tmp_path / "host").stat().st_mode & 0o077 == 0, "the key is nobody else's"
    for change in ({"pid": 2**22 + 1}, {"pid": os.getppid()}, {"pid": 1, "started": None}):
        (tmp_path / "host").write_text(json.dumps({**address, **change}))
        with pytest.raises(HostIsGone):
            next(ask(job(0, rows(), rows()), tmp_path))


def test_windows_that_are_too_large_or_unused_are_dropped(tmp_path):
    small = Host(bytes_max=0)
    for cell in ("a", "b"):
        list(small.run(Job(cell, "v0", "v1", [("left", to_blob(rows(1)), True)], BEGIN, BEGIN), empty_cell()))
    with pytest.raises(NotHosted):
        next(small.run(Job("a", "v1", "v2", [], BEGIN, BEGIN)))
    assert list(small.run(Job("b", "v1", "v2", [], BEGIN, BEGIN)))


def test_a_copy_is_believed_only_if_it_is_whole(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    files = HotFiles("cell")
    assert files.read("a" * 32) is None
    assert files.write("a" * 32, b"payload") and files.read("a" * 32) == b"payload"
    path = tmp_path / "counterflow" / "cell" / ("a" * 32)
    data = path.read_bytes()
    for damaged in (
        data[:-1],
        data + b"x",
        b"",
        *(bytes([*data[:i], data[i] ^ 4, *data[i + 1 :]]) for i in range(len(data))),
    ):
        path.write_bytes(damaged)
        assert files.read("a" * 32) is None
    path.write_bytes(data)
    path.rename(path.with_name("b" * 32))
    assert files.read("b" * 32) is None, "another chunk's copy"
    assert files.write("c" * 32, b"live")
    files.sweep({"c" * 32})
    assert [p.name for p in path.parent.iterdir()] == ["c" * 32]
    files.remove(["c" * 32])
    assert not list(path.parent.iterdir())
    path.parent.rmdir()
    path.parent.write_text("a file where the folder should be")
    assert not files.write("d" * 32, b"payload")


def test_a_cell_in_use_is_not_dropped_for_another():
    small = Host(bytes_max=0)
    new = [("left", to_blob(rows(1)), True), ("right", to_blob(rows(1)), True)]
    running = small.run(Job("a", "v0", "v1", new, BEGIN, BEGIN), empty_cell())
    next(running)
    list(small.run(Job("b", "v0", "v1", new, BEGIN, BEGIN), empty_cell()))
    assert isinstance(next(running), Outcome)


def test_a_connection_without_the_key_keeps_nobody_waiting(tmp_path):
    list(run_job(job(0, rows(1), rows()), tmp_path, empty_cell)[0])
    address = json.loads((tmp_path / "host").read_text())
    spawn = multiprocessing.get_context("spawn")
    with socket.create_connection(("127.0.0.1", address["port"])), spawn.Pool(1) as other:
        assert other.apply(ask_for_pairs, (job(1, rows(), rows(1)), tmp_path)) == 1
