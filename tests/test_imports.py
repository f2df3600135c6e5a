"""The architecture, checked: imports go down only, pyspark stays in its folder, importing starts nothing."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from counterflow.plan.calibration import PUBLISHED, keep_calibration
from counterflow.plan.computer import this_computer
from places import PACKAGE, ROOT

LABORATORY = "counterflow.lab"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

# From the bottom up; a module may import from its own layer (its own engine) and from those below.
LAYERS = [
    "version",
    "errors",
    "suggest",
    "cores",
    "folders",
    "code_sources",
    "code_cache",
    "jit",
    "predicate",
    "spec",
    "reference",
    "lockfree",
    "windows",
    "protocols",
    "plan",
    "explanation",
    "engines",
    "api",
    "lab",
    "cli",
]


def modules():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path, path.relative_to(PACKAGE).with_suffix("").parts


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_imports_go_down_only():
    for path, parts in modules():
        if parts[0] == "__init__":
            continue
        own = LAYERS.index(parts[0])
        for name in imports_of(path):
            target = name.split(".")
            if target[0] == "counterflow" and len(target) > 1 and target[1] in LAYERS:
                assert LAYERS.index(target[1]) <= own, f"{path} imports {name}, which is above it"


def test_reference_depends_on_nothing_but_the_spec():
    for path, parts in modules():
        if parts[0] == "reference":
            used = {name.split(".")[1] for name in imports_of(path) if name.startswith("counterflow.")}
            assert used <= {"errors", "predicate", "spec", "reference"}, path


def test_engines_do_not_import_each_other():
    """But for the simulator, which simulates the local engine."""
    for path, parts in modules():
        if parts[0] == "engines" and len(parts) > 2:
            allowed = {parts[1], "local"} if parts[1] == "simulated" else {parts[1]}
            for name in imports_of(path):
                if name.startswith("counterflow.engines."):
                    assert name.split(".")[2] in allowed, f"{path} imports {name}"


def test_only_the_spark_engine_imports_pyspark():
    for path, parts in modules():
        if parts[:2] != ("engines", "spark"):
            assert not any(name.split(".")[0] in ("pyspark", "py4j") for name in imports_of(path)), path


def test_the_folders_of_the_spark_engine_import_downwards():
    """A cell knows nothing of Spark, and its state nothing of the query."""
    below = {"cell": {"cell"}, "session": {"session", "options"}, "state": {"state", "cell"}}
    for path, parts in modules():
        if parts[:2] == ("engines", "spark") and parts[2] in below:
            names = [name.split(".") for name in imports_of(path)]
            used = {name[3] for name in names if name[:3] == ["counterflow", "engines", "spark"] and len(name) > 3}
            assert used <= below[parts[2]], path
            assert parts[2] != "cell" or not any(name[0] == "pyspark" for name in names), path


def imports_laboratory(tree: ast.AST) -> bool:
    """Say whether code imports the laboratory, or names it in a string, as importlib would be given it."""
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        if any(name == LABORATORY or name.startswith(f"{LABORATORY}.") for name in names):
            return True
    return False


def test_the_product_does_not_import_the_laboratory():
    for path, parts in modules():
        if parts[0] not in ("lab", "cli"):
            assert not imports_laboratory(ast.parse(path.read_text())), path


def test_commands_import_the_laboratory_when_they_are_called():
    for path, parts in modules():
        if parts[0] == "cli" and parts != ("cli", "laboratory"):
            outside_functions = [node for node in ast.parse(path.read_text()).body if not isinstance(node, FUNCTIONS)]
            assert not any(imports_laboratory(node) for node in outside_functions), path


@pytest.fixture(scope="module")
def product(tmp_path_factory) -> Path:
    """A folder with the package, but without its laboratory, and two files to join."""
    folder = tmp_path_factory.mktemp("product")
    shutil.copytree(PACKAGE, folder / "counterflow", ignore=shutil.ignore_patterns("__pycache__", "lab"))
    (folder / "left.csv").write_text("t,x\n1,10\n2,20\n")
    (folder / "right.csv").write_text("t,a\n1,11\n3,40\n")
    return folder


def run_product(product: Path, code: str, *args: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(product)}
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, cwd=product, env=environment, capture_output=True, text=True, timeout=550)


def command_line(product: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return run_product(product, "from counterflow.cli import main; main()", *args)


def test_joins_without_the_laboratory(product):
    code = """
import sys
import counterflow as cf
import pyarrow as pa
left, right = pa.table({"t": [1, 2], "x": [10, 20]}), pa.table({"t": [1, 3], "a": [11, 40]})
for engine in (cf.Local(algorithm="auto"), cf.Local(algorithm="llhj"), cf.Simulated()):
    pairs = cf.window_join(left, right, where="abs(l.x - r.a) <= 1", time="t", window=5, engine=engine)
    assert pairs.select(["x", "a"]).to_pylist() == [{"x": 10, "a": 11}], (engine, pairs)
print(cf.__file__)
"""
    done = run_product(product, code)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent == product / "counterflow"


def test_commands_without_the_laboratory(product):
    assert "Usage" in command_line(product, "--help").stdout
    joined = command_line(
        product, "join", "left.csv", "right.csv", "--where", "abs(l.x - r.a) <= 1", "--time", "t", "--window", "5"
    )
    assert joined.returncode == 0 and joined.stdout.splitlines()[1:] == ["1,10,1,11,1"], joined


@pytest.mark.parametrize("command", ["bench kernels", "simulate", "reproduce --list", "plan --calibrate"])
def test_commands_that_need_the_laboratory_say_so(product, command):
    done = command_line(product, *command.split())
    assert done.returncode == 2 and not done.stdout, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "laboratory" in done.stderr and "not installed" in done.stderr and "pip install" in done.stderr


def test_plans_without_the_laboratory(product, tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERFLOW_CACHE_DIR", str(tmp_path))
    unmeasured = command_line(product, "plan", "--json")
    assert unmeasured.returncode == 0 and "was not measured" in unmeasured.stderr, unmeasured
    assert json.loads(unmeasured.stdout)["plan"]["workers"] >= 1
    here = this_computer()
    keep_calibration(replace(PUBLISHED, machine=here.cpu, cores=here.cores, date="today"))
    measured = command_line(product, "plan", "--json")
    assert json.loads(measured.stdout)["calibrated"] == "today" and "was not measured" not in measured.stderr


def test_no_py4j_internals():
    for path, _ in modules():
        assert "._jvm" not in path.read_text() and "_jdf" not in path.read_text(), path


def test_importing_starts_nothing():
    code = "import sys, counterflow; print([m for m in ('pyspark', 'numba', 'pandas', 'duckdb') if m in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


FILE_LINES_MAX, BODY_LINES_MAX = 500, 70


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function below its signature and docstring."""
    statements = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - statements[0].lineno + 1 if statements else 0


def test_files_and_functions_stay_short():
    for path, _ in modules():
        text = path.read_text()
        assert len(text.splitlines()) <= FILE_LINES_MAX, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, FUNCTIONS):
                assert body_lines(node) <= BODY_LINES_MAX, f"{path}: {node.name}"


def test_the_limits_are_those_of_the_documents():
    said = f"has at most {FILE_LINES_MAX} lines, a function at most {BODY_LINES_MAX} below its signature and docstring"
    assert said in (ROOT / "CONTRIBUTING.md").read_text()
