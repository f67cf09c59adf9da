"""Where a processor sends FlowFiles, by name, and what is tried again on the way.

Owns the two declarations: a relationship, and how often a FlowFile that goes to one is tried
again first. Does not own connections (`graph`), nor the trying (`session`).

Invariant: immutable; a relationship that is a class attribute takes its name from the attribute.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

MAX_BACKOFF_MS: Final = 600_000
RETRY_COUNT_PREFIX: Final = "retryCount."  # with the processor's id: the attribute that counts


class Relationship:
    """A named way out of a processor.

    As a class attribute it needs no name: ``success = Relationship("Greeted.")``.

    Args:
        about: What is sent there, for the documentation.
        name: Its name, if it is not that of the attribute.
    """

    __slots__ = ("_name", "about")

    def __init__(self, about: str = "", *, name: str = "") -> None:
        self.about = about
        self._name = name

    def __set_name__(self, owner: type, name: str) -> None:
        if not self._name:
            self._name = name

    @property
    def name(self) -> str:
        """Return the name that flows use."""
        return self._name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Relationship) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"Relationship({self._name!r})"


class Backoff(enum.Enum):
    """What waits between two tries."""

    PENALIZE = "penalize"  # the FlowFile: others are processed meanwhile
    YIELD = "yield"  # the processor


@dataclass(frozen=True, slots=True)
class Retry:
    """How often a FlowFile is given back to its queue before it really goes to a relationship.

    Attributes:
        count: Tries after the first.
        backoff: What waits.
        max_backoff_ms: The wait doubles with each try up to this.
    """

    count: int
    backoff: Backoff = Backoff.PENALIZE
    max_backoff_ms: int = MAX_BACKOFF_MS

    def delay_ms(self, tried: int, base_ms: int) -> int:
        """Return how long to wait after `tried` retries; `base_ms` after none."""
        # Past 40 doublings of a millisecond there is no maximum that it is not over.
        return min(self.max_backoff_ms, base_ms << min(tried, 40))
