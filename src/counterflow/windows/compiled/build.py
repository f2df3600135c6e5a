"""From templates to machine code: make a module of text, name it by its content, and compile its functions.

A second process, and every Spark worker on the machine, makes the same module of the same name and finds the machine
code in the cache (`code_cache`). Nothing here is imported before a join is large enough to be worth compiling.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from types import ModuleType
from typing import Any

import numpy as np

from counterflow.code_sources import module_from_text
from counterflow.jit import choose_instructions
from counterflow.predicate.expression import Column, Side, opposite
from counterflow.windows.compiled.entries import entry_header, indexed_entries, scanned_entries
from counterflow.windows.compiled.predicate_source import Accept, column_dtype

TEMPLATES = files("counterflow.windows.compiled") / "templates"
HOLES_END = "# ---- the text from here on is used as it stands\n"
I8 = "int64[::1]"
NUMBA = {"i4": "int32", "i8": "int64", "u1": "uint8", "u8": "uint64", "f4": "float32", "f8": "float64"}
UNSIGNED = {"i4": "uint32", "i8": "uint64"}


@dataclass
class CompileTimes:
    """Seconds this process spent on compiling, or on loading what was compiled before."""

    seconds: float = 0.0
    modules: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


TIMES = CompileTimes()


@cache
def load(text: str) -> ModuleType:
    """The module with this text, compiled: its functions have explicit signatures."""
    with TIMES.lock:
        started = time.perf_counter()
        name = "counterflow_" + hashlib.sha256(text.encode()).hexdigest()[:24]
        choose_instructions()
        module = module_from_text(name, text)  # numba's cache refers to functions by their module
        TIMES.seconds += time.perf_counter() - started
        TIMES.modules += 1
        return module


@dataclass(frozen=True)
class Shape:
    """All that a predicate's kernels depend on, besides its compiled conditions."""

    probing: Side
    probe_columns: tuple[Column, ...]
    stored_columns: tuple[Column, ...]
    nullable: bool  # each row has one more column: a bit for each column that is NULL
    hashed: bool  # each row has one more column: the hash of its equality keys
    dimensions: int  # band keys of the index
    scan_keys: tuple[tuple[str, str], ...]  # dtypes of keys that inequalities bound, and how: low, high or band
    scan_columns: tuple[Column, ...]  # those keys
    basic_block: int = 0  # rows in a sorted block of the merge join; 0 where it is not asked for

    def dtypes(self, columns: tuple[Column, ...]) -> list[str]:
        found = [column_dtype(column.type) for column in columns]
        return [d.str[1:] for d in found if d is not None] + ["u8"] * (self.nullable + self.hashed)

    @property
    def index(self) -> str:
        """The template: where several cells are visited, their rows should lie side by side."""
        return "sorted_blocks" if self.basic_block else "grid_index" if self.dimensions else "hash_index"

    @property
    def record(self) -> np.dtype[Any]:
        """A row in the index: wide fields first, so that all are aligned."""
        columns = [(f"c{i}", d) for i, d in enumerate(self.dtypes(self.stored_columns))]
        fields = [*columns, ("back" if self.index == "hash_index" else "row", "u4")]
        return np.dtype(sorted(fields, key=lambda f: -int(f[1][1:])), align=True)


