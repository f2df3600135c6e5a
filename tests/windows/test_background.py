"""Kernels that are compiled beside a running join: no pair is lost or doubled whenever it changes over to them, the
child ends whatever happens, and a failure is said.

No test measures time; what waits, waits for an event, and a hang fails after a minute.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from functools import partial
from itertools import takewhile
from pathlib import Path

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given, settings

import counterflow as cf
import interpreted
from counterflow.engines.local import core
from counterflow.spec.join_spec import build_spec
from counterflow.windows.access import choose_path
from counterflow.windows.compiled import background, build
from counterflow.windows.compiled.predicate_source import NotCompilable
from counterflow.windows.two_windows import TwoWindows
from live import WAIT_SECONDS, wait_until
from places import SUPPORT
from stepped import DRAWN, Stepped, events_of, expected_results, expected_rows, tables_of

pytestmark = pytest.mark.timeout(120)

# The child of a test: it has what it was asked for, and would compile for ever.
FOREVER = background.CHILD.replace(
    "; compile_what_is_asked()",
    "; import threading, counterflow.windows.compiled.background as b; "
    "b.kernels_of = lambda *_: [(type('Kernels', (), {'index': property(lambda _: threading.Event().wait())})(), "
    "'index')]; compile_what_is_asked()",
)


@pytest.fixture(autouse=True)
def compiling(monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "auto")
    monkeypatch.setattr(background, "_loaded", set())
    monkeypatch.setattr(background, "_loaded_for_few", set())


class ReadyAfter:
    """A compiler that is ready when it has been asked so often."""

    def __init__(self, asks: int) -> None:
        self.asks = asks
        self.asked = 0

    def ready(self, nullable: bool) -> bool:
        self.asked += 1
        return self.asked > self.asks

    def ready_for_few(self, nullable: bool) -> bool:
        return False  # it is not interpreted

    def close(self) -> None:
        pass


def run(fed, happened, tables, asks, **options):
    """The join of these events, which changes over to (interpreted) kernels after so many asks."""
    compiler = ReadyAfter(asks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "load", interpreted.load)
        patch.setattr(core, "BackgroundCompiler", lambda *_: compiler)
        patch.setattr(core, "TwoWindows", partial(TwoWindows, compile_after=1))
        join = Stepped(fed, **options)
        join.feed(happened, tables)
    return join, compiler


@settings(max_examples=60, deadline=None)
@given(
    **DRAWN,
    how=st.sampled_from(["inner", "full"]),
    batch_rows=st.integers(1, 5),
)
def test_every_change_over(left, right, chosen, where, window, how, batch_rows):
    """Oracle test: numpy up to every possible batch, kernels from there on, and back when the first NULL comes."""
    fed = left + right
    happened = events_of(fed, chosen)
    tables = tables_of(fed)
    options = dict(where=where, time="ts", window=window, how=how)
    want = Counter(expected_results(fed, tables, expected_rows(fed, happened)[0], **options))
    engine = cf.Local(batch_rows=batch_rows)
    join, never = run(fed, happened, tables, 1 << 30, engine=engine, **options)
    assert Counter(join.out) == want
    for asks in range(never.asked):
        join, compiler = run(fed, happened, tables, asks, engine=engine, **options)
        assert Counter(join.out) == want, f"after {asks} of {never.asked} batches"
        assert compiler.asked > asks


def test_the_change_is_made():
    """What the test above relies on: windows are searched by kernels afterwards, and with numpy before."""
    spec = build_spec(SCHEMA, SCHEMA, where="l.x = r.x", time="t", window=10)
    with interpreted.searching("kernels"):
        os.environ["COUNTERFLOW_COMPILE"] = "auto"
        join = TwoWindows(spec.predicate, spec.parts, compile_after=1, compiler=(compiler := ReadyAfter(2)))
        seen = []
        for n in range(4):
            left, right = batches(spec, n)
            list(join.meet_right_window(left, right)), list(join.meet_left_window(left, right))
            seen.append((join.left.is_compiled, join.right.is_compiled))
    assert compiler.asked > 2
    assert seen == [(False, False), (True, True), (True, True), (True, True)]


SCHEMA = pa.schema({"x": pa.int64(), "t": pa.int64()})


def batches(spec, n):
    from counterflow.engines.local.stamps import stamp_tables

    rows = pa.table([[n, n + 1], [n, n]], schema=SCHEMA)
    arrivals = stamp_tables(spec, rows, rows)
    return arrivals.batch(0, arrivals.total)


# --- the compiler itself


def compiler_of(where="abs(l.x - r.x) <= 10", access="auto"):
    spec = build_spec(SCHEMA, SCHEMA, where=where, time="t", window=10)
    paths = [choose_path(spec.parts, side) for side in ("left", "right")]
    return background.BackgroundCompiler(paths, spec.predicate, access)


def wait_for_end(compiler, nullable=False):
    compiler.threads[nullable].join(WAIT_SECONDS)
    assert not compiler.threads[nullable].is_alive()


def test_the_child_compiles_into_the_cache(tmp_path, monkeypatch):
    """Really compiled: the child leaves machine code on disk, which this process then loads."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(tmp_path))
    where = f"l.x < r.x + {os.getpid()}"  # of nobody else's, and with one kernel only: that takes long enough
    child = compiler_of(where)._start_child(False)
    assert child is not None and child.wait(100) == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()]
    child.stdin.close()
    compiler = compiler_of(where)
    assert not compiler.ready(False)
    wait_until(lambda: compiler.ready(False))
    wait_for_end(compiler)
    assert compiler._children[0].returncode == 0


