"""A Spark session on this machine, with the settings that small micro-batches need."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from counterflow.engines.spark.options import CHANGELOG, PROVIDER, ROCKSDB
from counterflow.engines.spark.session.java import ensure_java
from counterflow.errors import MissingDependencyError

SETTINGS = {
    # Python stateful operators need this state store.
    PROVIDER: ROCKSDB,
    # A commit then writes what a batch has changed, and not the whole state: 8 instead of 250 ms.
    CHANGELOG: "true",
    # State calls go through a socket of the same machine: a Unix one halves them.
    "spark.python.unix.domain.socket.enabled": "true",
    # Times are shown and compared the same everywhere.
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
}


def local_session(
    app: str,
    cores: int | None = None,
    partitions: int | None = None,
    log: Path | None = None,
    master: str | None = None,
    settings: dict[str, str] | None = None,
) -> Any:
    """Return a Spark session in this process; `partitions` should be the number of cells of the layout.

    With `log`, what the JVM and its workers print goes to that file instead of the console. `master` and `settings`
    are Spark's own.
    """
    ensure_java()
    _ensure_python(settings or {})
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingDependencyError("Spark is not installed: pip install 'counterflow[spark,java]'") from error
    builder = SparkSession.builder.master(master or f"local[{cores or '*'}]").appName(app)
    for key, value in {**SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    if partitions is not None:
        builder = builder.config("spark.sql.shuffle.partitions", str(partitions))
    with nullcontext() if log is None else _console_to(log):
        return builder.getOrCreate()


def _ensure_python(settings: dict[str, str]) -> None:
    """Let workers run on this Python, unless the user has chosen one: PySpark takes the first `python3` on PATH.

    PySpark looks at the environment variable alone; the setting of the same meaning is read by `spark-submit`.
    """
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))


@contextmanager
def _console_to(log: Path) -> Iterator[None]:
    """Let processes that are started meanwhile (the JVM) write to `log`: they inherit this process's open files."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(kept[0], 1)
        os.dup2(kept[1], 2)
        for descriptor in (*kept, target):
            os.close(descriptor)
