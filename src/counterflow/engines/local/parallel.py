"""The compiled protocols on threads: a `Core` whose nodes each have one, and run without the GIL."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import numpy as np

from counterflow.cores import pin_thread, start_thread
from counterflow.engines.local.core import Found
from counterflow.engines.local.options import Local
from counterflow.errors import OptionError
from counterflow.predicate.expression import columns_of
from counterflow.protocols import threads as running
from counterflow.protocols import words as w
from counterflow.protocols.driver import Driver
from counterflow.protocols.machine import Design, Machine
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.access import choose_path
from counterflow.windows.evaluate import matches
from counterflow.windows.row_ring import Ring, of_predicate, validity_of
from counterflow.windows.store import Batch
from counterflow.windows.vectors import Array, Vector, dtype_of

BATCH_MAX = 1 << 10  # of one message: larger ones gain nothing, and cost latency
IN_FLIGHT_MIN = 1 << 12
COLLECTED_MAX = 1 << 14  # results that one call of `collect` hands out
CHECKED_MAX = 1 << 18  # candidate pairs checked at once


def parallel_core(spec: JoinSpec, engine: Local, expected_rows: tuple[int, int]) -> ParallelCore:
    path = choose_path(spec.parts, "left")
    if engine.access == "index" and not (path.equalities or path.bands):
        raise OptionError(
            "access='index' needs an equality or a band in the predicate, which has neither: use access='scan', or "
            "leave access= out"
        )
    batch_rows = min(engine.batch_rows, BATCH_MAX)
    design = Design(
        algorithm=engine.algorithm,
        nodes=engine.nodes,
        layout=engine.matrix,
        access=engine.access,  # type: ignore[arg-type]
        symmetric=engine.symmetric,
        strategy=engine.waiting,
        batch_rows=batch_rows,
        in_flight=max(IN_FLIGHT_MIN, 8 * batch_rows),
        ordered_output=spec.ordered,
        expected_rows=expected_rows,
        nullable=spec.has_null_matches,
    )
    return ParallelCore(spec, design)


class ParallelCore:
    """See `core.Core`."""

    def __init__(self, spec: JoinSpec, design: Design, pin: bool = True) -> None:
        self.spec, self.design = spec, design
        self.machine = Machine(spec.predicate, spec.parts, design)
        self.driver = Driver(self.machine)
        self.unsure = UnsurePairs(spec) if self.machine.may_be_unsure else None
        self._out = np.empty(COLLECTED_MAX * w.RESULT_WORDS, np.int64)
        self._marks = np.zeros(2 * design.nodes, np.int64)
        self._complete = (0, 0)
        self._expiries: deque[tuple[tuple[int, int], tuple[int, int]]] = deque()
        self._ended = self._closed = self._collected_all = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._start_threads(pin)

    # --- nodes

    def _start_threads(self, pin: bool) -> None:
        for k in range(self.design.nodes):
            name, needed_by = f"counterflow-node-{k}", f"{self.design.algorithm} of {self.design.nodes} workers"
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
            run = running.runner(self.machine.step)
            while run(self.machine.m, k) == w.NEEDS:
                self.machine.attend(k)
        except BaseException as error:
            self._error = error
            self._stop()

    def _stop(self) -> None:
        running.stop(self.machine.m)

    # --- the driver's side

    def feed(self, left: Batch, right: Batch) -> None:
        if self.unsure is not None:
            self.unsure.append(left, right)
        self.driver.offer(left, right)
        self._push()

    def expire(self, left_before: int, right_before: int) -> None:
        self._expiries.append(((left_before, right_before), (self.driver.sent[0], self.driver.sent[1])))
        self.driver.expire(left_before, right_before)
        self._push()

    def _push(self) -> None:
        turn = 0
        while not self.driver.push() and not self._closed:
            if self._error is not None:
                raise self._error
            running.pause_driver(self.machine.m, turn)
            turn += 1

    def wake(self) -> None:
        running.wake_collector(self.machine.m)

    def finish(self) -> None:
        self.driver.finish()
        self._push()
        self.driver.flush()
        self._ended = True
        self.wake()

    # --- the collector's side

    @property
    def in_order(self) -> bool:
        return bool(self.machine.m[w.GATE_OUT])

    @property
    def finished(self) -> bool:
        return self._closed or self._collected_all

    def collect(self, timeout: float) -> Found | None:
        if self._error is not None:
            raise self._error
        if self.finished:
            return None
        m, ended, fed = self.machine.m, self._ended, self.driver.sent
        taken = running.collect(m, self._out, COLLECTED_MAX, self._marks, int(timeout * 1e9))
        if self._error is not None:
            raise self._error
        results = self._out[: taken * w.RESULT_WORDS].reshape(-1, w.RESULT_WORDS)
        before = self._complete
        if taken < COLLECTED_MAX:  # otherwise there may be more results of what is done
            self._complete = self._completed(fed)
        left, right = results[:, 1].copy(), results[:, 2].copy()
        if self.unsure is not None and taken:
            left, right = self.unsure.checked(left, right, results[:, 3] != 0)
            self._forget()
        if ended and taken < COLLECTED_MAX and self.driver.done():
            # Nodes were done before the results were taken only if the marks say so.
            self._collected_all = self._complete == (fed[0], fed[1])
        if not taken and self._complete == before and not running.take_wake(m):
            return None
        return Found(left, right, self._complete)

    def _completed(self, fed: tuple[int, int]) -> tuple[int, int]:
        """Up to which tuples all pairs of which they are the later one were handed out.

        A pair is found when both tuples have passed all nodes, so what comes before the first tuple in the total order
        that has not is complete. In handshake join a pair may be found until both are taken out of the row.
        """
        marks = self._marks.reshape(-1, 2)
        done = int(marks[:, 0].min()), int(marks[:, 1].min())
        pick = max if self.design.algorithm == "handshake" else min
        found = []
        for side in (0, 1):
            opposite = done[1 - side]
            before: int | None = fed[side]
            if opposite < fed[1 - side]:
                before = self.machine.arenas[1 - side].arrived(opposite)
            if before is None:  # the nodes are further already: the next marks will tell
                before = self._complete[side]
            found.append(min(pick(done[side], before), fed[side]))
        return max(found[0], self._complete[0]), max(found[1], self._complete[1])

    def _forget(self) -> None:
        """Candidates refer to tuples until all pairs are found that could have them."""
        assert self.unsure is not None
        while self._expiries and all(c >= n for c, n in zip(self._complete, self._expiries[0][1], strict=True)):
            self.unsure.expire(*self._expiries.popleft()[0])

    def close(self) -> None:
        self._closed = True
        self._stop()
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

    def _vectors(self, side: Any, numbers: Array) -> dict[str, Vector]:
        ring = self.rings[side]
        slots = (numbers - (ring.offset or 0)) & (ring.capacity - 1)
        found = {}
        for name, type_ in self.types[side].items():
            values = ring.columns[of_predicate(name)][slots]
            if values.dtype != object:
                values = values.astype(dtype_of(type_), copy=False)
            found[name] = Vector(type_, values, ring.columns[validity_of(name)][slots])
        return found
