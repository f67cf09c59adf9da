"""Listeners for appends to a topic: readers by offset, while they poll.

Used on the broker's event loop only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.looptasks import call_each

if TYPE_CHECKING:
    from collections.abc import Callable


class News:
    """Listeners of one topic; a callback only schedules its check."""

    __slots__ = ("_number", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}
        self._number = 0

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back at each append or deletion; return a call that removes the listener."""
        self._number += 1
        number = self._number
        self._waiting[number] = callback

        def unwatch() -> None:
            self._waiting.pop(number, None)

        return unwatch

    def tell(self) -> None:
        """Call all listeners: messages were appended or deleted, or the topic ends."""
        if self._waiting:
            call_each(tuple(self._waiting.values()))
