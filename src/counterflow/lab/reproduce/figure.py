"""What a reproduced figure or table is: curves with where they come from, and a sentence on what they show."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Source = Literal["measured", "simulated", "paper", "model"]
SOURCES: tuple[Source, ...] = ("measured", "simulated", "model", "paper")
MARKERS = {"measured": "o", "simulated": "s", "paper": "x", "model": "."}
LINES = {"measured": "-", "simulated": "--", "paper": "", "model": ":"}


@dataclass(frozen=True)
class Curve:
    """A line of a figure: measured here, simulated under the virtual clock, from the paper's text, or a formula's."""

    name: str
    source: Source
    x: list[float]
    y: list[float]


@dataclass(frozen=True)
class Deviation:
    """A number that the paper's text gives, beside ours."""

    what: str
    paper: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.ours / self.paper if self.paper else math.nan


def judged(checks: dict[str, bool], text: str) -> str:
    """Return a verdict that begins with what the checks say."""
    failed = [what for what, held in checks.items() if not held]
    return f"Does not agree ({'; '.join(failed)}): {text}" if failed else f"Agrees in what is checked: {text}"


@dataclass(frozen=True)
class Figure:
    """A figure or table of a paper, made again.

    `verdict` says what agrees with the paper, what does not, and why; `rows` is a table instead of, or beside, curves;
    `checks` tells, for each sentence on what the figure must show, whether it does.
    """

    name: str  # as on the command line: llhj-17
    paper: str
    title: str
    verdict: str
    x_label: str = ""
    y_label: str = ""
    curves: list[Curve] = field(default_factory=list)
    x_log: bool = False
    y_log: bool = False
    x_names: dict[float, str] = field(default_factory=dict)  # what stands at places of the x-axis, if not numbers
    rows: list[dict[str, Any]] = field(default_factory=list)
    deviations: list[Deviation] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        return all(self.checks.values())

    @property
    def sources(self) -> list[Source]:
        """Which kinds of curves there are."""
        return [source for source in SOURCES if any(curve.source == source for curve in self.curves)]

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "deviations": [{**asdict(d), "ratio": d.ratio} for d in self.deviations],
            "checks": {what: bool(held) for what, held in self.checks.items()},
        }

    def write(self, folder: Path) -> None:
        """Write NAME.json, and NAME.png and NAME.svg if there are curves."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.name}.json").write_text(json.dumps(self.as_json(), indent=1, default=float))
        if self.curves:
            self._draw(folder)

    def _draw(self, folder: Path) -> None:
        from matplotlib.figure import Figure as Drawing

        drawing = Drawing(figsize=(7.2, 4.8), layout="constrained")
        axes = drawing.subplots()
        for i, curve in enumerate(self.curves):
            paper = curve.source == "paper"
            axes.plot(
                curve.x,
                curve.y,
                marker=MARKERS[curve.source] if len(curve.x) <= 40 else "",
                markersize=8 if paper else max(9 - i, 4),  # so that curves on top of each other are all seen
                markerfacecolor="none" if curve.source == "simulated" else None,
                markeredgewidth=1.6,
                linestyle="" if self.x_names else LINES[curve.source],
                color="black" if paper else None,
                zorder=5 if paper else 2,
                label=f"{curve.name} ({curve.source})",
            )
        axes.set(xlabel=self.x_label, ylabel=self.y_label, title=self.title)
        if self.x_log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
        if self.x_names:
            axes.set_xticks(list(self.x_names), list(self.x_names.values()))
            axes.margins(x=0.2)
        if self.y_log:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.06 * max(max(curve.y) for curve in self.curves))
        axes.grid(alpha=0.3)
        drawing.legend(loc="outside lower center", ncols=2, fontsize="small", frameon=False)
        for suffix in ("png", "svg"):
            drawing.savefig(folder / f"{self.name}.{suffix}", dpi=130)
