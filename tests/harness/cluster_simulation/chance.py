"""Random choices of one run: user actions, the order of events, and faults.

Owns the random numbers and the counts of faults that occurred. Each kind of fault has its own
random numbers, so leaving a kind out of a run does not change the others.
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
"""Kinds of faults, and their probability at each moment where they may occur."""

USER_ACTIONS: Final = (
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
"""User actions beyond events and tasks, and rare modes; a run has few of them."""

_ACTION_PROBABILITY: Final = 0.25
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
"""With calm hosts these are rare; otherwise some runs do little for most of their time."""
_RIVALS: Final = 10.0
_OF_LEADERS: Final = frozenset({"new leader amid a write", "leader's clock behind"})
"""With frequent changes of the leader, these are more probable by this factor."""
_OF_CLOCKS: Final = frozenset({"clock jumps", "leader's clock behind"})
"""If unused segments are deleted, clocks are correct, so that the smallest margin is enough."""
_UNFORESEEN: Final = frozenset({"unforeseen error", "no thread"})
"""Only runs with unexpected errors have these."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults that a run may have.

    Attributes:
        without: Excluded kinds of faults and user actions.
        most: Maximum number of faults; later ones do not occur.
        scale: Factor of all rates.
        always: User actions that the run always has.
    """

    without: frozenset[str] = frozenset()
    most: int = 1_000_000
    scale: float = 1.0
    always: frozenset[str] = frozenset()


@dataclass(slots=True)
class Chance:
    """Random choices of one run.

    Attributes:
        seed: Seed of all random numbers.
        faults: Faults that may occur.
        on: Whether faults occur now.
        counts: Number of faults of each kind.
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
        # Not every run has every fault, because otherwise rare ones would never occur alone.
        dice = self.of("rates")
        of_hosts = _CALM if self.has_action("calm hosts", 0.5) else 1.0
        self.deletes_unused = self.has_action("unused are deleted")
        are_rivals = self.has_action("leaders come and go")
        absent = frozenset() if self.has_action("unforeseen errors") else _UNFORESEEN
        for kind, rate in FAULTS.items():
            factor = dice.choice([0.0, 0.5, 1.0, 1.0, 3.0])
            if are_rivals and kind in _OF_LEADERS:
                factor = _RIVALS
            wanted = 0.0 if kind in self.faults.without | absent else self.faults.scale
            calm = of_hosts if kind in _OF_HOSTS else 1.0
            sure = 0.0 if self.deletes_unused and kind in _OF_CLOCKS else 1.0
            self._rates[kind] = rate * factor * wanted * calm * sure

    def of(self, name: str) -> random.Random:
        """Return the random generator of a name, the same one each time."""
        found = self._dice.get(name)
        if found is None:
            # Used for the simulation, not for security.
            found = self._dice[name] = random.Random(f"{self.seed} {name}")
        return found

    def has_action(self, kind: str, likely: float = _ACTION_PROBABILITY) -> bool:
        """Return whether this run has a user action. Call it once for each kind."""
        drawn = self.of(kind).random() < likely
        return (drawn or kind in self.faults.always) and kind not in self.faults.without

    def fault(self, kind: str, *, throws: int = 1) -> bool:
        """Return whether a fault occurs now, if any of the throws selects it."""
        if not self.on:
            return False
        draw, rate = self.of(kind).random, self._rates[kind]
        for _ in range(throws):
            if draw() < rate and self.counts.total() < self.faults.most:
                self.counts[kind] += 1
                return True
        return False
