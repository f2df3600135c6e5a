"""Memory lies near the thread that touches it first: a node's part of a window is first written by its own thread."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

import counterflow as cf
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.protocols.machine import Machine
from counterflow.protocols.segment import Segment
from counterflow.spec.join_spec import build_spec

ALGORITHMS = ["celljoin", "handshake", "llhj", "dpjoin", "scalejoin"]
SCHEMA = pa.schema({"ts": pa.int64(), "x": pa.int64(), "y": pa.int64()})
POISON = 0xA5
ROWS = 5_000


def layout_of(algorithm: str) -> tuple[int, int]:
    return (1, 2) if algorithm == "dpjoin" else (1, 1)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_nobody_writes_to_a_window_before_its_node(algorithm, monkeypatch):
    """Rings come as the system gives them; indexes, which begin with a written table, are made by `touch`."""
    spec = build_spec(SCHEMA, SCHEMA, where="l.x = r.x", time="ts", window=10)
    empty = np.empty

    def poisoned(*args, **options):
        array = empty(*args, **options)
        array.reshape(-1).view(np.uint8)[:] = POISON
        return array

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", poisoned)
        design = Design(algorithm, 2, layout=layout_of(algorithm), expected_rows=(ROWS, ROWS))
        machine = Machine(spec.predicate, spec.parts, design, touched=False)
    rings = [segment for segment in machine.segments.values() if segment.shares is None]
    for array in (array for segment in rings for array in (*segment.ring, *segment.stamps)):
        assert array.shape[-1] >= ROWS // 2 and (array.reshape(-1).view(np.uint8) == POISON).all()
    assert not any(len(segment.heads) for segment in machine.segments.values())
    machine.touch(1)
    made = {at for at, segment in machine.segments.items() if len(segment.heads)}
    assert made == set(machine.segments_of(1)) and all(machine.m[at + w.SEGMENT_HEADS] for at in made)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_node_has_its_indexes_made_and_its_rings_grown_in_its_own_thread(algorithm, monkeypatch):
    found: list[tuple[str, int]] = []
    make_index, grow = Segment._make_index, Segment.grow

    def note(segment: Segment) -> None:
        machine = segment.machine
        owners = [k for k in range(machine.design.nodes) if segment.at in machine.segments_of(k)]
        found.append((threading.current_thread().name, owners[0]))

    monkeypatch.setattr(Segment, "_make_index", lambda segment: (note(segment), make_index(segment)))
    monkeypatch.setattr(Segment, "grow", lambda segment: (note(segment), grow(segment)))
    rows = pa.table({"ts": range(ROWS), "x": [i % 700 for i in range(ROWS)], "y": range(ROWS)}, SCHEMA)
    options = dict(where="l.x = r.x", time="ts", window=ROWS, engine=cf.Local(algorithm, workers=2))
    with cf.window_join(cf.stream([rows]), cf.stream([rows]), **options) as joined:
        pairs = sum(batch.num_rows for batch in joined)
    assert pairs == len(cf.window_join(rows, rows, where="l.x = r.x", time="ts", window=ROWS))
    assert {f"counterflow-node-{k}" for _, k in found} == {name for name, _ in found}
    assert len(found) > 4 and all(name == f"counterflow-node-{k}" for name, k in found)
