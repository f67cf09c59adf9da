"""API for marking segments as used or unused, and for deleting pending segments.

Segments are named by full id. Segments that newer ones hide are not marked as used. Files stay
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.indexing.overlord import Overlord
from penstock.services.api.asgi import JsonResponse, bounded_body, json_object
from penstock.services.api.indexer.request_parts import (
    PREFIX,
    datasource_of,
    interval_of,
    query_interval,
    texts,
)

if TYPE_CHECKING:
    from penstock.storage.metadata.segments import Segments

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class _Chosen:
    """Segments of a datasource: these ids, or all of an interval, or of versions in it."""

    ids: Sequence[str] | None = None
    interval: Interval | None = None
    versions: Sequence[str] | None = None


class SegmentRoutes:
    """The routes of segments."""

    def __init__(self, overlord: Overlord) -> None:
        self._admin = overlord.admin_service

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        datasource = PREFIX + "/datasources/{datasource}"
        segment = datasource + "/segments/{segment:path}"
        pending = PREFIX + "/pendingSegments/{datasource}"
        return [
            Route(datasource, self.use_all, methods=["POST"]),
            Route(datasource, self.mark_all_unused, methods=["DELETE"]),
            Route(datasource + "/markUsed", self.mark_used, methods=["POST"]),
            Route(datasource + "/markUnused", self.mark_unused, methods=["POST"]),
            Route(segment, self.use_one, methods=["POST"]),
            Route(segment, self.mark_one_unused, methods=["DELETE"]),
            Route(pending, self.delete_pending, methods=["DELETE"]),
        ]

    async def use_all(self, request: Request) -> Response:
        """Mark all segments of a datasource as used."""
        await _require_all(request, "markUsed")
        return await run_in_threadpool(self._mark, request, _Chosen(), used=True)

    async def mark_all_unused(self, request: Request) -> Response:
        """Mark all segments of a datasource as unused."""
        await _require_all(request, "markUnused")
        return await run_in_threadpool(self._mark, request, _Chosen(), used=False)

    def use_one(self, request: Request) -> Response:
        """Mark one segment as used."""
        chosen = _Chosen(ids=[request.path_params["segment"]])
        return self._mark(request, chosen, used=True)

    def mark_one_unused(self, request: Request) -> Response:
        """Mark one segment as unused."""
        chosen = _Chosen(ids=[request.path_params["segment"]])
        return self._mark(request, chosen, used=False)

    async def mark_used(self, request: Request) -> Response:
        """Mark segments as used, by id or by interval."""
        chosen = _chosen(await json_object(request))
        return await run_in_threadpool(self._mark, request, chosen, used=True)

    async def mark_unused(self, request: Request) -> Response:
        """Mark segments as unused, by id or by interval."""
        chosen = _chosen(await json_object(request))
        return await run_in_threadpool(self._mark, request, chosen, used=False)

    def _mark(self, request: Request, chosen: _Chosen, *, used: bool) -> Response:
        datasource = datasource_of(request, self._admin.metadata.is_stored_name)
        segments = self._admin.metadata.segments
        if chosen.ids is not None:
            ids = _known(segments, datasource, chosen.ids)
            changed = segments.mark_used(ids) if used else segments.mark_unused(ids)
        elif used:
            changed = segments.mark_used_within(
                datasource, chosen.interval, versions=chosen.versions
            )
        else:
            changed = segments.mark_unused_within(
                datasource, chosen.interval, versions=chosen.versions
            )
        return JsonResponse({"numChangedSegments": changed, "segmentStateChanged": changed > 0})

    def delete_pending(self, request: Request) -> Response:
        """Delete pending segments that were allocated in a period and that no task will publish."""
        datasource = datasource_of(request, self._admin.metadata.is_stored_name)
        interval = query_interval(request)
        if interval is None:
            raise InvalidRequest(
                "specify the period in which the pending segments were allocated:"
                " ?interval=2024-01-01/2024-01-02",
                place="interval",
            )
        return JsonResponse(
            {"numDeleted": self._admin.delete_pending_segments(datasource, interval)}
        )


async def _require_all(request: Request, some: str) -> None:
    """Refuse a request that names a part of the datasource, because all of it would be marked.

    Raises:
        InvalidRequest: The body or the query names a part.
    """
    # Older clients of Druid's coordinator deleted unused segments in this way.
    for name in ("kill", "interval"):
        if request.query_params.get(name, "false") != "false":
            raise InvalidRequest(
                "this marks all segments of the datasource: for some of them POST a body to"
                f" {request.url.path}/{some}; to delete unused segments submit a kill task;"
                " nothing was changed",
                place=name,
            )
    # Druid's console sends an empty object.
    if b"".join((await bounded_body(request)).split()) not in {b"", b"{}", b"null"}:
        raise InvalidRequest(
            "this marks all segments of the datasource and takes no body: for some of them POST"
            f" the body to {request.url.path}/{some}; nothing was changed"
        )


def _known(segments: Segments, datasource: str, ids: Sequence[str]) -> list[str]:
    """Return the ids; if one is unknown, raise, and change nothing."""
    there = {row.id for row in segments.by_ids(ids) if row.datasource == datasource}
    unknown = [one for one in ids if one not in there]
    if unknown:
        more = f" and {len(unknown) - _NAMED_MAX} more" if len(unknown) > _NAMED_MAX else ""
        raise NotFound(
            f"{datasource} has no segment {', '.join(unknown[:_NAMED_MAX])}{more}: take ids from"
            " the list of its segments; nothing was changed"
        )
    return list(ids)


def _chosen(body: dict[str, object]) -> _Chosen:
    ids, interval, versions = (body.get(n) for n in ("segmentIds", "interval", "versions"))
    if (ids is None) == (interval is None):
        raise InvalidRequest("specify either segmentIds or interval")
    if ids is not None:
        if versions is not None:
            raise InvalidRequest("needs interval: ids contain their version", place="versions")
        return _Chosen(ids=texts(ids, "segmentIds"))
    return _Chosen(
        interval=interval_of(interval),
        versions=None if versions is None else texts(versions, "versions", most=1_000),
    )
