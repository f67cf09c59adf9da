"""Sums over the segments that queries read, kept between requests.

Owns what is kept of each datasource: its sums, and of one with many segments also the columns that
bring them to the next revision (`penstock.segments.segment_cells`). Segments that newer ones hide
do not count, whether the overlord has marked them unused or not.

The first sums of 1,000,000 segments take seconds, so one thread at a time reads them, and threads
wait for it before their transaction begins. `TimelineRefresher` asks for them when the process
starts.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.segments.segment_cells import VisibleTotals
from penstock.segments.segment_groups import SegmentGroups

if TYPE_CHECKING:
    from penstock.storage.metadata import MetadataStore, SegmentTotals
    from penstock.storage.metadata.segment_overview import SegmentOverview

_logger = logging.getLogger(__name__)

T = TypeVar("T")

KEPT_MIN: Final = 20_000
"""Segments from which on the columns of a datasource are kept; fewer take up to 0.1 s."""

# About 100 bytes for each group.
_GROUPS_KEPT_MAX: Final = 3_000_000
_REQUESTS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class _Totals:
    """The sums of a datasource; None: it has no used segments."""

    used: int
    totals: SegmentTotals | None


@dataclass(frozen=True, slots=True)
class _KeptTotals:
    """The sums at one revision.

    Attributes:
        revision: The revision at which segments last changed.
        before: Sums at earlier revisions, without those of datasources that have changed since. A
            segment that became unused and was deleted since then only shows in the number of used
            ones.
        now: Sums at this revision, of datasources in earlier requests.
    """

    revision: int = -1
    before: Mapping[str, _Totals] = field(default_factory=dict)
    now: dict[str, _Totals] = field(default_factory=dict)


class SegmentSums:
    """The sums of all datasources. Thread-safe.

    Args:
        store: The metadata store.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        # One thread reads at a time: others would read the same segments, or need the memory.
        self._mutex = threading.Lock()
        self._slots = threading.BoundedSemaphore(_REQUESTS_MAX)
        self._large: OrderedDict[str, VisibleTotals] = OrderedDict()
        # Replaced as a whole, so that threads may use it without a mutex.
        self._kept = _KeptTotals()

    def totals(self, names: Sequence[str]) -> dict[str, SegmentTotals]:
        """Return the sums of datasources that have used segments.

        The interval and the time are those of all used segments. If the metadata of a datasource
        contradict each other, so that no query can read it, all of its used segments count.

        Raises:
            Unavailable: Other requests for sums of very many segments are waiting.
        """
        found, large = self._store.segment_overviews.read(lambda o: self._found(o, names))
        for name in large:
            found[name] = self._waited(partial(self._of_large, name))
        return {name: one.totals for name, one in found.items() if one.totals is not None}

    def groups(self, name: str) -> SegmentGroups:
        """Return the columns of a datasource.

        Raises:
            Unavailable: Other requests for sums of very many segments are waiting.
            InvalidRequest: A payload cannot be read; the message names its segment.
            Conflict: Two segments exclude each other.
        """

        def of_few(overview: SegmentOverview) -> SegmentGroups | None:
            return None if self._is_large(overview, name) else SegmentGroups.read(overview, name)

        found = self._store.segment_overviews.read(of_few)
        if found is None:
            found = self._waited(
                lambda overview: self.visible(overview, name, needs_unused=False).groups
            )
        return found

    def read(self, work: Callable[[SegmentOverview], T]) -> T:
        """Call a function that may call `visible`, and return its result. One thread at a time.

        Args:
            work: Must not change anything, because it may be called again after a conflict.
        """
        with self._mutex:
            return self._store.segment_overviews.read(work)

    def visible(
        self,
        overview: SegmentOverview,
        name: str,
        known: VisibleTotals | None = None,
        *,
        needs_unused: bool = True,
    ) -> VisibleTotals:
        """Return the sums of a datasource with its columns; only within `read`.

        Args:
            overview: The segments.
            name: The datasource.
            known: Its sums at an earlier revision, if the caller keeps them.
            needs_unused: Whether unused segments that were deleted must be gone from the groups.

        Raises:
            InvalidRequest: A payload cannot be read; the message names its segment.
            Conflict: Two segments exclude each other.
        """
        found = VisibleTotals.read(
            overview, name, self._large.get(name, known), needs_unused=needs_unused
        )
        if found.groups.segments.sum() >= KEPT_MIN:
            self._large[name] = found
            self._large.move_to_end(name)
        else:
            self._large.pop(name, None)
        while (
            len(self._large) > 1
            and sum(len(one.groups) for one in self._large.values()) > _GROUPS_KEPT_MAX
        ):
            self._large.popitem(last=False)
        return found

    def _waited(self, work: Callable[[SegmentOverview], T]) -> T:
        """Return the result of `read`, unless too many threads wait for it."""
        if not self._slots.acquire(blocking=False):
            raise Unavailable(
                f"{_REQUESTS_MAX} requests for sums of very many segments are being answered: try"
                " again"
            )
        try:
            return self.read(work)
        finally:
            self._slots.release()

    def _is_large(self, overview: SegmentOverview, name: str) -> bool:
        return name in self._large or overview.count(name) >= KEPT_MIN

    def _found(
        self, overview: SegmentOverview, names: Sequence[str]
    ) -> tuple[dict[str, _Totals], list[str]]:
        """Return sums, and the large datasources, whose sums must be waited for."""
        kept = self._kept_at(overview)
        found: dict[str, _Totals] = {}
        large: list[str] = []
        for name in names:
            one = kept.now.get(name)
            if one is None:
                one = kept.before.get(name)
                if one is None or overview.count(name, used=True) != one.used:
                    if self._is_large(overview, name):
                        large.append(name)
                        continue
                    one = _totals(overview, name, partial(VisibleTotals.read, overview, name))
                kept.now[name] = one
            found[name] = one
        return found, large

    def _of_large(self, name: str, overview: SegmentOverview) -> _Totals:
        kept = self._kept_at(overview)
        if name not in kept.now:
            read = partial(self.visible, overview, name, needs_unused=False)
            kept.now[name] = _totals(overview, name, read)
        return kept.now[name]

    def _kept_at(self, overview: SegmentOverview) -> _KeptTotals:
        kept, revision = self._kept, overview.revision
        if kept.revision == revision:
            return kept
        before: dict[str, _Totals] = {}
        if 0 <= kept.revision < revision:  # otherwise an older copy was restored
            changed = overview.changed_starts(kept.revision)
            both = dict(kept.before) | kept.now
            before = {name: one for name, one in both.items() if name not in changed}
        self._kept = made = _KeptTotals(revision, before)
        return made


def _totals(overview: SegmentOverview, name: str, read: Callable[[], VisibleTotals]) -> _Totals:
    try:
        found = read()
    except (InvalidRequest, Conflict) as error:  # narrow: queries of this datasource get it
        _logger.debug("the visible segments of %s cannot be found: %s", name, error)
        used = overview.totals(name).get(name)
        return _Totals(0 if used is None else used.count, used)
    return _Totals(found.groups.count(used=True), found.totals)
