"""Every option is honoured or refused, never ignored: each field of each engine, on each kind of input.

A new field or command-line option without an entry here fails.
"""

from __future__ import annotations

import ast
import os
import random
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

import counterflow as cf
from command_line import call, check, write_inputs
from counterflow.cli.main import app
from counterflow.engines.local import engine as table_engine
from counterflow.engines.local import gated_core, parallel, stream_join
from counterflow.engines.simulated import stepped_core as simulated_core
from counterflow.engines.spark.query.inputs import Frames
from counterflow.engines.spark.query.planning import WATERMARK_KEY, cell_threads, plan
from counterflow.spec.join_spec import build_spec
from places import TESTS

LEFT = pa.table({"ts": list(range(6)), "x": [0, 10, 20, 30, 40, 50]})
RIGHT = pa.table({"ts": list(range(6)), "a": [1, 11, 21, 31, 41, 51]})
BAND = dict(where="abs(l.x - r.a) <= 3", time="ts", window=3)


@dataclass(frozen=True)
class Honoured:
    """The option in `engine` is seen in what the join makes of it."""

    engine: Any
    seen: Callable[[SimpleNamespace], bool]


@dataclass(frozen=True)
class Refused:
    engine: Any
    error: type[cf.CounterflowError]
    message: str


@dataclass(frozen=True)
class Elsewhere:
    """A test of a running query shows it."""

    test: str


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_inputs()


class Seen(Exception):
    """Enough is known: nothing needs to be compiled."""


@pytest.fixture
def seen(monkeypatch) -> SimpleNamespace:
    """What a join builds: the design of its nodes, its windows' options, its intake, and how far it got."""
    found = SimpleNamespace(design=None, windows=None, intake=None, progress=[], joined=None)

    def core(spec, design, *_, **__):
        found.design = design
        raise Seen

    class Counted(table_engine.TwoWindows):
        def __init__(self, *args, **options):
            found.windows = options
            super().__init__(*args, **options)

    class Intake(stream_join.Intake):
        def __init__(self, sources, rows_max, shed):
            found.intake = SimpleNamespace(rows_max=rows_max, shed=shed)
            super().__init__(sources, rows_max, shed)

    monkeypatch.setattr(parallel, "ParallelCore", core)
    monkeypatch.setattr(gated_core, "GatedCore", core)
    monkeypatch.setattr(simulated_core, "SeededCore", core)
    monkeypatch.setattr(table_engine, "TwoWindows", Counted)
    monkeypatch.setattr(stream_join, "Intake", Intake)
    return found


def run(engine: Any, kind: str, found: SimpleNamespace) -> None:
    if kind == "tables":
        with suppress(Seen):
            cf.window_join(LEFT, RIGHT, engine=engine, **BAND)
        return
    late = pa.table({"ts": [9, 0], "x": [0, 0]})  # the second one, as the first one's watermark is out by then
    left = [late.slice(0, 1), cf.watermark(8), late.slice(1)]
    streams = cf.stream(left, delay=1, schema=LEFT.schema), cf.stream(RIGHT.to_batches(), schema=RIGHT.schema)
    found.joined = cf.window_join(*streams, engine=engine, **BAND)
    with suppress(Seen):
        list(found.joined)


REPORTS: list[tuple[int, int, int]] = []


def report(*numbers: int) -> None:
    REPORTS.append(numbers)


def both(engine: Any, seen: Callable[[SimpleNamespace], bool]) -> dict[str, Honoured]:
    return {"tables": Honoured(engine, seen), "streams": Honoured(engine, seen)}


def for_streams(option: str, value: Any, seen: Callable[[SimpleNamespace], bool]) -> dict[str, Any]:
    engine = cf.Local(**{option: value})
    return {"tables": Refused(engine, cf.OptionError, f"{option}=.* is for streams"), "streams": Honoured(engine, seen)}


