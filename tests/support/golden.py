"""A checkpoint of Spark as files of the repository: written once by a release, resumed by all that follow.

`python golden.py FOLDER` writes one with the code that is installed: inputs, checkpoint and output of a query that has
joined the first two of its four files a side. Spark's logs name files by their whole paths, so the folder's own path is
kept as a word that `unpack` replaces.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

import counterflow as cf
from inputs import table_of
from streams import cut, read_stream, run_available, write_batches

OPTIONS: dict[str, Any] = dict(
    where="l.s = r.s AND abs(l.x - r.x) <= 6", time="ts", window="2 minutes", how="left", ordered=True
)
LAYOUT = "hash:2"
PLACE = "/the/golden/folder"
DELAY = "10 seconds"
FAR_S = 100_000  # the last file of a side lets the watermark pass all rows before it
DONE = 2  # files a side that the checkpoint's query has joined
TEXTS = ("checkpoint/sources", "checkpoint/state/0/_metadata", "out/_spark_metadata")  # Spark's logs that name files


def rows(seed: int) -> pa.Table:
    """Return 90 rows with times of their own; ids tell them apart."""
    rng = random.Random(seed)
    seconds = rng.sample(range(900), 90)
    found = [(s, rng.randrange(5), rng.randrange(10), 0.5 * s, rng.choice("abcdefgh")) for s in sorted(seconds)]
    table = table_of(found)
    return table.set_column(0, "id", pa.array(range(100 * seed, 100 * seed + len(table)), pa.int64()))


def batches(seed: int) -> list[pa.Table]:
    """Return the rows of a side in four files; the last one has a row of the far future."""
    return [*cut(rows(seed), 3), table_of([(FAR_S, 0, 0, 0.0, "far")])]


def frames(spark: Any, folder: Path) -> list[Any]:
    return [read_stream(spark, folder / side, rows(1), delay=DELAY) for side in ("left", "right")]


def write(spark: Any, folder: Path) -> None:
    """Write inputs, checkpoint and output, and keep what a repository can keep."""
    for seed, side in enumerate(("left", "right"), 1):
        write_batches(folder / side, batches(seed)[:DONE])
    run_available(cf.window_join(*frames(spark, folder), engine=cf.Spark(layout=LAYOUT), **OPTIONS), folder)
    for seed, side in enumerate(("left", "right"), 1):
        write_batches(folder / side, batches(seed)[DONE:], first=DONE)
    for path in folder.rglob(".*.crc"):  # checksums of texts that change
        path.unlink()
    _replace(folder, str(folder), PLACE)


def unpack(golden: Path, folder: Path) -> None:
    """Put a copy where a test may go on with it."""
    shutil.copytree(golden, folder, dirs_exist_ok=True)
    _replace(folder, PLACE, str(folder))
    for side in ("left", "right"):
        for number, path in enumerate(sorted((folder / side).iterdir())):
            os.utime(path, (1_600_000_000 + number, 1_600_000_000 + number))  # the order in which they are read


def _replace(folder: Path, old: str, new: str) -> None:
    for path in (path for log in TEXTS for path in (folder / log).rglob("*") if path.is_file()):
        path.write_text(path.read_text().replace(old, new))


if __name__ == "__main__":
    from counterflow.engines.spark.session import local_session

    write(local_session("golden", cores=2, partitions=2), Path(sys.argv[1]).absolute())
