"""Tables that decide all their rows: their last ones, the sentinels, move the watermark beyond all others."""

from __future__ import annotations

import random

import pyarrow as pa

from inputs import table_of

SENTINELS = [(3600, 1), (3601, 1), (3602, 1), (3603, 1), (7200, 1)]  # the last one makes the others ready


def unique_times(seed: int, rows: int, first_id: int = 0) -> pa.Table:
    """Rows at different seconds, in a different order, and sentinels that move the watermark beyond them all."""
    rng = random.Random(seed)
    seconds = rng.sample(range(rows * 2), rows)
    data = [(s, rng.choice([None, 0, 1, 2]), rng.randint(-5, 5), 1.0, rng.choice("ab")) for s in seconds]
    table = table_of([*data, *((s, None, 100, None, None) for s, _ in SENTINELS)])
    return table.set_column(0, "id", pa.array(range(first_id, first_id + len(table)), pa.int64()))


def without_sentinels(found: list) -> list:
    return [r for r in found if r[2] < (1_704_067_200 + 3600) * 1_000_000]
