"""Adding an algorithm is one module and one line, as CONTRIBUTING says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from counterflow.protocols.registry import MODULES, NAMES, protocol
from places import PACKAGE, ROOT

JOIN = """
import pyarrow as pa
import counterflow as cf
left, right = pa.table({"t": [1, 2, 9], "x": [10, 20, 30]}), pa.table({"t": [1, 3, 9], "a": [11, 19, 90]})
for engine in (cf.Local("toy", access="scan"), cf.Simulated("toy")):
    pairs = cf.window_join(left, right, where="abs(l.x - r.a) <= 1", time="t", window=5, engine=engine)
    print(sorted(pairs["x"].to_pylist()))
"""


def test_every_module_says_what_it_is():
    assert [protocol(name).name for name in NAMES] == list(MODULES)


@pytest.mark.slow
def test_a_toy_is_one_module_and_one_line(tmp_path):
    """A copy of the package with a copy of Kang's procedure under another name."""
    package = tmp_path / "counterflow"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    kang = (package / "protocols" / "kang.py").read_text()
    record = re.search(r"PROTOCOL = Protocol\(name=\"kang\".*\)\n", kang)
    assert record and record[0].replace("kang", "toy").strip() in (ROOT / "CONTRIBUTING.md").read_text()
    (package / "protocols" / "toy.py").write_text(kang.replace(record[0], record[0].replace("kang", "toy")))
    registry = package / "protocols" / "registry.py"
    registry.write_text(registry.read_text().replace("MODULES = {\n", 'MODULES = {\n    "toy": "toy",\n'))
    done = subprocess.run(
        [sys.executable, "-c", JOIN],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[10, 20]"] * 2
