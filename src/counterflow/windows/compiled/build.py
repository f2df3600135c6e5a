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
from counterflow.windows.compiled.entry_source import entry_constants, entry_holes, scan_holes
from counterflow.windows.compiled.predicate_source import Accept
from counterflow.windows.compiled.source_text import HAVERSINE, function_text, numba_name, tuple_text
from counterflow.windows.text_words import column_dtype

TEMPLATES = files("counterflow.windows.compiled") / "templates"
HOLES_END = "# ---- the text from here on is used as it stands\n"
I8 = "int64[::1]"
UNSIGNED = {"i4": "u4", "i8": "u8"}


@dataclass
class CompileTimes:
    """Seconds this process spent on compiling, or on loading what was compiled before."""

    seconds: float = 0.0
    modules: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


TIMES = CompileTimes()


@cache
def load(text: str) -> ModuleType:
    """Return the module with this text, compiled: its functions have explicit signatures."""
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
    bands: int  # dimensions of the index, each with one key
    overlaps: int  # dimensions that are intervals
    scan_keys: tuple[tuple[str, str], ...]  # dtypes of keys that inequalities bound, and how: low, high or band
    scan_columns: tuple[Column, ...]  # those keys
    basic_block: int = 0  # rows in a sorted block; 0 where sorted blocks are not asked for
    keeps_keys: bool = False  # whether records have their keys, which are compared before the predicate is

    def dtypes(self, columns: tuple[Column, ...]) -> list[str]:
        found = [column_dtype(column.type) for column in columns]
        return [d.str[1:] for d in found if d is not None] + ["u8"] * (self.nullable + self.hashed)

    @property
    def dimensions(self) -> int:
        return self.bands + self.overlaps

    @property
    def key_rows(self) -> int:
        """The keys of a row in the index: one of each band, start and end of each interval."""
        return self.bands + 2 * self.overlaps

    @property
    def kept_keys(self) -> int:
        return self.key_rows if self.keeps_keys and self.index == "grid_index" else 0

    @property
    def index(self) -> str:
        """The index's template: where a probe visits several cells, their rows should lie side by side."""
        return "sorted_blocks" if self.basic_block else "grid_index" if self.dimensions else "hash_index"

    @property
    def index_templates(self) -> list[str]:
        """The templates of a module with the index, in their order."""
        return ["buckets", self.index] if self.index == "hash_index" else ["buckets", "check_records", self.index]

    @property
    def record(self) -> np.dtype[Any]:
        """A row in the index: wide fields first, so that all are aligned."""
        columns = [(f"c{i}", d) for i, d in enumerate(self.dtypes(self.stored_columns))]
        kept = [(f"k{i}", "f8") for i in range(self.kept_keys)]
        fields = [*columns, *kept, ("back" if self.index == "hash_index" else "row", "u4")]
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
DIMENSIONS, PLAIN, KEY_ROWS = {shape.dimensions}, {shape.bands}, {shape.key_rows}
LINE, BASIC_BLOCK = {max(64 // record.itemsize, 1)}, {shape.basic_block}
ENTRY = {entry}
KEYED = uint64[::1], float64[:, ::1], uint8[::1], float64[:, ::1]
APPEND = int64(int64, int64, *KEYED, {self._stored}, {I8}, RECORD[::1], {I8}, {I8}, int64, int64)
PROBE = void(
    int64, *KEYED, {I8}, {I8}, {self._probing}, {self._constants},
    {I8}, RECORD[::1], int64, int64[:, ::1], {I8}, {I8}, {I8}, {I8},
)"""
        numbers = range(len(shape.dtypes(shape.stored_columns)))
        holes = [
            function_text("record_values(record)", [f"return {tuple_text(f'record.c{k}' for k in numbers)}"]),
            function_text("fill(record, columns, i)", [f"record.c{k} = columns[{k}][i]" for k in numbers] or ["pass"]),
            *nearness_holes(shape),
        ]
        return constants, holes

    @cached_property
    def index(self) -> ModuleType:
        """The module with `append` and `probe` of an index."""
        return self._load(self.shape.index_templates, *self._index_holes("OPTIONS"))

    @cached_property
    def stream(self) -> ModuleType:
        """The same module, with `stream`."""
        constants, holes = self._index_holes("INLINED")  # many arrays: calls cost too much
        keyed = "uint64[::1], float64[:, ::1], uint8[::1]"
        constants += f"""
STREAM = int64(
    int64, int64, int64, int64, {keyed}, {self._stored}, {keyed}, {self._probing}, float64[:, ::1], {I8}, {I8},
    {self._constants}, {I8}, RECORD[::1], {I8}, {I8}, int64[:, ::1], {I8}, {I8}, {I8}, {I8},
)"""
        return self._load([*self.shape.index_templates, "stream"], constants, holes)

    @cached_property
    def scan(self) -> ModuleType:
        """The module with `scan`."""
        return self._load(["check_rows", "scan"], self._scan_signature, [self._row_values, self._slice_may_match()])

    @property
    def _scan_signature(self) -> str:
        keys = _array_types([dtype for dtype, _ in self.shape.scan_keys])
        return f"SCAN = void({I8}, {I8}, {I8}, {keys}, {keys}, {keys}, {self._scanned}, {I8}, {I8}, {I8})"

    @cached_property
    def prefilter(self) -> ModuleType:
        """The module with `scan` behind a filter on bytes, `codes_of` and `code_ranges`."""
        codes = _array_types(["u1", "u1"])
        constants = f"""DIMENSIONS = PLAIN = KEY_ROWS = 2
CODES = void(float64[:, ::1], float64[:, ::1], int64, uint8[::1])
CODE_RANGES = void(float64[:, ::1], float64[:, ::1], int64, uint8[::1], uint8[::1])
SCAN = void(
    {I8}, {I8}, {I8}, {codes}, {codes}, {codes}, {self._scanned}, uint8[::1], uint64[::1], {I8}, {I8}, {I8}
)"""
        return self._load(["buckets", "check_rows", "prefilter"], constants, [self._row_values, *_byte_tests()])

    @cached_property
    def indexed(self) -> ModuleType:
        """The module with `store` and `probe`, which protocols call of an index."""
        constants, holes = self._index_holes("INLINED")
        templates = [*self.shape.index_templates, "entries", "indexed_entries"]
        return self._load(templates, f"{constants}\n{entry_constants(self.shape)}", [*holes, *self._entry_holes])

    @cached_property
    def scanned(self) -> ModuleType:
        """The module with `store` and `scan`, which protocols call where there is no index."""
        constants = f"{self._scan_signature}\n{entry_constants(self.shape)}"
        holes = [self._row_values, self._slice_may_match(), *self._entry_holes, *scan_holes(self.shape)]
        return self._load(["check_rows", "scan", "entries", "scanned_entries"], constants, holes)

    @property
    def _entry_holes(self) -> list[str]:
        return entry_holes(self.shape, self.accept.constant_kinds)

    def _load(self, templates: list[str], constants: str, holes: list[str]) -> ModuleType:
        texts = [(TEMPLATES / f"{name}.py").read_text().split(HOLES_END)[1].strip() for name in templates]
        return load("\n\n\n".join([f"{HEADER}{constants}", *self._common_holes(), *holes, *texts]) + "\n")

    # --- types

    @property
    def _probing(self) -> str:
        return _array_types(self.shape.dtypes(self.shape.probe_columns))

    @property
    def _stored(self) -> str:
        return _array_types(self.shape.dtypes(self.shape.stored_columns))

    @property
    def _constants(self) -> str:
        return f"types.Tuple({tuple_text(self.accept.constant_kinds)})"

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
        helpers = ["haversine(lat1, lon1, lat2, lon2)"] if any("haversine(" in line for line in body) else []
        return [
            *(function_text(name, HAVERSINE.strip().splitlines()) for name in helpers),
            function_text("accept(probe, stored, constants)", body),
            function_text("probe_values(columns, i)", _values(shape.dtypes(shape.probe_columns))),
        ]

    @property
    def _row_values(self) -> str:
        return function_text("row_values(columns, i)", _values(self.shape.dtypes(self.shape.stored_columns)))

    def _slice_may_match(self) -> str:
        """Return the test of a slice: of all its rows without a branch, so that it becomes vector instructions."""
        lines, tests = [], []
        for k, (dtype, form) in enumerate(self.shape.scan_keys):
            lines += [f"s{k} = keys[{k}][j : j + SLICE]", f"a{k}, b{k} = lower[{k}][p], upper[{k}][p]"]
            if dtype in UNSIGNED:  # one unsigned comparison for both bounds
                unsigned, signed = numba_name(UNSIGNED[dtype]), numba_name(dtype)
                lines.append(f"w{k} = {unsigned}({signed}(b{k} - a{k}))")
                tests.append(f"({unsigned}({signed}(s{k}[i] - a{k})) <= w{k})")
            elif form == "band":  # the bounds are the middle and the distance from it; NaN passes
                tests.append(f"(not (abs(s{k}[i] - a{k}) > b{k}))")
            else:
                tests.append(f"(not (s{k}[i] < a{k}))" if form == "low" else f"(not (s{k}[i] > b{k}))")
        if not tests:  # nothing bounds a key: the predicate itself
            width = len(self.shape.dtypes(self.shape.stored_columns))
            lines += [f"s{k} = columns[{k}][j : j + SLICE]" for k in range(width)]
            values = tuple_text(f"s{k}[i]" for k in range(width))
            tests.append(f"(accept(probe, {values}, constants) != uint8(0))")
        lines += [
            "none = uint32(1)",
            "for i in range(SLICE):",
            f"    none = min(none, uint32(0) if {' & '.join(tests)} else uint32(1))",
            "return none == uint32(0)",
        ]
        return function_text("slice_may_match(keys, lower, upper, columns, probe, constants, p, j)", lines)


HEADER = """import math

import numpy as np
from numba import float32, float64, from_dtype, int32, int64, types, uint8, uint32, uint64, void

from counterflow.jit import njit
from counterflow.windows.compiled.intrinsics import prefetch

OPTIONS = dict(nogil=True, error_model="numpy", boundscheck=False, _nrt=False)
INLINED = dict(OPTIONS, forceinline=True)  # into the caller, after it was optimised by itself
SPLICED = dict(OPTIONS, inline="always")  # into the caller as if its text stood there: it is not compiled by itself
"""


def nearness_holes(shape: Shape) -> list[str]:
    """Return what compares a record's keys with a probe's, by the bounds of `buckets`, before the predicate is asked.

    Records without keys are always near. A key that is NaN is, too: of a row that may match anything it is NaN.
    """
    kept = range(shape.kept_keys)
    keep = [f"record.k{r} = keys[{r}, i] if usable[i] == BY_KEY else np.nan" for r in kept]
    limits, tests = [], []
    for k in range(shape.bands if kept else 0):
        limits.append(f"a{k}, b{k} = key_range(keys[{k}, p], bands, {k})")
        tests += [f"(not (record.k{k} < limits[{2 * k}]))", f"(not (record.k{k} > limits[{2 * k + 1}]))"]
    for k in range(shape.bands, shape.dimensions if kept else 0):
        row = 2 * k - shape.bands
        limits.append(f"a{k}, b{k} = span_range(keys[{row}, p], keys[{row + 1}, p], bands, {k})")
        tests += [f"(not (record.k{row + 1} < limits[{2 * k}]))", f"(not (record.k{row} > limits[{2 * k + 1}]))"]
    found = tuple_text(f"{end}{k}" for k in range(shape.dimensions) for end in "ab") if kept else "(0.0,)"
    return [
        function_text("keep(record, keys, usable, i)", keep or ["pass"]),
        function_text("limits_of(keys, bands, p)", [*limits, f"return {found}"]),
        function_text("near(record, limits)", [f"return {' & '.join(tests) or 'True'}"]),
    ]


def _array_types(dtypes: list[str]) -> str:
    return f"types.Tuple({tuple_text(f'{numba_name(dtype)}[::1]' for dtype in dtypes)})"


def _values(columns: list[str]) -> list[str]:
    return [f"return {tuple_text(f'columns[{k}][i]' for k in range(len(columns)))}"]


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
        function_text("group_may_match(codes, lower, width, p, j)", any_hit("GROUP")),
        function_text("piece_may_match(codes, lower, width, p, j)", any_hit("PIECE")),
        function_text("mark_group(codes, lower, width, p, j, marks)", marked),
    ]
