"""What the command line makes of hostile arguments and files: one line, nothing that a terminal obeys, no half file."""

from __future__ import annotations

import functools
import os
import signal
import stat
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import Screen, call, check, write_inputs
from counterflow.cli import output_files as files
from counterflow.cli.main import app
from counterflow.cli.terminal import plain
from effort import examples

WHERE = "abs(l.x - r.a) <= 1"
ESCAPES = "\x1b[31mred\x1b[0m\x07\x9b2J\u202e"
DIGITS = "9" * 5000
HOSTILE = [
    "", " ", "²", "٣", "1e", "+-5", "-", "--", ",", "a,b,c", "nan", "inf", "-inf", "1e999", "-1e-999", "0x10", "1_000",
    "0", "-1", "rows:", "rows:²", "rows:0", "rows:1" + "0" * 23, f"rows:{DIGITS}", DIGITS, "-" + DIGITS, f"{DIGITS} s",
    f"1.{DIGITS} s", "² s", "1 s 1e", "1²x2", f"{DIGITS}x1", "home:²", f"hash:{DIGITS}", "starve:²", f"starve:{DIGITS}",
    "starve:", ESCAPES, f"{ESCAPES}.csv", "\n", "a\nb", "\udcff.csv", "[red]", "[/]", "{}", "%s", "'", '"', "`", "\\",
    "(" * 3000, "l.x = 1e", f"l.x = {DIGITS}", f"l.x < {ESCAPES}", f"CAST(l.x AS DECIMAL({DIGITS})) = 1",
    "x" * 300 + ".csv", "nowhere/x.csv", "/", ".", ".csv", "~", ":", "x" * 5000,
]  # fmt: skip


@pytest.fixture(autouse=True)
def one_command_line(monkeypatch):
    """Typer builds all commands anew for each call, which takes longer than most calls."""
    monkeypatch.setattr(typer.main, "get_command", COMMANDS)


COMMANDS = functools.cache(typer.main.get_command)


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_inputs()


# --- every option that takes a value

BASE = {
    "join": ("left.csv", "right.parquet", "--where", WHERE, "--time", "ts", "--window", "5"),
    "explain": ("left.csv", "right.parquet", "--where", WHERE, "--time", "ts", "--window", "5"),
    "rescale": ("checkpoint", "--partitions", "2"),
}
BESIDE = {  # what an option is for
    ("join", "--layout"): ("--engine", "spark"),
    ("simulate", "--case"): ("--algorithm", "kang", "--schedule", "starve:5"),
    ("simulate", "--schedule"): ("--algorithm", "kang", "--case", "5"),
}


def values_of_commands() -> list[tuple[tuple[str, ...], str]]:
    """Each command with each of its arguments and of its options that take a value."""
    found = []

    def walk(command, path: tuple[str, ...]) -> None:
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, (*path, name))
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                found.append((path, parameter.name))
            elif not parameter.is_flag:
                found.append((path, parameter.opts[0]))

    walk(COMMANDS(app), ())
    return found


def arguments(path: tuple[str, ...], option: str, text: str) -> list[str]:
    base = list(BASE.get(path[-1], ()))
    if not option.startswith("-"):
        at = {"left": 0, "right": 1, "checkpoint": 0}.get(option)
        if at is None:
            return [*path, "--", text]
        base[at] = text if not text.startswith("-") else f"./{text}"
        return [*path, *base]
    if option in base:  # the last one of two would count, too
        at = base.index(option)
        del base[at : at + 2]
    return [*path, *base, *BESIDE.get((path[-1], option), ()), f"{option}={text}"]


@pytest.fixture
def no_work(monkeypatch):
    """What parsed options lead to: it is tested elsewhere, and takes long."""
    from counterflow.engines.spark import session
    from counterflow.lab.bench import kernels, layouts, plan_calibration
    from counterflow.lab.bench import local_algorithms as local
    from counterflow.lab.bench import local_configuration as chosen
    from counterflow.lab.bench import public_streams as streamed
    from counterflow.lab.bench import spark_joins as spark
    from counterflow.lab.reproduce import all_figures as registry
    from counterflow.lab.reproduce import figures_page as page
    from counterflow.lab.simulator import campaign, simulation
    from counterflow.plan import calibration
    from counterflow.plan.calibration import Calibration, Point

    def done(*_, **__):
        raise typer.Exit(0)

    for module, name in [
        (chosen, "bench_chosen"), (kernels, "bench_kernels"), (local, "bench_local"), (spark, "bench_spark"),
        (streamed, "bench_streams"), (campaign, "run_many"), (campaign, "explore_all"), (simulation, "Simulation"),
        (session, "local_session"), (page, "write_page"), (layouts, "bench_layouts"),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, done)
    monkeypatch.setattr(registry, "FIGURES", {})
    points = Point(1000, 1e9, 2e9), Point(100_000, 1e9, 2e9)
    for module, name in [(calibration, "kept_calibration"), (plan_calibration, "calibrate")]:
        monkeypatch.setattr(module, name, lambda *_: Calibration("here", 2, points, points, 1e-7))
    monkeypatch.setattr(calibration, "keep_calibration", lambda *_: None)


