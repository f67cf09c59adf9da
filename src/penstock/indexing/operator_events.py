"""Events of indexing for operators: metrics and alerts.

Owns only the port; the process decides where events go. `docs/operations.md` lists them.
"""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Receives events; any thread. Neither call blocks or raises."""

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        """Record a measured value; times are in milliseconds."""
        ...

    def alert(self, description: str, **data: str) -> None:
        """Report a condition that an operator should check."""
        ...


class NoEvents:
    """Drops all events."""

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        """Do nothing."""

    def alert(self, description: str, **data: str) -> None:
        """Do nothing."""
