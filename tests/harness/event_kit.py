"""An emitter that keeps its events, for checks of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.services.emitter.events import Event


class KeptEvents:
    """An `Emitter` in memory; thread-safe.

    Attributes:
        events: The emitted events, in order.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)
