"""Everything public has an example in its docstring, and every example runs as it stands."""

from __future__ import annotations

import doctest
import inspect
from typing import Any

import pytest

import counterflow as cf
from counterflow.explanation import Explanation
from counterflow.predicate.python_expressions import Expr

# Classes whose methods users call; of the engines (Local, Simulated, Spark) they only set the options.
WITH_METHODS: list[type] = [cf.JoinedStream, cf.PushedStream, Explanation, Expr]
EXCUSED = {
    "query_metrics": "needs a running Spark query: its example is there to be read, and tests/engines/spark run it",
    "rescale": "needs the checkpoint of a stopped Spark query: its example is there to be read, and tests run it",
    "MissingDependencyError": "is raised where an optional package is missing, and here there is all",
    "JoinedStream.waits_for": "is asked by a join that has this one as a side",
    "PushedStream.attach": "is called by the join that the stream is a side of",
}
FLAGS = doctest.ELLIPSIS


def documented() -> dict[str, Any]:
    """Every public name, as users write it after `cf.`, and the object that has its docstring."""
    found: dict[str, Any] = {"": cf}
    for name in cf.__all__:
        value = getattr(cf, name)
        found[name] = value if inspect.isclass(value) or inspect.isroutine(value) else type(value)
    for owner in WITH_METHODS:
        found[owner.__name__] = owner
        for name, member in vars(owner).items():
            if not name.startswith("_") and (inspect.isroutine(member) or isinstance(member, property)):
                found[f"{owner.__name__}.{name}"] = member
    return found


PUBLIC = documented()


def example_of(name: str) -> doctest.DocTest:
    text = inspect.getdoc(PUBLIC[name]) or ""
    return doctest.DocTestParser().get_doctest(text, {}, f"cf.{name}", None, 0)


def shown(name: str) -> bool:
    """Whether something runs that shows the name: for a function or a method, a call of it."""
    test, value = example_of(name), PUBLIC[name]
    running = [e.source for e in test.examples if not e.options.get(doctest.SKIP) and not e.source.startswith("import")]
    called = name.rpartition(".")[2] if inspect.isroutine(value) or isinstance(value, property) else ""
    return any(called in source for source in running)


@pytest.fixture
def no_compiler(monkeypatch):
    def compile_nothing(*_: object) -> None:
        raise AssertionError("an example compiles something, which takes seconds")

    monkeypatch.setattr("numba.core.dispatcher.Dispatcher.compile", compile_nothing)


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_examples(name, no_compiler):
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=FLAGS).run(example_of(name), out=report.append)
    assert not failed, "".join(report)


def test_everything_public_has_an_example():
    assert {name for name in PUBLIC if not shown(name)} == set(EXCUSED)
