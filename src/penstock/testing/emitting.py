"""An emitter that keeps what it was given, for a test to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.services.emitting.events import Event


class KeptEvents:
    """An `Emitter` in memory; from any thread.

    Attributes:
        events: What was emitted, in order.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)
