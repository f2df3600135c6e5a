"""`counterflow bench local` with options: one configuration, for each algorithm its sustained rate and its latency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from counterflow.cores import usable_cores
from counterflow.engines.local.options import WAITINGS
from counterflow.errors import OptionError
from counterflow.lab.bench.benchmark_inputs import Kind, make_inputs
from counterflow.lab.bench.host import heading
from counterflow.lab.bench.local_algorithms import latency_row, require_compiler
from counterflow.lab.bench.replay_runs import MeasuredJoin
from counterflow.lab.bench.report import Note, Row, median_ages, middle
from counterflow.lab.bench.waiting_threads import WaitingJoin
from counterflow.protocols.registry import NAMES, protocol
from counterflow.suggest import did_you_mean

KINDS: dict[str, Kind] = {"equi": "hash", "band": "band"}
WORKERS_MAX = 256
ACCESSES = ("auto", "scan", "merge")


@dataclass(frozen=True)
class Choice:
    """What to measure; results' ages are taken at a `share` of the sustained rate.

    With `waiting` only ages are taken, at a low rate, of nodes that each have a thread which waits like that.
    """

    algorithms: tuple[str, ...] = NAMES
    workers: int | None = None
    batch_rows: int = 64
    window_rows: int = 100_000
    predicate: str = "band"
    access: str = "auto"
    share: float = 0.5
    waiting: str | None = None

    def __post_init__(self) -> None:
        known = {"algorithm": NAMES, "predicate": tuple(KINDS), "access": ACCESSES, "waiting": WAITINGS}
        given = [("algorithm", name) for name in self.algorithms]
        given += [("waiting", self.waiting)] if self.waiting is not None else []
        for option, value in [*given, ("predicate", self.predicate), ("access", self.access)]:
            if value not in known[option]:
                raise OptionError(f"unknown {option} {value!r}{did_you_mean(value, known[option])}")
        for option, most in (("workers", WORKERS_MAX), ("batch_rows", 1 << 16), ("window_rows", 100_000_000)):
            count = getattr(self, option)
            if count is not None and not 1 <= count <= most:
                raise OptionError(f"--{option.replace('_', '-')} {count}: must be at least 1, and at most {most:,}")
        if self.algorithms == ("kang",) and self.workers not in (None, 1):
            raise OptionError(f"--workers {self.workers}: kang is sequential; choose another algorithm, or 1")
        if self.algorithms == ("handshake",) and self.share != 0.5:
            raise OptionError("--share: handshake join's results are as old as its windows, at any rate: leave it out")
        if self.waiting is not None and (self.share != 0.5 or self.algorithms == ("handshake",)):
            raise OptionError("--waiting measures at a low rate, and not handshake join: leave out one of the options")
        if not 0 < self.share <= 1:
            raise OptionError(f"--share {self.share}: a part of the sustained rate, above 0 and at most 1")
        if self.access == "merge" and self.predicate != "band":
            raise OptionError("--access merge sorts by a band: use --predicate band")


@dataclass(frozen=True)
class ConfigurationSizes:
    trial: int = 2_000  # tuples of a side, to see how many can be measured
    most: int = 2_000_000
    measured_s: float = 0.5
    repeats: int = 3
    timed: int = 5
    timed_s: float = 0.25
    waiting_rate: float = 200.0  # tuples a second: threads are asleep when the next one comes
    waiting_s: float = 1.0


SMOKE = ConfigurationSizes(200, 2_000, 0.01, 1, 1, 0.02, 1_000.0, 0.02)


def bench_chosen(choice: Choice, smoke: bool, note: Note) -> dict[str, Any]:
    require_compiler()
    sizes = SMOKE if smoke else ConfigurationSizes()
    if choice.waiting is None:
        rows = [_measure(choice, name, sizes, note) for name in choice.algorithms]
    else:
        named = [name for name in choice.algorithms if not protocol(name).found_until_both_leave]
        rows = [_measure_waiting(choice, name, choice.waiting, sizes, note) for name in named]
    return {**heading("local", smoke), "remarks": [], "results": rows, "ratios": {}}


def _measure(choice: Choice, name: str, sizes: ConfigurationSizes, note: Note) -> Row:
    workers = 1 if protocol(name).sequential else choice.workers or len(usable_cores())
    kind, window, batch = KINDS[choice.predicate], choice.window_rows, choice.batch_rows

    def run(pairs: int, rate: float = 0.0) -> MeasuredJoin:
        return MeasuredJoin(
            name,
            workers,
            inputs,
            window,
            pairs,
            batch,
            choice.access,
            ordered=not protocol(name).found_until_both_leave,
            rate=rate,
        )

    note(f"{name}, {workers} workers, windows of {window:,} rows")
    inputs = make_inputs(kind, window + sizes.trial, window)
    run(sizes.trial).take()  # compiles
    rate = run(sizes.trial).take()["tuples_per_s"]
    pairs = min(max(int(rate * sizes.measured_s / 2), sizes.trial), sizes.most)
    inputs = make_inputs(kind, window + pairs, window)
    taken = [run(pairs).take() for _ in range(sizes.repeats)]
    row = {"case": "chosen", **middle(taken, "tuples_per_s")}
    if protocol(name).found_until_both_leave:
        return row  # its results are up to half a window old, whatever the rate: see the whole benchmark
    rate = row["tuples_per_s"] * choice.share
    note(f"{name}, latency at {rate:,.0f} tuples/s")
    pairs, timed = min(max(int(rate * sizes.timed_s / 2), 1), pairs), []
    for _ in range(sizes.timed):
        at_rate = run(pairs, rate)
        timed.append((at_rate.take(), at_rate.histogram))
    ages = latency_row(timed)
    row |= {figure: value for figure, value in ages.items() if figure.startswith(("latency_us", "rate_"))}
    return {**row, "share": choice.share, "verified": row["verified"] and ages["verified"]}


def _measure_waiting(choice: Choice, name: str, waiting: str, sizes: ConfigurationSizes, note: Note) -> Row:
    """Measure how old a tuple is when all its pairs are out, at a low rate: medians of several runs."""
    workers = 1 if protocol(name).sequential else choice.workers or len(usable_cores())
    pairs = max(int(sizes.waiting_rate * sizes.waiting_s / 2), 1)
    inputs, taken = make_inputs(KINDS[choice.predicate], choice.window_rows + pairs, choice.window_rows), []
    for turn in range(sizes.timed):
        note(f"{name}, {workers} workers that {waiting}, {turn + 1} of {sizes.timed}")
        run = WaitingJoin(
            name, workers, inputs, choice.window_rows, pairs, choice.batch_rows, choice.access, waiting
        )  # fmt: skip
        taken.append(run.take(sizes.waiting_rate))
    return {"case": "waiting", **median_ages(taken)}