@pytest.mark.parametrize(("path", "option"), values_of_commands(), ids=lambda given: str(given))
def test_hostile_values(inputs, no_work, path, option):
    for text in HOSTILE:
        check(call(*arguments(path, option, text)))


@pytest.mark.parametrize("option", ["--window", "--where", "--time", "--layout", "--how", "--suffix"])
def test_generated_values(inputs, no_work, option):
    words = st.sampled_from(["rows:", "x", "e", "-", "+", ".", ",", " ", "²", "٣", "s", "hash:", "l.", "\x1b[2J"])
    text = st.lists(words | st.text(max_size=3) | st.integers().map(str), max_size=6).map("".join)

    @settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(text.filter(lambda drawn: "\0" not in drawn))
    def holds(drawn: str) -> None:
        check(call(*arguments(("join",), option, drawn)))

    holds()


def test_windows_that_ended_in_tracebacks(inputs):
    for window in ("²", "rows:²", "rows:1" + "0" * 23, "1e", DIGITS):
        done = call("join", *inputs, "--where", WHERE, "--time", "ts", "--window", window)
        check(done)
        assert done.code == 2 and "Error: " in done.err


def test_unknown_commands_and_options(inputs):
    for args in ([ESCAPES], ["join", f"--{ESCAPES}"], ["join", f"--{ESCAPES}=1"], ["bench", ESCAPES], ["join"]):
        done = call(*args)
        check(done)
        assert done.code == 2


# --- files


@pytest.mark.parametrize("explains", [False, True])
def test_escapes_in_headers_values_and_file_names(inputs, explains):
    name = f"{ESCAPES}.csv"
    with open(name, "w") as file:
        file.write(f'ts,x,"{ESCAPES}"\n0,1,a\n1,2,b\n')
    command = "explain" if explains else "join"
    for where in (WHERE, "l.nope = 1", f"l.`{ESCAPES}` = 1", f"l.`{ESCAPES}` LIKE '\\\\a'"):
        done = call(command, name, inputs[1], "--where", where, "--time", "ts", "--window", "5")
        check(done)
        assert not explains or plain(done.out, keep="\n") == done.out
    check(call("join", name, inputs[1], "--where", WHERE, "--time", "ts", "-o", f"{ESCAPES} out.csv"))
    assert os.path.exists(f"{ESCAPES} out.csv")
    broken = {"values": f"ts,x\n0,{ESCAPES}\n", "columns": f"ts,x\n0,1,{ESCAPES}\n", "empty": ""}
    for kind, text in broken.items():
        with open(f"{kind}{name}", "w") as file:
            file.write(text)
        done = call(command, f"{kind}{name}", inputs[1], "--where", WHERE, "--time", "ts", "--window", "5")
        check(done)
        assert done.code == 2


def test_a_header_that_is_not_utf8(inputs):
    with open("latin.csv", "wb") as file:
        file.write("ts,größe\n0,1\n".encode("latin-1"))
    for command in ("join", "explain"):
        done = call(command, "latin.csv", inputs[1], "--where", WHERE, "--time", "ts")
        check(done)
        assert done.code == 2 and "cannot read the left input latin.csv" in done.err


def test_a_terminal_gets_no_control_characters(inputs, monkeypatch):
    """To a program the result goes byte for byte."""
    pq.write_table(pa.table({"ts": [1], "a": [2], "s": [ESCAPES]}), "right.parquet")
    options = ("--where", WHERE, "--time", "ts", "--window", "5")
    assert ESCAPES in call("join", *inputs, *options).out
    monkeypatch.setattr(Screen, "terminal", True)
    shown = call("join", *inputs, *options).out
    assert plain(shown, keep="\n") == shown and plain(ESCAPES) in shown


# --- the output


def join_to(inputs, output, *more: str) -> SimpleNamespace:
    return call("join", *inputs, "--where", WHERE, "--time", "ts", "--window", "5", "-o", str(output), *more)


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_an_input_is_never_overwritten(inputs, tmp_path, force):
    before = [(tmp_path / name).read_bytes() for name in inputs]
    os.symlink("left.csv", "soft.csv")
    os.link("left.csv", "hard.csv")
    for output in (*inputs, "./left.csv", tmp_path / "left.csv", "soft.csv", "hard.csv"):
        done = join_to(inputs, output, *force)
        check(done)
        assert done.code == 2 and "is the input" in done.err
    assert [(tmp_path / name).read_bytes() for name in inputs] == before


