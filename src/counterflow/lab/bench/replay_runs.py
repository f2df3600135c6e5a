"""Joins that a compiled driver replays on real cores, each with its pairs checked; and the bare scan beside them."""

from __future__ import annotations

import time

from counterflow.cores import usable_cores
from counterflow.engines.local.options import Local
from counterflow.lab.bench.benchmark_inputs import Inputs
from counterflow.lab.bench.core_hops import hop_ns
from counterflow.lab.bench.host import stolen_s
from counterflow.lab.bench.latency import ages
from counterflow.lab.bench.ordered_inputs import OrderedInputs
from counterflow.lab.bench.report import Row
from counterflow.windows.store import WindowStore


class BareScan:
    """The bare scan of a full window."""

    def __init__(self, inputs: Inputs, window: int, threads: int) -> None:
        spec = inputs.spec
        self.store = WindowStore("left", spec.predicate, spec.parts, access="scan", threads=threads, compile_after=0)
        self.store.append(inputs.batch("left", 0, window))
        self.probes = inputs.batch("right", window, window + 256, 0, window - 1)
        self.comparisons = 256 * window
        self.measure()

    def measure(self) -> float:
        started = time.perf_counter()
        for _ in self.store.probe(self.probes):
            pass
        return self.comparisons / (time.perf_counter() - started)


class MeasuredJoin:
    """A join on real threads: it fills the windows; then `pairs` tuples of each stream come, at once or at a rate."""

    def __init__(
        self,
        algorithm: str,
        workers: int,
        inputs: Inputs,
        window: int,
        pairs: int,
        batch: int,
        access: str,
        ordered: bool = True,
        rate: float = 0.0,
        rates: str = "",
    ) -> None:
        from counterflow.lab.replay.replay import Replay
        from counterflow.protocols.design import Design
        from counterflow.protocols.machine import Machine

        self.arrivals, self.rate, self.ordered = OrderedInputs(inputs, window, pairs, rates), rate, ordered
        layout = Local(algorithm, workers=workers).matrix
        self.design = Design(
            algorithm,
            workers,
            batch_rows=batch,
            layout=layout,
            access=access,  # type: ignore[arg-type]
            in_flight=max(4096, 4 * batch),
            outbox_rows=1 << 12,
            ordered_output=ordered,  # as through the public call: by a second gate, where there is one
            expected_rows=(window + 2 * batch, window + 2 * batch),
        )
        machine = Machine(inputs.spec.predicate, inputs.spec.parts, self.design, touched=False)
        self.replay = Replay(machine, *self.arrivals.stamped(), self.arrivals.warm, rate, ordered)

    def take(self) -> Row:
        arrivals, warm = self.arrivals, self.arrivals.warm
        self.replay.fill()
        before = stolen_s()
        measured = self.replay.run()
        stolen = stolen_s() - before
        seconds, nodes, self.histogram = measured["seconds"], measured["comparisons"], measured["histogram"]
        row: Row = {
            "algorithm": self.design.algorithm,
            "path": arrivals.inputs.kind if self.design.access == "auto" else self.design.access,
            "workers": self.design.nodes,
            **({"layout": "x".join(map(str, self.design.layout))} if self.design.protocol.matrix else {}),
            "window_rows": arrivals.window,
            "batch_rows": self.design.batch_rows,
            "ordered": self.ordered,
            **({"ordered_by": "gate" if self.design.gates_results else "collector"} if self.ordered else {}),
            "seconds": seconds,
            "tuples_per_s": (len(arrivals.is_left) - warm) / seconds,
            "stolen": stolen / seconds / len(usable_cores()),
            "hop_ns": hop_ns(),
            "pairs": measured["pairs"],
            **({} if self.design.gates_results else {"buffer_rows_max": measured["buffer"]}),  # the gate's is its own
        }
        if measured["punctuated"] < measured["pairs"]:
            row["punctuation_rows_min"] = measured["punctuated"]
        if self.design.access == "scan":
            row["comparisons_per_s"] = sum(nodes) / seconds
            row["comparisons_per_s_of_workers"] = [n / seconds for n in nodes]
            row["spread"] = (max(nodes) - min(nodes)) / max(max(nodes), 1)
        if self.rate:
            row |= {"rate_tuples_per_s": self.rate, **ages(self.histogram)}
        right = (measured["pairs"], measured["checksum"]) == arrivals.expected(warm) and measured["too_late"] == 0
        return {**row, "verified": right}
