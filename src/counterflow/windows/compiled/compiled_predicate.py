"""A predicate for compiled code, with rows of one side stored: its kernels, and what they need of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from counterflow.errors import OptionError
from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import Column, Expression, Side, opposite
from counterflow.windows.access import AccessPath
from counterflow.windows.compiled.block import BAND_WORDS
from counterflow.windows.compiled.build import Kernels, Shape
from counterflow.windows.compiled.predicate_source import NotCompilable, compile_predicate
from counterflow.windows.evaluate import Columns
from counterflow.windows.keys import SLACK, as_float, computed, equality_hashes, key_bounds, stored_range
from counterflow.windows.text_words import text_words
from counterflow.windows.vectors import Array, Vector, contiguous, kernel_dtype

Access = Literal["auto", "index", "scan", "prefilter", "merge"]
BASIC_BLOCK = 128  # rows, as in handshake join's first report
NOWHERE, BY_KEY, ANYWHERE = 0, 1, 2  # as in the template `buckets`
SAMPLE = 4096  # keys that tell how large a grid's cells should be
CODES = 250  # grid cells over which the keys spread; a byte tells 256 apart
TYPICAL = 0.75  # of intervals: so many are no longer than a cell
UNKNOWN_CELLS = 256  # of a grid over intervals whose typical length says nothing: most end before they start


def kernel_array(vector: Vector) -> Array:
    """Return a column as kernels hold it: in its own width, contiguous, writable (numba tells these types apart)."""
    dtype = kernel_dtype(vector.type)
    values = vector.values
    if dtype is None or values.dtype == object:
        return values
    return contiguous(values, dtype)


def predicate_array(column: Column, arrays: dict[str, Array]) -> Array:
    """Return a column as compiled predicates get it, of the `kernel_array`s of some rows."""
    values = arrays[column.name]
    return text_words(values) if column.type.name == "STRING" else values


@dataclass
class Keyed:
    """Rows of one side with what kernels need of them."""

    hashes: Array
    keys: Array
    usable: Array
    columns: tuple[Array, ...]


class CompiledPredicate:
    """A predicate whose kernels search stored rows by `path`.

    Raises NotCompilable where there is nothing to compile, and later for values that kernels cannot hold. `narrow`
    leaves out the conditions whose columns might have such values, and compiles what there is: then it never raises,
    and every pair in the window may be a candidate. `basic_block` is the size of blocks that `access="merge"` sorts.
    """

    def __init__(
        self,
        path: AccessPath,
        predicate: Expression,
        access: Access,
        nullable: bool,
        narrow: bool = False,
        basic_block: int = BASIC_BLOCK,
    ) -> None:
        if access == "merge" and not path.bands:
            raise OptionError(
                "access='merge' sorts by the key of a band, and the predicate has none: add one, such as "
                "abs(l.x - r.x) <= 10, or leave access= out"
            )
        self.path, self.nullable = path, nullable
        accept = compile_predicate(predicate, nullable, narrow)
        self.constants = tuple(accept.constants)
        self.scan_keys = [i for i in path.inequalities if not i.nulls_meet and _is_scan_key(i.key(path.stored), i)]
        if narrow:  # nothing is kept beside the columns of compiled conditions
            self.scan_keys = [i for i in self.scan_keys if i.key(path.stored) in accept.columns[path.stored]]
        if access != "merge":
            basic_block = 0
        if access in ("auto", "index", "merge"):
            access = "index" if path.has_index else "scan"
        if access == "prefilter" and len(path.bands) < 2:
            access = "scan"
        self.access = access
        if access == "scan" and not narrow and not any(accept.columns.values()):
            raise NotCompilable("no condition has a compiled form")
        probing = opposite(path.stored)
        self.scan_columns = [key for i in self.scan_keys if isinstance(key := i.key(path.stored), Column)]
        scan_keys = tuple(
            (np.dtype(kernel_dtype(column.type)).str[1:], _form(inequality, path.stored))
            for column, inequality in zip(self.scan_columns, self.scan_keys, strict=True)
        )
        of_texts = any(equality.key(path.stored).type.name == "STRING" for equality in path.equalities)
        hashed = bool(path.equalities) and (of_texts or not accept.complete)
        columns = {side: tuple(found) for side, found in accept.columns.items()}
        shape = Shape(
            probing,
            columns[probing],
            columns[path.stored],
            nullable,
            hashed,
            len(path.bands),
            len(path.overlaps),
            scan_keys,
            tuple(self.scan_columns),
            basic_block,
            keeps_keys=accept.is_expensive,
        )
        self.kernels = Kernels(shape, accept)

    @property
    def extra(self) -> list[str]:
        """The columns that kernels need besides the predicate's own."""
        return ["nulls"] * self.nullable + ["hash"] * self.kernels.shape.hashed

    def keyed(self, side: Side, columns: Columns, arrays: dict[str, Array], n: int) -> Keyed:
        """Return keys and columns of some rows. `arrays` has their columns as `kernel_array`s."""
        shape = self.kernels.shape
        hashes, usable = np.zeros(n, np.uint64), np.full(n, BY_KEY, np.uint8)
        if self.path.equalities:
            hashed = equality_hashes(self.path.equalities, side, columns, n)
            if hashed is None:
                usable[:] = ANYWHERE
            else:
                hashes = contiguous(hashed[0], np.uint64)
                if not hashed[1].all():
                    usable[~hashed[1]] = NOWHERE
        keys = np.zeros((shape.key_rows, n), np.float64)
        nulls_meet = [band.nulls_meet for band in self.path.bands]
        nulls_meet += [overlap.nulls_meet for overlap in self.path.overlaps for _ in ("start", "end")]
        known: dict[Expression, Vector | None] = {}
        for k, expression in enumerate(self.path.keys(side)):
            if expression not in known:
                known[expression] = computed(expression, side, columns, n)
            if (key := known[expression]) is None:
                usable[usable == BY_KEY] = ANYWHERE
            else:
                keys[k] = as_float(key)
                if key.valid is not None and nulls_meet[k]:
                    usable[~key.valid & (usable == BY_KEY)] = ANYWHERE
                elif key.valid is not None:
                    usable[~key.valid] = NOWHERE
        wanted = shape.stored_columns if side == self.path.stored else shape.probe_columns
        extra: tuple[Array, ...] = ()
        if self.nullable:
            extra += (null_bits(wanted, columns, n),)
        if shape.hashed:  # 0 where the key has no value
            extra += (np.where(usable == ANYWHERE, np.uint64(0), np.maximum(hashes, np.uint64(1))),)
        found = tuple(predicate_array(column, arrays) for column in wanted)
        if any(array.dtype == object for array in found):
            raise NotCompilable("a number needs more than 64 bits")
        return Keyed(hashes, keys, usable, found + extra)

    def band_table(self, keys: Array, probing_lengths: Array | None = None) -> Array:
        """Return `bands` of the template `buckets`. A cell is as wide as the band: a probe meets two or three cells.

        Among intervals it is as wide as a typical one of both sides is long; those of the probing side may be unknown.
        Where most end before they start, that is no length, and the few that have one may be as long as can be.
        """
        stored, probing = self.path.stored, opposite(self.path.stored)
        table = np.zeros((self.kernels.shape.dimensions, BAND_WORDS))
        for k, band in enumerate(self.path.bands):
            low, high = (float(b) for b in stored_range(band, stored) if b is not None)
            magnitude = band.magnitude + abs(low) + abs(high)
            size, spread = _typical(keys[k])
            width = max(high - low, 0.0) + 2 * SLACK[band.rounds] * (size + magnitude)
            if self.access == "prefilter":
                width = max(width, spread / CODES)
            width = width or spread / 2**20 or 1.0
            nan = (probing in band.nan_sides, stored in band.nan_sides)
            table[k] = (low, high, magnitude, SLACK[band.rounds], 1 / width, *nan, 0)
        for k, overlap in enumerate(self.path.overlaps, len(self.path.bands)):
            low, high = map(float, overlap.stored_range(stored))
            slack = max(SLACK[part.rounds] for part in overlap.parts)
            row = 2 * k - len(self.path.bands)
            lengths = [_typical_length(*keys[row : row + 2])]
            if probing_lengths is not None:
                lengths.append(probing_lengths[k - len(self.path.bands)] + abs(high) + abs(low))
            size, spread = _typical(keys[row])
            reach = max(lengths) if max(lengths) > 0 or min(lengths) == 0 else spread / UNKNOWN_CELLS
            width = max(reach, size * SLACK["exact"]) or spread / SAMPLE or 1.0
            table[k] = (low, high, overlap.magnitude + abs(low) + abs(high), slack, 1 / width, 0, 0, 0)
        return table

    def lengths(self, keys: Array) -> Array:
        """Return how long intervals typically are, in each dimension that has them."""
        first = len(self.path.bands)
        return np.array([_typical_length(*keys[k : k + 2]) for k in range(first, self.kernels.shape.key_rows, 2)])

    def scan_bounds(self, columns: Columns, n: int) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        """Return what the scan's vector instructions test, for each of the scan keys and each probing row."""
        found = [_scan_bounds(i, self.path.stored, columns, n) for i in self.scan_keys]
        return tuple(low for low, _ in found), tuple(high for _, high in found)

    @property
    def no_bounds(self) -> list[Any]:
        """The values of both `scan_bounds` with which the scan tests nothing."""
        ends = [_ends(np.dtype(dtype)) for dtype, _ in self.kernels.shape.scan_keys]
        return [low for low, _ in ends] + [high for _, high in ends]


