"""Every form of window that a call can ask for, drawn by chance: the simulator's cases and all tests draw from here.

A form says what kind of window each side has, and whether its durations are closed. Sizes, and the way in which the
window is written, are drawn too: `random.Random` decides, or Hypothesis in its place.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import product
from typing import Any

from counterflow.spec.window_sizes import rows, window

DURATIONS = ("zero", "short", "huge")
ROWS = ("one row", "few rows", "many rows")
UNBOUNDED = "unbounded"
KINDS = (*DURATIONS, *ROWS, UNBOUNDED)
LASTING = ("huge", "many rows", UNBOUNDED)  # nothing leaves such a window in a small join
SIZE_MAX = 2**63 - 1
SHORT_MAX = 4  # of a time's unit; rows too


@dataclass(frozen=True)
class Form:
    """The kinds of both windows; `closed` matters to durations only."""

    left: str
    right: str
    closed: bool = True

    @property
    def kinds(self) -> tuple[str, str]:
        return self.left, self.right

    def __str__(self) -> str:
        return f"{self.left}, {self.right}" + ("" if self.closed else ", open")


def _may_be_open(left: str, right: str) -> bool:
    """Whether `cf.window(..., closed=False)` can say it, and it makes a difference."""
    return UNBOUNDED not in (left, right) and (left in DURATIONS or right in DURATIONS)


FORMS = tuple(
    Form(left, right, closed)
    for left, right, closed in product(KINDS, KINDS, (True, False))
    if closed or _may_be_open(left, right)
)
BOUNDED = tuple(form for form in FORMS if UNBOUNDED not in form.kinds)  # what streams can have
LEAVING = tuple(form for form in FORMS if not set(form.kinds) & set(LASTING))  # tuples leave both windows


def draw_form(chance: random.Random, forms: tuple[Form, ...] = FORMS) -> Form:
    """Return a form. In half of all draws tuples leave both windows, which is where joins go wrong."""
    leaving = [form for form in forms if form in LEAVING]
    return chance.choice(leaving) if leaving and chance.random() < 0.5 else chance.choice(forms)


def draw_window(form: Form, chance: random.Random, unit: str = "") -> Any:
    """Return a value for `window=` that has this form: for integer times, or with a `unit` for timestamps."""
    left, right = (_size(kind, chance, unit) for kind in form.kinds)
    ways: list[Any] = []
    if form.closed:
        ways += [(left, right), *[left] * (left == right)]
    if UNBOUNDED not in form.kinds:
        ways.append(window(before=right, after=left, closed=form.closed))
        ways += [window(before=right, closed=form.closed)] * (form.left == "zero")
        ways += [window(after=left, closed=form.closed)] * (form.right == "zero")
        ways += [window(left, closed=form.closed)] * (left == right)
    return chance.choice(ways)


def _size(kind: str, chance: random.Random, unit: str) -> Any:
    if kind == UNBOUNDED:
        return None
    if kind in ROWS:
        few = chance.randint(2, SHORT_MAX)
        return rows({"one row": 1, "few rows": few, "many rows": chance.choice([10**3, 2**31, SIZE_MAX])}[kind])
    if kind == "huge":
        size = chance.choice([SIZE_MAX, SIZE_MAX - 1, SIZE_MAX // 2])
        return f"{size} us" if unit else size
    size = chance.randint(1, SHORT_MAX) if kind == "short" else 0
    return f"{size} {unit}" if unit else size
