"""What reaches a terminal: names and values of others are shown, never obeyed.

A file's name, a CSV's header or a value in an error message may hold escape sequences, which a terminal would follow:
they colour, hide or overwrite what stands there, and some terminals do worse.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.text import Text

notes = Console(stderr=True, highlight=False)
MESSAGE_MAX = 2_000  # characters of one message: a number of thousands of digits helps nobody


def plain(text: str, keep: str = "") -> str:
    """Return the text with every character that is not printable as its escape (`\\x1b`), but those of `keep`."""
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def say(text: str) -> None:
    """Print one line to stderr, whatever the text holds."""
    notes.print(Text(_shortened(plain(text))), soft_wrap=True)


def complain(text: str) -> None:
    """Print an error to stderr, in one line."""
    notes.print(Text.assemble(("error: ", "bold red"), _shortened(plain(text))), soft_wrap=True)


def _shortened(text: str) -> str:
    half = MESSAGE_MAX // 2
    return text if len(text) <= MESSAGE_MAX else f"{text[:half]} ... {text[-half:]}"


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C end the process at once.

    Python's own handler only leaves a note, which the main thread finds when it gets its turn. A regular expression
    that goes on for ever in another thread never gives it one, and compiled code looks for no notes.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # ignored (nohup), or somebody else's
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
