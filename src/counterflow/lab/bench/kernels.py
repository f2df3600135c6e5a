"""`counterflow bench kernels`: scans, indexes, the finite join and hard cases, each with its output checked."""

from __future__ import annotations

import os
from typing import Any

from counterflow.errors import OptionError
from counterflow.lab.bench.finite_join import measure_finite
from counterflow.lab.bench.host import heading
from counterflow.lab.bench.index_worst_cases import measure_robust
from counterflow.lab.bench.indexes import measure_indexes
from counterflow.lab.bench.report import SMOKE, KernelSizes, Note, Report
from counterflow.lab.bench.scan_limit import Limit, load_limit
from counterflow.lab.bench.scans import measure_scans


def bench_kernels(smoke: bool, note: Note) -> dict[str, Any]:
    """Return the report of all measurements; with `smoke` as small as they can be, to see that they work."""
    if os.environ.get("COUNTERFLOW_COMPILE") == "never":
        raise OptionError("COUNTERFLOW_COMPILE=never: there are no compiled kernels to measure then")
    found = heading("kernels", smoke)
    report = Report(SMOKE if smoke else KernelSizes(), note)
    limit = load_limit()
    if not isinstance(limit, Limit):
        report.remarks.append(f"the limit was not measured: {limit}")
    measure_scans(report, limit if isinstance(limit, Limit) else None)
    measure_indexes(report)
    measure_finite(report)
    measure_robust(report)
    return {**found, "remarks": report.remarks, "results": report.rows}