@dataclass(frozen=True)
class Kernels:
    """The compiled functions for one predicate and one probing side, each compiled when first used."""

    shape: Shape
    accept: Accept

    def _index_holes(self, entry: str) -> tuple[str, list[str]]:
        shape, record = self.shape, self.shape.record
        fields = [(name, record[name].str[1:]) for name in record.names or ()]
        constants = f"""RECORD = from_dtype(np.dtype({fields}, align=True))
DIMENSIONS, LINE, BASIC_BLOCK = {shape.dimensions}, {max(64 // record.itemsize, 1)}, {shape.basic_block}
ENTRY = {entry}
KEYED = uint64[::1], float64[:, ::1], uint8[::1], float64[:, ::1]
APPEND = int64(int64, int64, *KEYED, {self._stored}, {I8}, RECORD[::1], {I8}, {I8}, int64, int64)
PROBE = void(
    int64, *KEYED, {I8}, {I8}, {self._probing}, {self._constants},
    {I8}, RECORD[::1], int64, int64[:, ::1], {I8}, {I8}, {I8}, {I8},
)"""
        width = len(shape.dtypes(shape.stored_columns))
        holes = [
            _function("record_values(record)", [f"return ({''.join(f'record.c{k}, ' for k in range(width))})"]),
            _function("fill(record, columns, i)", [f"record.c{k} = columns[{k}][i]" for k in range(width)] or ["pass"]),
        ]
        return constants, holes

    @cached_property
    def index(self) -> ModuleType:
        """`append` and `probe`."""
        return self._load(["buckets", self.shape.index], *self._index_holes("OPTIONS"))

    @cached_property
    def stream(self) -> ModuleType:
        """The same, and `stream`."""
        constants, holes = self._index_holes("dict(OPTIONS, forceinline=True)")  # many arrays: calls cost too much
        keyed = "uint64[::1], float64[:, ::1], uint8[::1]"
        constants += f"""
STREAM = int64(
    int64, int64, int64, int64, {keyed}, {self._stored}, {keyed}, {self._probing}, float64[:, ::1], {I8}, {I8},
    {self._constants}, {I8}, RECORD[::1], {I8}, {I8}, int64[:, ::1], {I8}, {I8}, {I8}, {I8},
)"""
        return self._load(["buckets", self.shape.index, "stream"], constants, holes)

    @cached_property
    def scan(self) -> ModuleType:
        return self._load(["scan"], self._scan_signature, [self._row_values, self._slice_may_match()])

    @property
    def _scan_signature(self) -> str:
        keys = _tuple([dtype for dtype, _ in self.shape.scan_keys])
        return f"SCAN = void({I8}, {I8}, {I8}, {keys}, {keys}, {keys}, {self._scanned}, {I8}, {I8}, {I8})"

    @cached_property
    def prefilter(self) -> ModuleType:
        codes = _tuple(["u1", "u1"])
        constants = f"""DIMENSIONS = 2
CODES = void(float64[:, ::1], float64[:, ::1], int64, uint8[::1])
CODE_RANGES = void(float64[:, ::1], float64[:, ::1], int64, uint8[::1], uint8[::1])
SCAN = void(
    {I8}, {I8}, {I8}, {codes}, {codes}, {codes}, {self._scanned}, uint8[::1], uint64[::1], {I8}, {I8}, {I8}
)"""
        return self._load(["buckets", "prefilter"], constants, [self._row_values, *_byte_tests()])

    @cached_property
    def indexed(self) -> ModuleType:
        """What protocols call of an index: `store` and `probe`."""
        constants, holes = self._index_holes("dict(OPTIONS, forceinline=True)")
        entries = indexed_entries(self.shape, self.accept.constant_kinds)
        return self._load(["buckets", self.shape.index], f"{constants}\n{entry_header()}", holes, entries)

    @cached_property
    def scanned(self) -> ModuleType:
        """The same without an index: `store` and `scan`."""
        entries = scanned_entries(self.shape, self.accept.constant_kinds)
        holes = [self._row_values, self._slice_may_match()]
        return self._load(["scan"], f"{self._scan_signature}\n{entry_header()}", holes, entries)

    def _load(self, templates: list[str], constants: str, holes: list[str], entries: str = "") -> ModuleType:
        texts = [(TEMPLATES / f"{name}.py").read_text().split(HOLES_END)[1].strip() for name in templates]
        return load("\n\n\n".join([f"{HEADER}{constants}", *self._common_holes(), *holes, *texts, entries]) + "\n")

    # --- types

    @property
    def _probing(self) -> str:
        return _tuple(self.shape.dtypes(self.shape.probe_columns))

    @property
    def _stored(self) -> str:
        return _tuple(self.shape.dtypes(self.shape.stored_columns))

    @property
    def _constants(self) -> str:
        return f"types.Tuple(({''.join(f'{kind}, ' for kind in self.accept.constant_kinds)}))"

    @property
    def _scanned(self) -> str:
        return f"{self._probing}, int64, int64, {self._stored}, {self._constants}"

    # --- holes

    def _common_holes(self) -> list[str]:
        shape = self.shape
        sides = {"probe": shape.probing, "stored": opposite(shape.probing)}
        unpack = []
        for role, columns in (("probe", shape.probe_columns), ("stored", shape.stored_columns)):
            unpack += [f"{sides[role][0]}{i} = {role}[{i}]" for i in range(len(columns))]
            if shape.nullable:
                unpack.append(f"{sides[role][0]}_nulls = {role}[{len(columns)}]")
        hashes = [  # a key without a value, with the hash 0, may equal any
            "p, s = probe[-1], stored[-1]",
            "accepted &= (p == s) | (p == uint64(0)) | (s == uint64(0))",
        ]
        body = [*unpack, *self.accept.lines, *hashes * shape.hashed, f"return {self.accept.verdict}"]
        width = len(shape.dtypes(shape.probe_columns))
        return [
            _function("accept(probe, stored, constants)", body),
            _function("probe_values(columns, i)", [f"return ({''.join(f'columns[{k}][i], ' for k in range(width))})"]),
        ]

    @property
    def _row_values(self) -> str:
        width = len(self.shape.dtypes(self.shape.stored_columns))
        return _function("row_values(columns, i)", [f"return ({''.join(f'columns[{k}][i], ' for k in range(width))})"])

    def _slice_may_match(self) -> str:
        """All rows of the slice are tested without a branch, so that the compiler makes vector instructions of it."""
        lines, tests = [], []
        for k, (dtype, form) in enumerate(self.shape.scan_keys):
            lines += [f"s{k} = keys[{k}][j : j + SLICE]", f"a{k}, b{k} = lower[{k}][p], upper[{k}][p]"]
            if dtype in UNSIGNED:  # one unsigned comparison for both bounds
                unsigned, signed = UNSIGNED[dtype], NUMBA[dtype]
                lines.append(f"w{k} = {unsigned}({signed}(b{k} - a{k}))")
                tests.append(f"({unsigned}({signed}(s{k}[i] - a{k})) <= w{k})")
            elif form == "band":  # the bounds are the middle and the distance from it; NaN passes
                tests.append(f"(not (abs(s{k}[i] - a{k}) > b{k}))")
            else:
                tests.append(f"(not (s{k}[i] < a{k}))" if form == "low" else f"(not (s{k}[i] > b{k}))")
        if not tests:  # nothing bounds a key: the predicate itself
            width = len(self.shape.dtypes(self.shape.stored_columns))
            lines += [f"s{k} = columns[{k}][j : j + SLICE]" for k in range(width)]
            values = "".join(f"s{k}[i], " for k in range(width))
            tests.append(f"(accept(probe, ({values}), constants) != uint8(0))")
        lines += [
            "none = uint32(1)",
            "for i in range(SLICE):",
            f"    none = min(none, uint32(0) if {' & '.join(tests)} else uint32(1))",
            "return none == uint32(0)",
        ]
        return _function("slice_may_match(keys, lower, upper, columns, probe, constants, p, j)", lines)