def _ends(dtype: Any) -> tuple[Any, Any]:
    """Return the least and the greatest value of a column; for floats, what binds nothing."""
    return (np.nan, np.nan) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)


def _typical(keys: Array) -> tuple[float, float]:
    """Return how large keys are, and over what range they spread; outliers are left out."""
    finite = keys[:SAMPLE][np.isfinite(keys[:SAMPLE])]
    if not len(finite):
        return 0.0, 0.0
    low, high = np.quantile(finite, [0.02, 0.98])
    return float(max(abs(low), abs(high))), float(high - low)


def _typical_length(starts: Array, ends: Array) -> float:
    with np.errstate(invalid="ignore"):
        lengths = (ends - starts)[:SAMPLE]
    lengths = lengths[np.isfinite(lengths)]
    return float(np.quantile(lengths, TYPICAL)) if len(lengths) else 0.0


def _is_scan_key(key: Expression, inequality: Inequality) -> bool:
    """Return whether vector instructions can compare the column itself."""
    if not isinstance(key, Column) or key.type.is_decimal:
        return False
    return key.type.is_float or (inequality.rounds == "exact" and kernel_dtype(key.type) is not None)


def _form(inequality: Inequality, stored: Side) -> str:
    low, high = stored_range(inequality, stored)
    return "band" if low is not None and high is not None else "low" if high is None else "high"


