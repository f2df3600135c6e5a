"""Results that were made before they were asked for: small batches come as one, all else in its place."""

import pyarrow as pa
import pytest

from counterflow.engines.local.input.watermarks import Punctuation
from counterflow.engines.local.output.ahead import ResultsAhead


def batch(*values):
    return pa.record_batch({"x": list(values)})


def values(item):
    return item["x"].to_pylist()


def test_small_batches_come_as_one_until_there_are_enough_rows():
    """[1] [2 3] [4] [5 6 7 8] | 5 rows are enough -> [1 2 3 4 5 6 7 8]; 3 are -> [1 2 3] and [4 5 6 7 8]"""
    parts = [batch(1), batch(2, 3), batch(4), batch(5, 6, 7, 8)]
    ahead = ResultsAhead(parts)
    assert ahead.rows == 8
    assert values(ahead.take(5)) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not ahead
    ahead = ResultsAhead(parts)
    assert [values(ahead.take(3)), values(ahead.take(3))] == [[1, 2, 3], [4, 5, 6, 7, 8]]


def test_a_batch_with_enough_rows_comes_alone():
    ahead = ResultsAhead([batch(1, 2, 3), batch(4)])
    assert [values(ahead.take(2)), values(ahead.take(2))] == [[1, 2, 3], [4]]


def test_punctuations_and_errors_keep_their_places():
    ahead = ResultsAhead()
    for item in (batch(1), Punctuation(5), batch(2), batch(3), ValueError("so")):
        ahead.append(item)
    assert [values(part) for part in ahead.batches] == [[1], [2], [3]]
    assert values(ahead.take(9)) == [1]
    assert ahead.take(9) == Punctuation(5)
    assert values(ahead.take(9)) == [2, 3]
    with pytest.raises(ValueError, match="so"):
        ahead.take(9)
