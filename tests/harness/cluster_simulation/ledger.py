"""Rows in view by event, and the changes that each kind of commit may make. Pure.

Owns the copies of each event, with the commit that published each. An event has more than one copy
only if a user had it read again. Methods return what is wrong, or an empty text; in that case the
change is recorded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from tests.harness.cluster_simulation.users import Batch


@dataclass(frozen=True, slots=True)
class Change:
    """Change that a commit made to the visible rows: how often each event was added or removed."""

    added: Counter[int]
    removed: Counter[int]

    @classmethod
    def between(cls, before: Counter[int], now: Counter[int]) -> Change:
        """Return the change from one view to another."""
        return cls(now - before, before - now)

    @property
    def is_none(self) -> bool:
        """Return whether nothing changed."""
        return not self.added and not self.removed

    def __str__(self) -> str:
        """Summarize the change."""
        return f"{few(self.removed)} are gone, {few(self.added)} are new"


@dataclass(slots=True)
class Ledger:
    """Published copies of every event.

    Attributes:
        published: Every event that was ever in view as published, with its first commit.
        days: The day of each event.
    """

    published: dict[int, int] = field(default_factory=dict)
    days: dict[int, int] = field(default_factory=dict)
    _copies: dict[int, list[int]] = field(default_factory=dict)
    _covered: set[int] = field(default_factory=set)

    def stream(self, commit: int, read: Iterable[int], change: Change) -> str:
        """Record a streaming task's publish: exactly the events between the offsets."""
        if change.removed:
            return f"removed rows: {change}"
        wanted = Counter(read)
        if change.added != wanted:
            return f"should have added {few(wanted)}: {change}"
        self._add(commit, change.added)
        return ""

    def batch(self, commit: int, batch: Batch, since: Callable[[int], int], change: Change) -> str:
        """Record a batch task's publish.

        Args:
            commit: Its number.
            batch: The batch task.
            since: Returns the commit since which rows of a day are appended beside a replacing
                task.
            change: The change of visible rows.
        """
        change, carried = self._without_carried(batch, change)
        if batch.kind == "compact":
            self._add(commit, carried)
            return "" if change.is_none else f"compacted, and {change}"
        if change.is_none:
            lost = batch.numbers - self.published.keys()
            return f"published rows that nobody sees: {few(lost)}" if lost else ""
        if change.added.keys() != batch.numbers or change.added.total() != len(batch.numbers):
            return f"added other rows than it has: {change}"
        if again := batch.numbers & self.published.keys():
            return f"published rows again: {few(again)}"
        bounds = {day: since(day) for day in batch.days if batch.kind != "append"}
        wanted = Counter[int]()
        for n, copies in self._copies.items():
            bound = bounds.get(self.days[n], 0)
            if old := sum(made < bound for made in copies):
                wanted[n] = old
        if change.removed != wanted:
            return f"should have removed {few(wanted)}: {change}"
        for n in wanted:
            bound = bounds[self.days[n]]
            self._copies[n] = [made for made in self._copies[n] if made >= bound]
        self._add(commit, change.added + carried)
        return ""

    def _without_carried(self, batch: Batch, change: Change) -> tuple[Change, Counter[int]]:
        """Separate a change from hidden rows that a replace carries over.

        A user brought newer segments back, which hid rows appended beside the replace.
        """
        carried = Counter[int]()
        if batch.kind != "append":
            found = change.added.keys() & self._covered - batch.numbers
            carried = Counter({n: change.added[n] for n in found})
        return Change(change.added - carried, change.removed), carried

    def taken_out(self, days: Collection[int], change: Change, *, wholly: bool) -> str:
        """Record that rows of some days were hidden: all of them, or at least no others."""
        if change.added:
            return f"brought rows back: {change}"
        wanted = Counter(
            {n: len(copies) for n, copies in self._copies.items() if self.days[n] in days}
        )
        if change.removed - wanted or (wholly and change.removed != wanted):
            return f"should have taken out {few(wanted)}: {change}"
        for n, count in change.removed.items():
            # It does not matter which copies they are: they are of one day, and all are old.
            self._copies[n] = self._copies[n][count:]
        return ""

    def brought_back(self, change: Change) -> str:
        """Record that hidden rows are visible again; now they are older than all others."""
        if foreign := change.added.keys() - self.published.keys():
            return f"brought back what was never there: {few(foreign)}"
        self._covered |= change.removed.keys()
        for n, count in change.removed.items():
            self._copies[n] = self._copies[n][count:]
        for n, count in change.added.items():
            self._copies.setdefault(n, []).extend([self.published[n]] * count)
        return ""

    def _add(self, commit: int, added: Counter[int]) -> None:
        for n, count in added.items():
            self.published.setdefault(n, commit)
            self._copies.setdefault(n, []).extend([commit] * count)


def few(numbers: Iterable[int]) -> str:
    """Return the first of some numbers, and their count."""
    found = sorted(numbers)
    return f"{found[:8]}{'…' if len(found) > 8 else ''} ({len(found)})"


__all__ = ["Change", "Ledger", "few"]
