"""The command line in this process: what it prints, and that an error of it is one line."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from counterflow.cli import main


class Screen(io.TextIOWrapper):
    terminal = False

    def isatty(self) -> bool:
        return self.terminal


def call(*args: str) -> SimpleNamespace:
    """Run the command line in this process, and return what it prints."""
    out, err, argv = Screen(io.BytesIO(), "utf-8", errors="surrogateescape"), io.StringIO(), sys.argv
    sys.argv = ["counterflow", *args]
    try:
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as exited:
            main()
    finally:
        sys.argv = argv
    out.seek(0)
    return SimpleNamespace(code=int(exited.value.code or 0), out=out.read(), err=err.getvalue())


def check(done: SimpleNamespace) -> None:
    assert done.code in (0, 1, 2)
    lines = done.err.splitlines(keepends=True)
    assert all(line.removesuffix("\n").isprintable() for line in lines)
    if done.code:
        assert len(lines) == 1 and lines[0].startswith("error: "), done.err


def write_inputs() -> tuple[str, str]:
    """Write two small files into the current folder, and return their names."""
    csv.write_csv(pa.table({"ts": [0, 10, 20], "x": [1, 5, 9]}), "left.csv")
    pq.write_table(pa.table({"ts": [1, 12, 50], "a": [2, 5, 9]}), "right.parquet")
    return "left.csv", "right.parquet"
