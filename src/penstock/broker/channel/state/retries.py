"""Waiting messages: requeued, timed out, deferred.

Owns their order: by due time, then by id. Memory is bounded by their number, independent of the
distances between their ids.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.channel.state.recorder import remove_range

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Retry(NamedTuple):
    """A waiting message: its id, and its number of deliveries."""

    id: int
    attempts: int


class Retries:
    """Messages that wait for their due time, and due ones that wait for a consumer."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, int]] = {}  # id -> (due, attempts)
        # Heaps of (due, id, ticket). A message that is added, removed and added again, even in the
        # same millisecond, gets a new ticket each time: entries with an old one are ignored.
        self._later: list[tuple[int, int, int]] = []
        self._ready: list[tuple[int, int, int]] = []
        self._offered: list[tuple[int, int, int]] = []
        self._tickets: dict[int, int] = {}
        self._ticket = 0
        self._ready_ids: set[int] = set()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, number: int) -> bool:
        return number in self._known

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (id, due, attempts)."""
        return ((number, due, attempts) for number, (due, attempts) in self._known.items())

    def ids(self) -> list[int]:
        """Return all ids."""
        return list(self._known)

    def find(self, number: int) -> tuple[int, int] | None:
        """Return a message's due time and its number of deliveries; None: it does not wait."""
        return self._known.get(number)

    @property
    def ready(self) -> int:
        """Number of messages that `ripen` has found due."""
        return len(self._ready_ids)

    @property
    def next_ms(self) -> int | None:
        """Earliest due time of messages that `ripen` has not found due yet."""
        while self._later and not self._stands(self._later[0]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def put(self, number: int, due_ms: int, attempts: int) -> None:
        """Add a message."""
        self._known[number] = (due_ms, attempts)
        self._ready_ids.discard(number)
        self._ticket += 1
        self._tickets[number] = self._ticket
        heapq.heappush(self._later, (due_ms, number, self._ticket))

    def shift(self, step_ms: int) -> None:
        """Shift the due times of messages that were not found due yet."""
        self._later = [
            (due_ms + step_ms, number, ticket)
            for due_ms, number, ticket in self._later
            if self._tickets.get(number) == ticket
        ]
        heapq.heapify(self._later)
        for due_ms, number, _ in self._later:
            self._known[number] = (due_ms, self._known[number][1])

    def ripen(self, now_ms: int) -> None:
        """Find messages that are due now."""
        while self._later and self._later[0][0] <= now_ms:
            entry = self._later[0]
            if self._stands(entry):
                # Added to one heap before it leaves the other: an exception loses no entry.
                self._ready_ids.add(entry[1])
                heapq.heappush(self._ready, entry)
            heapq.heappop(self._later)

    def first(self, limit: int) -> list[Retry]:
        """Return the first due messages; they stay until they are removed."""
        offered = self._offered
        while offered:
            entry = offered[-1]
            if self._stands(entry) and entry[1] in self._ready_ids:
                heapq.heappush(self._ready, entry)
            offered.pop()
        found: list[Retry] = []
        while self._ready and len(found) < limit:
            entry = self._ready[0]
            if self._stands(entry) and entry[1] in self._ready_ids:
                found.append(Retry(entry[1], self._known[entry[1]][1]))
                offered.append(entry)
            heapq.heappop(self._ready)
        return found

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove messages; ignore those that do not exist."""
        for number in numbers:
            if self._known.pop(number, None) is not None:
                del self._tickets[number]
                self._ready_ids.discard(number)

    def remove_range(self, first: int, last: int) -> None:
        """Remove the messages with ids [first, last)."""
        gone = remove_range(self._known, first, last)
        self._ready_ids.difference_update(gone)
        for number in gone:
            del self._tickets[number]

    def _stands(self, entry: tuple[int, int, int]) -> bool:
        return self._tickets.get(entry[1]) == entry[2]
