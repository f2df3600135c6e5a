"""The session of the command line: workers run on the Python that runs the driver, unless the user has chosen one."""

from __future__ import annotations

import os
import sys

import pytest

from counterflow.engines.spark.session.session import _ensure_python


@pytest.mark.parametrize(
    ("environment", "settings", "chosen"),
    [
        (None, {}, sys.executable),
        ("/usr/bin/python3.12", {}, "/usr/bin/python3.12"),
        (None, {"spark.pyspark.python": "/opt/python"}, "/opt/python"),
        ("/usr/bin/python3.12", {"spark.pyspark.python": "/opt/python"}, "/usr/bin/python3.12"),
    ],
)
def test_the_python_of_workers(monkeypatch, environment, settings, chosen):
    monkeypatch.setenv("PYSPARK_PYTHON", environment or "")  # so that it is restored
    if environment is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    _ensure_python(settings)
    assert os.environ["PYSPARK_PYTHON"] == chosen
