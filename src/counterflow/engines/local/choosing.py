"""`auto`, where it may change its mind while the join runs: it begins in one thread, and looks now and then.

period     1 s          1 s                      1 s         1 s
core       sequential   sequential ──► nodes     nodes       nodes ──► sequential
                        `choice` says so         was it right, and is it still needed?
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
import weakref
from typing import cast

from counterflow.cores import start_thread
from counterflow.engines.local.changing import ChangingCore, RefillableCore
from counterflow.engines.local.choice import Seen, reason_for_nodes, reason_for_one_thread, were_slower
from counterflow.engines.local.core import Core, SequentialCore, auto_reason, make_core, may_change, scan_threads
from counterflow.engines.local.options import Local
from counterflow.errors import UnsupportedError
from counterflow.spec.join_spec import JoinSpec
from counterflow.windows.store import Batch

PERIOD_SECONDS = 1.0  # that a choice is made from
NODES = "llhj"  # the fastest with small batches of those that the driver feeds, as measured
EXIT_SECONDS = 10.0  # how long the end of the program waits for nodes that are being compiled


class ChoosingCore(ChangingCore):
    """A changing core that changes by itself."""

    def __init__(self, spec: JoinSpec, engine: Local) -> None:
        core = make_core(spec, engine)
        super().__init__(spec, cast(RefillableCore, core), in_order=False)  # nodes are not
        self.spec, self.engine = spec, engine
        self.because = self._will_be = auto_reason(spec, engine, streaming=True)
        self._last: Seen | None = None  # the period before, with the same core
        self._before: Seen | None = None  # the last period in one thread, while there are nodes
        self._settled = False  # nodes were slower
        self._making: threading.Thread | None = None
        self._look_anew(time.perf_counter())

    def feed(self, left: Batch, right: Batch) -> None:
        began, changes = time.perf_counter(), self.changes
        super().feed(left, right)
        now = time.perf_counter()
        if self.changes > changes:
            self.because, self._last = self._will_be, None
            self._look_anew(now)
            return
        self._tuples += len(left) + len(right)
        self._steps += 1
        self._compared += sum(int((side.high - side.low + 1).sum()) for side in (left, right))
        self._joining_s += now - began
        if now - self._began >= PERIOD_SECONDS:
            seen = Seen(self._tuples, self._steps, self._compared, now - self._began, self._joining_s)
            if self._last is not None:
                self._look(seen, self._last)
            self._last = seen
            self._look_anew(now)

    def _look_anew(self, now: float) -> None:
        self._began, self._tuples, self._steps, self._compared, self._joining_s = now, 0, 0, 0, 0.0

    def _look(self, seen: Seen, last: Seen) -> None:
        """Choose anew, from two periods: the first one after a change still fills windows and buffers."""
        cores = self.engine.threads
        if cores == 1 or self._settled or (self._making is not None and self._making.is_alive()):
            return
        if isinstance(self.core, SequentialCore):
            because = reason_for_nodes(seen, last, cores) if self.core.compiled else None
            if because is not None:
                self._before = seen
                self._go_on(because, Local(NODES, workers=cores, batch_rows=self.engine.batch_rows))
        elif self._before is not None:
            because = reason_for_one_thread(seen, self._before)
            self._settled = were_slower(seen, self._before)
            if because is not None:
                self._go_on(because, self.engine)

    def _go_on(self, because: str, engine: Local) -> None:
        """Make another core beside the running join, as it may have to be compiled, and go on with it."""

        def make() -> None:
            try:
                self.change_to(lambda rows: cast(RefillableCore, make_core(self.spec, engine, rows)))
            except Exception as error:
                self._settled = True
                warnings.warn(f"auto goes on as it is: {error}", RuntimeWarning, stacklevel=2)

        self._will_be = f"auto: {'one thread' if engine.sequential else engine.described}, as {because}"
        thread = threading.Thread(target=make, name="counterflow change", daemon=True)
        try:
            start_thread(thread, "change of a core")
        except UnsupportedError:  # then there are none for nodes
            self._settled = True
        else:
            self._making = thread
            _making.add(thread)

    def use_cores(self, engine: Local) -> None:
        """Begin anew, in one thread, with the cores that the engine says."""
        if self._making is not None:
            self._making.join()
        self.engine, self._settled = engine, False
        self._will_be = auto_reason(self.spec, engine, streaming=True)
        self.change_to(lambda rows: cast(RefillableCore, make_core(self.spec, engine, rows)))


_making: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _at_exit() -> None:
    """Wait for cores that are being made: LLVM must not be at work while the process ends."""
    for thread in list(_making):
        thread.join(EXIT_SECONDS)


def core_of_streams(spec: JoinSpec, engine: Local) -> Core:
    """Return what finds the pairs of streams that are fed: a core that can be changed, where that may come."""
    if engine.algorithm == "auto" and may_change(spec, engine):
        return ChoosingCore(spec, engine)
    core = make_core(spec, engine)
    return core if engine.sequential else ChangingCore(spec, cast(RefillableCore, core), core.in_order)


def rescale(core: Core, spec: JoinSpec, engine: Local) -> None:
    """Let a running core go on with the workers that the engine says."""
    if isinstance(core, ChoosingCore):
        core.use_cores(engine)
    elif isinstance(core, ChangingCore):
        core.change_to(lambda rows: cast(RefillableCore, make_core(spec, engine, rows)))
    elif isinstance(core, SequentialCore):
        core.use_threads(scan_threads(spec, engine))
