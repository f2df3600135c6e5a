"""What the papers measured of their chip, a Virtex-6 XC6VLX760T, and what follows from it: FIFOs that fit, power."""

from __future__ import annotations

from dataclasses import dataclass

from counterflow.lab.fpga.circuit import Circuit

RESULT_FIFOS = 240  # of 96 bits, three block RAMs each (A.4)


@dataclass(frozen=True)
class Synthesis:
    """A circuit as the tools reported it: constants that no model of cycles can give."""

    cores: int
    clock_hz: int
    dynamic_mw: float
    static_mw: float
    lut_share: float  # of the chip's lookup tables


@dataclass(frozen=True)
class Power:
    dynamic_mw: float
    static_mw: float

    @property
    def total_mw(self) -> float:
        return self.dynamic_mw + self.static_mw


# SIGMOD, Table 1: two windows of 100 rows, 500 ktuples/s.
TABLE_1 = (
    Synthesis(1, 50_000_000, 100, 4398, 0.0154),
    Synthesis(2, 25_000_000, 64, 4396, 0.0159),
    Synthesis(5, 10_000_000, 62, 4395, 0.0201),
    Synthesis(10, 5_000_000, 68, 4306, 0.0278),
)


def weighted_by_area(synthesis: Synthesis) -> Power:
    """Return the power with the static losses of the used part alone: the rest's are the FPGA's (SIGMOD, 6.5)."""
    return Power(synthesis.dynamic_mw, synthesis.static_mw * synthesis.lut_share)


def fifo_share(circuit: Circuit) -> float:
    """Return the part of the chip's result FIFOs that a circuit takes; above 1 it does not fit."""
    return circuit.fifos / RESULT_FIFOS
