"""API of datasources that Druid does not have: pages of the list, sums, and previews of rules.

Owns the paths `/penstock/v1/datasources`, `…/NAME`, `…/NAME/sums` and `…/NAME/rules/preview`. Sums
are of the segments that queries read (`segment_sums`); sums over all datasources, and other orders
than by name, come from `freshness`. A preview uses the functions with which the overlord applies
rules, so both agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, NotFound
from penstock.core.instants import format_time
from penstock.core.intervals import Interval
from penstock.indexing.specs.retention_rules import dropped, parse_rules, readable_rules
from penstock.segments.segment_cells import SegmentSizes, SegmentStates, visible_sums
from penstock.services.api.asgi import JsonResponse, bounded_body, report_invalid
from penstock.services.api.coordinator.freshness import (
    ORDERS,
    DatasourceFreshness,
    FreshnessSums,
)
from penstock.services.api.indexer.request_parts import (
    datasource_of,
    query_count,
    query_flag,
    query_interval,
    query_skip,
)
from penstock.services.api.request_access import RequestAccess, access_of
from penstock.storage.metadata import SegmentTotals
from penstock.storage.metadata.tables.configuration import DEFAULT_RULES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from penstock.indexing.specs.retention_rules import Rule
    from penstock.segments.segment_groups import SegmentGroups
    from penstock.services.api.coordinator.segment_sums import SegmentSums
    from penstock.storage.metadata import MetadataStore
    from penstock.storage.metadata.segment_overview import SegmentOverview

DATASOURCES: Final = "/penstock/v1/datasources"
LISTED_DEFAULT: Final = 100
LISTED_MAX: Final = 1_000
"""Datasources in one page."""
_INTERVALS_SHOWN_MAX: Final = 100


class DatasourcePageRoutes:
    """The routes.

    Args:
        store: The metadata store.
        clock: Determines which segments a rule drops now.
        sums: The sums of visible segments.
    """

    def __init__(self, store: MetadataStore, clock: Clock, sums: SegmentSums) -> None:
        self._store = store
        self._clock = clock
        self._sums = sums
        self._freshness = FreshnessSums(store, clock, sums)
        # Replaced as a whole, so that threads may use it without a mutex.
        self._kept = _KeptNames(-1, ())

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = DATASOURCES + "/{datasource}"
        return [
            Route(DATASOURCES, self.page),
            Route(one, self.one),
            Route(one + "/sums", self.sums),
            Route(one + "/rules/preview", self.preview, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """Return a page of the list of datasources, with sums over all if the request has `sums`.

        A principal whose rows are limited sees that a datasource exists, because SQL shows it, but
        no sums over rows that it may not see.

        Raises:
            InvalidRequest: A parameter is invalid.
            Unavailable: Other requests for sums over all datasources are waiting.
        """
        access = access_of(request)
        text = request.query_params.get("search", "").lower()
        skip = query_skip(request)
        most = query_count(request, "limit", default=LISTED_DEFAULT, most=LISTED_MAX)
        order = request.query_params.get("order", "name")
        if order not in ORDERS:
            raise InvalidRequest(
                f"invalid order {order!r:.60}; use {', '.join(ORDERS)}", place="order"
            )
        has_sums = query_flag(request, "sums")
        if has_sums or order != "name":
            return JsonResponse(self._fresh_page(access, text, order, (skip, most), has_sums))

        every = self._store.segment_overviews.read(self._names)
        names = access.visible(name for name in every if text in name.lower())
        listed = self._shown(access, names[skip : skip + most])
        return JsonResponse({"found": len(names), "datasources": listed})

    def _fresh_page(
        self,
        access: RequestAccess,
        text: str,
        order: str,
        part: tuple[int, int],
        has_sums: bool,
    ) -> dict[str, object]:
        """Return a page in any order. The sums of an entry may be some seconds old."""
        fresh = {one.name: one for one in self._freshness.read()}
        used = [name for name, one in fresh.items() if one.until_ms is not None]
        # As without sums: also those that only have files of which no newest row is known.
        stored = self._store.segment_overviews.read(lambda overview: overview.names(used))
        visible = access.visible(stored)
        known = {
            one: fresh.get(one) or DatasourceFreshness(one, bytes=0, rows=0) for one in visible
        }
        limited = {name for name in visible if access.sees_limited_rows(name)}
        every = [known[name] for name in visible if name not in limited]
        newest = [one.newest_row_ms for one in every if one.newest_row_ms is not None]
        answer: dict[str, object] = {}
        if has_sums:
            answer["sums"] = {
                "datasources": len(visible),
                "segments": sum(one.segments for one in every),
                "bytes": sum(one.bytes or 0 for one in every),
                "newestRow": _time(max(newest, default=None)),
            }
        found = sorted((one for one in every if text in one.name.lower()), key=ORDERS[order])
        names = [one.name for one in found]
        names += sorted(name for name in limited if text in name.lower())
        if order == "name":
            names.sort()
        skip, most = part
        listed = self._entries([known[name] for name in names[skip : skip + most]], limited)
        return {**answer, "found": len(names), "datasources": listed}

    def _names(self, overview: SegmentOverview) -> list[str]:
        """Return the datasources that have used segments or announced files, in order."""
        kept = self._kept
        if kept.revision != overview.revision:
            self._kept = kept = _KeptNames(overview.revision, tuple(overview.datasources()))
        return overview.names(kept.names)

    def _shown(self, access: RequestAccess, names: Sequence[str]) -> list[Mapping[str, object]]:
        """Return entries of the list."""
        limited = {name for name in names if access.sees_limited_rows(name)}
        totals = self._sums.totals([name for name in names if name not in limited])
        known = [_known(name, totals.get(name)) for name in names]
        return self._entries(known, limited)

    def _entries(
        self, known: Sequence[DatasourceFreshness], limited: Collection[str]
    ) -> list[Mapping[str, object]]:
        return self._store.segment_overviews.read(
            lambda overview: [
                _limited(one.name) if one.name in limited else _entry(overview, one)
                for one in known
            ]
        )

    def one(self, request: Request) -> Response:
        """Return a datasource as an entry of the list.

        Raises:
            Forbidden: The principal sees nothing of it.
            NotFound: It has no segments, used or unused, and no announced files.
        """
        name = datasource_of(request, self._store.is_stored_name)
        access = access_of(request)
        if not access.sees_limited_rows(name):
            access.require(Action.READ, Resource(ResourceKind.DATASOURCE, name))

        exists = self._store.segment_overviews.read(
            lambda overview: overview.has(name) or overview.is_dropped(name)
        )
        if not exists:
            raise NotFound(f"there is no datasource {name!r} with segments or announced files")
        (found,) = self._shown(access, [name])
        return JsonResponse(found)

    def sums(self, request: Request) -> Response:
        """Return sums over the segments of a datasource that lie within an interval, or over all.

        `used` and `unused` are the segments that `markUnused` and `markUsed` would change for the
        interval, and `visible` what queries read of the used ones. Those that only overlap it are
        counted beside.
        """
        report_invalid(request)
        name = datasource_of(request, self._store.is_stored_name)
        within = query_interval(request)

        def read(overview: SegmentOverview) -> dict[str, object]:
            across = 0 if within is None else overview.count(name, across=within)
            sums = {
                state: _sums(overview.totals_by_time(name, within, used=used))
                for state, used in (("used", True), ("unused", False))
            }
            return {**sums, "overlapping": across}

        found = self._store.segment_overviews.read(read)
        try:
            visible: object = visible_sums(self._sums.groups(name), within)._asdict()
        except (InvalidRequest, Conflict):  # narrow: queries get it; its segments can be marked
            visible = found["used"]
        return JsonResponse({"datasource": name, "visible": visible, **found})

    async def preview(self, request: Request) -> Response:
        """Return what retention rules would drop now if they were set.

        Raises:
            SpecError: An `InvalidRequest` that lists every mistake with its place.
        """
        report_invalid(request)
        rules = parse_rules(await bounded_body(request))
        return await run_in_threadpool(self._preview, request, rules)

    def _preview(self, request: Request, given: Sequence[Rule]) -> Response:
        name = datasource_of(request, self._store.is_stored_name)
        rules: dict[str, Sequence[Rule]] = {**readable_rules(self._store.rules.every())}
        rules[name] = given
        now_ms = self._clock.now_ms()
        names = [name]
        if name == DEFAULT_RULES:
            names = self._store.segment_overviews.read(lambda overview: overview.datasources())
        kept: list[SegmentSizes] = []
        doomed: list[_Dropped] = []

        def gone(datasource: str, times: Iterable[tuple[int, int]]) -> set[Interval]:
            chunks = ((datasource, *time) for time in dict.fromkeys(times))
            return {interval for _, interval in dropped(chunks, rules, now_ms)}

        for datasource in names:
            try:
                left, lost = _visible_parts(
                    self._sums.groups(datasource), partial(gone, datasource)
                )
            except (InvalidRequest, Conflict):  # narrow: queries get it; all used segments count
                totals = self._used_by_time(datasource)
                left, lost = _used_parts(totals, partial(gone, datasource))
            kept.append(left)
            doomed += _joined(datasource, lost)
        return JsonResponse(
            {
                "datasource": name,
                "dropped": _sums(one for run in doomed for one in run.totals),
                "kept": SegmentSizes.sum(kept)._asdict(),
                "intervalCount": len(doomed),
                "intervals": [run.to_json() for run in doomed[:_INTERVALS_SHOWN_MAX]],
            }
        )

    def _used_by_time(self, datasource: str) -> list[SegmentTotals]:
        return self._store.segment_overviews.read(
            lambda overview: overview.totals_by_time(datasource)
        )


class _KeptNames(NamedTuple):
    """Datasources with used segments at the revision at which segments last changed."""

    revision: int
    names: tuple[str, ...]


def _visible_parts(
    groups: SegmentGroups, gone: Callable[[Iterable[tuple[int, int]]], set[Interval]]
) -> tuple[SegmentSizes, list[SegmentTotals]]:
    """Return what queries would read without some intervals, and what they read of these now.

    Args:
        groups: The columns of a datasource.
        gone: Returns which of some intervals are dropped.
    """
    times = list(zip(groups.starts.tolist(), groups.ends.tolist(), strict=True))
    lost = {(one.start_ms, one.end_ms) for one in gone(times)}
    is_gone = np.array([time in lost for time in times], bool)
    # A dropped segment may hide others that queries read from then on.
    return visible_sums(groups.where(~is_gone)), _visible_totals(groups, is_gone)


def _used_parts(
    totals: Sequence[SegmentTotals], gone: Callable[[Iterable[tuple[int, int]]], set[Interval]]
) -> tuple[SegmentSizes, list[SegmentTotals]]:
    """Return as `_visible_parts`, of sums over used segments, the newest first."""
    lost = gone((one.interval.start_ms, one.interval.end_ms) for one in totals)
    left = [one for one in totals if one.interval not in lost]
    return (
        SegmentSizes.sum(SegmentSizes(one.count, one.bytes, one.rows) for one in left),
        [one for one in reversed(totals) if one.interval in lost],
    )


def _visible_totals(groups: SegmentGroups, which: NDArray[np.bool_]) -> list[SegmentTotals]:
    """Return sums over the visible segments of each interval of some groups, in order."""
    amounts = SegmentStates(groups).visible_amounts()
    found: dict[Interval, list[SegmentSizes]] = {}
    for at in np.flatnonzero(which & (amounts.segments > 0)).tolist():
        interval = Interval(int(groups.starts[at]), int(groups.ends[at]))
        sizes = SegmentSizes(*(int(column[at]) for column in amounts))
        found.setdefault(interval, []).append(sizes)
    return [
        SegmentTotals(interval, *SegmentSizes.sum(found[interval])) for interval in sorted(found)
    ]


class _Dropped:
    """Time chunks of one datasource that follow each other, and are dropped."""

    def __init__(self, datasource: str, first: SegmentTotals) -> None:
        self._datasource = datasource
        self.end_ms = first.interval.end_ms
        self.totals = [first]

    def add(self, one: SegmentTotals) -> None:
        """Add the next time chunk."""
        self.totals.append(one)
        self.end_ms = max(self.end_ms, one.interval.end_ms)

    def to_json(self) -> Mapping[str, object]:
        """Return the JSON form."""
        interval = Interval(self.totals[0].interval.start_ms, self.end_ms)
        return {
            "datasource": self._datasource,
            "interval": str(interval),
            **_sums(self.totals),
        }


def _joined(datasource: str, totals: Iterable[SegmentTotals]) -> list[_Dropped]:
    """Join time chunks, in the order of their starts, that touch or overlap."""
    runs: list[_Dropped] = []
    for one in totals:
        if runs and one.interval.start_ms <= runs[-1].end_ms:
            runs[-1].add(one)
        else:
            runs.append(_Dropped(datasource, one))
    return runs


def _known(name: str, totals: SegmentTotals | None) -> DatasourceFreshness:
    if totals is None:
        return DatasourceFreshness(name, bytes=0, rows=0)
    return DatasourceFreshness(
        name,
        totals.count,
        totals.bytes,
        totals.rows,
        totals.interval.start_ms,
        totals.interval.end_ms,
        totals.newest_ms,
    )


def _limited(name: str) -> Mapping[str, object]:
    return {"name": name, "isLimited": True}


def _entry(overview: SegmentOverview, known: DatasourceFreshness) -> Mapping[str, object]:
    """Return an entry of the list; times are None without used segments and files."""
    announced = overview.announced(known.name)
    starts = [row.file.interval.start_ms for row in announced]
    starts += [] if known.from_ms is None else [known.from_ms]
    ends = [row.file.interval.end_ms for row in announced]
    ends += [] if known.until_ms is None else [known.until_ms]
    newest = [one for row in announced if isinstance(one := row.file.payload.get("maxTimeMs"), int)]
    return {
        "name": known.name,
        "isLimited": False,
        "segments": known.segments,
        "bytes": known.bytes,
        "rows": known.rows,
        "runningRows": sum(row.file.rows for row in announced),
        "minTime": _time(min(starts, default=None)),
        "maxTime": _time(max(ends, default=None)),
        "publishedTime": _time(known.published_ms),
        "newestRow": _time(max(newest, default=None)),
    }


def _time(ms: int | None) -> str | None:
    return None if ms is None else format_time(ms)


def _sums(totals: Iterable[SegmentTotals]) -> dict[str, int]:
    return SegmentSizes.sum(
        SegmentSizes(one.count, one.bytes, one.rows) for one in totals
    )._asdict()
