"""The messages in flight: their owners, deadlines, delivery times and attempts.

Owns small dense tables of 512 consecutive ids, which are deleted when they are empty: so a batch is
finished in one step, and memory is bounded by the number of messages in flight.

Invariants: a message has at most one owner; the count of a client equals its number of messages.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

# `np.unique` imports it at its first call, which would be on the event loop.
import numpy.ma

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]

DEAD_LETTERS: Final = -1
"""Owner of messages that are being appended to a dead-letter topic; clients are positive."""

_BITS: Final = 9
_SIZE: Final = 1 << _BITS
_MASK: Final = _SIZE - 1
_TABLE_BYTES: Final = _SIZE * (8 + 8 + 8 + 2) + 1_024
_FEW_RUNS: Final = 16
_NEVER: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HeldMessages:
    """Messages that were in flight, in the order of their ids."""

    ids: Ids
    attempts: npt.NDArray[np.uint16]
    owners: npt.NDArray[np.int64]
    deadlines: npt.NDArray[np.int64]


class _Table:
    """512 consecutive ids. Owner 0 means none."""

    __slots__ = ("attempts", "deadline", "earliest", "owner", "since")

    def __init__(self) -> None:
        self.owner = np.zeros(_SIZE, np.int64)
        self.deadline = np.zeros(_SIZE, np.int64)
        self.since = np.zeros(_SIZE, np.int64)
        self.attempts = np.zeros(_SIZE, np.uint16)
        self.earliest = _NEVER  # lower bound of the deadlines


class InFlight:
    """The messages in flight of one channel."""

    def __init__(self) -> None:
        self._tables: dict[int, _Table] = {}
        self._counts: dict[int, int] = {}
        self._total = 0
        self._earliest = _NEVER

    def __len__(self) -> int:
        return self._total

    @property
    def earliest_ms(self) -> int | None:
        """A lower bound of the deadlines; None if nothing is in flight."""
        return self._earliest if self._total else None

    @property
    def memory_bytes(self) -> int:
        """Memory used by the tables."""
        return len(self._tables) * _TABLE_BYTES

    def of(self, client: int) -> int:
        """Return how many messages are in flight for a client."""
        return self._counts.get(client, 0)

    def put_range(self, start: int, end: int, client: int, now_ms: int, timeout_ms: int) -> None:
        """Deliver the ids [start, end) to a client for the first time."""
        self._count(client, end - start)
        deadline = now_ms + timeout_ms
        self._earliest = min(self._earliest, deadline)
        while start < end:
            table = self._table(start >> _BITS, deadline)
            first = start & _MASK
            stop = min(_SIZE, first + end - start)
            table.owner[first:stop] = client
            table.deadline[first:stop] = deadline
            table.since[first:stop] = now_ms
            table.attempts[first:stop] = 1
            start += stop - first

    def put(self, number: int, attempts: int, client: int, now_ms: int, timeout_ms: int) -> None:
        """Deliver one message to a client again."""
        self._count(client, 1)
        deadline = now_ms + timeout_ms
        self._earliest = min(self._earliest, deadline)
        table = self._table(number >> _BITS, deadline)
        place = number & _MASK
        table.owner[place] = client
        table.deadline[place] = deadline
        table.since[place] = now_ms
        table.attempts[place] = attempts

    def take(self, client: int, ids: Ids) -> npt.NDArray[np.bool_]:
        """Take messages from a client; return for each whether it was in flight for the client."""
        taken = np.zeros(len(ids), np.bool_)
        for key, where in _by_table(ids):
            table = self._tables.get(key)
            if table is None:
                continue
            places = ids[where] & _MASK
            had = table.owner[places] == client
            count = int(np.count_nonzero(had))
            if not count:
                continue
            if count > 1 and len(np.unique(places[had])) < count:
                had &= _first_ones(places)  # an id that occurs twice is taken only once
                count = int(np.count_nonzero(had))
            taken[where] = had
            table.owner[places[had]] = 0
            self._count(client, -count)
            if not table.owner.any():
                del self._tables[key]
        return taken

    def find(self, number: int) -> tuple[int, int] | None:
        """Return the number of deliveries and the deadline of a message; None: not in flight."""
        table = self._tables.get(number >> _BITS)
        place = number & _MASK
        if table is None or not table.owner[place]:
            return None
        return int(table.attempts[place]), int(table.deadline[place])

    def owner_of(self, number: int) -> int:
        """Return the client that has a message; 0: it is not in flight."""
        table = self._tables.get(number >> _BITS)
        return 0 if table is None else int(table.owner[number & _MASK])

    def attempts_of(self, number: int) -> int:
        """Return the number of deliveries of a message in flight; otherwise any number."""
        table = self._tables.get(number >> _BITS)
        return 0 if table is None else int(table.attempts[number & _MASK])

    def touch(self, client: int, number: int, now_ms: int, timeout_ms: int, max_ms: int) -> bool:
        """Extend a deadline, up to `max_ms` after the delivery; False if it is not in flight."""
        table = self._tables.get(number >> _BITS)
        place = number & _MASK
        if table is None or table.owner[place] != client:
            return False
        deadline = min(now_ms + timeout_ms, int(table.since[place]) + max_ms)
        table.deadline[place] = deadline
        table.earliest = min(table.earliest, deadline)
        self._earliest = min(self._earliest, deadline)
        return True

    def expire(self, now_ms: int) -> HeldMessages:
        """Take the messages whose deadline has passed."""
        if not self._total or now_ms < self._earliest:
            return _NOTHING
        held = self._remove(
            lambda table: (table.owner != 0) & (table.deadline <= now_ms),
            lambda _, table: table.earliest <= now_ms,
        )
        self._earliest = min((table.earliest for table in self._tables.values()), default=_NEVER)
        return held

    def shift(self, step_ms: int) -> None:
        """Shift all times."""
        for table in self._tables.values():
            table.deadline += step_ms
            table.since += step_ms
            table.earliest += step_ms
        if self._total:
            self._earliest += step_ms

    def release(self, client: int) -> HeldMessages:
        """Take all messages of a client."""
        if not self.of(client):
            return _NOTHING
        return self._remove(lambda table: table.owner == client, lambda _, table: bool(table))

    def clear(self, start: int, end: int) -> HeldMessages:
        """Take the messages with ids [start, end) from all clients; whole tables only."""
        return self._remove(
            lambda table: table.owner != 0, lambda key, _: start >> _BITS <= key < end >> _BITS
        )

    def all(self) -> HeldMessages:
        """Return all messages in flight."""
        parts = [_held(key, table, table.owner != 0) for key, table in sorted(self._tables.items())]
        return _joined(parts)

    def _remove(
        self,
        which: Callable[[_Table], npt.NDArray[np.bool_]],
        concerned: Callable[[int, _Table], bool],
    ) -> HeldMessages:
        parts = []
        for key, table in sorted(self._tables.items()):
            if not concerned(key, table):
                continue
            mask = which(table)
            if mask.any():
                part = _held(key, table, mask)
                parts.append(part)
                owners, counts = np.unique(part.owners, return_counts=True)
                for owner, count in zip(owners.tolist(), counts.tolist(), strict=True):
                    self._count(owner, -count)
                table.owner[mask] = 0
            left = table.owner != 0
            if left.any():
                table.earliest = int(table.deadline[left].min())
            else:
                del self._tables[key]
        return _joined(parts)

    def _table(self, key: int, deadline: int) -> _Table:
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table()
        table.earliest = min(table.earliest, deadline)
        return table

    def _count(self, client: int, change: int) -> None:
        self._total += change
        left = self._counts.get(client, 0) + change
        if left:
            self._counts[client] = left
        else:
            self._counts.pop(client, None)


def _by_table(ids: Ids) -> Iterator[tuple[int, slice | npt.NDArray[np.intp]]]:
    """Yield the tables of ids, with the indexes of these ids."""
    if not len(ids):
        return
    keys = ids >> _BITS
    breaks = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    if len(breaks) <= _FEW_RUNS:
        borders = [0, *breaks.tolist(), len(ids)]
        for start, end in itertools.pairwise(borders):
            yield int(keys[start]), slice(start, end)
        return
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    borders = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(ids)]
    for start, end in itertools.pairwise(borders):
        yield int(ordered[start]), order[start:end]


def _first_ones(places: Ids) -> npt.NDArray[np.bool_]:
    first = np.zeros(len(places), np.bool_)
    first[np.unique(places, return_index=True)[1]] = True
    return first


def _held(key: int, table: _Table, mask: npt.NDArray[np.bool_]) -> HeldMessages:
    places = np.flatnonzero(mask)
    return HeldMessages(
        (key << _BITS) + places,
        table.attempts[places],
        table.owner[places],
        table.deadline[places],
    )


def _joined(parts: list[HeldMessages]) -> HeldMessages:
    if not parts:
        return _NOTHING
    return HeldMessages(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.attempts for part in parts]),
        np.concatenate([part.owners for part in parts]),
        np.concatenate([part.deadlines for part in parts]),
    )


_NONE: Final = np.empty(0, np.int64)
_NOTHING: Final = HeldMessages(_NONE, np.empty(0, np.uint16), _NONE, _NONE)
