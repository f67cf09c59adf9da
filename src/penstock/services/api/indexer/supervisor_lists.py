"""API of supervisors that Druid does not have: pages of the list, lag over time, backfills.

Owns the paths below `/penstock/v1/supervisors`. A page of the list costs in proportion to its own
length: only with a state, sums or another order than by id, all supervisors are summarized, some
hundred at a time, so that the overlord's mailbox is never busy for long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.core.errors import InvalidRequest
from penstock.core.whole_numbers import is_int64
from penstock.indexing.overlord import Overlord
from penstock.indexing.required_access import datasource_of_spec
from penstock.indexing.supervisor.lag import SAMPLE_EVERY_MS
from penstock.services.api.asgi import JsonResponse, integer, json_object
from penstock.services.api.futures import result_of
from penstock.services.api.indexer.owned_access import OwnedNeed, may_access
from penstock.services.api.indexer.request_parts import (
    SUPERVISORS,
    query_count,
    query_flag,
    query_skip,
)
from penstock.services.api.indexer.supervisors import SupervisorIds, supervisor_resource
from penstock.services.api.request_access import RequestAccess, access_of

if TYPE_CHECKING:
    from penstock.indexing.overlord.supervisor_service import SupervisorView
    from penstock.indexing.specs import AnySupervisorSpec

LISTED_DEFAULT: Final = 100
LISTED_MAX: Final = 1_000
"""Supervisors in one page."""
_AT_ONCE: Final = 500
_PARTITIONS_MAX: Final = 10_000
_STATES: Final = ("healthy", "unhealthy", "suspended")
_ORDERS: Final = ("id", "lag", "attention")


class SupervisorListRoutes:
    """The routes."""

    def __init__(self, overlord: Overlord) -> None:
        self._service = overlord.supervisor_service
        self._ids = SupervisorIds(self._service, overlord.admin_service)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        one = SUPERVISORS + "/{supervisor_id}"
        return [
            Route(SUPERVISORS, self.page),
            Route(one + "/lag", self.lag),
            Route(one + "/backfill", self.backfill, methods=["POST"]),
        ]

    def page(self, request: Request) -> Response:
        """Return a page of the list of supervisors.

        Raises:
            InvalidRequest: A parameter is invalid.
        """
        text = request.query_params.get("search", "").lower()
        state = _one_of(request, "state", ("", *_STATES))
        order = _one_of(request, "order", _ORDERS)
        skip = query_skip(request)
        most = query_count(request, "limit", default=LISTED_DEFAULT, most=LISTED_MAX)
        specs = list(self._readable(access_of(request)))
        ids = [one.supervisor_id for one in specs if _contains(one, text)]
        answer: dict[str, object] = {}
        if query_flag(request, "sums"):
            views = list(self._summaries([one.supervisor_id for one in specs]))
            answer["sums"] = _sums(views)
            wanted = set(ids)
            every = [one for one in views if one.spec.supervisor_id in wanted]
        elif state or order != "id":
            every = list(self._summaries(ids))
        else:
            page = result_of(self._service.every(ids[skip : skip + most]))
            return JsonResponse(
                {"found": len(ids), "supervisors": [dict(one.summary) for one in page]}
            )
        found = [one for one in every if not state or _state(one) == state]
        if order != "id":  # stable, so equal ones are by id
            found.sort(key=_most_behind_first if order == "lag" else _worst_first)
        answer |= {
            "found": len(found),
            "supervisors": [dict(one.summary) for one in found[skip : skip + most]],
        }
        return JsonResponse(answer)

    def _readable(self, access: RequestAccess) -> Iterator[AnySupervisorSpec]:
        """Yield the specs of the supervisors whose state the principal may see, in order."""
        for spec in result_of(self._service.specs()):
            resource = supervisor_resource(spec.supervisor_id)
            if access.is_unlimited or may_access(
                access, OwnedNeed.STATE, resource, datasource_of_spec(spec)
            ):
                yield spec

    def _summaries(self, ids: Sequence[str]) -> Iterator[SupervisorView]:
        for start in range(0, len(ids), _AT_ONCE):
            yield from result_of(self._service.every(ids[start : start + _AT_ONCE]))

    def lag(self, request: Request) -> Response:
        """Return the lag of a supervisor in the last hour, in messages and in time."""
        name = self._ids.of(request, OwnedNeed.STATE)
        samples = result_of(self._service.lag_samples(name))
        return JsonResponse(
            {
                "id": name,
                "everyMs": SAMPLE_EVERY_MS,
                "times": samples.times_ms,
                "messages": samples.messages,
                "oldestMs": samples.oldest_ms,
            }
        )

    async def backfill(self, request: Request) -> Response:
        """Start a second supervisor that reads chosen ranges of the stream, then ends.

        Raises:
            InvalidRequest: The ranges are invalid, or the stream does not hold them.
        """
        count = integer(request, "backfillTaskCount")
        if count is not None and count < 1:
            raise InvalidRequest(f"{count} is below 1", place="backfillTaskCount")
        ranges = _ranges((await json_object(request)).get("partitionOffsetRanges"))
        return await run_in_threadpool(self._backfill, request, ranges, count)

    def _backfill(
        self, request: Request, ranges: Mapping[int, tuple[int, int]], count: int | None
    ) -> Response:
        name = self._ids.of(request, OwnedNeed.CONTROL)
        other = result_of(self._service.backfill(name, ranges, task_count=count))
        return JsonResponse({"id": name, "backfillSupervisorId": other})


def _one_of(request: Request, name: str, known: Sequence[str]) -> str:
    """Return a parameter with one of some values, the first of them by default.

    Raises:
        InvalidRequest: It has another value.
    """
    text = request.query_params.get(name, known[0])
    if text not in known:
        raise InvalidRequest(
            f"invalid value {text!r}: use {', '.join(one for one in known if one)}", place=name
        )
    return text


def _state(one: SupervisorView) -> str:
    if one.summary.get("suspended"):
        return "suspended"
    return "healthy" if one.summary.get("healthy") else "unhealthy"


def _contains(spec: AnySupervisorSpec, text: str) -> bool:
    names = (spec.supervisor_id, datasource_of_spec(spec))
    return not text or any(text in name.lower() for name in names)


def _lag(one: SupervisorView) -> int:
    lag = one.summary.get("aggregateLag")
    return max(0, lag) if isinstance(lag, int) else 0


def _most_behind_first(one: SupervisorView) -> int:
    return -_lag(one)


def _worst_first(one: SupervisorView) -> tuple[bool, bool, int]:
    """Return the order of attention: unhealthy ones, those that wait, those that are behind."""
    return bool(one.summary["healthy"]), not one.summary.get("waits"), -_lag(one)


def _sums(views: Sequence[SupervisorView]) -> dict[str, object]:
    summaries = [one.summary for one in views]
    return {
        "supervisors": len(views),
        "unhealthy": sum(not one["healthy"] for one in summaries),
        "suspended": sum(bool(one["suspended"]) for one in summaries),
        "waiting": sum(bool(one.get("waits")) for one in summaries),
        "lag": sum(map(_lag, views)),
        "rowsPerSecond": sum(one.rows_per_second for one in views),
    }


def _ranges(value: object) -> dict[int, tuple[int, int]]:
    """Return offsets [start, end) by stream partition.

    Raises:
        InvalidRequest: The value has another form.
    """
    place = "partitionOffsetRanges"
    if not isinstance(value, dict) or not value:
        raise InvalidRequest(
            "must be a JSON object with a range for each stream partition, such as"
            ' {"0": [100, 200]}',
            place=place,
        )
    if len(value) > _PARTITIONS_MAX:
        raise InvalidRequest(f"must have at most {_PARTITIONS_MAX} entries", place=place)
    found: dict[int, tuple[int, int]] = {}
    for name, given in value.items():
        here = f"{place}.{name}"
        if not (name.isascii() and name.isdigit() and len(name) <= 9):
            raise InvalidRequest("is not the number of a stream partition", place=here)
        if not isinstance(given, list) or len(given) != 2:
            raise InvalidRequest("must be a list of two offsets: start and end", place=here)
        start, end = given
        if not _is_offset(start) or not _is_offset(end) or start > end:
            raise InvalidRequest(
                "must be two whole numbers of 0 or more, the larger one last", place=here
            )
        found[int(name)] = start, end
    return found


def _is_offset(value: object) -> bool:
    return type(value) is int and value >= 0 and is_int64(value)
