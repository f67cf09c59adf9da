"""Adapter of the overlord to the election: its terms begin and end with the leader's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.indexing.overlord import Overlord
    from penstock.storage.metadata import Term

_START_TIMEOUT_S: Final = 30.0


class LeadingOverlord:
    """`LeaderListener` of an overlord.

    Args:
        overlord: The overlord; its mailbox runs.
    """

    def __init__(self, overlord: Overlord) -> None:
        self._overlord = overlord

    def become_leader(self, term: Term) -> None:
        """Begin the term; raises the errors of the overlord's start, and TimeoutError."""
        self._overlord.start(term).result(_START_TIMEOUT_S)

    def stop_being_leader(self) -> None:
        """End the current term, if any."""
        self._overlord.stop().result(_START_TIMEOUT_S)
