"""Fixtures that tests share: one Spark session, started only when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

SETTINGS = {
    # Two cores: enough for tasks to run side by side, and what a small machine has.
    "spark.master": "local[2]",
    # The default of 200 makes every small shuffle crawl.
    "spark.sql.shuffle.partitions": "4",
    # No web server: it takes a port and a second to start.
    "spark.ui.enabled": "false",
    # Tests must not depend on where they run.
    "spark.sql.session.timeZone": "UTC",
    # The bar would be written over pytest's own output.
    "spark.ui.showConsoleProgress": "false",
    # Python stateful operators run on no other state store.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # A third off the time of a tiny micro-batch with checkpoints on a local disk (measured).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # The JVM and Python workers talk over a socket file: less per state call than TCP (measured).
    "spark.python.unix.domain.socket.enabled": "true",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    from counterflow.engines.spark.java import ensure_java

    ensure_java()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("counterflow tests")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")  # warnings about the local machine would bury a failing test
    yield session
    session.stop()
