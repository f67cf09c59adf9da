"""Relationships of a processor, and retries before a transfer.

Owns the two declarations: a relationship, and the retries of a FlowFile before it is transferred.
Does not own connections (`graph`), nor carrying out retries (`session`).

Invariant: immutable; a relationship that is a class attribute has the name of the attribute.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from penstock.core.backoff import RetryPolicy

MAX_BACKOFF_MS: Final = 600_000
RETRY_COUNT_PREFIX: Final = (
    "retryCount."  # with the processor's id: attribute with the number of retries
)


class Relationship:
    """Named output of a processor.

    A class attribute needs no name: ``success = Relationship("Greeted.")``.

    Args:
        about: FlowFiles that are transferred there, for the documentation.
        name: Its name, if it differs from that of the attribute.
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


class RetryBackoff(enum.Enum):
    """Whether the FlowFile or the processor waits between two retries."""

    PENALIZE = "penalize"  # the FlowFile; others are processed meanwhile
    YIELD = "yield"  # the processor


@dataclass(frozen=True, slots=True)
class RelationshipRetry:
    """Retries of a FlowFile, given back to its queue, before it is transferred.

    Attributes:
        count: Maximum number of retries.
        backoff: Whether the FlowFile or the processor waits.
        max_backoff_ms: The delay doubles with each retry up to this.
    """

    count: int
    backoff: RetryBackoff = RetryBackoff.PENALIZE
    max_backoff_ms: int = MAX_BACKOFF_MS

    def delay_ms(self, tried: int, base_ms: int) -> int:
        """Return the delay after `tried` retries; `base_ms` after none."""
        return RetryPolicy(base_ms, self.max_backoff_ms).delay_ms(tried + 1)