def test_what_few_rows_need_is_made_last(tmp_path, monkeypatch):
    """A search does not wait for it; and the next join begins with it."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(tmp_path))
    where = f"l.x = r.x AND l.t < r.t + {os.getpid()}"
    first = compiler_of(where)
    wait_until(lambda: first.ready(False))
    assert not first.busy
    wait_for_end(first)
    assert first.ready_for_few(False) and first._children[0].returncode == 0
    again = compiler_of(where)
    assert again.ready(False) and again.ready_for_few(False) and not again.threads


def test_a_failure_for_few_rows_is_said_and_the_join_goes_on(monkeypatch):
    monkeypatch.setattr(build, "load", interpreted.load)  # which cannot do it
    monkeypatch.setattr(background, "cache_directory", lambda: None)
    compiler = compiler_of()
    with pytest.warns(RuntimeWarning, match="rows that come alone are joined more slowly"):
        assert not compiler.ready(False)
        wait_for_end(compiler)
    assert compiler.ready(False) and not compiler.ready_for_few(False)


def test_what_is_loaded_is_ready_at_once(monkeypatch):
    """The next join of this process with the same kernels begins with them: no thread, no child."""
    monkeypatch.setattr(build, "load", interpreted.load)
    monkeypatch.setattr(background, "FOR_FEW", {})  # it is not interpreted
    monkeypatch.setattr(background, "cache_directory", lambda: None)
    first = compiler_of()
    assert not first.ready(False)
    wait_for_end(first)
    again, other, scanning = compiler_of(), compiler_of("abs(l.x - r.x) <= 11"), compiler_of(access="scan")
    assert again.ready(False) and not again.threads
    for compiler, nullable in ((again, True), (other, False), (scanning, False)):
        assert not compiler.ready(nullable)
        wait_for_end(compiler, nullable)


def test_closing_ends_the_child(monkeypatch):
    """It is killed and waited for: neither a process nor a zombie is left."""
    monkeypatch.setattr(background, "CHILD", FOREVER)
    compiler = compiler_of()
    assert not compiler.ready(False)
    wait_until(lambda: compiler._children)
    compiler.close()
    wait_for_end(compiler)
    assert compiler._children[0].returncode == -signal.SIGKILL
    with pytest.raises(ChildProcessError):
        os.waitpid(compiler._children[0].pid, os.WNOHANG)
    assert not compiler.ready(False) and not compiler.ready(True)
    assert True not in compiler.threads  # nothing begins after its end


def test_closing_ends_both_children(monkeypatch):
    """The first NULL came while the kernels without them were being compiled."""
    monkeypatch.setattr(background, "CHILD", FOREVER)
    compiler = compiler_of()
    assert not compiler.ready(False) and not compiler.ready(True)
    wait_until(lambda: len(compiler._children) == 2)
    compiler.close()
    for nullable in (False, True):
        wait_for_end(compiler, nullable)
    assert [child.returncode for child in compiler._children] == [-signal.SIGKILL] * 2


def test_a_closed_stream_ends_the_child(monkeypatch):
    monkeypatch.setattr(background, "CHILD", FOREVER)
    monkeypatch.setattr(core, "TwoWindows", partial(TwoWindows, compile_after=1))
    compilers = []

    def kept(*args):
        compilers.append(background.BackgroundCompiler(*args))
        return compilers[-1]

    monkeypatch.setattr(core, "BackgroundCompiler", kept)
    with cf.window_join(cf.stream(endless()), cf.stream(endless()), where="l.x = r.x", time="t", window=10) as joined:
        for _ in joined:
            if compilers[0]._children:
                assert joined.metrics()["compiling"]
                break
    wait_for_end(compilers[0])
    assert compilers[0]._children[0].returncode == -signal.SIGKILL
    assert not joined.metrics()["compiling"]


def endless():
    n = 0
    while True:
        yield pa.record_batch([[n], [n]], schema=SCHEMA)
        n += 1


@pytest.mark.parametrize("ends", ["os.kill(os.getpid(), signal.SIGKILL)", "sys.exit()", "os._exit(3)"])
def test_the_child_ends_with_its_parent(ends):
    script = f"""
        import os, signal, sys, time
        sys.path[:0] = {[str(Path(__file__).parent), str(SUPPORT)]!r}
        import test_background
        from counterflow.windows.compiled import background
        background.CHILD = test_background.FOREVER
        compiler = test_background.compiler_of()
        compiler.ready(False)
        while not compiler._children:
            time.sleep(0.001)
        print(compiler._children[0].pid, flush=True)
        {ends}
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, check=False
    )
    wait_until(lambda: has_ended(int(found.stdout)))


