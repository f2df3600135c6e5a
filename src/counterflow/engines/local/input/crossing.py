"""How carriers go over from one gate to another while the join runs: at one place in the total order, each by itself.

    carrier 0    1  2     5 │ 7  8              rows before the crossing, here at time 6, go to the gate there was,
    carrier 1    3  4       │ 6  9  ─► waits    all others to the new one, once it has the rows that may still be met

No row that a carrier has handed on, or is about to, is after the crossing: each says how far it goes before anybody
gets its rows, under the lock under which crossings begin. So neither gates nor driver have to be asked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from counterflow.engines.local.order import BEGINNING, END
from counterflow.protocols.sources import SourceFeed


class Crossing:
    """A time from which on rows go to another gate, and the carriers' ways into that."""

    def __init__(self, time: int, feeds: Sequence[SourceFeed], over: set[int]) -> None:
        self.time, self.feeds = time, feeds
        self.over = over  # the carriers that carry nothing more, and do not cross
        self._opened = False
        self._decided = threading.Event()

    def open(self) -> None:
        """Let carriers go on: the new gate has all that came before."""
        self._opened = True
        self._decided.set()

    def give_up(self) -> None:
        """Let carriers end, as nothing comes after the crossing any more."""
        self._decided.set()

    def wait(self) -> bool:
        """Wait until the other side is open; return False if it never will be."""
        self._decided.wait()
        return self._opened


class Crossings:
    """What carriers and whoever changes the gate agree on; one crossing at a time."""

    def __init__(self, carriers: int) -> None:
        self._lock = threading.RLock()  # reentrant: garbage collection may close it in a thread that is in here
        self._until = [BEGINNING] * carriers  # no row after this time was handed on, or is about to be
        self._over = [False] * carriers
        self._to_pass: set[int] = set()  # the carriers that have not yet passed the present crossing
        self._present: Crossing | None = None
        self._closed = False

    def enter(self, number: int, until: int | None, ends: bool) -> Crossing | None:
        """Say how far a carrier goes next (None: it has no rows), and return the crossing that it has to heed."""
        with self._lock:
            if until is not None:
                self._until[number] = until
            self._over[number] = ends
            return self._present if number in self._to_pass else None

    def passed(self, number: int) -> None:
        """Note that a carrier has passed the present crossing."""
        with self._lock:
            self._to_pass.discard(number)
            if not self._to_pass:
                self._present = None

    def begin(self, feeds: Sequence[SourceFeed]) -> Crossing | None:
        """Begin a crossing after all that was handed on; return None while there is another one, or no time left."""
        with self._lock:
            time = max(self._until) + 1
            if self._closed or self._present is not None or time > END or all(self._over):
                return None
            over = {number for number, ends in enumerate(self._over) if ends}
            self._to_pass = set(range(len(feeds))) - over
            self._present = Crossing(time, feeds, over)
            return self._present

    def close(self) -> None:
        """Let nobody wait for a crossing any more."""
        with self._lock:
            self._closed = True
            if self._present is not None:
                self._present.give_up()
