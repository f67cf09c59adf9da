"""The changes of a worker, in order, so that an overlord that polls again gets only new ones.

Pure. Owns the count of the changes, the hash that chains them, and the limit of remembered ones;
the worker has the current state of its tasks. Rules for the position in a request:

| position | answer |
|---|---|
| before the first change (-1) | everything |
| its count is ahead of this history | everything: it belongs to another history |
| its hash differs from this history's | everything |
| older than the remembered changes | everything |
| other | the names that changed since, without duplicates |
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING, Final

from penstock.indexing.ports import HistoryPlace

if TYPE_CHECKING:
    from collections.abc import Sequence

CHANGES_MAX: Final = 1_000


class ChangeHistory:
    """The newest changes since a worker's start.

    Args:
        seed: Differs between starts.
        changes_max: Number of remembered changes.
    """

    def __init__(self, seed: int, changes_max: int = CHANGES_MAX) -> None:
        self._place = HistoryPlace(0, zlib.crc32(str(seed).encode()))
        # (hash before the change, name); the last belongs to the current count.
        self._changes: deque[tuple[int, str]] = deque(maxlen=changes_max)

    @property
    def place(self) -> HistoryPlace:
        """The current position."""
        return self._place

    def add(self, name: str) -> None:
        """Record a change of the item with this name."""
        before = self._place
        self._changes.append((before.hash, name))
        self._place = HistoryPlace(before.counter + 1, zlib.crc32(name.encode(), before.hash))

    def since(self, place: HistoryPlace) -> Sequence[str] | None:
        """Return the names that changed after a position, in order; None: everything."""
        behind = self._place.counter - place.counter
        if place.counter < 0 or not 0 <= behind <= len(self._changes):
            return None
        if behind == 0:
            return () if place.hash == self._place.hash else None
        if self._changes[-behind][0] != place.hash:
            return None
        names = [self._changes[index][1] for index in range(-behind, 0)]
        # A dict keeps the position of the first of equal keys, but the last change is needed.
        return tuple(dict.fromkeys(reversed(names)))[::-1]