FOLDER = tempfile.TemporaryDirectory()
LOCAL: dict[str, dict[str, Any]] = {
    "algorithm": both(cf.Local("llhj"), lambda s: s.design.algorithm == "llhj"),
    "workers": both(cf.Local("scalejoin", workers=3), lambda s: s.design.nodes == 3),
    "layout": both(cf.Local("dpjoin", layout="2x3"), lambda s: s.design.layout == (2, 3)),
    "access": both(cf.Local("kang", access="scan"), lambda s: s.design.access == "scan"),
    "symmetric": both(cf.Local("handshake", symmetric=True), lambda s: s.design.symmetric),
    "waiting": both(cf.Local("kang", waiting="spin"), lambda s: s.design.strategy == "spin"),
    "batch_rows": {
        "tables": Honoured(cf.Local(batch_rows=2, progress=report), lambda s: len(REPORTS) == 2 * 12 // 2),
        "streams": Honoured(cf.Local("kang", batch_rows=2), lambda s: s.design.batch_rows == 2),
    },
    "progress": {
        "tables": Honoured(cf.Local(progress=report), lambda s: REPORTS[-1] == (12, 12, 6)),
        "streams": Refused(cf.Local(progress=report), cf.OptionError, r"progress= is for tables.*joined\.metrics\(\)"),
    },
    "overflow": for_streams("overflow", "drop_newest", lambda s: s.intake.shed),
    "buffer_rows": for_streams("buffer_rows", 77, lambda s: s.intake.rows_max == 77),
    "late_rows": for_streams(
        "late_rows", 0, lambda s: s.joined.metrics()["late_left"] == 1 and len(s.joined.late("left")) == 0
    ),
    "checkpoint": for_streams(
        "checkpoint",
        FOLDER.name,
        lambda s: s.joined.checkpoint() >= 0 and os.listdir(FOLDER.name) == ["join.checkpoint"],
    ),
}


def simulated(option: str, value: Any, seen: Callable[[SimpleNamespace], bool]) -> dict[str, Any]:
    engine = cf.Simulated(**{option: value})
    refused = Refused(engine, cf.UnsupportedError, r"joins tables: join streams with cf\.Local")
    return {"tables": Honoured(engine, seen), "streams": refused}


SIMULATED: dict[str, dict[str, Any]] = {
    "algorithm": simulated("algorithm", "handshake", lambda s: s.design.algorithm == "handshake"),
    "nodes": simulated("nodes", 3, lambda s: s.design.nodes == 3),
    # What chance decides first: the sizes. Seed 0, the default, gives others.
    "seed": simulated("seed", 5, lambda s: sizes(s.design) != SIZES_OF_0),
}


def sizes(design: Any) -> tuple[int, int, int]:
    return design.batch_rows, design.in_flight, design.outbox_rows


SPEC = build_spec(LEFT.schema, RIGHT.schema, **BAND)
SIZES_OF_0 = sizes(simulated_core._design(SPEC, cf.Simulated(), (3, 3), random.Random(0)))


@pytest.mark.parametrize("kind", ["tables", "streams"])
@pytest.mark.parametrize(
    ("table", "field"),
    [(t, f) for t, engine in ((LOCAL, cf.Local), (SIMULATED, cf.Simulated)) for f in engine.__dataclass_fields__],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_in_process(seen, table, field, kind):
    entry = table[field][kind]
    default = type(entry.engine)()
    assert getattr(entry.engine, field) != getattr(default, field)
    if isinstance(entry, Refused):
        for call in (cf.window_join, cf.explain):
            inputs = (LEFT, RIGHT) if kind == "tables" else (cf.stream(LEFT, schema=LEFT.schema), RIGHT)
            with pytest.raises(entry.error, match=entry.message):
                call(*inputs, engine=entry.engine, **BAND)
        return
    REPORTS.clear()
    run(entry.engine, kind, seen)
    assert entry.seen(seen), seen


@pytest.mark.parametrize("kind", ["tables", "streams"])
@pytest.mark.parametrize("engine", [cf.Local(), cf.Local("kang"), cf.Local("llhj")])
def test_defaults_given_explicitly_are_not_refused(seen, engine, kind):
    explicit = {name: getattr(engine, name) for name in engine.__dataclass_fields__}
    run(cf.Local(**explicit), kind, seen)
    assert seen.design or seen.windows or seen.intake


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(access="scan"), "access='scan' is for compiled algorithms"),
        (dict(access="index"), "access='index' is for compiled algorithms"),
        (dict(waiting="spin"), "waiting='spin' is for compiled algorithms"),
        (dict(symmetric="yes"), "symmetric='yes': use True or False"),
        (dict(algorithm="handshake", symmetric=1), "symmetric=1: use True or False"),
        (dict(progress=5), "progress=5: give a function"),
        (dict(layout="2x3"), "layout='2x3' is DP-Join's"),
        (dict(workers=2), "'auto' is sequential"),
        (dict(algorithm="dpjoin", layout="²x2"), "write rows and columns"),
        (dict(algorithm="dpjoin", layout="9" * 5000 + "x1"), "write rows and columns"),
    ],
)
def test_local_options_that_could_do_nothing(options, message):
    with pytest.raises(cf.OptionError, match=message):
        cf.Local(**options)


