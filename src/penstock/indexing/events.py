"""What indexing tells operators: measured values, and what somebody should look at.

Owns the port alone; where events go is the process's to say. Which there are stands in
`docs/operations.md`.
"""

from __future__ import annotations

from typing import Protocol


class Events(Protocol):
    """Takes events; any thread. Neither call blocks or raises."""

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        """Take a measured value; times are in milliseconds."""
        ...

    def alert(self, description: str, **data: str) -> None:
        """Take word of something that somebody should look at."""
        ...


class NoEvents:
    """Nobody listens."""

    def measured(self, metric: str, value: float, **dimensions: str) -> None:
        """Do nothing."""

    def alert(self, description: str, **data: str) -> None:
        """Do nothing."""
