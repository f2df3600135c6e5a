"""Another number of partitions for a stopped query: Spark moves the cells' state, as it stands in the checkpoint.

Spark (4.2 and newer) reads the state of the last committed batch, deals it out anew by the cells' keys, and writes it
as one more batch, which reads no input. The query goes on after that batch. A file sink is not told of it, and would
miss its entry in the log of the folder: it gets an empty one.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from counterflow.engines.spark.options import check_partitions
from counterflow.engines.spark.session.spark_logs import FileSinkLog, Folder
from counterflow.engines.spark.state.directory import Directory, parse_directory
from counterflow.errors import OptionError, StateError, UnsupportedError

PARTITIONS = "spark.sql.shuffle.partitions"
COMPACT_INTERVAL = "spark.sql.streaming.fileSink.log.compactInterval"


def rescale(checkpoint: Any, partitions: int, session: Any = None, file_sink: Any = None) -> dict[str, Any]:
    """Move a stopped query's state to this many partitions, and return what was done."""
    check_partitions(partitions)
    location = _location("checkpoint", checkpoint)
    sink = None if file_sink is None else _location("file_sink", file_sink)
    with _session_or_own(session) as spark:
        _check_session(spark)
        try:
            return _rescale(StoppedQuery(spark, location), partitions, sink)
        except (Py4JError, PySparkException) as error:
            raise StateError(f"the checkpoint {location} could not be rescaled: {_first_line(error)}") from error
        except (OSError, ValueError, LookupError, AttributeError) as error:
            raise StateError(f"the checkpoint {location} is damaged, or cannot be read: {error}") from error


def _rescale(query: StoppedQuery, partitions: int, sink: str | None) -> dict[str, Any]:
    query.check_stopped()
    interval = int(query.spark.conf.get(COMPACT_INTERVAL, "10"))
    log = None if sink is None else FileSinkLog(sink, interval)
    cells = query.cells()
    last, before = query.last_batch(), query.partitions_of(query.committed[-1])
    done = {"checkpoint": query.location, "layout": cells[0].identity["layout"], "cells": len(cells)}
    if before == partitions and last == query.committed[-1]:
        if log is None or not log.lacks(last):
            raise OptionError(f"partitions={partitions}: the checkpoint {query.location} has as many already")
        before = query.partitions_of(last - 1)  # rescaled before, without the sink
    else:
        query.check_finished(partitions)
        if log is not None:
            log.check_is_of(query.committed[-1])
        query.repartition(partitions)
        last = query.last_batch()
    if log is not None:
        log.add(last)
    if partitions > len(cells):
        warnings.warn(
            f"the join has {len(cells)} cells, so {partitions - len(cells)} of {partitions} tasks of every "
            "micro-batch will be empty",
            stacklevel=4,
        )
    return {**done, "partitions_before": before, "partitions": partitions, "batch_id": last}


def _location(name: str, given: Any) -> str:
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        raise OptionError(f"{name}={given!r}: give a folder or URI")
    return str(given)


@contextmanager
def _session_or_own(session: Any) -> Iterator[Any]:
    """Yield the session, the active one, or else one that ends with the call."""
    found = SparkSession.getActiveSession() if session is None else session
    if found is not None:
        yield found
        return
    from counterflow.engines.spark.session import local_session

    own = local_session("counterflow rescale")
    try:
        yield own
    finally:
        own.stop()


def _check_session(session: Any) -> None:
    if not isinstance(session, SparkSession):
        kind = type(session)
        if kind.__module__.startswith("pyspark.sql.connect"):
            raise UnsupportedError(
                "Spark Connect cannot rescale a checkpoint: call cf.rescale with a classic session, or counterflow "
                "rescale on the command line"
            )
        raise OptionError(f"spark={session!r}: give a SparkSession")
    if not hasattr(type(session), "_streamingCheckpointManager"):
        raise UnsupportedError(
            f"Spark {session.version} cannot rescale a checkpoint: Spark 4.2 or newer can, and takes older checkpoints"
        )


def _first_line(error: Exception) -> str:
    """Return what Spark says is wrong, without its trace."""
    told = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return told.strip().splitlines()[0] if told.strip() else type(error).__name__


class StoppedQuery:
    """The checkpoint of a query, as it says of itself."""

    def __init__(self, spark: Any, location: str) -> None:
        self.spark, self.location, self.folder = spark, location, Folder("checkpoint", location)
        missing = [name for name in ("metadata", "offsets", "commits") if not self.folder.exists(name)]
        if missing:
            lacks = " and ".join(repr(name) for name in missing)
            raise StateError(
                f"{location} is no checkpoint of a streaming query: it has no {lacks}. Give the query's "
                "checkpointLocation, with its scheme (hdfs://...) if it is not on this machine"
            )
        self.committed = self.folder.numbers("commits")
        if not self.committed:
            raise StateError(f"no batch of the checkpoint {location} was committed: let the query run once")

    def check_stopped(self) -> None:
        """Refuse a query that runs in this session. Others cannot be seen from here."""
        query = json.loads(self.folder.text("metadata"))["id"]
        if any(str(running.id) == query for running in self.spark.streams.active):
            raise StateError(f"the query of the checkpoint {self.location} is running: stop it (query.stop()) first")

    def last_batch(self) -> int:
        return self.folder.numbers("offsets")[-1]

    def partitions_of(self, batch: int) -> int | None:
        """Return the number of partitions that a batch ran with, if it is known."""
        entry = f"offsets/{batch}"
        lines = self.folder.text(entry).splitlines() if self.folder.exists(entry) else []
        found = json.loads(lines[1]).get("conf", {}).get(PARTITIONS) if len(lines) > 1 else None
        return None if found is None else int(found)

    def check_finished(self, partitions: int) -> None:
        """Refuse where a batch was begun and not committed, but for a rescaling that is called again."""
        last = self.last_batch()
        if last == self.committed[-1]:
            return
        begun = self.partitions_of(last)
        if begun == self.partitions_of(self.committed[-1]):
            raise StateError(
                f"batch {last} of the checkpoint {self.location} was begun and not finished: start the query once "
                "more, for example with trigger(availableNow=True), let it end, and rescale then"
            )
        if begun != partitions:
            raise StateError(
                f"the checkpoint {self.location} was being rescaled to {begun} partitions when that ended: finish it "
                f"with the same number, partitions={begun}, first"
            )

    def repartition(self, partitions: int) -> None:
        self.spark._streamingCheckpointManager.repartition(self.folder.for_spark, partitions)

    def cells(self) -> list[Directory]:
        """Return the directories of the cells of the last join of ours in the query."""
        for operator in reversed(self._operators()):
            options = {"operatorId": operator, "stateVarName": "directory", "batchId": self.committed[-1]}
            with suppress(PySparkException):  # an operator of another kind
                state = self.spark.read.format("statestore").options(**options).load(self.folder.for_spark)
                return [parse_directory(row.directory) for row in state.select("value.directory").collect()]
        raise StateError(f"the checkpoint {self.location} has no join of Counterflow in it")

    def _operators(self) -> list[int]:
        """Return the numbers of the query's stateful operators."""
        try:
            operators = self.spark.read.format("state-metadata").load(self.folder.for_spark).select("operatorId")
            return sorted(row.operatorId for row in operators.distinct().collect())
        except PySparkException:  # it has none
            return []
