"""On what a benchmark ran."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from counterflow.cores import usable_cores

PACKAGES = ("counterflow", "numpy", "numba", "llvmlite", "pyarrow", "duckdb", "pyspark")


def heading(benchmark: str, smoke: bool) -> dict[str, Any]:
    """What stands at the top of every report."""
    return {
        "benchmark": benchmark,
        "smoke": smoke,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
    }


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "cores": len(usable_cores()),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
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
    return "avx2" in _cpuinfo("flags").split()


def resident_bytes() -> int:
    """What this process holds in memory now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the most it ever held
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def stolen_s() -> float:
    """How long the host has kept all cores of this virtual machine from running, since its start; elsewhere 0."""
    try:
        fields = Path("/proc/stat").read_text().split(maxsplit=10)
    except OSError:
        return 0.0
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def _cpuinfo(field: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == field), "")
