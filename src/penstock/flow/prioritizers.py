"""Prioritizers: in which order a queue hands out its FlowFiles.

Owns the protocol, the four standard ones, and the order that a list of them makes. Does not own
the queue. Invariant: a prioritizer is a pure function of the FlowFile, so that a swap file that was
sorted by it once stays sorted by it; what makes two of a kind different is in its name.
"""

from __future__ import annotations

from typing import Any, Protocol

from penstock.flow.flowfile import FlowFile


class Key(Protocol):
    """Something that compares with its like."""

    def __lt__(self, other: Any, /) -> bool:
        """Say whether this one comes first."""
        ...


class Prioritizer(Protocol):
    """What comes first; a user's own needs these two.

    Attributes:
        name: Its name with its arguments; two of the same name give the same keys.
    """

    @property
    def name(self) -> str:
        """Return its name with its arguments."""
        ...

    def key(self, flowfile: FlowFile) -> Key:
        """Return what compares less for what comes first."""
        ...
