"""Results that were made before they were asked for: small batches come as one, all else in its place."""

import pyarrow as pa
import pytest

from counterflow.engines.local.input.watermarks import Punctuation
from counterflow.engines.local.output.ahead import ResultsAhead


def batch(*values):
    return pa.record_batch({"x": list(values)})


def values(item):
    return item["x"].to_pylist()


def test_batches_come_as_one():
    ahead = ResultsAhead(8, [batch(1), batch(2, 3), batch(4), batch(5, 6, 7, 8)])
    assert ahead.rows == 8 and ahead.full
    assert values(ahead.take()) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not ahead and not ahead.full


def test_punctuations_and_errors_keep_their_places():
    ahead = ResultsAhead(9)
    for item in (batch(1), Punctuation(5), batch(2), batch(3), ValueError("so")):
        ahead.append(item)
    assert [values(part) for part in ahead.batches] == [[1], [2], [3]]
    assert values(ahead.take()) == [1]
    assert ahead.take() == Punctuation(5)
    assert values(ahead.take()) == [2, 3]
    with pytest.raises(ValueError, match="so"):
        ahead.take()
