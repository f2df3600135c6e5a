"""The compiled protocols as a `Core`: their nodes fed and collected from, and each on a thread of its own."""

from __future__ import annotations

import threading
from collections import deque

import numpy as np

from counterflow.cores import pin_thread, start_thread
from counterflow.engines.local.core import Found
from counterflow.engines.local.options import Local
from counterflow.errors import OptionError
from counterflow.predicate.expression import Side, columns_of
from counterflow.protocols import threads
from counterflow.protocols import words as w
from counterflow.protocols.design import Design
from counterflow.protocols.feed import Feed, finish
from counterflow.protocols.machine import Machine
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.access import choose_path
from counterflow.windows.evaluate import matches
from counterflow.windows.row_ring import Ring, of_predicate, validity_of
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array, Vector

BATCH_MAX = 1 << 10  # of one message: larger ones gain nothing, and cost latency
IN_FLIGHT_MIN = 1 << 14  # tuples of both sides: fewer would let nodes wait for Python
COLLECTED_MAX = 1 << 14  # results that one call of `collect` hands out
CHECKED_MAX = 1 << 18  # candidate pairs checked at once


def parallel_core(spec: JoinSpec, engine: Local, expected_rows: tuple[int, int]) -> ParallelCore:
    return ParallelCore(spec, design_of(spec, engine, expected_rows))


def design_of(spec: JoinSpec, engine: Local, expected_rows: tuple[int, int] = (0, 0)) -> Design:
    """Return the nodes that a call asks for."""
    path = choose_path(spec.parts, "left")
    if engine.access == "index" and not path.has_index:
        raise OptionError(
            "access='index' needs an equality or a band in the predicate, which has neither: use access='scan', or "
            "leave access= out"
        )
    batch_rows = min(engine.batch_rows, BATCH_MAX)
    return Design(
        algorithm=engine.algorithm,
        nodes=engine.nodes,
        layout=engine.matrix,
        access=engine.access,  # type: ignore[arg-type]
        symmetric=engine.symmetric,
        strategy=engine.waiting,
        batch_rows=batch_rows,
        in_flight=max(IN_FLIGHT_MIN, 32 * batch_rows),
        ordered_output=spec.ordered,
        expected_rows=expected_rows,
        nullable=spec.has_null_matches,
    )


class NodesCore:
    """A `core.Core` of compiled nodes, whoever steps them: it feeds them, and collects what they find."""

    takes_any_order = False  # a protocol's feed merges the sides by their stamps
    patient, bell, changes = True, None, 0
    compiled, compiling = True, False  # it was, before it began
    threaded = False  # whether each node's own thread touches its memory first

    def __init__(self, spec: JoinSpec, design: Design) -> None:
        self.spec, self.design = spec, design
        self.machine = Machine(spec.predicate, spec.parts, design, touched=not self.threaded)
        self.feeder = Feed(self.machine)
        self.unsure = UnsurePairs(spec) if self.machine.may_be_unsure else None
        self._out = np.empty(COLLECTED_MAX * w.RESULT_WORDS, np.int64)
        self._complete = (0, 0)
        self._expiries: deque[tuple[tuple[int, int], tuple[int, int]]] = deque()
        self._ended = self._closed = self._collected_all = False
        self._error: BaseException | None = None

    # --- the driver's side

    @property
    def looked_at(self) -> dict[str, int] | None:
        return None

    def feed(self, left: Batch, right: Batch) -> None:
        if self.unsure is not None:
            self.unsure.append(left, right)
        self.feeder.offer(left, right)
        self._push()

    def refill(self, left: Batch, right: Batch) -> None:
        """Take the rows that are in the windows, before any others: the pairs among them are known."""
        f = self.machine.feed
        self.machine.m[f + w.FEED_REFILLED : f + w.FEED_REFILLED + 2] = len(left), len(right)
        self.feed(left, right)

    def expire(self, left_before: int, right_before: int) -> None:
        if self.unsure is not None:
            self._expiries.append(((left_before, right_before), self.feeder.taken))
        self.feeder.expire(left_before, right_before)
        self._push()

    def _push(self) -> None:
        """Send what was offered, and let nodes move where there is no room."""
        turn = 0
        while not self.feeder.push() and not self._closed:
            if self._error is not None:
                raise self._error
            self._let_nodes_move(turn)
            turn += 1

    def _let_nodes_move(self, turn: int) -> None:
        """Wait for nodes, or step them; for the turn-th time without success."""
        raise NotImplementedError

    def wake(self) -> None:
        threads.wake_collector(self.machine.m)

    def finish(self) -> None:
        self.expire(*self.feeder.taken)
        finish(self.machine.m)
        self._ended = True
        self.wake()

    # --- the collector's side

    @property
    def in_order(self) -> bool:
        return self.design.gates_results

    @property
    def finished(self) -> bool:
        return self._closed or self._collected_all

    def collect(self, timeout: float) -> Found | None:
        if self._error is not None:
            raise self._error
        if self.finished:
            return None
        m, ended, before = self.machine.m, self._ended, self._complete
        taken = threads.await_results(m, self._out, COLLECTED_MAX, int(timeout * 1e9))
        if self._error is not None:
            raise self._error
        at = self.machine.collector + w.COLLECT_COMPLETE
        self._complete = int(m[at]), int(m[at + 1])
        results = self._out[: taken * w.RESULT_WORDS].reshape(-1, w.RESULT_WORDS)
        left, right = results[:, 1].copy(), results[:, 2].copy()
        if self.unsure is not None and taken:
            left, right = self.unsure.checked(left, right, results[:, 3] != 0)
            self._forget()
        if ended and self.feeder.done():
            self._collected_all = self._complete == self.feeder.taken
        if not taken and self._complete == before and not threads.take_wake(m):
            return None
        return Found(left, right, self._complete)

    def _forget(self) -> None:
        """Forget tuples when all pairs are found that could have them: candidates refer to them until then."""
        assert self.unsure is not None
        while self._expiries and all(c >= n for c, n in zip(self._complete, self._expiries[0][1], strict=True)):
            self.unsure.expire(*self._expiries.popleft()[0])

    def close(self) -> None:
        self._closed = True