def has_ended(pid: int) -> bool:
    """Gone, or waiting for whoever has inherited it to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize("lack", ["process", "cache", "executable", "child"])
def test_without_a_child_the_thread_compiles(monkeypatch, lack):
    monkeypatch.setattr(build, "load", interpreted.load)
    monkeypatch.setattr(background, "FOR_FEW", {})  # it is not interpreted
    if lack == "process":

        def refused(*_, **__):
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(subprocess, "Popen", refused)
    elif lack == "cache":
        monkeypatch.setattr(background, "cache_directory", lambda: None)
    elif lack == "executable":
        monkeypatch.setattr(sys, "executable", "")
    else:  # it ends without having done anything
        monkeypatch.setattr(background, "CHILD", "raise SystemExit(1)")
    compiler = compiler_of()
    for nullable in (False, True):
        compiler.ready(nullable)
        wait_for_end(compiler, nullable)
        assert compiler.ready(nullable)
    assert len(compiler._children) == (2 if lack == "child" else 0)


@pytest.mark.parametrize("fails", ["compiling", "a thread"])
def test_a_failure_is_said_and_numpy_goes_on(monkeypatch, fails):
    monkeypatch.setattr(background, "cache_directory", lambda: None)
    monkeypatch.setattr(core, "TwoWindows", partial(TwoWindows, compile_after=1))
    start = threading.Thread.start

    def broken(text):
        raise OSError(errno.ENOSPC, "No space left on device")

    def refused(thread):
        if thread.name == "counterflow compiler":
            raise RuntimeError("can't start new thread")
        start(thread)

    if fails == "compiling":
        monkeypatch.setattr(build, "load", broken)
    else:
        monkeypatch.setattr(threading.Thread, "start", refused)
    said = "No space left" if fails == "compiling" else "can't start new thread"
    with pytest.warns(RuntimeWarning, match=rf"could not be compiled .*{said}.*goes on with numpy") as warned:
        streams = [cf.stream(takewhile(lambda _: not len(warned), endless())) for _ in range(2)]
        joined = cf.window_join(*streams, where="l.x = r.x", time="t", window=10, how="full", ordered=True)
        found = [(row["x"], row["x_right"]) for part in joined for row in part.to_pylist()]
    assert len(warned) == 1
    rows = joined.metrics()["rows_left"], joined.metrics()["rows_right"]
    assert found[: min(rows)] == [(n, n) for n in range(min(rows))] and len(found) == max(rows)


def test_what_cannot_be_compiled_is_no_failure():
    """A predicate without a compiled form: no warning, no child."""
    compiler = compiler_of("levenshtein(CAST(l.x AS STRING), CAST(r.x AS STRING)) < 2")
    assert not compiler.ready(False)
    wait_for_end(compiler)
    with pytest.raises(NotCompilable):
        compiler.ready(False)
    assert not compiler._children
