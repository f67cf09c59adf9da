"""HTTP API of a flow's queues: list, count and drop FlowFiles, and read their content.

Owns paths, parameters and the stored drop requests. `penstock.flow.queue` does the work.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from penstock.core.access.rules import Action
from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.controller.controller import FlowController
from penstock.flow.queue.drop_requests import DropRequest
from penstock.flow.queue.listing import AttributeIs
from penstock.flow.queue.queue import FlowFileQueue
from penstock.services.api.endpoints import Endpoint, EndpointCall, EndpointParameter
from penstock.services.api.flow import flow_json
from penstock.services.api.flow.flow_access import permitted_flow

NOT_THERE: Final = {404: "No object has this name."}
"""Answer for an unknown name."""

_LISTED_MAX: Final = 1_000
_SKIPPED_MAX: Final = 10_000
_REQUESTS_MAX: Final = 100
CONTENT_BYTES_MAX: Final = 8 << 20
"""Bytes of content in one answer, which the process and the router hold in memory."""

_CONNECTION: Final = EndpointParameter(
    "connection", "which connection, by its id or name", required=True
)
_ATTRIBUTE: Final = EndpointParameter("attribute", "name of an attribute")
_VALUE: Final = EndpointParameter("value", "its value")
_LIMIT: Final = EndpointParameter(
    "limit", "maximum number, up to 1000", type="integer", default="100"
)
_SKIP: Final = EndpointParameter(
    "skip",
    "without attribute: how many FlowFiles to leave out, up to 10000",
    type="integer",
    default="0",
)
_CONTENT: Final = (
    EndpointParameter("flowFile", "id of the FlowFile", required=True, type="integer"),
    EndpointParameter("offset", "bytes to leave out", type="integer", default="0"),
    EndpointParameter(
        "limit", "maximum number of bytes, up to 8388608", type="integer", default="65536"
    ),
)


class QueueEndpoints:
    """The endpoints of queues.

    The mutex guards the table of drop requests, because HTTP requests run on several threads.

    Args:
        controller: Returns the flow; raises `Unavailable` while it is not open.
        clock: Clock.
    """

    def __init__(self, controller: Callable[[], FlowController], clock: Clock) -> None:
        self._controller = controller
        self._clock = clock
        self._mutex = threading.Lock()
        # Not from 1: a client asks for the number of its drop after a restart, too.
        self._numbers = itertools.count(clock.now_ms())
        self._drops: OrderedDict[int, DropRequest] = OrderedDict()

    def all(self) -> list[Endpoint]:
        """Return the endpoints."""
        number = EndpointParameter(
            "request", "number of the request", required=True, type="integer"
        )
        named = EndpointParameter("attribute", _ATTRIBUTE.about, required=True)
        chosen = [_CONNECTION, _ATTRIBUTE, _VALUE]
        queue = "/flow/queue"
        table: list[
            tuple[str, str, str, Callable[[EndpointCall], object], list[EndpointParameter]]
        ] = [
            (
                *("GET", queue, "List FlowFiles of a connection."),
                *(self._list, [*chosen, _SKIP, _LIMIT]),
            ),
            (
                *("GET", f"{queue}/status", "Show the state of a connection."),
                *(self._status, [_CONNECTION]),
            ),
            (
                *("GET", f"{queue}/content", "Read content of a FlowFile. Provenance records it."),
                *(self._content, [_CONNECTION, *_CONTENT]),
            ),
            (
                *("GET", f"{queue}/count", "Count FlowFiles by the value of an attribute."),
                *(self._count, [_CONNECTION, named, _LIMIT]),
            ),
            ("POST", f"{queue}/drop", "Drop FlowFiles, all or some.", self._drop, chosen),
            ("GET", f"{queue}/drop", "Show the progress of a drop.", self._drop_progress, [number]),
            ("DELETE", f"{queue}/drop", "Stop a drop soon.", self._cancel_drop, [number]),
        ]
        return [Endpoint(*row, errors=NOT_THERE) for row in table]

    def _list(self, call: EndpointCall) -> object:
        queue = self._queue(call, Action.READ)
        limit, skip = call.number("limit", 1, _LISTED_MAX), call.number("skip", 0, _SKIPPED_MAX)
        attribute = call.get("attribute")
        now_ms = self._clock.now_ms()
        if attribute is None:
            found = queue.listing.first(limit, skip)
            listed = [
                flow_json.flowfile_json(one, now_ms, position)
                for position, one in enumerate(found, skip + 1)
            ]
        elif skip:
            raise InvalidRequest(
                "FlowFiles with an attribute are listed in no order: leave it out", place="skip"
            )
        else:
            found = queue.listing.search(AttributeIs(attribute, call.get("value") or ""), limit)
            listed = [flow_json.flowfile_json(one, now_ms) for one in found]
        return {"queued": queue.size.count, "flowFiles": listed}

    def _status(self, call: EndpointCall) -> object:
        flow = permitted_flow(self._controller, call, Action.READ)
        status = flow.inspection.connection(call.text("connection"))
        return {
            **flow_json.connection_json(status),
            "sourceName": flow.inspection.name_of(status.source),
            "destinationName": flow.inspection.name_of(status.destination),
        }

    def _content(self, call: EndpointCall) -> object:
        # Those who may only see the state of everything may not see what flows.
        flow = permitted_flow(self._controller, call, Action.WRITE)
        offset = call.number("offset", 0, 1 << 62)
        limit = call.number("limit", 1, CONTENT_BYTES_MAX)
        number = call.number("flowFile", 0, 1 << 62)
        found = flow.inspection.content(call.text("connection"), number, offset, limit)
        # Each part, so that no choice of offsets reads content without a record.
        flow.record_download(found.flowfile, call.access.principal.id)
        # Never of another type: a browser must not show content as a page of this server.
        return Response(
            found.data,
            headers={"Content-Disposition": "attachment"},
            media_type="application/octet-stream",
        )

    def _count(self, call: EndpointCall) -> object:
        queue = self._queue(call, Action.READ)
        counts = queue.listing.count_by(call.text("attribute"))
        limit = call.number("limit", 1, _LISTED_MAX)
        most = sorted(counts.items(), key=lambda entry: -entry[1])
        return {
            "values": len(counts),
            "counts": [{"value": value, "count": count} for value, count in most[:limit]],
        }

    def _drop(self, call: EndpointCall) -> object:
        queue = self._queue(call, Action.WRITE)
        attribute = call.get("attribute")
        chosen = None if attribute is None else AttributeIs(attribute, call.get("value") or "")
        request = queue.drop(chosen)
        with self._mutex:
            number = next(self._numbers)
            self._drops[number] = request
            while len(self._drops) > _REQUESTS_MAX:
                self._drops.popitem(last=False)
        return flow_json.drop_json(number, request.progress)

    def _queue(self, call: EndpointCall, action: Action) -> FlowFileQueue:
        flow = permitted_flow(self._controller, call, action)
        return flow.queue(call.text("connection"))

    def _drop_progress(self, call: EndpointCall) -> object:
        permitted_flow(self._controller, call, Action.READ)
        number, request = self._request(call)
        return flow_json.drop_json(number, request.progress)

    def _cancel_drop(self, call: EndpointCall) -> object:
        permitted_flow(self._controller, call, Action.WRITE)
        number, request = self._request(call)
        request.cancel()
        return flow_json.drop_json(number, request.progress)

    def _request(self, call: EndpointCall) -> tuple[int, DropRequest]:
        number = call.number("request", 0, 1 << 53)
        with self._mutex:
            request = self._drops.get(number)
        if request is None:
            raise NotFound(f"there is no drop request {number}: it is too old, or never existed")
        return number, request