def test_an_index_that_cannot_be_is_refused():
    with pytest.raises(cf.OptionError, match="access='index' needs an equality or a band"):
        cf.window_join(
            LEFT, RIGHT, where="(l.x + r.a) % 2 = 1", time="ts", window=3, engine=cf.Local("kang", access="index")
        )


@pytest.mark.parametrize("workers", [None, 1])
def test_one_worker_is_one_thread(seen, monkeypatch, workers):
    """A large table: both windows at once, and each by several threads, unless one worker is asked for."""
    monkeypatch.setattr(table_engine, "COMPILE_AFTER", 4)
    monkeypatch.setattr("counterflow.engines.local.options.usable_cores", lambda: list(range(8)))
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "never")
    threads = set()

    def note(*_: int) -> None:
        threads.add(threading.current_thread())

    assert len(cf.window_join(LEFT, RIGHT, engine=cf.Local(workers=workers, progress=note), **BAND)) == 6
    if workers == 1:
        assert len(threads) == 1 and seen.windows["threads"] == 1
    else:
        assert len(threads) == 2 and seen.windows["threads"] == 4


# --- Spark: what is planned, without a session


class Frame(SimpleNamespace):
    """As much of a DataFrame as planning looks at."""

    def __init__(self, column: str, streaming: bool) -> None:
        watermark = {WATERMARK_KEY: 0} if streaming else {}
        schema = StructType([StructField("ts", TimestampType(), True, watermark), StructField(column, LongType())])
        context = SimpleNamespace(defaultParallelism=6)
        session = SimpleNamespace(conf={"spark.sql.session.timeZone": "UTC"}, sparkContext=context)
        super().__init__(isStreaming=streaming, schema=schema, sparkSession=session)


def planned(engine: cf.Spark, kind: str) -> SimpleNamespace:
    beside_table = kind == "beside a table"
    frames = Frames.of(Frame("x", kind != "static"), Frame("a", kind == "streaming"))
    options = {**BAND, "window": "3 seconds", "time": ("ts", None) if beside_table else "ts"}
    spec, layout = plan(frames, options, engine)
    return SimpleNamespace(spec=spec, layout=layout, threads=cell_threads(frames.session, engine))


