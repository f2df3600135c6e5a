"""The limit of a scan on this machine: hand-written AVX2 C, compiled here and now."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from counterflow.lab.bench.benchmark_inputs import BAND
from counterflow.lab.bench.host import has_avx2
from counterflow.windows.vectors import Array

SOURCE = files("counterflow.lab.bench") / "scan_limit.c"
FLAGS = ("-O3", "-mavx2", "-shared", "-fPIC")
PAIRS = 1 << 20


@dataclass(frozen=True)
class Limit:
    library: Any

    def scan(self, x: Array, y: Array, a: Array, b: Array, threads: int = 1) -> tuple[Array, Array]:
        """Return the pairs of probes (a, b) and rows (x, y)."""
        if threads == 1:
            return self._part(x, y, a, b, 0, threads)
        found = list(_pool(threads).map(lambda part: self._part(x, y, a, b, part, threads), range(threads)))
        return np.concatenate([p for p, _ in found]), np.concatenate([r for _, r in found])

    def _part(self, x: Array, y: Array, a: Array, b: Array, part: int, parts: int) -> tuple[Array, Array]:
        probes, rows = _output(part)
        begin, end = part * len(a) // parts, (part + 1) * len(a) // parts
        a, b = a[begin:end], b[begin:end]
        found = self.library.scan(
            _pointer(x), _pointer(y), ctypes.c_int64(len(x)), _pointer(a), _pointer(b), ctypes.c_int64(len(a)),
            ctypes.c_int32(BAND), ctypes.c_float(BAND), _pointer(probes), _pointer(rows), ctypes.c_int64(PAIRS),
        )  # fmt: skip
        assert found <= PAIRS, "more pairs than the benchmark join has"
        return probes[:found] + begin, rows[:found].copy()


def load_limit() -> Limit | str:
    """Return the compiled limit, or why there is none."""
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if not has_avx2():
        return "the machine has no AVX2"
    if compiler is None:
        return "there is no C compiler"
    with tempfile.TemporaryDirectory(prefix="counterflow-") as folder:
        path = Path(folder, "limit.so")
        command = [compiler, *FLAGS, "-o", str(path), "-x", "c", "-"]
        done = subprocess.run(command, input=SOURCE.read_text(), capture_output=True, text=True)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip().splitlines()[-1:]}"
        library = ctypes.CDLL(str(path))  # it stays when its file goes
    library.scan.restype = ctypes.c_int64
    return Limit(library)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads)


@cache
def _output(part: int) -> tuple[Array, Array]:
    return np.empty(PAIRS, np.int64), np.empty(PAIRS, np.int64)


def _pointer(array: Array) -> ctypes.c_void_p:
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)
