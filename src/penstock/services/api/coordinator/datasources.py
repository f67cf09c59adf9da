"""API of datasources: their segments, which of them are visible, and the load status.

Queries read published segments directly from deep storage, so all of them always count as loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import NotFound
from penstock.core.intervals import ETERNITY, format_time
from penstock.segments.catalog import Catalog
from penstock.services.api.asgi import JsonResponse
from penstock.services.api.coordinator.loaded_segments import TIER, all_whole, loaded_names, whole
from penstock.services.api.coordinator.rules import COORDINATOR
from penstock.services.api.indexer.request_parts import (
    datasource_of,
    query_count,
    query_flag,
    query_interval,
)
from penstock.services.api.request_access import access_of

if TYPE_CHECKING:
    from penstock.segments.catalog import CatalogView, VisiblePiece
    from penstock.storage.metadata import MetadataStore, SegmentRow, Snapshot


class DatasourceRoutes:
    """The routes of datasources.

    The mutex is held while the timeline is updated, because the timeline is not thread-safe.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._mutex = threading.Lock()
        self._catalogue = Catalog()

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        metadata = COORDINATOR + "/metadata/datasources"
        one = metadata + "/{datasource}"
        return [
            Route(metadata, self.datasources),
            Route(one, self.datasource),
            Route(one + "/segments", self.segments),
            Route(one + "/unusedSegments", self.unused),
            Route(one + "/segments/{segment:path}", self.segment),
            Route(COORDINATOR + "/loadstatus", self.load_status),
            Route(COORDINATOR + "/datasources/{datasource}/loadstatus", self.load_status_of),
            Route(COORDINATOR + "/config", self.config),
            Route("/penstock/v1/datasources/{datasource}/timeline", self.timeline),
        ]

    def datasources(self, request: Request) -> Response:
        """List the datasources that have used segments or announced files.

        With `full`, those of which the principal sees a part are left out.
        """
        access = access_of(request)
        if not query_flag(request, "full"):
            names = self._store.segment_overviews.read(lambda overview: overview.names())
            return JsonResponse(access.visible(names))
        snapshot = self._store.snapshot()
        announced = access.readable(row.datasource for row in snapshot.announced)
        segments = access.readable(snapshot.segments, lambda row: row.datasource)
        return JsonResponse(all_whole(segments, announced))

    def datasource(self, request: Request) -> Response:
        """Return a datasource with its segments, and the number of unpublished rows."""
        snapshot = self._snapshot(request)
        return JsonResponse(
            {
                **whole(datasource_of(request, self._store.is_stored_name), snapshot.segments),
                "announcedRows": sum(row.file.rows for row in snapshot.announced),
            }
        )

    def segments(self, request: Request) -> Response:
        """List the used segments of a datasource: ids, or all fields with `full`."""
        if query_flag(request, "full"):
            rows = self._snapshot(request).segments
            return JsonResponse([dict(row.payload) for row in rows])
        name = self._require(request)
        return JsonResponse(self._store.segment_overviews.read(lambda overview: overview.ids(name)))

    def unused(self, request: Request) -> Response:
        """List the unused segments of a datasource, or those within an interval.

        The longest unused come first; the default `limit` is 1,000.
        """
        found = self._store.segments.unused(
            changed_before_ms=ETERNITY.end_ms,
            datasource=datasource_of(request, self._store.is_stored_name),
            interval=query_interval(request),
            limit=query_count(request, "limit", default=1000),
        )
        return JsonResponse([_unused_to_json(row) for row in found])

    def segment(self, request: Request) -> Response:
        """Return a segment, used or not."""
        name, wanted = (
            datasource_of(request, self._store.is_stored_name),
            request.path_params["segment"],
        )
        for row in self._store.segments.by_ids([wanted]):
            if row.datasource == name:
                return JsonResponse({"metadata": dict(row.payload), "used": row.used})
        raise NotFound(f"{name} has no segment {wanted}")

    def timeline(self, request: Request) -> Response:
        """List the visible intervals of a datasource, in order, with their segments."""
        name = datasource_of(request, self._store.is_stored_name)
        interval = query_interval(request)
        view = self._view()
        if name not in view.datasources():
            raise _missing(name)
        pieces = view.visible(name) if interval is None else view.visible(name, interval)
        return JsonResponse([_piece_to_json(piece) for piece in pieces])

    def load_status(self, request: Request) -> Response:
        """Return the load status of each datasource: always complete."""
        names = access_of(request).visible(loaded_names(self._store))
        return JsonResponse(_loaded(request, names))

    def load_status_of(self, request: Request) -> Response:
        """Return the load status of a datasource: always complete."""
        return JsonResponse(_loaded(request, [self._require(request)]))

    def config(self, _request: Request) -> Response:
        """Return the settings of a coordinator: there are none here."""
        return JsonResponse({})

    def _view(self) -> CatalogView:
        with self._mutex:
            return self._catalogue.view(self._store.snapshot())

    def _require(self, request: Request) -> str:
        name = datasource_of(request, self._store.is_stored_name)
        if not self._store.segment_overviews.read(lambda overview: overview.has(name)):
            raise _missing(name)
        return name

    def _snapshot(self, request: Request) -> Snapshot:
        name = datasource_of(request, self._store.is_stored_name)
        snapshot = self._store.snapshot(name)
        if not snapshot.segments and not snapshot.announced:
            raise _missing(name)
        return snapshot


def _missing(name: str) -> NotFound:
    return NotFound(f"there is no datasource {name!r} with data in it")


def _loaded(request: Request, names: list[str]) -> Mapping[str, object]:
    if query_flag(request, "full"):
        return {TIER: dict.fromkeys(names, 0)}
    return dict.fromkeys(names, 0 if query_flag(request, "simple") else 100.0)


def _unused_to_json(row: SegmentRow) -> dict[str, object]:
    return {
        "dataSegment": dict(row.payload),
        "createdDate": format_time(row.created_ms),
        "usedStatusLastUpdatedDate": format_time(row.used_changed_ms),
        "used": row.used,
    }


def _piece_to_json(piece: VisiblePiece) -> dict[str, object]:
    segment = piece.segment
    return {
        "interval": str(piece.interval),
        "segment": str(segment.id),
        "version": segment.version,
        "partition": segment.shard_spec.partition_number,
        "rows": segment.total_rows,
        "bytes": segment.size,
        "clipped": piece.clipped,
    }