@pytest.mark.parametrize("output", ["out.csv", "out.parquet"])
def test_an_output_is_overwritten_only_by_force(inputs, tmp_path, output):
    target = tmp_path / output
    target.write_text("precious")
    target.chmod(0o640)
    done = join_to(inputs, output)
    check(done)
    assert done.code == 2 and "--force" in done.err and target.read_text() == "precious"
    assert join_to(inputs, output, "--force").code == 0
    assert target.read_bytes() != b"precious" and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert join_to(inputs, "-", "--force").code == 2
    assert sorted(os.listdir()) == sorted([*inputs, output])


def test_what_cannot_be_an_output(inputs, tmp_path):
    os.mkdir("folder.csv")
    os.mkfifo("pipe.csv")
    os.symlink("loop.csv", "loop.csv")
    for output in ("folder.csv", "pipe.csv", "loop.csv", "x" * 300 + ".csv"):
        for force in ((), ("--force",)):
            done = join_to(inputs, output, *force)
            check(done)
            assert done.code == 2


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError("no space left"), pa.ArrowInvalid("nested")])
@pytest.mark.parametrize("before", [None, b"precious"])
def test_a_failed_write_leaves_no_half_file(inputs, tmp_path, monkeypatch, failure, before):
    """Interrupted in the middle: there is what was there before, and nothing else."""
    if before is not None:
        (tmp_path / "out.csv").write_bytes(before)

    def half(table, target):
        target.write_text("ts,x")
        raise failure

    monkeypatch.setattr(files.pa.csv, "write_csv", half)
    done = join_to(inputs, "out.csv", "--force")
    assert done.code == (130 if failure is KeyboardInterrupt else 2)
    left = sorted(set(os.listdir()) - set(inputs))
    assert left == ([] if before is None else ["out.csv"])
    assert before is None or (tmp_path / "out.csv").read_bytes() == before


def test_an_output_that_appears_while_joining_is_not_overwritten(inputs, tmp_path):
    (tmp_path / "out.csv").write_text("precious")
    with pytest.raises(files.OptionError, match="exists"):
        files.write_table(pa.table({"a": [1]}), "out.csv")
    assert (tmp_path / "out.csv").read_text() == "precious" and sorted(os.listdir()) == sorted([*inputs, "out.csv"])


# --- Ctrl-C

ENDLESS = """
import counterflow.windows.text_columns as columns
java_regex = columns.java_regex

def announced(pattern):
    print("matching", flush=True)
    return java_regex(pattern)

columns.java_regex = announced
from counterflow.cli import main
main()
"""


@pytest.mark.parametrize("rows", [1, 60_000])  # in the main thread, and in others
def test_a_regular_expression_that_never_ends_can_be_stopped(inputs, monkeypatch, rows):
    """Python's engine holds the interpreter while it matches: in another thread, only the system can end it."""
    csv.write_csv(pa.table({"ts": range(rows), "s": ["a" * 60 + "!"] * rows}), "left.csv")
    monkeypatch.setenv("COUNTERFLOW_COMPILE", "never")  # which would take seconds, for nothing
    where = "concat(l.s, CAST(r.a AS STRING)) RLIKE '(a+)+$'"
    args = [*inputs, "--where", where, "--time", "ts", "--window", "5", "-o", "out.csv"]
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + ENDLESS  # tests may ignore it
    join = subprocess.Popen([sys.executable, "-c", code, "join", *args], stdout=subprocess.PIPE)
    try:
        assert join.stdout is not None and join.stdout.readline().startswith(b"matching")
        join.send_signal(signal.SIGINT)
        assert join.wait(timeout=300) == -signal.SIGINT  # a shell says 130
    finally:
        join.kill()
        join.wait()
    assert sorted(os.listdir()) == sorted(inputs)


def test_ctrl_c_stays_ignored_where_it_is(inputs):
    """A join that nohup has started, or a shell in the background."""
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + ENDLESS.replace(
        'print("matching", flush=True)', "signal.raise_signal(signal.SIGINT)"
    )
    args = [*inputs, "--where", "CAST(l.x AS STRING) RLIKE '1' AND r.a > 0", "--time", "ts", "--window", "5"]
    done = subprocess.run([sys.executable, "-c", code, "join", *args], capture_output=True, text=True)
    assert done.returncode == 0 and "1 rows to stdout" in done.stderr, done.stderr
    assert "matching" not in done.stdout  # the signal was raised instead
