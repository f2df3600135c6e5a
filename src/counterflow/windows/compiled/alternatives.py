"""A window that is found in several ways: one index for each alternative of an OR, over the same rows.

    l.k = r.k OR abs(l.x - r.x) <= 3      an index on k;  one on x, for pairs whose k differ

No pair satisfies two alternatives, as each says that those before it are not true: so a pair is found once.
"""

from __future__ import annotations

from collections.abc import Iterator

from counterflow.predicate.expression import Side
from counterflow.windows.access import Way
from counterflow.windows.compiled.compiled_predicate import Keyed
from counterflow.windows.compiled.compiled_window import CompiledWindow, Task
from counterflow.windows.crew import Crew
from counterflow.windows.evaluate import Columns
from counterflow.windows.row_ring import Ring
from counterflow.windows.vectors import Array


class CompiledAlternatives:
    """Compiled windows over one ring; what it can do is what `CompiledWindow` can."""

    def __init__(self, ring: Ring, ways: tuple[Way, ...], nullable: bool, crew: Crew) -> None:
        self.windows = [
            CompiledWindow(ring, way.path, way.predicate, "index", nullable, crew, name=f"{k} ")
            for k, way in enumerate(ways)
        ]
        self.nullable = nullable

    @property
    def nbytes(self) -> int:
        return sum(window.nbytes for window in self.windows)

    def keyed(self, side: Side, columns: Columns, arrays: dict[str, Array], n: int) -> list[Keyed]:
        return [window.keyed(side, columns, arrays, n) for window in self.windows]

    def learn(self, probes: list[Keyed] | None, before: CompiledAlternatives | None) -> None:
        for k, window in enumerate(self.windows):
            window.learn(None if probes is None else probes[k], None if before is None else before.windows[k])

    def misjudges(self, probes: list[Keyed]) -> bool:
        return any(window.misjudges(keyed) for window, keyed in zip(self.windows, probes, strict=True))

    def append(self, rows: list[Keyed], begin: int) -> None:
        for window, keyed in zip(self.windows, rows, strict=True):
            window.append(keyed, begin)

    def probe(
        self, rows: list[Keyed], columns: Columns, oldest: Array, newest: Array, scanned: Array
    ) -> Iterator[Task]:
        for window, keyed in zip(self.windows, rows, strict=True):
            yield from window.probe(keyed, columns, oldest, newest, scanned)
