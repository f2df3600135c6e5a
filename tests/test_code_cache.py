"""Compiled code on disk: whatever happens to its files, answers are right and the next process finds them mended."""

from __future__ import annotations

import hashlib
import os
import pickle
import resource
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from counterflow import code_cache
from counterflow import code_sources as sources
from counterflow.code_cache import DIGEST_BYTES, HALF_WRITTEN, read, tidy, write

LINES = """
from counterflow.jit import cfunc, compiled, njit

@njit("int64(int64)", _nrt=False)
def f(x):
    return x * 3 + 1

@cfunc("int64(int64)", _nrt=False)
def g(x):
    return f(x) + 1

def runner(step):
    @compiled
    def run(x):
        return step(x) * 2
    return run
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(tmp_path))
    yield tmp_path / "compiled"
    code_cache._say_once.cache_clear()


def load(text=LINES, name="counterflow_test_cache"):
    """Make the module as a new process would: nothing is known of its text."""
    sources._text.cache_clear()
    sources.digest.cache_clear()
    return sources.module_from_text(name, text)


def hits(function):
    return sum(function.stats.cache_hits.values())


def files_of(folder, name):
    return sorted(folder.glob(f"*.{name}-*"))


def only(folder, name):
    (path,) = files_of(folder, name)
    return path


class Evil:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return Path.touch, (self.marker,)


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


DAMAGES = {
    "removed": None,
    "empty": lambda data, _: b"",
    "half a checksum": lambda data, _: data[: DIGEST_BYTES // 2],
    "only a checksum": lambda data, _: data[:DIGEST_BYTES],
    "truncated": lambda data, _: data[: len(data) // 2],
    "a byte short": lambda data, _: data[:-1],
    "a byte more": lambda data, _: data + b"\0",
    "a bit in the checksum": lambda data, _: flipped(data, 3),
    "a bit in the pickle": lambda data, _: flipped(data, DIGEST_BYTES + 20),
    "a bit in the machine code": lambda data, _: flipped(data, len(data) // 2),
    "zeros": lambda data, _: bytes(len(data)),
    "text": lambda data, _: b"\xff\xfe" + b"import os\n" * 100,
    "a poisoned pickle": lambda data, marker: pickle.dumps(Evil(marker)),
    "a poisoned pickle behind the checksum": lambda data, marker: data[:DIGEST_BYTES] + pickle.dumps(Evil(marker)),
    "a poisoned pickle with a checksum of its own": lambda data, marker: (
        hashlib.sha256(pickle.dumps(Evil(marker))).digest() + pickle.dumps(Evil(marker))
    ),
}


def damage(path, kind, marker):
    how = DAMAGES[kind]
    if how is None:
        path.unlink()
    else:
        path.write_bytes(how(path.read_bytes(), marker))


# --- one function


def test_the_next_process_compiles_nothing(folder):
    assert hits(load().f) == 0
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    module = load()
    assert (hits(module.f), module.g.cache_hits, module.f(2), module.g.ctypes(2)) == (1, 1, 7, 8)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before and len(before) == 2


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_file_is_compiled_again_and_mended(folder, tmp_path, kind):
    load()
    marker = tmp_path / "executed"
    for name in "fg":
        damage(only(folder, name), kind, marker)
    module = load()
    assert (hits(module.f), module.g.cache_hits, module.f(2), module.g.ctypes(2)) == (0, 0, 7, 8)
    assert not marker.exists()
    module = load()
    assert (hits(module.f), module.g.cache_hits) == (1, 1)


def test_a_pickle_that_is_none(folder, monkeypatch):
    """It was written like that: its checksum is right."""
    keys = []
    monkeypatch.setattr(code_cache, "read", lambda path, key: keys.append((path, key)))
    load()
    for path, key in keys:
        write(path, key, b"no pickle")
    monkeypatch.undo()
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(folder.parent))
    assert load().f(2) == 7
    assert hits(load().f) == 1


def test_files_that_changed_their_names(folder):
    """Another function's code, or another version's, is as good as damaged."""
    load()
    mine = only(folder, "f")
    load(LINES.replace("* 3", "* 5"))
    other = next(path for path in files_of(folder, "f") if path != mine)
    mine.write_bytes(other.read_bytes())
    assert load().f(2) == 7
    mine.write_bytes(files_of(folder, "g")[0].read_bytes())
    assert load().f(2) == 7


def test_every_truncation_and_every_flipped_bit(folder):
    load()
    path, key = folder / "x", b"a key"
    write(path, key, only(folder, "f").read_bytes())
    data = path.read_bytes()
    assert read(path, key) == data[DIGEST_BYTES:] and read(path, b"another") is None
    rng = np.random.default_rng(1)
    head = range(2 * DIGEST_BYTES)
    for at in [*head, *rng.integers(0, len(data), 300).tolist(), len(data) - 1]:
        path.write_bytes(flipped(data, at))
        assert read(path, key) is None, at
        path.write_bytes(data[:at])
        assert read(path, key) is None, at


def test_functions_that_are_given_others(folder):
    """Each process gives them anew; they are found nevertheless, and told from one another."""

    def run(text=LINES):
        module = load(text)
        function = module.runner(module.f)
        return function(2), hits(function)

    assert run() == (14, 0) and run() == (14, 1)
    assert len(files_of(folder, "run")) == 1
    assert run(LINES.replace("* 3", "* 5")) == (22, 0)


def test_given_functions_of_another_module(folder):
    def run(step):
        load(
            f"from counterflow.jit import compiled\n@compiled\ndef step(x):\n    return {step}\n", "counterflow_test_a"
        )
        other = load("from counterflow_test_a import step\nfrom counterflow.jit import compiled\n"
                     "def runner(given):\n    @compiled\n    def run(x):\n        return given(x)\n    return run\n"
                     "def outer(given):\n    inner = runner(given)\n    @compiled\n    def over(x):\n"
                     "        return inner(x)\n    return over\n", "counterflow_test_b")  # fmt: skip
        function = other.outer(other.step)
        return function(5), hits(function)

    assert [run("x + 1"), run("x + 1"), run("x + 2")] == [(6, 0), (6, 1), (7, 0)]


def test_a_constant_of_another_module(folder):
    """What is frozen into code comes from elsewhere: a change there is a change of the code."""

    def run(constant):
        load(f"NUMBER = {constant}\n", "counterflow_test_c")
        load("from counterflow_test_c import NUMBER\n", "counterflow_test_d")
        text = "from counterflow_test_d import NUMBER\nfrom counterflow.jit import compiled\n"
        module = load(f"{text}@compiled\ndef value():\n    return NUMBER\n", "counterflow_test_e")
        return module.value(), hits(module.value)

    assert [run(1), run(1), run(2), run(1)] == [(1, 0), (1, 1), (2, 0), (1, 1)]


def test_a_module_without_text_is_not_cached(folder):
    names: dict = {"__name__": "counterflow_test_nowhere"}
    exec(LINES, names)
    assert names["f"](2) == 7
    assert not folder.exists()


def test_without_a_folder(folder, monkeypatch):
    monkeypatch.setattr(code_cache, "cache_directory", lambda: None)
    module = load()
    assert (module.f(2), module.g.ctypes(2), module.f.stats.cache_path) == (7, 8, None)
    assert not folder.exists()


# --- what is left behind


def test_a_process_that_is_killed_while_it_writes(folder):
    """Its half-written file is not taken for code, and goes when nobody can be writing it any more."""
    program = f"""
