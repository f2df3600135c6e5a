"""The picture in README: two small streams, joined by `cf.window_join`, with every pair it found.

./dev run python -m counterflow.lab.pictures       writes docs/images/join.svg
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import counterflow as cf

PATH = Path(__file__).parents[3] / "docs" / "images" / "join.svg"
BAND_KM, WINDOW_MIN = 10, 15
WHERE = f"abs(l.x - r.x) <= {BAND_KM}"
MINUTES, COAST_KM, REPORT_MIN = 180, 200, 6
# Where each ship is at the start and how fast it goes, in kilometres and kilometres a minute.
SHIPS = ((15, 0.32), (48, -0.12), (95, 0.45), (120, -0.4), (188, -0.22))
STRIKES = ((26, 28), (30, 152), (58, 104), (82, 46), (103, 148), (131, 24), (150, 173))  # minute, kilometre
ALONE = 1  # the strike that no ship was near: there is room to say what the box means
# Each has enough contrast on white and on a dark page.
GREY, LEFT, RIGHT, PAIR = "#7d8590", "#2f81f7", "#e0720b", "#2da44e"


@dataclass(frozen=True)
class Picture:
    """Two streams, and the pairs of their join as positions in them."""

    left: pa.Table
    right: pa.Table
    pairs: list[tuple[int, int]]


def picture() -> Picture:
    """Generate the streams and join them."""
    left, right = ship_reports(), strikes()
    found = cf.window_join(left, right, where=WHERE, time="minute", window=WINDOW_MIN, ordered=True)
    return Picture(left, right, list(zip(found["i"].to_pylist(), found["i_right"].to_pylist(), strict=True)))


def ship_reports() -> pa.Table:
    """Return the left stream: every ship says where it is every few minutes."""
    rng = np.random.default_rng(1)
    minute = np.concatenate([rng.integers(0, REPORT_MIN) + np.arange(0, MINUTES, REPORT_MIN) for _ in SHIPS])
    start, speed = (np.repeat(values, len(minute) // len(SHIPS)) for values in zip(*SHIPS, strict=True))
    order = np.argsort(minute, kind="stable")
    x = np.round(start + speed * minute + rng.normal(0, 0.6, len(minute)), 1)
    return pa.table({"i": np.arange(len(minute)), "minute": minute[order], "x": x[order]})


def strikes() -> pa.Table:
    """Return the right stream: lightning along the same coast."""
    minute, x = zip(*STRIKES, strict=True)
    return pa.table({"i": np.arange(len(minute)), "minute": minute, "x": np.array(x, float)})


def draw(shown: Picture, path: Path) -> None:
    """Write the picture as an SVG or PNG without a background; the same picture gives the same bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "counterflow", "font.size": 11, "text.color": GREY}):
        drawing = Figure(figsize=(9, 4.6), layout="constrained")
        axes = drawing.subplots()
        _draw_boxes(axes, shown)
        _draw_points(axes, shown)
        _label(axes, shown)
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix == ".svg" else None
        drawing.savefig(path, transparent=True, dpi=120, metadata=metadata)


def _points(table: pa.Table) -> tuple[Any, Any]:
    return table["minute"].to_numpy(), table["x"].to_numpy()


def _draw_boxes(axes: Any, shown: Picture) -> None:
    """Draw the window and the band around every right tuple."""
    from matplotlib.patches import Rectangle

    for minute, x in zip(*_points(shown.right), strict=True):
        corner = (minute - WINDOW_MIN, x - BAND_KM)
        for face, edge, alpha in ((RIGHT, "none", 0.13), ("none", RIGHT, 0.9)):
            axes.add_patch(Rectangle(corner, 2 * WINDOW_MIN, 2 * BAND_KM, facecolor=face, edgecolor=edge, alpha=alpha))


def _draw_points(axes: Any, shown: Picture) -> None:
    """Draw both streams and a line for every pair; a tuple with a partner is full, one without is hollow."""
    (left_minute, left_x), (right_minute, right_x) = _points(shown.left), _points(shown.right)
    for i, j in shown.pairs:
        axes.plot((left_minute[i], right_minute[j]), (left_x[i], right_x[j]), color=PAIR, linewidth=1.8, zorder=2)
    matched = np.isin(np.arange(len(left_x)), [i for i, _ in shown.pairs])
    axes.scatter(left_minute[~matched], left_x[~matched], s=20, facecolor="none", edgecolor=LEFT, zorder=3)
    axes.scatter(left_minute[matched], left_x[matched], s=34, color=LEFT, zorder=3)
    axes.scatter(right_minute, right_x, s=190, marker="*", color=RIGHT, zorder=4)


def _label(axes: Any, shown: Picture) -> None:
    minute, x = (values[ALONE] for values in _points(shown.right))
    arrow = {"arrowstyle": "<->", "color": GREY, "shrinkA": 0, "shrinkB": 0}
    below, beside = x - BAND_KM - 3, minute + WINDOW_MIN + 2
    axes.annotate("", (minute - WINDOW_MIN, below), (minute + WINDOW_MIN, below), arrowprops=arrow)
    axes.text(minute, below - 2, f"window: {WINDOW_MIN} minutes\nbefore and after", ha="center", va="top")
    axes.annotate("", (beside, x - BAND_KM), (beside, x + BAND_KM), arrowprops=arrow)
    axes.text(beside + 2, x, f"band: {BAND_KM} km\nto each side", va="center")
    axes.set_xlabel("time, minutes", color=GREY)
    axes.set_ylabel("place along the coast, km", color=GREY)
    axes.set(xlim=(-4, MINUTES + 8), ylim=(-4, COAST_KM + 4), xticks=range(0, MINUTES + 1, 30))
    axes.tick_params(colors=GREY)
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(GREY)
    _count(axes, shown)


def _count(axes: Any, shown: Picture) -> None:
    """Say above the picture what its points and lines are."""
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], color=LEFT, marker="o", linestyle="", label=f"{len(shown.left)} ship reports"),
        Line2D([], [], color=RIGHT, marker="*", markersize=13, linestyle="", label=f"{len(shown.right)} strikes"),
        Line2D([], [], color=PAIR, linewidth=2, label=f"{len(shown.pairs)} pairs: every report in a strike's box"),
    ]
    axes.legend(handles=marks, loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, borderpad=0)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else PATH
    shown = picture()
    draw(shown, path)
    print(f"{path}: {len(shown.pairs)} pairs")


if __name__ == "__main__":
    main()