def _scan_bounds(inequality: Inequality, stored: Side, columns: Columns, n: int) -> tuple[Array, Array]:
    """Return the bounds of the stored column, in its own type; too wide rather than too narrow.

    For integers the least and the greatest value; for floats the one bound, or, to save a comparison, the middle and
    the greatest distance from it. NaN binds nothing.
    """
    probing = opposite(stored)
    dtype: Any = kernel_dtype(inequality.key(stored).type)
    floating = dtype.kind == "f"
    key = computed(inequality.key(probing), probing, columns, n)
    low: Array | None = None
    high: Array | None = None
    if key is not None and (floating or key.values.dtype != object):
        low, high = key_bounds(inequality, stored, key, probing in inequality.nan_sides, floating)
    if not floating:
        least, most = _ends(dtype)
        low, high = (np.full(n, end) if bound is None else bound for bound, end in ((low, least), (high, most)))
        lower, upper = (np.minimum(np.maximum(b, least), most).astype(dtype) for b in (low, high))
        return lower, upper
    with np.errstate(over="ignore", invalid="ignore"):
        if low is None or high is None:
            only = low if low is not None else high
            if only is None:
                return np.full(n, np.nan, dtype), np.full(n, np.nan, dtype)
            rounded = np.nextafter(only.astype(dtype), dtype.type(np.inf if low is None else -np.inf))
            return rounded, rounded
        middle = (low / 2 + high / 2).astype(dtype)
        distance = np.maximum(high - middle, middle - low) * (1 + 16 * float(np.finfo(dtype).eps))
        return middle, np.nextafter(distance.astype(dtype), dtype.type(np.inf))


def null_bits(columns: tuple[Column, ...], vectors: Columns, n: int) -> Array:
    """Return a word for each row, with a bit for each column that is NULL."""
    bits = np.zeros(n, np.uint64)
    for i, column in enumerate(columns):
        valid = vectors[column.name].valid
        if valid is not None:
            bits |= np.where(valid, np.uint64(0), np.uint64(1 << i))
    return bits
