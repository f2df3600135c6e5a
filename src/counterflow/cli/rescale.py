"""`counterflow rescale`: another number of partitions for a stopped Spark query."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer

import counterflow as cf
from counterflow.cli.terminal import say


def rescale(
    checkpoint: Annotated[str, typer.Argument(help="The query's checkpointLocation, a folder or URI.")],
    partitions: Annotated[
        int, typer.Option(help="How many partitions, and so tasks, the cells are dealt out to from now on.")
    ],
    file_sink: Annotated[
        str | None, typer.Option(help="The folder that the query writes files to, if its sink is files.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Change the number of partitions of a stopped Spark query, which then goes on with the same results."""
    from counterflow.engines.spark.options import check_partitions
    from counterflow.engines.spark.session import local_session

    check_partitions(partitions)  # before Spark starts
    log = Path(tempfile.mkdtemp(prefix="counterflow-rescale-")) / "spark.log"
    try:
        spark = local_session("counterflow rescale", log=log)
        try:
            done = cf.rescale(checkpoint, partitions, spark=spark, file_sink=file_sink)
        finally:
            spark.stop()
    finally:
        shutil.rmtree(log.parent, ignore_errors=True)
    if as_json:
        typer.echo(json.dumps(done))
    say(
        f"{done['cells']} cells of layout {done['layout']}: {done['partitions_before']} -> {done['partitions']} "
        f"partitions, as batch {done['batch_id']}"
    )
