"""All figures that can be made again, by name."""

from __future__ import annotations

from collections.abc import Callable

from counterflow.errors import OptionError
from counterflow.lab.bench.report import Note
from counterflow.lab.reproduce import dp_join_figures as dp_join
from counterflow.lab.reproduce import fpga_figures as fpga
from counterflow.lab.reproduce import handshake_figures as handshake
from counterflow.lab.reproduce import low_latency_figures as low_latency
from counterflow.lab.reproduce import scale_join_figures as scale_join
from counterflow.lab.reproduce.figure import Figure
from counterflow.suggest import did_you_mean

# Each has FIGURES, in the order of the page.
MODULES = (low_latency, handshake, fpga, dp_join, scale_join)

FIGURES: dict[str, Callable[[bool, Note], Figure]] = {
    name: make for module in MODULES for name, make in module.FIGURES.items()
}


def chosen(names: list[str]) -> list[str]:
    """Return the figures asked for; all, if none is."""
    for name in names:
        if name not in FIGURES:
            known = list(FIGURES)
            raise OptionError(
                f"no figure {name!r}{did_you_mean(name, known)}: `counterflow reproduce --list` shows all"
            )
    return list(dict.fromkeys(names)) or list(FIGURES)
