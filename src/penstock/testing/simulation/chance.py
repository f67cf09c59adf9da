"""Everything random of one run: what users do, in which order things happen, and which faults.

Owns the random numbers and the list of faults that came to pass. Each kind of fault draws from
numbers of its own, so that leaving a kind out of a run leaves the draws of the others as they were.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

FAULTS: Final[Mapping[str, float]] = {
    "overlord dies": 0.0006,
    "worker dies": 0.0004,
    "peon dies": 0.004,
    "process stalls": 0.0004,
    "partition": 0.0006,
    "request delayed": 0.03,
    "request lost": 0.01,
    "answer lost": 0.02,
    "request doubled": 0.02,
    "clock jumps": 0.0004,
    "metadata refuses": 0.004,
    "metadata commits unheard": 0.006,
    "metadata outage": 0.0002,
    "disk full": 0.0003,
    "engine lost": 0.03,
    "broker down": 0.0003,
    "new leader amid a write": 0.002,
    "engine slow": 0.15,
    "publish late": 0.1,
    "publish very late": 0.02,
    "publish unheard": 0.08,
    "leader's clock behind": 0.5,
    "agreement late": 0.04,
    "deep storage full": 0.0003,
    "publish under way": 0.04,
    "unforeseen error": 0.0015,
    "no thread": 0.002,
}
"""Kinds of faults, and how likely each is at each moment where it may happen."""

WHIMS: Final = (
    "retention rules",
    "automatic compaction",
    "offset resets",
    "marks used",
    "other shapes",
    "mixed locks",
    "marks amid work",
    "tasks together",
    "calm hosts",
    "unused are deleted",
    "minor compactions",
    "locks of segments",
    "released locks",
    "message windows",
    "scaling by cost",
    "leaders come and go",
    "server priorities",
    "unforeseen errors",
)
"""What users may want beyond events and tasks, and what is rare; a run has few of them."""

_WHIM: Final = 0.25
_CALM: Final = 0.1
_OF_HOSTS: Final = frozenset(
    {
        "overlord dies",
        "worker dies",
        "process stalls",
        "partition",
        "metadata outage",
        "disk full",
        "deep storage full",
        "broker down",
    }
)
"""Where hosts are calm these are rare: else some runs are at rest for most of their time."""
_RIVALS: Final = 10.0
_OF_LEADERS: Final = frozenset({"new leader amid a write", "leader's clock behind"})
"""Where leaders come and go these are so much likelier."""
_OF_CLOCKS: Final = frozenset({"clock jumps", "leader's clock behind"})
"""Where unused segments are deleted clocks are right: then the least of margins is enough."""
_UNFORESEEN: Final = frozenset({"unforeseen error", "no thread"})
"""Only runs with unforeseen errors have these."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Which faults a run may have.

    Attributes:
        without: Kinds that do not happen; whims, too.
        most: How many happen at most; the first ones do.
        scale: All rates are multiplied by it.
        always: Whims that the run has for sure.
    """

    without: frozenset[str] = frozenset()
    most: int = 1_000_000
    scale: float = 1.0
    always: frozenset[str] = frozenset()


@dataclass(slots=True)
class Chance:
    """The dice of one run.

    Attributes:
        seed: Where all numbers come from.
        faults: Which faults may be.
        on: Whether faults happen just now.
        counts: How many there were of each kind.
        deletes_unused: Whether overlords delete unused segments.
    """

    seed: int
    faults: Faults = field(default_factory=Faults)
    on: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    deletes_unused: bool = field(init=False)
    _dice: dict[str, random.Random] = field(default_factory=dict)
    _rates: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Not every world has every fault, or rare ones would never be alone.
        dice = self.of("rates")
        of_hosts = _CALM if self.whim("calm hosts", 0.5) else 1.0
        self.deletes_unused = self.whim("unused are deleted")
        are_rivals = self.whim("leaders come and go")
        absent = frozenset() if self.whim("unforeseen errors") else _UNFORESEEN
        for kind, rate in FAULTS.items():
            factor = dice.choice([0.0, 0.5, 1.0, 1.0, 3.0])
            if are_rivals and kind in _OF_LEADERS:
                factor = _RIVALS
            wanted = 0.0 if kind in self.faults.without | absent else self.faults.scale
            calm = of_hosts if kind in _OF_HOSTS else 1.0
            sure = 0.0 if self.deletes_unused and kind in _OF_CLOCKS else 1.0
            self._rates[kind] = rate * factor * wanted * calm * sure

    def of(self, name: str) -> random.Random:
        """Return the dice of a name, the same each time."""
        found = self._dice.get(name)
        if found is None:
            # It plays the world, it guards nothing.
            found = self._dice[name] = random.Random(f"{self.seed} {name}")  # noqa: S311
        return found

    def whim(self, kind: str, likely: float = _WHIM) -> bool:
        """Tell whether users of this run have a whim. Once for each kind."""
        drawn = self.of(kind).random() < likely
        return (drawn or kind in self.faults.always) and kind not in self.faults.without

    def fault(self, kind: str, *, throws: int = 1) -> bool:
        """Tell whether a fault happens at this moment, if any of so many throws says so."""
        if not self.on:
            return False
        draw, rate = self.of(kind).random, self._rates[kind]
        for _ in range(throws):
            if draw() < rate and self.counts.total() < self.faults.most:
                self.counts[kind] += 1
                return True
        return False
