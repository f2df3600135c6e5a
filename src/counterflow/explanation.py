"""What `cf.explain` says: how a predicate was split, and what will be done with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from counterflow.spec.join_spec import JoinSpec
from counterflow.spec.window_sizes import Window
from counterflow.windows.access import choose_path
from counterflow.windows.compiled.predicate_source import compile_predicate


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
            "left_filters": [str(f) for f in parts.left_filters],
            "right_filters": [str(f) for f in parts.right_filters],
            "residual": [str(r) for r in parts.residual],
            "access_path": {s: choose_path(parts, s).name for s in ("left", "right")},
            "not_compiled": [str(c) for c in compile_predicate(spec.predicate, nullable=True).left_out],
            "time": {"left": spec.left.time, "right": spec.right.time},
            "window": {"left": self._window(spec.left.window), "right": self._window(spec.right.window)},
            "how": spec.how,
            "ordered": spec.ordered,
            "output": [f"{field.name}: {field.type}" for field in spec.output_schema],
            "engine": self.engine,
            **self.details,
        }

    def _window(self, window: Window) -> str:
        integer = pa.types.is_integer(self.spec.left.schema.field(self.spec.left.time).type)
        if window.kind != "duration" or integer:
            return str(window)
        return f"{'<=' if window.closed else '<'} {window.size / 1e6:g} s"

    def __str__(self) -> str:
        facts = self.to_dict()
        lines = [f"window join, {facts['how']}{', ordered' if facts['ordered'] else ''}", f"  where  {facts['where']}"]
        for key in ("equalities", "bands", "inequalities", "left_filters", "right_filters", "residual"):
            for i, part in enumerate(facts[key]):
                lines.append(f"  {key.replace('_', ' ') if i == 0 else '':<14} {part}")
        for side in ("left", "right"):
            found = facts["access_path"][side]
            lines.append(f"  {side:<14} time {facts['time'][side]}, window {facts['window'][side]}, found by {found}")
        numpy = " AND ".join(facts["not_compiled"])
        lines.append(
            f"  {'compiled':<14} {f'all but {numpy}: numpy checks it on candidates' if numpy else 'all of it'}"
        )
        lines.append(f"  {'engine':<14} {facts['engine']}")
        lines += [f"  {key:<14} {value}" for key, value in self.details.items()]
        lines.append(f"  {'output':<14} {', '.join(facts['output'])}")
        return "\n".join(lines)
