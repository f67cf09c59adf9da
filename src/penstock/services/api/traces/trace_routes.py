"""API of traces: ``GET /penstock/v1/trace/message`` and ``POST /penstock/v1/trace/row``.

Owns the parameters, the rights and the number of traces at a time. A trace reads messages and files
as a whole, so it is only for principals that see all rows and values of a datasource.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.broker.topic_names import is_valid_name
from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import InvalidRequest, Unavailable
from penstock.core.names import DATASOURCE, known_name
from penstock.core.printable import quoted
from penstock.services.api.asgi import JsonResponse, integer, json_object
from penstock.services.api.indexer.owned_access import OwnedNeed, may_access
from penstock.services.api.request_access import RequestAccess, access_of, on_behalf_of
from penstock.services.api.traces.message_trace import MessageTraces
from penstock.services.api.traces.row_trace import RowTraces, ScanCursor, TracedRow
from penstock.services.api.traces.segments_at import checked_time
from penstock.services.api.traces.topic_messages import parse_message_id

if TYPE_CHECKING:
    from penstock.services.api.traces.message_trace import TraceParts

MESSAGE: Final = "/penstock/v1/trace/message"
ROW: Final = "/penstock/v1/trace/row"
_TRACES_MAX: Final = 4
_COLUMNS_MAX: Final = 1_000
_OFFSET_END: Final = 1 << 48
_PARTITION_END: Final = 1 << 15
_FIELDS: Final = frozenset({"datasource", "time", "columns", "cursor"})


class TraceRoutes:
    """The routes of traces.

    Args:
        parts: Dependencies of traces.
    """

    def __init__(self, parts: TraceParts) -> None:
        self._store = parts.store
        self._messages = MessageTraces(parts)
        self._rows = RowTraces(parts)
        self._slots = threading.BoundedSemaphore(_TRACES_MAX)

    def routes(self) -> list[BaseRoute]:
        """Return the routes."""
        return [Route(MESSAGE, self.message), Route(ROW, self.row, methods=["POST"])]

    def message(self, request: Request) -> Response:
        """Follow a message to its row.

        Raises:
            InvalidRequest: A parameter is missing or invalid.
            Forbidden: The principal may not read the topic.
            NotFound: There is no such topic, or no such message yet.
            Unavailable: Other traces run, or the broker or the metadata store does not answer.
        """
        topic = _topic_of(request)
        access = access_of(request)
        access.require(Action.READ, Resource(ResourceKind.TOPIC, topic))
        partition, offset = _place_of(request)
        with self._slot():
            found = self._messages.trace(
                topic,
                partition,
                offset,
                partial(access.may, Action.READ, ResourceKind.DATASOURCE),
                partial(access.may, Action.READ, ResourceKind.TOPIC),
                on_behalf_of(request),
            )
        return JsonResponse(found)

    async def row(self, request: Request) -> Response:
        """Follow a row back to its messages, or to the input of its task.

        Raises:
            InvalidRequest: The body is invalid.
            Forbidden: The principal may not read the datasource, or sees only a part of it.
            Unavailable: Other traces run, or the broker or the metadata store does not answer.
        """
        body = await json_object(request)
        return await run_in_threadpool(self._row, body, access_of(request))

    def _row(self, body: Mapping[str, object], access: RequestAccess) -> Response:
        row = self._row_of(body)
        access.require(Action.READ, Resource(ResourceKind.DATASOURCE, row.datasource))
        with self._slot():
            found = self._rows.trace(
                row,
                partial(access.may, Action.READ, ResourceKind.TOPIC),
                lambda task: may_access(
                    access, OwnedNeed.CONTENT, Resource(ResourceKind.TASK, task), row.datasource
                ),
            )
        return JsonResponse(found)

    def _row_of(self, body: Mapping[str, object]) -> TracedRow:
        """Return the row of a body. Raises InvalidRequest as `row`."""
        if unknown := sorted(set(body) - _FIELDS):
            raise InvalidRequest(
                f"unknown field: use {', '.join(sorted(_FIELDS))}", place=quoted(unknown[0])
            )
        name = body.get("datasource")
        if not isinstance(name, str):
            raise InvalidRequest("must be the name of a datasource", place="datasource")
        columns = body.get("columns", {})
        if not isinstance(columns, dict) or len(columns) > _COLUMNS_MAX:
            raise InvalidRequest(
                f"must be an object of up to {_COLUMNS_MAX} names and values", place="columns"
            )
        cursor = body.get("cursor")
        return TracedRow(
            known_name(name, DATASOURCE, self._store.is_stored_name, place="datasource"),
            checked_time(body.get("time")),
            {name: value for name, value in columns.items() if name != "__time"},
            None if cursor is None else ScanCursor.parse(cursor),
        )

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Hold one of the slots for a block. Raises Unavailable if all are held."""
        if not self._slots.acquire(blocking=False):
            raise Unavailable(f"{_TRACES_MAX} traces are being made: try again")
        try:
            yield
        finally:
            self._slots.release()


def _topic_of(request: Request) -> str:
    topic = request.query_params.get("topic", "")
    if not is_valid_name(topic):
        raise InvalidRequest("must be the name of a topic", place="topic")
    return topic


def _place_of(request: Request) -> tuple[int, int]:
    """Return the stream partition and the offset, given as such or by a message id."""
    text = request.query_params.get("id")
    if text is not None:
        if {"partition", "offset"} & set(request.query_params):
            raise InvalidRequest("give an id, or a partition and an offset", place="id")
        return parse_message_id(text)
    return (
        _number(request, "partition", _PARTITION_END),
        _number(request, "offset", _OFFSET_END),
    )


def _number(request: Request, name: str, end: int) -> int:
    number = integer(request, name)
    if number is None:
        raise InvalidRequest("is missing: give an id, or a partition and an offset", place=name)
    if not 0 <= number < end:
        raise InvalidRequest(f"{number} is not a number from 0 to {end - 1}", place=name)
    return number
