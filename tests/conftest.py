"""What `--thorough` and the markers mean, in which order files run, and one Spark session for all tests.

The session is started by the first test that asks for it.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import effort
from counterflow.engines.spark.session import local_session

# Half of a short-lived JVM's time goes into compiling what it runs a few times: one light compiler is enough for tests.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="try everything: more examples, layouts, kills, schedules")


def pytest_configure(config: pytest.Config) -> None:
    effort.THOROUGH = config.getoption("thorough")


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by what is marked here
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"spark", "connect_port"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("spark")
        if is_left_out(item):
            item.add_marker(pytest.mark.skip(reason="only with --thorough"))
    # Two workers take a file each: the longest go first, so that none of them is left to one worker in the end.
    file_seconds: Counter[Any] = Counter()
    for item in items:
        file_seconds[item.path] += seconds_of(item)
    items.sort(key=lambda item: -file_seconds[item.path])


def is_left_out(item: pytest.Item) -> bool:
    return not effort.THOROUGH and item.get_closest_marker("thorough") is not None


def seconds_of(item: pytest.Item) -> float:
    """Return a guess at what a test takes; it only has to put files in order."""
    if is_left_out(item):
        return 0
    if item.get_closest_marker("slow"):
        return 30
    return 1.5 if item.get_closest_marker("spark") else 0.1


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The settings of `local_session`, each justified there; four shuffle partitions, one for each cell of a 2x2."""
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    settings = {"spark.local.dir": str(log.parent)}  # where tests find the workers' files
    session = local_session("counterflow tests", cores=2, partitions=4, log=log, settings=settings)
    yield session
    session.stop()


@pytest.fixture
def connect_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Spark Connect server that a client starts has one fixed port: one such test at a time, of all workers."""
    with open(tmp_path_factory.getbasetemp().parent / "connect-port", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
