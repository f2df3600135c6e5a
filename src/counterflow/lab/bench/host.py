"""The machine and the versions that a benchmark ran on."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from counterflow.plan.computer import cpu_fact, this_computer

PACKAGES = ("counterflow", "numpy", "numba", "llvmlite", "pyarrow", "duckdb", "pyspark")


def heading(benchmark: str, smoke: bool) -> dict[str, Any]:
    """Return what stands at the top of every report."""
    return {
        "benchmark": benchmark,
        "smoke": smoke,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    return {
        **asdict(this_computer()),
        "avx2": has_avx2(),
        "system": platform.platform(),
        "load_before": os.getloadavg()[0],  # other work makes wall-clock rates smaller
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def has_avx2() -> bool:
    return "avx2" in cpu_fact("flags").split()


def resident_bytes() -> int:
    """Return what this process holds in memory now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the most it ever held
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def stolen_s() -> float:
    """Return how long the host has kept this virtual machine's cores from running since its start; elsewhere 0."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=10)
    except OSError:
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")