SAMPLE = pa.table({"x": [1, 2, 3]}), pa.table({"a": [1, 2, 3]})
SPARK: dict[str, dict[str, Any]] = {
    "layout": {
        **{k: Honoured(cf.Spark(layout="5x1"), lambda s: str(s.layout) == "5x1") for k in ("static", "streaming")},
        "beside a table": Refused(cf.Spark(layout="5x1"), cf.OptionError, "layout= of a stream beside a table"),
    },
    "rates": {
        **{
            k: Honoured(cf.Spark(rates=(1, 1000)), lambda s: "left rows copied" in str(s.layout))
            for k in ("static", "streaming")
        },
        "beside a table": Refused(cf.Spark(rates=(1, 9)), cf.OptionError, "rates= of a stream beside a table"),
    },
    "sample": {
        **{
            k: Honoured(cf.Spark(layout="band:6", sample=SAMPLE), lambda s: "as sampled" in str(s.layout))
            for k in ("static", "streaming")
        },
        "beside a table": Refused(
            cf.Spark(layout="band:6", sample=SAMPLE), cf.OptionError, "sample= of a stream beside a table"
        ),
    },
    "late_rows": {
        "static": Refused(cf.Spark(late_rows="late"), cf.OptionError, "late_rows= is for streams"),
        "streaming": Elsewhere("engines/spark/test_spark_contract.py::test_late_rows_are_readable"),
        "beside a table": Refused(cf.Spark(late_rows="late"), cf.OptionError, "late_rows= of a stream beside a table"),
    },
    "threads": {
        **{
            k: Honoured(cf.Spark(threads=3), lambda s: (s.threads, s.layout.cells) == (3, 2))
            for k in ("static", "streaming")
        },
        "beside a table": Honoured(cf.Spark(threads=3), lambda s: s.threads == 3),
    },
    "null_times": {
        "static": Elsewhere("engines/spark/test_spark_streams.py::test_null_times_are_dropped_if_asked"),
        "streaming": Elsewhere("engines/spark/test_spark_streams.py::test_null_times_are_dropped_if_asked"),
        "beside a table": Elsewhere("engines/spark/test_spark_tables.py::test_null_times_are_dropped_if_asked"),
    },
    "refresh": {
        **{
            kind: Refused(cf.Spark(refresh="1 hour"), cf.OptionError, "refresh= says how often the table beside")
            for kind in ("static", "streaming")
        },
        "beside a table": Elsewhere("engines/spark/test_spark_tables.py::test_a_table_that_is_read_again"),
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", ["static", "streaming", "beside a table"])
@pytest.mark.parametrize("field", cf.Spark.__dataclass_fields__)
def test_on_spark(field, kind):
    entry = SPARK[field][kind]
    if isinstance(entry, Elsewhere):
        assert_exists(entry.test)
    elif isinstance(entry, Refused):
        with pytest.raises(entry.error, match=entry.message):
            planned(entry.engine, kind)
    else:
        assert not entry.seen(planned(cf.Spark(), kind)) and entry.seen(planned(entry.engine, kind))


@pytest.mark.parametrize(
    ("cpus", "asked", "threads", "cells"),
    [("1", None, 1, 6), ("2", None, 2, 3), ("4", None, 4, 1), ("4", 1, 1, 1), ("1", 2, 2, 3), ("8", 16, 16, 1)],
)
def test_a_cell_has_the_threads_that_its_task_has(cpus, asked, threads, cells):
    """Of six cores: as many cells as run at once, each in a task with its cores and threads."""
    frame = Frame("x", False)
    frame.sparkSession.conf["spark.task.cpus"] = cpus
    engine = cf.Spark(threads=asked)
    assert cell_threads(frame.sparkSession, engine) == threads
    _, layout = plan(Frames.of(frame, frame), {**BAND, "where": "l.x < r.x", "window": "3 seconds"}, engine)
    assert layout.cells == cells


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(layout="2x3", rates=(1, 2)), "rates=.* help layout='auto' and 'band' to choose"),
        (dict(layout="2x3", sample=SAMPLE), "layout='2x3' does not look at values: use 'band'"),
        (dict(layout="band", sample=SAMPLE[:1]), "give two tables or static DataFrames"),
        (dict(rates=(True, True)), "rows a second"),
        (dict(rates=(1, float("nan"))), "rows a second"),
        (dict(rates=(1, float("inf"))), "rows a second"),
        (dict(layout="1²x2"), "use 'auto'"),
        (dict(refresh="0.5 seconds"), "refresh='0.5 seconds': give a duration of a second or more"),
        (dict(refresh=600), "refresh=600: give a duration"),
        (dict(threads=0), "threads=0: give a whole number from 1 to 1024"),
        (dict(threads=True), "spark.task.cpus"),
        (dict(threads=1.0), "threads=1.0"),
        (dict(threads=1025), "threads=1025"),
        (dict(null_times="ignore"), "null_times='ignore': use 'error' or 'drop'"),
        (dict(layout="hash:" + "9" * 5000), "use 'auto'"),
    ],
)
def test_spark_options_that_could_do_nothing(options, message):
    with pytest.raises(cf.OptionError, match=message):
        cf.Spark(**options)


# --- the command line