import os
os.replace = lambda *_: os._exit(9)
from counterflow import code_sources as sources
sources.module_from_text("counterflow_test_cache", {LINES!r})
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    (left,) = folder.iterdir()
    assert left.name.startswith(HALF_WRITTEN)
    tidy.cache_clear()
    assert load().f(2) == 7 and left.exists()  # it may still be written
    os.utime(left, (0, time.time() - 2 * code_cache.HALF_WRITTEN_S))
    tidy.cache_clear()
    load(LINES.replace("* 3", "* 5"))
    assert not left.exists() and hits(load().f) == 1


def test_what_was_not_used_for_longest_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(code_cache, "BYTES_MAX", 5 * (1000 + DIGEST_BYTES))
    now = time.time()
    for age in range(10):
        write(tmp_path / str(age), b"key", bytes(1000))
        os.utime(tmp_path / str(age), (now, now - (10 - age) * 2 * code_cache.UNUSED_S))
    assert read(tmp_path / "0", b"key") is not None  # used: not the oldest any more
    tidy.cache_clear()
    tidy(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"0", "6", "7", "8", "9"}


def test_what_cannot_be_written_is_said_once(folder, monkeypatch):
    def full(source, _target):
        raise OSError(28, "No space left on device", source)

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space left on device") as said:
        assert load().f(2) == 7
    assert len(said) == 1 and str(folder) in str(said[0].message)
    assert list(folder.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(folder.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hits(load().f) == 0 and hits(load().f) == 1


# --- joins

JOIN = """
import numpy as np, pyarrow as pa, counterflow as cf
g = np.random.default_rng(1)
table = lambda name: pa.table({"t": np.arange(3000), name: g.integers(0, 1000, 3000, dtype=np.int32)})
print(len(cf.window_join(table("x"), table("a"), where="l.x = r.a", time="t", window=500)))
"""


def start_join(cache, compile="always", **options):
    environment = {**os.environ, "COUNTERFLOW_CACHE_DIR": str(cache), "COUNTERFLOW_COMPILE": compile}
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, "-c", JOIN], env=environment, **pipes, **options)


def pairs(process):
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return int(output), errors


def times(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return pairs(start_join(tmp_path_factory.mktemp("none"), "never"))[0]


def test_joins_on_an_empty_and_on_a_damaged_cache(tmp_path, expected):
    """Two processes fill it at the same time; then every file is damaged, each in its way."""
    both = [start_join(tmp_path), start_join(tmp_path)]
    assert [pairs(process) for process in both] == [(expected, "")] * 2
    files = list(times(tmp_path))
    assert len(files) > len(DAMAGES) and all(path.suffix == ".nbc" for path in files)
    marker = tmp_path / "executed"
    for number, path in enumerate(files):
        damage(path, list(DAMAGES)[number % len(DAMAGES)], marker)
    assert pairs(start_join(tmp_path)) == (expected, "")
    mended = times(tmp_path)
    assert mended.keys() == set(files) and not marker.exists()
    assert pairs(start_join(tmp_path)) == (expected, "")
    assert times(tmp_path) == mended


def test_a_join_on_a_full_disk(tmp_path, expected):
    """No file may have more than some bytes, as on a disk that fills up while one is written."""
    limit = 1000

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    found, errors = pairs(start_join(tmp_path, preexec_fn=limited))
    assert found == expected
    assert errors.count("compiled code cannot be kept") == 1 and str(tmp_path) in errors
    assert list(times(tmp_path)) == []
