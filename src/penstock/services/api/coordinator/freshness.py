"""How new the data of each datasource is, by event and publish time, and how much it is.

Owns what is kept between requests for the list of all datasources: the sums of each. Only the sizes
need all rows of the segments of a datasource, or those that changed (`segment_sums`), which takes
up to seconds for 1,000,000. So these are read again only after a pause of `SIZE_RESTS` times as
long as that took; everything else is read from indexes at each request whose metadata has changed.
The first answer leaves out the size of a datasource with more than `SIZED_AT_ONCE_MAX` segments;
the next one has it. Does not own the form of the list (`datasource_pages`), nor the timeline of one
datasource (`segment_timeline`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Unavailable

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.services.api.coordinator.segment_sums import SegmentSums
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.rows.segments import NewestData

SIZE_RESTS: Final = 100
"""A datasource's size costs at most 1 % of a core while its segments change all the time."""

SIZED_AT_ONCE_MAX: Final = 20_000
"""Segments whose sizes are added up for the first answer."""

# Answers come from memory; the first one takes seconds if there are very many segments.
_REQUESTS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class DatasourceFreshness:
    """How new the data of a datasource is.

    Attributes:
        name: The datasource.
        segments: Number of visible segments; of all used ones until the sizes are added up.
        bytes: Sum of the sizes of visible segments; None: not added up yet.
        rows: Sum of their rows; None: not added up yet.
        from_ms: Start of the oldest interval of used segments; None: there are none, or not added
            up yet.
        until_ms: End of the newest interval of used segments; None: there are none.
        published_ms: Time at which the newest used segment was published; None: there are none.
        newest_row_ms: Newest `__time` in the files of running tasks; None: there are none.
    """

    name: str
    segments: int = 0
    bytes: int | None = None
    rows: int | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    published_ms: int | None = None
    newest_row_ms: int | None = None

    @property
    def is_running(self) -> bool:
        """Whether running tasks have rows that are not published yet."""
        return self.newest_row_ms is not None


ORDERS: Final[Mapping[str, Callable[[DatasourceFreshness], tuple[object, ...]]]] = {
    "name": lambda one: (one.name,),
    # Rows of running tasks are the newest.
    "newest": lambda one: (not one.is_running, -(one.published_ms or 0), one.name),
    "oldest": lambda one: (one.is_running, one.published_ms or 0, one.name),
    "bytes": lambda one: (-(one.bytes or 0), one.name),
}
"""Orders of the list, by their names."""


@dataclass(frozen=True, slots=True)
class _Datasource:
    """A datasource at the last request.

    Attributes:
        fresh: Its data; the size may be older.
        used: Number of its used segments.
        is_size_old: Whether its segments have changed since the size was read.
        size_at_s: Monotonic time at which the size was read.
        size_took_s: How long that took.
        is_new: Whether no answer has had it yet.
    """

    fresh: DatasourceFreshness
    used: int = 0
    is_size_old: bool = False
    size_at_s: float = 0.0
    size_took_s: float = 0.0
    is_new: bool = False

    @property
    def waits_for_size(self) -> bool:
        """Whether this is the first answer, and the size would take long."""
        return self.is_new and self.used > SIZED_AT_ONCE_MAX

    def may_read_size(self, now_s: float) -> bool:
        return now_s - self.size_at_s >= SIZE_RESTS * self.size_took_s


@dataclass(frozen=True, slots=True)
class _Sight:
    """All datasources at one revision of the segments."""

    revision: int | None = None
    datasources: Mapping[str, _Datasource] = field(default_factory=dict)


class FreshnessSums:
    """The sums of all datasources. Thread-safe.

    Args:
        store: The metadata store.
        clock: Measures how long sums take.
        sums: The sums of visible segments.
    """

    def __init__(self, store: MetadataStore, clock: Clock, sums: SegmentSums) -> None:
        self._store = store
        self._sums = sums
        self._clock = clock
        # One request reads at a time: others would read the same segments.
        self._mutex = threading.Lock()
        self._slots = threading.BoundedSemaphore(_REQUESTS_MAX)
        self._sight = _Sight()

    def read(self) -> Sequence[DatasourceFreshness]:
        """Return all datasources.

        Raises:
            Unavailable: Other requests are waiting.
        """
        if not self._slots.acquire(blocking=False):
            raise Unavailable(
                f"{_REQUESTS_MAX} requests for sums of all datasources are waiting: try again"
            )
        try:
            with self._mutex:
                newest = self._store.segment_overviews.newest(self._sight.revision)
                self._sight = self._updated(newest)
        finally:
            self._slots.release()
        kept = {name: one.fresh for name, one in self._sight.datasources.items()}
        for name, newest_ms in newest.running.items():
            known = kept.get(name, DatasourceFreshness(name))
            kept[name] = replace(known, newest_row_ms=newest_ms)
        return list(kept.values())

    def _updated(self, newest: NewestData) -> _Sight:
        datasources = _datasources(self._sight, newest)
        now_s = self._clock.monotonic_s()
        for name, one in datasources.items():
            if one.waits_for_size:
                datasources[name] = replace(one, is_new=False)
            elif one.is_size_old and one.may_read_size(now_s):
                try:
                    datasources[name] = self._sized(one)
                except Unavailable:  # others wait for large sums: the size stays old
                    break
        return _Sight(newest.revision, datasources)

    def _sized(self, known: _Datasource) -> _Datasource:
        name, began_s = known.fresh.name, self._clock.monotonic_s()
        found = self._sums.totals([name]).get(name)
        now_s = self._clock.monotonic_s()
        sized = replace(known.fresh, segments=0, bytes=0, rows=0, from_ms=None)
        if found is not None:
            sized = replace(
                sized,
                segments=found.count,
                bytes=found.bytes,
                rows=found.rows,
                from_ms=found.interval.start_ms,
            )
        # Later times are much faster than the first, which reads all segments.
        took_s = 0.0 if known.fresh.bytes is None else now_s - began_s
        return _Datasource(sized, known.used, size_at_s=now_s, size_took_s=took_s)


def _datasources(old: _Sight, newest: NewestData) -> dict[str, _Datasource]:
    """Return all datasources with the values of indexes; sizes that may be old are marked."""
    if newest.used is None:
        return dict(old.datasources)
    kept = {}
    for name, (count, until_ms) in newest.used.items():
        new = _Datasource(DatasourceFreshness(name, count), is_size_old=True, is_new=True)
        before = old.datasources.get(name, new)
        published_ms = max(before.fresh.published_ms or 0, newest.published.get(name, 0))
        has_changed = name in newest.published or count != before.used
        kept[name] = replace(
            before,
            fresh=replace(before.fresh, until_ms=until_ms, published_ms=published_ms),
            used=count,
            is_size_old=before.is_size_old or has_changed,
        )
    return kept
