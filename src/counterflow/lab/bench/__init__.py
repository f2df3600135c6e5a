"""Benchmarks: each measures, checks its own output, and returns rows of plain values with units in their names."""
