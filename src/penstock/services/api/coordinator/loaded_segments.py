"""The coordinator's API of loaded data: the leader, datasources, their intervals and segments.

Owns Druid's paths and formats. Published segments are read in place, so every used segment counts
as loaded, once, in the one tier that Druid's clients expect; no server has loaded it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.instants import format_time
from penstock.core.intervals import Interval
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.coordinator.rules import COORDINATOR
from penstock.services.api.indexer.request_parts import datasource_of, interval_of, query_flag
from penstock.services.api.request_access import access_of

if TYPE_CHECKING:
    from penstock.storage.metadata import MetadataStore, SegmentRow, SegmentTotals

TIER: Final = "_default_tier"


class LoadedRoutes:
    """The routes about loaded data.

    Args:
        store: The metadata store.
        address: The URL of this process, which counts as the leading coordinator.
    """

    def __init__(self, store: MetadataStore, address: str) -> None:
        self._store = store
        self._address = address

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        every = COORDINATOR + "/datasources"
        one = every + "/{datasource}"
        return [
            Route(COORDINATOR + "/leader", self.leader),
            Route(COORDINATOR + "/isLeader", self.is_leader),
            Route(COORDINATOR + "/servers", self.servers),
            Route(every, self.datasources),
            Route(one, self.datasource),
            Route(one + "/intervals", self.intervals),
            Route(one + "/intervals/{interval:path}", self.interval),
            Route(one + "/segments", self.segments),
            Route(one + "/segments/{segment:path}", self.segment),
        ]

    def leader(self, _request: Request) -> Response:
        """Return the URL of the leading coordinator: each router answers for itself."""
        return PlainTextResponse(self._address)

    def is_leader(self, _request: Request) -> Response:
        """Return that this process leads."""
        return JsonResponse({"leader": True})

    def servers(self, _request: Request) -> Response:
        """List the servers that hold segments: there are none."""
        return JsonResponse([])

    def datasources(self, request: Request) -> Response:
        """List datasources: names; with `simple` counts and sizes, with `full` their segments.

        Of a datasource that the principal sees in part, only the name is shown.
        """
        access = access_of(request)
        if query_flag(request, "full"):
            segments = self._store.snapshot().segments
            return JsonResponse(all_whole(access.readable(segments, lambda row: row.datasource)))
        if query_flag(request, "simple"):
            totals = self._store.segment_overviews.read(lambda overview: overview.totals())
            return JsonResponse(
                [
                    {
                        "name": name,
                        "properties": (
                            _HIDDEN_COUNTS
                            if access.sees_limited_rows(name)
                            else _counts(totals[name])
                        ),
                    }
                    for name in access.visible(totals)
                ]
            )
        return JsonResponse(access.visible(loaded_names(self._store)))

    def datasource(self, request: Request) -> Response:
        """Describe the data of a datasource; with `full` its segments."""
        name = self._name(request)
        if query_flag(request, "full"):
            rows = self._rows(name)
            return JsonResponse(whole(name, rows)) if rows else _nothing()
        totals = self._store.segment_overviews.read(lambda overview: overview.totals(name))
        return JsonResponse(_counts(totals[name])) if totals else _nothing()

    def intervals(self, request: Request) -> Response:
        """List the intervals of a datasource's segments, newest first."""
        if _wants_details(request):
            return self._by_time(request, None)
        name = self._name(request)
        chunks = self._store.segment_overviews.read(
            lambda overview: [
                (start_ms, end_ms) for _, start_ms, end_ms in overview.time_chunks([name])
            ]
        )
        newest_first = sorted(chunks, reverse=True)
        return (
            JsonResponse([str(Interval(*time)) for time in newest_first]) if chunks else _nothing()
        )

    def interval(self, request: Request) -> Response:
        """List the segments within an interval."""
        within = interval_of(request.path_params["interval"], "interval")
        if _wants_details(request):
            return self._by_time(request, within)
        name = self._name(request)
        ids = self._store.segment_overviews.read(lambda overview: overview.ids(name, within))
        return JsonResponse(sorted(ids, reverse=True)) if ids else _nothing()

    def segments(self, request: Request) -> Response:
        """List the segments of a datasource: ids, or all fields with `full`."""
        name = self._name(request)
        if query_flag(request, "full"):
            found: list[object] = [dict(row.payload) for row in self._rows(name)]
        else:
            found = list(self._store.segment_overviews.read(lambda overview: overview.ids(name)))
        return JsonResponse(found) if found else _nothing()

    def segment(self, request: Request) -> Response:
        """Describe a used segment."""
        name, wanted = self._name(request), request.path_params["segment"]
        for row in self._store.segments.by_ids([wanted]):
            if row.datasource == name and row.used:
                return JsonResponse(_placed(row))
        return _nothing()

    def _name(self, request: Request) -> str:
        return datasource_of(request, self._store.is_stored_name)

    def _rows(self, name: str, within: Interval | None = None) -> Sequence[SegmentRow]:
        rows = self._store.segments.used(name, within)
        return rows if within is None else [row for row in rows if within.covers(row.interval)]

    def _by_time(self, request: Request, within: Interval | None) -> Response:
        """Answer by intervals of segments: their sizes, or with `full` the segments."""
        name = self._name(request)
        if not query_flag(request, "full"):
            totals = self._store.segment_overviews.read(lambda o: o.totals_by_time(name, within))
            sizes = {str(one.interval): {"size": one.bytes, "count": one.count} for one in totals}
            return JsonResponse(sizes) if sizes else _nothing()
        found: dict[Interval, list[SegmentRow]] = {}
        for row in self._rows(name, within):
            found.setdefault(row.interval, []).append(row)
        shown = {
            str(time): {row.id: _placed(row) for row in found[time]}
            for time in sorted(found, reverse=True)
        }
        return JsonResponse(shown) if shown else _nothing()


