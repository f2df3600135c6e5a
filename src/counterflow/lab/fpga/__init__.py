"""Handshake join in hardware: the circuit of the papers' FPGA sections, simulated clock by clock."""

from counterflow.lab.fpga.circuit import Circuit
from counterflow.lab.fpga.clocked_circuit import CircuitOutcome, simulate, steady

__all__ = ["Circuit", "CircuitOutcome", "simulate", "steady"]
