"""The key of compiled code: it covers every module that the code may depend on, wherever the package's text is."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import pytest

import counterflow
from counterflow import code_sources as sources
from counterflow.code_cache import CodeCache

PACKAGE = Path(counterflow.__file__).parent
NAMES = {
    ".".join((PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
COMPILING = [  # modules with compiled functions
    name
    for name, path in NAMES.items()
    if {("counterflow.jit", "compiled"), ("counterflow.jit", "inlined")} & sources.imports_in(path.read_text())
]


def really_imported(path: Path) -> set[str]:
    """Return the modules of this package that a file imports, by its syntax tree; not those for type checkers."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{path} has a relative import"
            found.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found & NAMES.keys()


@pytest.fixture
def forgetful():
    """What is known of texts is forgotten, as in a new process."""

    def forget():
        sources._text.cache_clear()
        sources.digest.cache_clear()

    forget()
    yield forget
    forget()


def test_imports_are_those_of_the_syntax_tree():
    for name, path in NAMES.items():
        direct = {module for module, _ in sources.imports_in(path.read_text())}
        assert really_imported(path) <= sources.closure({name}).keys(), name
        assert direct <= NAMES.keys(), name


def test_the_closure_is_that_of_the_syntax_trees():
    for name in COMPILING:
        expected, ahead = set(), {name}
        while ahead:
            module = ahead.pop()
            expected.add(module)
            ahead |= really_imported(NAMES[module]) - expected
        assert sources.closure({name}).keys() >= expected, name


def test_the_closure_is_what_an_interpreter_imports():
    """Each module is imported by itself, without what the packages around it import for their users."""
    program = f"""
import importlib.util, json, sys
found = {{}}
for name in {COMPILING}:
    for module in [module for module in sys.modules if module.startswith("counterflow")]:
        del sys.modules[module]
    around = name.split(".")[:-1]
    for package in (".".join(around[:k]) for k in range(1, len(around) + 1)):
        sys.modules[package] = importlib.util.module_from_spec(importlib.util.find_spec(package))  # not executed
    importlib.import_module(name)
    found[name] = [module for module in sys.modules if module.startswith("counterflow.")]
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, imported in json.loads(done.stdout).items():
        assert "counterflow.jit" in imported
        packages = {module for module in imported if NAMES[module].stem == "__init__"}
        assert set(imported) - packages <= sources.closure({name}).keys(), name


def seen(code: CodeType) -> set[str]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(seen, inner))


def test_the_closure_has_all_that_compiled_functions_see():
    functions = 0
    for name in COMPILING:
        module, known = import_module(name), sources.closure({name}).keys()
        imported = {
            alias.asname or alias.name: node.module
            for node in ast.walk(ast.parse(NAMES[name].read_text()))
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for function in vars(module).values():
            if not isinstance(getattr(function, "_cache", None), CodeCache) or function.__module__ != name:
                continue
            functions += 1
            for word in seen(function.py_func.__code__) & vars(module).keys():
                value = vars(module)[word]
                origin = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
                for source in {origin, imported.get(word)}:
                    assert not str(source).startswith("counterflow") or source in known, (name, function, word)
    assert functions > 100


@pytest.mark.parametrize("name", ["protocols.node", "protocols.low_latency", "lab.replay.replay"])
def test_a_change_of_any_of_these_modules_changes_the_key(monkeypatch, forgetful, name):
    name = f"counterflow.{name}"
    read, before = sources.text_of, sources.digest(frozenset({name}))
    modules = sources.closure({name}).keys()
    assert {
        "counterflow.windows.compiled.intrinsics",
        "counterflow.windows.compiled.block",
        "counterflow.jit",
    } <= modules
    keys = {before}
    for changed in modules:
        forgetful()
        file = f"{changed}.__init__" if sources._text(changed).is_package else changed

        def text_of(module, file=file):
            text = read(module)
            return None if text is None else text + "\nCONSTANT = 1\n" * (module == file)

        with monkeypatch.context() as patch:
            patch.setattr(sources, "text_of", text_of)
            forgetful()
            keys.add(sources.digest(frozenset({name})))
    assert len(keys) == len(modules) + 1
    forgetful()
    assert sources.digest(frozenset({name})) == before


def test_a_change_of_any_other_module_does_not(monkeypatch, forgetful):
    name = "counterflow.protocols.low_latency"
    read, before, inside = sources.text_of, sources.digest(frozenset({name})), sources.closure({name}).keys()
    outside = NAMES.keys() - inside
    assert {"counterflow.protocols.machine", "counterflow.windows.store", "counterflow.predicate.binding"} <= outside
    forgetful()
    monkeypatch.setattr(sources, "text_of", lambda module: "X = 1" if module in outside else read(module))
    assert sources.digest(frozenset({name})) == before


def test_type_checkers_imports_are_left_out():
    text = """
if TYPE_CHECKING:
    from counterflow.a import B

    from counterflow.c import D
from counterflow.e import F
"""
    assert sources.imports_in(text) == {("counterflow.e", ""), ("counterflow.e", "F")}


def test_forms_of_import_statements():
    text = """
from counterflow.a import (
    b,  # a comment, (with, all, kinds of) things
    c as d,
)
def f():
    from counterflow.e import g, h as i
import counterflow.j as k
from counterflow.l import m  # m, n
from elsewhere import o
"""
    names = {("a", ""), ("a", "b"), ("a", "c"), ("e", ""), ("e", "g"), ("e", "h"), ("j", ""), ("l", ""), ("l", "m")}
    assert sources.imports_in(text) == {(f"counterflow.{module}", name) for module, name in names}


def test_a_module_of_text():
    text = "def double(x):\n    raise ValueError(x)\n"
    module = sources.module_from_text("counterflow_test_text", text, given=3)
    assert module.given == 3 and isinstance(module.double, FunctionType)
    assert sources.text_of("counterflow_test_text") == text
    with pytest.raises(ValueError) as raised:
        module.double(1)
    assert "raise ValueError(x)" in str(raised.traceback[-1].statement)
    with pytest.raises(ZeroDivisionError):
        sources.module_from_text("counterflow_test_failing", "1 / 0")
    assert "counterflow_test_failing" not in sys.modules


def test_the_package_in_a_zip(tmp_path):
    """A predicate and a function of the package are compiled, and the next process finds them."""
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in PACKAGE.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                file.write(path, path.relative_to(PACKAGE.parent))
    program = """
import numpy as np, pyarrow as pa, counterflow as cf
from counterflow.lab.bench import scan_limit as limit
from counterflow.protocols.threads import stop
assert cf.__file__.startswith("ARCHIVE") and limit.SOURCE.read_text()
stop(np.zeros(64, np.int64))
t = pa.table({"t": np.arange(3000), "x": np.arange(3000) % 1000})
print(len(cf.window_join(t, t, where="l.x = r.x", time="t", window=1000)))
""".replace("ARCHIVE", str(archive))
    cache = tmp_path / "cache"
    environment = {
        **os.environ, "PYTHONPATH": str(archive), "COUNTERFLOW_CACHE_DIR": str(cache), "COUNTERFLOW_COMPILE": "always",
    }  # fmt: skip

    def run():
        done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout.split(), {path: path.stat().st_mtime_ns for path in cache.rglob("*.nbc")}

    found, files = run()
    assert found == ["7000"]
    assert any(path.name.startswith("threads.stop-") for path in files)
    assert any(path.name.startswith("counterflow_") for path in files)
    assert run() == (found, files)
