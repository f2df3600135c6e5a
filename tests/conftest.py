"""One Spark session for all tests, started by the first test that asks for it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from typing import Any

import pytest

from counterflow.engines.spark.session import local_session

# Half of a short-lived JVM's time goes into compiling what it runs a few times: one light compiler is enough for tests.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Two workers take a file each: the longest go first, so that none of them is left to one worker in the end.
LONGEST = (
    "test_spark_kill",
    "test_spark_pipeline",
    "test_spark_streams",
    "test_bench",
    "test_spark_contract",
    "test_protocols",
    "test_simulator",
    "test_window_store",
    "test_mutants",
    "test_reproduce",
    "test_cli",
    "test_spark_connect",
    "test_benchmark_join",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


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
