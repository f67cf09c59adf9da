"""What a coordinator tells of what is loaded: who leads, datasources, their times and segments.

Owns Druid's paths and shapes. Published segments are read where they lie, so whatever is used
counts as loaded, once, in the one tier that Druid's clients expect; no server holds any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.core.instants import format_time
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.coordinator.rules import COORDINATOR
from penstock.services.api.indexer.reading import interval_of, query_flag

if TYPE_CHECKING:
    from penstock.core.intervals import Interval
    from penstock.storage.metadata import MetadataStore, SegmentRow

TIER: Final = "_default_tier"


class LoadedRoutes:
    """The routes of what is loaded.

    Args:
        store: Where segments are told of.
        address: The URL of this process, which stands for the coordinator that leads.
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
        """Say where the coordinator is that leads: each router answers for all."""
        return PlainTextResponse(self._address)

    def is_leader(self, _request: Request) -> Response:
        """Say that this one may be asked."""
        return JsonResponse({"leader": True})

    def servers(self, _request: Request) -> Response:
        """List the servers that hold segments: there are none."""
        return JsonResponse([])

    def datasources(self, request: Request) -> Response:
        """List datasources: names; with `simple` counts and sizes, with `full` their segments."""
        if not _says_more(request):
            return JsonResponse(loaded_names(self._store))
        rows: dict[str, list[SegmentRow]] = {}
        for row in self._store.snapshot().segments:
            rows.setdefault(row.datasource, []).append(row)
        found = sorted(rows.items())
        if query_flag(request, "full"):
            return JsonResponse([whole(name, of_it) for name, of_it in found])
        return JsonResponse([{"name": name, "properties": _counts(of_it)} for name, of_it in found])

    def datasource(self, request: Request) -> Response:
        """Show how much of a datasource there is; with `full` its segments."""
        rows = self._rows(request)
        if not rows:
            return _nothing()
        if query_flag(request, "full"):
            return JsonResponse(whole(request.path_params["datasource"], rows))
        return JsonResponse(_counts(rows))

    def intervals(self, request: Request) -> Response:
        """List the times of a datasource's segments, the newest first."""
        if _says_more(request):
            return _by_time(request, self._rows(request))
        chunks = self._store.segments.time_chunks([request.path_params["datasource"]])
        newest_first = sorted((time for _, time in chunks), reverse=True)
        return JsonResponse([str(time) for time in newest_first]) if chunks else _nothing()

    def interval(self, request: Request) -> Response:
        """List the segments that lie within a time."""
        within = interval_of(request.path_params["interval"], "interval")
        rows = [row for row in self._rows(request) if within.covers(row.interval)]
        if rows and not _says_more(request):
            return JsonResponse(sorted((row.id for row in rows), reverse=True))
        return _by_time(request, rows)

    def segments(self, request: Request) -> Response:
        """List the segments of a datasource: ids, or with `full` everything."""
        rows = self._rows(request)
        if not rows:
            return _nothing()
        if query_flag(request, "full"):
            return JsonResponse([dict(row.payload) for row in rows])
        return JsonResponse([row.id for row in rows])

    def segment(self, request: Request) -> Response:
        """Show a segment that is used."""
        name, wanted = request.path_params["datasource"], request.path_params["segment"]
        for row in self._store.segments.by_ids([wanted]):
            if row.datasource == name and row.used:
                return JsonResponse(_placed(row))
        return _nothing()

    def _rows(self, request: Request) -> Sequence[SegmentRow]:
        return self._store.snapshot(request.path_params["datasource"]).segments


def _nothing() -> Response:
    """Answer as Druid does here for what it does not know."""
    return Response(status_code=204)


def _says_more(request: Request) -> bool:
    return query_flag(request, "simple") or query_flag(request, "full")


def _bytes(row: SegmentRow) -> int:
    size = row.payload.get("size")
    return size if isinstance(size, int) else 0


def _placed(row: SegmentRow) -> dict[str, object]:
    return {"metadata": dict(row.payload), "servers": []}


def loaded_names(store: MetadataStore) -> list[str]:
    """Return the datasources that have used segments; it reads no payload."""
    return sorted({name for name, _ in store.segments.time_chunks()})


def whole(name: str, rows: Sequence[SegmentRow]) -> Mapping[str, object]:
    """Return a datasource with all of its segments."""
    return {"name": name, "properties": {}, "segments": [dict(row.payload) for row in rows]}


def _counts(rows: Sequence[SegmentRow]) -> Mapping[str, object]:
    size = sum(map(_bytes, rows))
    first = format_time(min(row.interval.start_ms for row in rows))
    last = format_time(max(row.interval.end_ms for row in rows))
    # Kept once, so a replica more is none more.
    sizes = {"size": size, "replicatedSize": size}
    return {
        "tiers": {TIER: {**sizes, "segmentCount": len(rows)}},
        "segments": {**sizes, "count": len(rows), "minTime": first, "maxTime": last},
    }


def _by_time(request: Request, rows: Sequence[SegmentRow]) -> Response:
    """Answer by the times of segments: their sizes, or with `full` the segments."""
    if not rows:
        return _nothing()
    found: dict[Interval, list[SegmentRow]] = {}
    for row in rows:
        found.setdefault(row.interval, []).append(row)
    newest_first = sorted(found, reverse=True)
    if query_flag(request, "full"):
        return JsonResponse(
            {str(time): {row.id: _placed(row) for row in found[time]} for time in newest_first}
        )
    return JsonResponse(
        {
            str(time): {"size": sum(map(_bytes, found[time])), "count": len(found[time])}
            for time in newest_first
        }
    )
