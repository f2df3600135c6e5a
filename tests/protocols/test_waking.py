"""Who is sent something is woken at once: before the sender's own search, which may be long.

    node 0:  take tuple ─► send ─► wake node 1 ─► search ... outbox full: the step ends here, and the search is not over
    node 1:  asleep ─────────────► flag is gone

The searches of these tests cannot end, as nobody takes their results. What a step did, it did before its search.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from counterflow.engines.local.stamps import stamp_tables
from counterflow.engines.simulated.stepped_core import SteppedCore
from counterflow.lockfree.waiting import ASLEEP
from counterflow.protocols import registry, threads
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.spec.join_spec import build_spec

RIGHTS = 60


def core_of(algorithm, nodes, layout=(1, 1)):
    """A join whose nodes have stored right tuples; then a left one comes, which matches all of them."""
    left = pa.table({"t": [100], "x": [0]})
    right = pa.table({"t": range(RIGHTS), "x": [0] * RIGHTS})
    spec = build_spec(left.schema, right.schema, where="l.x >= r.x", time="t", window=1000)
    core = SteppedCore(spec, Design(algorithm, nodes, layout=layout, access="scan", outbox_rows=2))
    arrivals = stamp_tables(spec, left, right)
    core.feed(*arrivals.batch(0, RIGHTS))
    while any([core.step(k) != w.IDLE for k in range(nodes)]):
        pass
    core.feed(*arrivals.batch(RIGHTS, RIGHTS + 1))
    return core


def fall_asleep(core):
    for waiter in core.machine.waiters:
        core.machine.m[waiter + ASLEEP] = 1


def awake(core):
    """The nodes that do not sleep, and the driver and the collector after them."""
    return [i for i, waiter in enumerate(core.machine.waiters) if core.machine.m[waiter + ASLEEP] == 0]


@pytest.mark.parametrize(
    "algorithm, nodes, layout, woken",
    [
        ("llhj", 3, (1, 1), [1]),
        ("dpjoin", 3, (1, 3), [1]),
        ("celljoin", 12, (1, 1), list(range(1, 12))),
    ],
)
def test_others_are_woken_before_the_search(algorithm, nodes, layout, woken):
    core = core_of(algorithm, nodes, layout)
    fall_asleep(core)
    assert core.step(0) == w.IDLE and core.machine.m[core.machine.nodes[0] + w.NODE_PHASE] != 0  # it is not over
    assert [k for k in awake(core) if k < nodes] == woken


def test_a_left_tuple_that_moves_on_wakes_the_next_node():
    """Handshake join: a node hands tuples on after its search, and its step wakes by itself."""
    core = core_of("handshake", 2)
    fall_asleep(core)
    while core.step(0) == w.IDLE:
        assert 1 not in awake(core)
        core.collect(0)
    assert 1 in awake(core)


@pytest.mark.parametrize("algorithm", ["kang", "llhj", "dpjoin", "celljoin"])
def test_the_collector_is_woken_when_an_outbox_is_full(algorithm):
    """The step says IDLE, and after such a one nobody is told anything."""
    core = core_of(algorithm, 1)
    fall_asleep(core)
    assert core.step(0) == w.IDLE
    assert awake(core) == [2]  # 0 is the node, 1 the driver


def test_any_number_of_nodes_is_told():
    core = core_of("celljoin", 12)
    fall_asleep(core)
    threads.tell(core.machine.m, core.machine.nodes[0])
    assert awake(core) == list(range(1, 14))  # the workers, the driver, the collector
    fall_asleep(core)
    threads.tell(core.machine.m, core.machine.nodes[5])
    assert awake(core) == [0, 12, 13]


@pytest.mark.parametrize("module", sorted(set(registry.MODULES.values())))
def test_nodes_send_by_hand_on(module):
    text = (Path(registry.__file__).parent / f"{module}.py").read_text()
    assert "try_send" not in text, "it wakes nobody"
