"""How the simulator runs a join."""

from __future__ import annotations

from dataclasses import dataclass

from counterflow.engines.local.options import Local
from counterflow.errors import OptionError
from counterflow.protocols.registry import NAMES, protocol
from counterflow.suggest import did_you_mean

NODES = 4  # where nothing is said


@dataclass(frozen=True)
class Simulated:
    """Join two tables by the nodes of an algorithm, which move one at a time, in an order that the seed decides.

    The results are those of every other engine. It is slow: for tests, and to see a run again.

    >>> import counterflow as cf
    >>> engine = cf.Simulated("scalejoin", nodes=3, seed=7)  # for cf.window_join(left, right, ..., engine=engine)
    >>> engine.described
    'simulated, algorithm scalejoin, 3 workers, seed 7'
    """

    algorithm: str = "llhj"
    nodes: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.algorithm not in NAMES:
            raise OptionError(f"unknown algorithm {self.algorithm!r}{did_you_mean(str(self.algorithm), NAMES)}")
        for option, least in (("nodes", 1), ("seed", 0)):
            value = getattr(self, option)
            if value is None and option == "nodes":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{option}={value!r}: must be a positive integer{'' if least else ', or 0'}")
        if self.nodes not in (None, 1) and protocol(self.algorithm).sequential:
            raise OptionError(f"nodes={self.nodes}: {self.algorithm!r} is sequential; choose another algorithm, or 1")

    @property
    def local(self) -> Local:
        """The engine that is simulated."""
        return Local(self.algorithm, workers=1 if protocol(self.algorithm).sequential else self.nodes or NODES)

    @property
    def described(self) -> str:
        return self.describe(self.local)

    def describe(self, local: Local) -> str:
        """Return the algorithm, its nodes and the seed in a few words; `local` may have a layout for a join."""
        return f"simulated, {local.described}, seed {self.seed}"