class ParallelCore(NodesCore):
    """The nodes each have a thread, and run without the GIL."""

    threaded = True

    def __init__(self, spec: JoinSpec, design: Design, pin: bool = True) -> None:
        super().__init__(spec, design)
        self._threads: list[threading.Thread] = []
        for k in range(design.nodes):
            name, needed_by = f"counterflow-node-{k}", f"{design.algorithm} of {design.nodes} workers"
            thread = threading.Thread(target=self._run_node, args=(k, pin), name=name, daemon=True)
            try:
                start_thread(thread, needed_by, "use fewer workers")
            except BaseException:
                self.close()
                raise
            self._threads.append(thread)

    def _run_node(self, k: int, pin: bool) -> None:
        try:
            if pin:
                pin_thread(k)
            self.machine.touch(k)
            run = threads.runner(self.machine.step)
            while run(self.machine.m, k) == w.NEEDS:
                self.machine.attend(k)
        except BaseException as error:
            self._error = error
            threads.stop(self.machine.m)

    def _let_nodes_move(self, turn: int) -> None:
        threads.pause_driver(self.machine.m, turn)

    def close(self) -> None:
        super().close()
        threads.stop(self.machine.m)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


class UnsurePairs:
    """The predicate's columns of live tuples, to check the pairs of which compiled code is not sure."""

    def __init__(self, spec: JoinSpec) -> None:
        self.predicate = spec.predicate
        self.types = {
            side: {c.name: c.type for c in columns_of(spec.predicate) if c.side == side} for side in ("left", "right")
        }
        self.rings = {"left": Ring(), "right": Ring()}
        self.lock = threading.Lock()

    def append(self, *batches: Batch) -> None:
        with self.lock:
            for batch in batches:
                if not len(batch):
                    continue
                columns: dict[str, Array] = {}
                for name, vector in batch.columns.items():
                    columns[of_predicate(name)] = vector.values
                    columns[validity_of(name)] = vector.mask()
                self.rings[batch.side].append(batch.at, columns)

    def expire(self, left_before: int, right_before: int) -> None:
        with self.lock:
            for ring, before in ((self.rings["left"], left_before), (self.rings["right"], right_before)):
                if len(ring):
                    ring.expire(before)

    def checked(self, left: Array, right: Array, unsure: Array) -> tuple[Array, Array]:
        keep = ~unsure
        which = np.flatnonzero(unsure)
        with self.lock:
            for i in range(0, len(which), CHECKED_MAX):
                part = which[i : i + CHECKED_MAX]
                everything = np.arange(len(part))
                lefts, rights = self._vectors("left", left[part]), self._vectors("right", right[part])
                keep[part] = matches(self.predicate, lefts, rights, everything, everything)
        return left[keep], right[keep]

    def _vectors(self, side: Side, numbers: Array) -> dict[str, Vector]:
        ring = self.rings[side]
        return ring.vectors(self.types[side], (numbers - (ring.offset or 0)) & (ring.capacity - 1))
