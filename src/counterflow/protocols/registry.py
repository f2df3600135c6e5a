"""The algorithms by the names that users give them. A new one is a module with a PROTOCOL, and an entry here.

Nothing is compiled, and no compiler imported, before `protocol` is called.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from counterflow.protocols.traits import Protocol

MODULES = {
    "kang": "kang",
    "celljoin": "celljoin",
    "handshake": "handshake",
    "llhj": "low_latency",
    "dpjoin": "dp_join",
    "scalejoin": "scale_join",
}
NAMES = tuple(MODULES)


@cache
def protocol(name: str) -> Protocol:
    """Return what is to be known of an algorithm."""
    found: Protocol = import_module(f"counterflow.protocols.{MODULES[name]}").PROTOCOL
    return found
