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
        rest: The window without them.
    """

    flowfiles: list[FlowFile]
    places: list[int]
    key: Key
    rest: Window


class Window:
    """FlowFiles in order; its length is how many are left of them. It never changes.

    Args:
        keys: The keys.
        flowfiles: The FlowFiles.
        places: Their places in the run's order.

    Attributes:
        used_bytes: About what it takes of the memory.
    """

    __slots__ = ("_at", "_flowfiles", "_keys", "_places", "used_bytes")

    def __init__(
        self,
        keys: Sequence[Key] = (),
        flowfiles: Sequence[FlowFile] = (),
        places: Sequence[int] = (),
    ) -> None:
        self._keys = keys
        self._flowfiles = flowfiles
        self._places = places
        self._at = 0  # those before it were taken
        self.used_bytes = heap_bytes(flowfiles) if flowfiles else 0

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
    def places(self) -> Sequence[int]:
        """Return the places of all."""
        return self._places[self._at :]

    def entries(self) -> list[Entry]:
        """Return all with their keys."""
        return list(zip(self._keys[self._at :], self._flowfiles[self._at :], strict=True))

    def with_more(
        self, keys: Iterable[Key], flowfiles: Iterable[FlowFile], places: Iterable[int]
    ) -> Window:
        """Return a window of these and of what comes behind them."""
        at = self._at
        return Window(
            [*self._keys[at:], *keys],
            [*self._flowfiles[at:], *flowfiles],
            [*self._places[at:], *places],
        )

    def first(self, limit: int, before: Key | None) -> FromWindow:
        """Return up to `limit` from the front, all with keys less than `before`; there is one."""
        keys, start = self._keys, self._at
        end = len(keys) if before is None else bisect_left(keys, before, start)
        end = min(end, start + limit)
        key = keys[min(end, len(keys) - 1)]
        rest = Window()
        if end < len(keys):
            rest._keys, rest._flowfiles, rest._places = keys, self._flowfiles, self._places
            rest._at, rest.used_bytes = end, self.used_bytes
        taken = list(self._flowfiles[start:end])
        return FromWindow(taken, list(self._places[start:end]), key, rest)

    def only(self, kept: Sequence[bool]) -> Window:
        """Return a window of some of them: of each, whether it stays."""
        at = self._at
        return Window(
            list(compress(self._keys[at:], kept)),
            list(compress(self._flowfiles[at:], kept)),
            list(compress(self._places[at:], kept)),
        )