def _nothing() -> Response:
    """Return Druid's answer for unknown names."""
    return Response(status_code=204)


def _wants_details(request: Request) -> bool:
    return query_flag(request, "simple") or query_flag(request, "full")


def _placed(row: SegmentRow) -> dict[str, object]:
    return {"metadata": dict(row.payload), "servers": []}


def loaded_names(store: MetadataStore) -> list[str]:
    """Return the datasources that have used segments, without reading payloads."""
    return store.segment_overviews.read(lambda overview: overview.datasources())


def whole(name: str, rows: Sequence[SegmentRow]) -> Mapping[str, object]:
    """Return a datasource with all of its segments."""
    return {"name": name, "properties": {}, "segments": [dict(row.payload) for row in rows]}


def all_whole(rows: Iterable[SegmentRow], others: Iterable[str] = ()) -> list[Mapping[str, object]]:
    """Return datasources with all of their segments, by name.

    Args:
        rows: The segments.
        others: Datasources that may have no segment among them.
    """
    found: dict[str, list[SegmentRow]] = {name: [] for name in others}
    for row in rows:
        found.setdefault(row.datasource, []).append(row)
    return [whole(name, of_it) for name, of_it in sorted(found.items())]


# Of a datasource that the principal sees in part: sizes and times depend on hidden rows.
_HIDDEN_COUNTS: Final[Mapping[str, object]] = {
    "tiers": {},
    "segments": dict.fromkeys(("size", "replicatedSize", "count", "minTime", "maxTime")),
}


def _counts(totals: SegmentTotals) -> Mapping[str, object]:
    first, last = format_time(totals.interval.start_ms), format_time(totals.interval.end_ms)
    # Kept once, so no further replica is missing.
    sizes = {"size": totals.bytes, "replicatedSize": totals.bytes}
    return {
        "tiers": {TIER: {**sizes, "segmentCount": totals.count}},
        "segments": {**sizes, "count": totals.count, "minTime": first, "maxTime": last},
    }
