"""The machine that a plan is for: its processor, the cores that this process may use, and its memory."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

from counterflow.cores import usable_cores


@dataclass(frozen=True)
class Computer:
    cpu: str
    cores: int
    memory_bytes: int


def this_computer() -> Computer:
    cpu = cpu_fact("model name") or platform.processor() or platform.machine()
    return Computer(cpu, len(usable_cores()), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def cpu_fact(field: str) -> str:
    """Return what the system says of the first core under this name; an empty string where it says nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.split(":")[0].strip() == field), "")
