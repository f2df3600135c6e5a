"""Handshake join in hardware: the circuit of the papers' FPGA sections, simulated clock by clock."""

from counterflow.hardware.circuit import Circuit
from counterflow.hardware.simulation import Outcome, simulate, steady

__all__ = ["Circuit", "Outcome", "simulate", "steady"]