JOIN = ["left.csv", "right.parquet", "--where=abs(l.x - r.a) <= 1", "--time=ts", "--window=5"]
NEEDED = {"rescale": ["checkpoint", "--partitions=2"], "join": JOIN, "explain": JOIN}
ONE_RUN = ["--algorithm=kang", "--case=5", "--schedule=starve:5"]
# Each option with another value than its default, and what it needs beside it.
CLI: dict[str, tuple[list[str], list[str]]] = {
    " --version": ([], ["--version"]),
    "demo --seconds": ([], ["--seconds=3"]),
    "demo --rate": ([], ["--rate=50"]),
    "demo --layout": ([], ["--layout=2x1"]),
    "demo --output": ([], ["--output=there"]),
    "demo --json": ([], ["--json"]),
    "join --where": ([], ["--where=l.x = r.a"]),
    "join --time": ([], ["--time=ts,a"]),
    "join --window": ([], ["--window=rows:2"]),
    "join --how": ([], ["--how=left"]),
    "join --suffix": ([], ["--suffix=_r"]),
    "join --ordered": ([], ["--ordered"]),
    "join --output": ([], ["--output=out.csv"]),
    "join --force": (["--output=out.csv"], ["--force"]),
    "join --engine": ([], ["--engine=spark"]),
    "join --layout": (["--engine=spark"], ["--layout=2x1"]),
    "explain --where": ([], ["--where=l.x = r.a"]),
    "explain --time": ([], ["--time=ts,a"]),
    "explain --window": ([], ["--window=rows:2"]),
    "explain --how": ([], ["--how=left"]),
    "explain --suffix": ([], ["--suffix=_r"]),
    "explain --ordered": ([], ["--ordered"]),
    "explain --json": ([], ["--json"]),
    "simulate --algorithm": ([], ["--algorithm=llhj"]),
    "simulate --schedules": ([], ["--schedules=7"]),
    "simulate --nodes": ([], ["--nodes=3"]),
    "simulate --seed": ([], ["--seed=7"]),
    "simulate --processes": ([], ["--processes=7"]),
    "simulate --exhaustive": ([], ["--exhaustive"]),
    "simulate --case": (ONE_RUN, ["--case=7"]),
    "simulate --schedule": (ONE_RUN, ["--schedule=delay:7"]),
    "simulate --list-checks": ([], ["--list-checks"]),
    "simulate --json": ([], ["--json"]),
    "plan --left-rate": ([], ["--left-rate=7"]),
    "plan --right-rate": ([], ["--right-rate=7"]),
    "plan --window": ([], ["--window=7 s"]),
    "plan --hit-rate": ([], ["--hit-rate=0.5"]),
    "plan --cores": (["--left-rate=1e9"], ["--cores=7"]),
    "plan --memory": ([], ["--memory=0.001"]),
    "plan --row-bytes": ([], ["--row-bytes=7"]),
    "plan --access": ([], ["--access=index"]),
    "plan --engine": ([], ["--engine=spark"]),
    "plan --calibrate": ([], ["--calibrate"]),
    "plan --verify": ([], ["--verify"]),
    "plan --smoke": ([], ["--smoke"]),
    "plan --json": ([], ["--json"]),
    **{f"bench {name} --{flag}": ([], [f"--{flag}"]) for flag in ("json", "smoke")
       for name in ("kernels", "spark", "local", "streams", "gate", "predicates", "layouts")},
    "bench local --algorithm": ([], ["--algorithm=llhj"]),
    "bench local --workers": ([], ["--workers=7"]),
    "bench local --batch-rows": ([], ["--batch-rows=7"]),
    "bench local --window-rows": ([], ["--window-rows=7"]),
    "bench local --predicate": ([], ["--predicate=equi"]),
    "bench local --access": ([], ["--access=scan"]),
    "bench local --share": ([], ["--share=0.7"]),
    "bench local --waiting": ([], ["--waiting=park"]),
    "rescale --partitions": ([], ["--partitions=4"]),
    "rescale --file-sink": ([], ["--file-sink=pairs"]),
    "rescale --json": ([], ["--json"]),
    "reproduce --output": ([], ["--output=there"]),
    "reproduce --list": ([], ["--list"]),
    "reproduce --json": ([], ["--json"]),
    "reproduce --smoke": ([], ["--smoke"]),
}  # fmt: skip


NO_SESSION = SimpleNamespace(stop=lambda: None)


def options_of_commands() -> list[str]:
    found = []

    def walk(command, path: tuple[str, ...]) -> None:
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, (*path, name))
        found.extend(f"{' '.join(path)} {p.opts[0]}" for p in command.params if p.param_type_name == "option")

    walk(typer.main.get_command(app), ())
    return found


