"""What `cf.explain` says: how a predicate was split, and what will be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from counterflow.predicate.conditions import Condition
from counterflow.predicate.differences import Inequality
from counterflow.predicate.expression import Expression, conjuncts_of, sides_of
from counterflow.predicate.similarity import similarity_of
from counterflow.predicate.split import Equality
from counterflow.spec.join_spec import JoinSpec, SideSpec
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.predicate_source import compile_predicate
from counterflow.windows.evaluate import calls_python

SHOWN = (
    "equalities",
    "bands",
    "inequalities",
    "implied_bands",
    "overlaps",
    "left_filters",
    "right_filters",
    "residual",
)


@dataclass(frozen=True)
class Explanation:
    """What `cf.explain` returns: use `str()` for people and `to_dict()` for programs.

    >>> import counterflow as cf, pyarrow as pa
    >>> table = pa.table({"ts": [1], "k": [1]})
    >>> str(cf.explain(table, table, where="l.k = r.k", time="ts", window=5, show=False)).splitlines()[1:3]
    ['  where  l.k = r.k', '  equalities     l.k = r.k']
    """

    spec: JoinSpec
    engine: str
    details: dict[str, str] = field(default_factory=dict)  # what the engine adds: layout, state, ...

    def to_dict(self) -> dict[str, Any]:
        """Return the same as plain values.

        >>> import counterflow as cf, pyarrow as pa
        >>> table = pa.table({"ts": [1], "k": [1], "x": [10]})
        >>> found = cf.explain(table, table, where="l.k = r.k AND l.x < r.x", time="ts", window=5, show=False)
        >>> found.to_dict()["equalities"], found.to_dict()["access_path"]
        (['l.k = r.k'], {'left': 'hash on l.k', 'right': 'hash on r.k'})
        """
        spec, parts = self.spec, self.spec.parts
        return {
            "where": spec.where,
            "predicate": str(spec.predicate),
            "equalities": [str(e) for e in parts.equalities],
            "bands": [str(b) for b in parts.bands],
            "inequalities": [str(i) for i in parts.inequalities if not i.is_band],
            "implied_bands": [str(i) for i in parts.implied if i.is_band],
            "overlaps": [str(o) for o in choose_path(parts, "left").overlaps],
            "alternatives": [str(a.predicate) for a in parts.alternatives],
            "left_filters": [str(f) for f in parts.left_filters],
            "right_filters": [str(f) for f in parts.right_filters],
            "residual": [str(r) for r in parts.residual],
            "access_path": {s: choose_path(parts, s).name for s in ("left", "right")},
            "conditions": self._conditions(),
            "not_compiled": [str(c) for c in self._left_out],
            "time": {"left": spec.left.time, "right": spec.right.time},
            "window": {side.side: self._window(side) for side in (spec.left, spec.right)},
            "how": spec.how,
            "ordered": spec.ordered,
            "output": [f"{field.name}: {field.type}" for field in spec.output_schema],
            "engine": self.engine,
            **self.details,
        }

    @cached_property
    def _left_out(self) -> list[Expression]:
        return compile_predicate(self.spec.predicate, nullable=True).left_out

    def _conditions(self) -> list[dict[str, str]]:
        """Return what becomes of each conjunct: how it helps to find candidates, and how it is checked on them."""
        found = []
        for condition, used in self.spec.parts.uses:
            if len(sides_of(condition)) == 1:
                use, check = "filter", "once a row"
            else:
                use = self._use_of(condition, used)
                check = "compiled" if condition not in self._left_out else "numpy"
                if check == "numpy" and calls_python(condition):
                    check = "Python" if not isinstance(condition, Condition) else "numba, or Python"
            found.append({"condition": str(condition), "found_by": use, "checked": check})
        return found

    def _use_of(self, condition: Expression, used: Sequence[Equality | Inequality]) -> str:
        parts = self.spec.parts
        path = choose_path(parts, "left")
        kinds = []
        if path.similar and path.similar == similarity_of(condition):
            return "pieces of texts"
        for one in used:
            key = one.left, one.right
            if isinstance(one, Equality):
                kinds.append("hash index")
            elif key in [(b.left, b.right) for b in path.bands]:
                kinds.append("band index" if condition not in parts.residual else "implied band")
            elif key in [(i.left, i.right) for o in path.overlaps for i in o.parts]:
                kinds.append("interval index" if condition not in parts.residual else "implied interval")
            else:
                kinds.append("bound")
        if any(condition not in conjuncts_of(a.predicate) for a in parts.alternatives):
            kinds.append("an index for each alternative")
        return ", ".join(dict.fromkeys(kinds)) or "nothing"

    def _window(self, side: SideSpec) -> str:
        if self.spec.table_side is not None:
            return "always" if side.is_table else "nothing to a table"
        window = side.window
        integer = pa.types.is_integer(self.spec.pair_time_type)
        if window.kind != "duration" or integer:
            return str(window)
        return f"{'<=' if window.closed else '<'} {window.size / 1e6:g} s"

    def __str__(self) -> str:
        facts = self.to_dict()
        lines = [f"window join, {facts['how']}{', ordered' if facts['ordered'] else ''}", f"  where  {facts['where']}"]
        for key in SHOWN:
            for i, part in enumerate(facts[key]):
                lines.append(f"  {key.replace('_', ' ') if i == 0 else '':<14} {part}")
        for i, one in enumerate(facts["conditions"]):
            said = "filter" if one["found_by"] == "filter" else f"{one['found_by']}; checked: {one['checked']}"
            lines.append(f"  {'conditions' if i == 0 else '':<14} {one['condition']}: {said}")
        for side in ("left", "right"):
            found = facts["access_path"][side]
            timed = "a table without a time" if facts["time"][side] is None else f"time {facts['time'][side]}"
            lines.append(f"  {side:<14} {timed}, window {facts['window'][side]}, found by {found}")
        lines.append(f"  {'engine':<14} {facts['engine']}")
        lines += [f"  {key:<14} {value}" for key, value in self.details.items()]
        lines.append(f"  {'output':<14} {', '.join(facts['output'])}")
        return "\n".join(lines)
