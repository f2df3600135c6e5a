"""The architecture, checked: imports go down only, pyspark stays in its folder, importing starts nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from places import PACKAGE, ROOT

# From the bottom up; a module may import from its own layer (its own engine) and from those below.
LAYERS = [
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
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert body_lines(node) <= BODY_LINES_MAX, f"{path}: {node.name}"


def test_the_limits_are_those_of_the_documents():
    said = f"has at most {FILE_LINES_MAX} lines, a function at most {BODY_LINES_MAX} below its signature and docstring"
    assert said in (ROOT / "CONTRIBUTING.md").read_text()
