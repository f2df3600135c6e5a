"""What mypy tells users who have stubs of Arrow and pandas, which come without types in this environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from places import ROOT, SUPPORT

STUBS = {
    "pyarrow": """
from typing import Any
class Schema: ...
class Table:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
class RecordBatch:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
def __getattr__(name: str) -> Any: ...
""",
    "pandas": """
from collections.abc import Iterable
from typing import Any
class DataFrame:
    def iterrows(self) -> Iterable[tuple[Any, Any]]: ...
def __getattr__(name: str) -> Any: ...
""",
}
WRONG = """
from typing import assert_type
import polars as pl
import pyarrow as pa
import counterflow as cf
def wrong(table: pa.Table, frame: pl.DataFrame) -> None:
    cf.window_join(1, 2, where="l.x = r.x")
    cf.window_join(table, table, were="l.x = r.x")
    assert_type(cf.window_join(table, frame, where="l.x = r.x"), cf.JoinedStream)
    cf.window_join(table, table, where="l.x = r.x").poll()
"""


def test_results_have_their_types_and_what_is_wrong_is_told(tmp_path):
    for name, stub in STUBS.items():
        (tmp_path / "stubs" / name).mkdir(parents=True)
        (tmp_path / "stubs" / name / "__init__.pyi").write_text(stub)
    (tmp_path / "wrong.py").write_text(WRONG)
    files = [str(SUPPORT / "types_of_results.py"), str(tmp_path / "wrong.py")]
    options = ["--follow-imports=silent", f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(tmp_path / "stubs")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line.split(":")[:2] for line in done.stdout.splitlines() if ": error:" in line]
    assert {Path(path).name for path, _ in errors} == {"wrong.py"}, done.stdout
    assert {int(line) for _, line in errors} == {7, 8, 9, 10}, done.stdout