HEADER = """import math

import numpy as np
from numba import float32, float64, from_dtype, int32, int64, types, uint8, uint32, uint64, void

from counterflow.jit import njit
from counterflow.windows.compiled.intrinsics import prefetch

OPTIONS = dict(nogil=True, error_model="numpy", boundscheck=False, _nrt=False)
"""


def _tuple(dtypes: list[str]) -> str:
    return f"types.Tuple(({''.join(f'{NUMBA[d]}[::1], ' for d in dtypes)}))"


def _function(signature: str, lines: list[str]) -> str:
    return "\n".join(["@njit(**OPTIONS)", f"def {signature}:", *(f"    {line}" for line in lines)])


def _byte_tests() -> list[str]:
    test = "(uint8(s0[i] - a0) <= w0) & (uint8(s1[i] - a1) <= w1)"

    def head(size: str) -> list[str]:
        lines = []
        for k in (0, 1):
            lines += [f"s{k} = codes[{k}][j : j + {size}]", f"a{k}, w{k} = lower[{k}][p], width[{k}][p]"]
        return lines

    def any_hit(size: str) -> list[str]:
        loop = f"    none = min(none, uint8(0) if {test} else uint8(1))"
        return [*head(size), "none = uint8(1)", f"for i in range({size}):", loop, "return none == uint8(0)"]

    marked = [*head("GROUP"), "for i in range(GROUP):", f"    marks[i] = uint8({test})"]
    return [
        _function("group_may_match(codes, lower, width, p, j)", any_hit("GROUP")),
        _function("piece_may_match(codes, lower, width, p, j)", any_hit("PIECE")),
        _function("mark_group(codes, lower, width, p, j, marks)", marked),
    ]
