"""Counterflow joins two live streams on any predicate within sliding windows.

>>> import counterflow as cf, pyarrow as pa
>>> left, right = pa.table({"ts": [1, 2], "x": [10, 50]}), pa.table({"ts": [3, 90], "a": [15, 55]})
>>> cf.window_join(left, right, where="abs(l.x - r.a) <= 10", time="ts", window=60).to_pylist()
[{'ts': 1, 'x': 10, 'ts_right': 3, 'a': 15, 'pair_time': 3}]

Importing this package starts no JVM and compiles nothing.
"""

from counterflow.api import explain, query_metrics, rescale, window_join
from counterflow.engines.local.input.pushed import PushedStream
from counterflow.engines.local.input.streams import Stream, stream
from counterflow.engines.local.input.watermarks import Punctuation, watermark
from counterflow.engines.local.options import Local
from counterflow.engines.local.output.joined import JoinedStream
from counterflow.engines.simulated.options import Simulated
from counterflow.engines.spark.options import Spark
from counterflow.errors import (
    ColumnError,
    CounterflowError,
    EvaluationError,
    InputError,
    MissingDependencyError,
    OptionError,
    PredicateError,
    StateError,
    TimeError,
    UnsupportedError,
    WindowError,
)
from counterflow.predicate.conditions import condition
from counterflow.predicate.python_expressions import band, function, haversine, left, right
from counterflow.spec.window_sizes import rows, window
from counterflow.version import __version__ as __version__

__all__ = [
    "ColumnError",
    "CounterflowError",
    "EvaluationError",
    "InputError",
    "JoinedStream",
    "Local",
    "MissingDependencyError",
    "OptionError",
    "PredicateError",
    "Punctuation",
    "PushedStream",
    "Simulated",
    "Spark",
    "StateError",
    "Stream",
    "TimeError",
    "UnsupportedError",
    "WindowError",
    "band",
    "condition",
    "explain",
    "function",
    "haversine",
    "left",
    "query_metrics",
    "rescale",
    "right",
    "rows",
    "stream",
    "watermark",
    "window",
    "window_join",
]
