"""What changed at a worker, in order: so that an overlord that asks again hears only what is new.

Pure. Owns the count of the changes, the hash that chains them, and how many are remembered; what a
changed task looks like now is the worker's. Rules for a place that somebody asks with:

| place | answer |
|---|---|
| before anything (-1) | everything |
| its count is ahead of this history | everything: it is another history's |
| its hash is not what this history had there | everything |
| older than what is remembered | everything |
| else | what changed since, each name once |
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
    """The newest changes of one life of a worker.

    Args:
        seed: Differs from one life to the next.
        changes_max: So many are remembered.
    """

    def __init__(self, seed: int, changes_max: int = CHANGES_MAX) -> None:
        self._place = HistoryPlace(0, zlib.crc32(str(seed).encode()))
        # (hash before the change, name); the last belongs to the count of now.
        self._changes: deque[tuple[int, str]] = deque(maxlen=changes_max)

    @property
    def place(self) -> HistoryPlace:
        """Where the history stands."""
        return self._place

    def add(self, name: str) -> None:
        """Note that what has this name changed."""
        before = self._place
        self._changes.append((before.hash, name))
        self._place = HistoryPlace(before.counter + 1, zlib.crc32(name.encode(), before.hash))

    def since(self, place: HistoryPlace) -> Sequence[str] | None:
        """Return the names that changed after a place, the latest change last; None: everything."""
        behind = self._place.counter - place.counter
        if place.counter < 0 or not 0 <= behind <= len(self._changes):
            return None
        if behind == 0:
            return () if place.hash == self._place.hash else None
        if self._changes[-behind][0] != place.hash:
            return None
        names = [self._changes[index][1] for index in range(-behind, 0)]
        # The first of equal keys keeps its place in a dict, and the last change is what counts.
        return tuple(dict.fromkeys(reversed(names)))[::-1]
