"""The window of a run: the next of its FlowFiles, read ahead into memory.

Owns these, their keys and their places in the run's order, side by side. Does not own which they
are (`run`), nor when it is read or let go (`windows`). Guarded by the queue's mutex.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

from penstock.flow.queue.budget import heap_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.prioritizers import Key

Entry = tuple["Key", "FlowFile"]


class FromWindow(NamedTuple):
    """The first FlowFiles of a window.

    Attributes:
        flowfiles: In order.
        places: Theirs, in the run's order.
        key: Of the first one behind them; where there is none, of the last of them.
    """

    flowfiles: list[FlowFile]
    places: list[int]
    key: Key


class Window:
    """FlowFiles in order; its length is how many are left of them."""

    __slots__ = ("_at", "_bytes", "_flowfiles", "_keys", "_places")

    def __init__(self) -> None:
        self._keys: list[Key] = []
        self._flowfiles: list[FlowFile] = []
        self._places: list[int] = []
        self._at = 0  # those before it were taken
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._keys) - self._at

    @property
    def key(self) -> Key:
        """Return the key of the first; there is one."""
        return self._keys[self._at]

    @property
    def place(self) -> int:
        """Return the place of the first; there is one."""
        return self._places[self._at]

    @property
    def places(self) -> list[int]:
        """Return the places of all."""
        return self._places[self._at :]

    def entries(self) -> list[Entry]:
        """Return all with their keys."""
        return list(zip(self._keys[self._at :], self._flowfiles[self._at :], strict=True))

    def add(
        self, keys: Iterable[Key], flowfiles: Iterable[FlowFile], places: Iterable[int]
    ) -> None:
        """Add what comes behind."""
        if self._at:
            del self._keys[: self._at], self._flowfiles[: self._at], self._places[: self._at]
            self._at = 0
        self._keys += keys
        self._flowfiles += flowfiles
        self._places += places

    def first(self, limit: int, before: Key | None) -> FromWindow:
        """Return up to `limit` from the front, all with keys less than `before`; there is one."""
        keys, start = self._keys, self._at
        end = len(keys) if before is None else bisect_left(keys, before, start)
        end = min(end, start + limit)
        key = keys[min(end, len(keys) - 1)]
        return FromWindow(self._flowfiles[start:end], self._places[start:end], key)

    def drop_first(self, count: int) -> None:
        """Remove `count` from the front."""
        self._at += count

    def keep(self, kept: Sequence[bool]) -> None:
        """Let go of some in between: of each, whether it stays."""
        at = self._at
        self._keys = list(compress(self._keys[at:], kept))
        self._flowfiles = list(compress(self._flowfiles[at:], kept))
        self._places = list(compress(self._places[at:], kept))
        self._at = 0

    def clear(self) -> None:
        """Let go of all."""
        self._keys, self._flowfiles, self._places, self._at = [], [], [], 0

    def weigh(self) -> int:
        """Return by how many bytes it takes more memory, about, than when it was last weighed."""
        before, self._bytes = self._bytes, heap_bytes(self._flowfiles)
        return self._bytes - before
