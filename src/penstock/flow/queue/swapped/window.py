"""Window of a cursor: its next FlowFiles, read ahead into memory.

Owns these FlowFiles, their keys and their positions in the cursor's order, as parallel lists. Does
not own the selection (`run`), nor when it is read or discarded (`windows`). Guarded by the queue's
mutex.
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
    """First FlowFiles of a window.

    Attributes:
        flowfiles: The FlowFiles, in order.
        places: Their positions in the cursor's order.
        key: Key of the first one after them; if there is none, of the last of them.
        rest: The window without them.
    """

    flowfiles: list[FlowFile]
    places: list[int]
    key: Key
    rest: Window


class Window:
    """Immutable window of FlowFiles in order; its length is the number of remaining FlowFiles.

    Args:
        keys: The keys.
        flowfiles: The FlowFiles.
        places: Their positions in the cursor's order.

    Attributes:
        used_bytes: Approximate memory that it takes.
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
        self._at = 0  # earlier ones were taken
        self.used_bytes = heap_bytes(flowfiles) if flowfiles else 0

    def __len__(self) -> int:
        return len(self._keys) - self._at

    @property
    def key(self) -> Key:
        """Return the key of the first FlowFile; one must exist."""
        return self._keys[self._at]

    @property
    def place(self) -> int:
        """Return the position of the first FlowFile; one must exist."""
        return self._places[self._at]

    @property
    def places(self) -> Sequence[int]:
        """Return the positions of all."""
        return self._places[self._at :]

    def entries(self) -> list[Entry]:
        """Return all with their keys."""
        return list(zip(self._keys[self._at :], self._flowfiles[self._at :], strict=True))

    def with_more(
        self, keys: Iterable[Key], flowfiles: Iterable[FlowFile], places: Iterable[int]
    ) -> Window:
        """Return a window of these and of FlowFiles that follow them."""
        at = self._at
        return Window(
            [*self._keys[at:], *keys],
            [*self._flowfiles[at:], *flowfiles],
            [*self._places[at:], *places],
        )

    def first(self, limit: int, before: Key | None) -> FromWindow:
        """Return up to `limit` FlowFiles from the front, with keys below `before`."""
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
        """Return a window of selected FlowFiles: for each, whether it stays."""
        at = self._at
        return Window(
            list(compress(self._keys[at:], kept)),
            list(compress(self._flowfiles[at:], kept)),
            list(compress(self._places[at:], kept)),
        )