@pytest.fixture
def calls(monkeypatch) -> list[Any]:
    """What commands call, instead of what takes long."""
    from counterflow.cli import demo, reproduce
    from counterflow.cli import output_files as files
    from counterflow.engines.spark import session
    from counterflow.lab.bench import gate, kernels, layouts, plan_calibration, plan_verification, predicates
    from counterflow.lab.bench import local_algorithms as local
    from counterflow.lab.bench import local_configuration as chosen
    from counterflow.lab.bench import public_streams as streamed
    from counterflow.lab.bench import spark_joins as spark
    from counterflow.lab.simulator import campaign, simulation
    from counterflow.plan import calibration
    from counterflow.plan.calibration import Calibration, Point

    found: list[Any] = []

    def stand_in(name: str, answer: Any) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            found.append((name, [a for a in args if not callable(a)], options))
            return answer

        return called

    report = {"machine": {"cpu": "", "cores": 2, "memory_bytes": 1}, "versions": {}, "results": [], "remarks": [],
              "ratios": {}}  # fmt: skip
    for module, name in [
        (chosen, "bench_chosen"), (kernels, "bench_kernels"), (local, "bench_local"), (spark, "bench_spark"),
        (streamed, "bench_streams"), (gate, "bench_gate"), (predicates, "bench_predicates"),
        (layouts, "bench_layouts"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, stand_in(name, report))
    points = Point(1000, 1e9, 2e9), Point(100_000, 1e9, 2e9)
    for module, name in [(calibration, "kept_calibration"), (plan_calibration, "calibrate")]:
        monkeypatch.setattr(module, name, stand_in(name, Calibration("", 2, points, points, 1e-7)))
    monkeypatch.setattr(calibration, "keep_calibration", stand_in("keep_calibration", None))
    monkeypatch.setattr(plan_verification, "verify", stand_in("verify", []))
    many = {"schedules": 1, "cases": 1, "moves": 1, "seconds": 1.0, "algorithms": {}, "failures": []}
    monkeypatch.setattr(campaign, "run_many", stand_in("run_many", many))
    monkeypatch.setattr(campaign, "explore_all", stand_in("explore_all", []))
    outcome = SimpleNamespace(choices=1, pairs=1, detail="", ok=True)
    one = SimpleNamespace(case=SimpleNamespace(), run=stand_in("run", outcome))
    monkeypatch.setattr(simulation, "Simulation", stand_in("Simulation", one))
    monkeypatch.setattr(demo, "Demo", stand_in("Demo", SimpleNamespace(run=lambda: {"verified": True})))
    monkeypatch.setattr(reproduce, "reproduce", stand_in("reproduce", True))
    monkeypatch.setattr(files, "join_on_spark", stand_in("join_on_spark", pa.table({"x": [1]})))
    monkeypatch.setattr(files, "write_table", stand_in("write_table", None))
    rescaled = dict(cells=4, layout="2x2", partitions_before=2, partitions=4, batch_id=7)
    monkeypatch.setattr(cf, "rescale", stand_in("rescale", rescaled))
    monkeypatch.setattr(session, "local_session", lambda *_, **__: NO_SESSION)
    for name in ("window_join", "explain"):
        monkeypatch.setattr(cf, name, noted(getattr(cf, name), found))
    return found


def noted(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    def called(*args: Any, engine: Any = None, **options: Any) -> Any:
        calls.append((function.__name__, options))
        return function(*args, engine=engine, **options)

    return called


@pytest.mark.parametrize("option", options_of_commands())
def test_command_line(inputs, calls, option):
    """With the option, something else is called, or something else is printed."""
    command = option.rpartition(" ")[0]
    beside, given = CLI[option]
    seen = []
    for more in ([], given):
        calls.clear()
        done = call(*command.split(), *NEEDED.get(command, []), *beside, *more)
        if command or more:  # without either there is help
            check(done)
            assert done.code == 0, done.err
        seen.append((repr(calls), done.out))
    assert seen[0] != seen[1]


@pytest.mark.parametrize(
    ("command", "given"),
    [
        ("join", ["--layout=2x1"]),
        ("join", ["--force"]),
        ("simulate", ["--exhaustive", "--list-checks"]),
        ("simulate", ["--exhaustive", "--schedules=7"]),
        ("simulate", ["--exhaustive", "--nodes=7"]),
        ("simulate", ["--exhaustive", "--seed=7"]),
        ("simulate", ["--exhaustive", "--processes=7"]),
        ("simulate", ["--list-checks", "--algorithm=kang"]),
        ("simulate", [*ONE_RUN, "--exhaustive"]),
        ("simulate", [*ONE_RUN, "--schedules=7"]),
        ("simulate", [*ONE_RUN, "--seed=7"]),
        ("simulate", [*ONE_RUN, "--processes=7"]),
        ("simulate", ["--case=5", "--schedule=starve:5"]),
        ("bench local", ["--algorithm=handshake", "--share=0.7"]),
        ("bench local", ["--algorithm=kang", "--workers=7"]),
        ("bench local", ["--waiting=park", "--share=0.7"]),
        ("reproduce", ["--list", "--smoke"]),
        ("reproduce", ["--list", "--output=there"]),
        ("reproduce", ["--list", "llhj-17"]),
    ],
)
def test_command_line_options_without_effect(inputs, calls, command, given):
    done = call(*command.split(), *NEEDED.get(command, []), *given)
    check(done)
    assert done.code == 2 and "OptionError" in done.err and not calls


def assert_exists(test: str) -> None:
    file, _, name = test.partition("::")
    tree = ast.parse((TESTS / file).read_text())
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)], test
