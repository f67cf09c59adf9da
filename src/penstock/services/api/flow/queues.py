"""HTTP API of a flow's queues: list, count, and drop FlowFiles.

Owns paths, parameters and the stored drop requests. `penstock.flow.queue` does the work.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import NotFound
from penstock.flow.controller.controller import FlowController
from penstock.flow.queue.drop_requests import DropRequest
from penstock.flow.queue.listing import AttributeIs
from penstock.services.api.endpoints import Endpoint, EndpointCall, EndpointParameter
from penstock.services.api.flow import flow_json

NOT_THERE: Final = {404: "No object has this name."}
"""Answer for an unknown name."""

_LISTED_MAX: Final = 1_000
_REQUESTS_MAX: Final = 100
_CONNECTION: Final = EndpointParameter(
    "connection", "which connection, by its id or name", required=True
)
_ATTRIBUTE: Final = EndpointParameter("attribute", "name of an attribute")
_VALUE: Final = EndpointParameter("value", "its value")
_LIMIT: Final = EndpointParameter(
    "limit", "maximum number, up to 1000", type="integer", default="100"
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
        self._numbers = itertools.count(1)
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
            ("GET", queue, "List FlowFiles of a connection.", self._list, [*chosen, _LIMIT]),
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
        queue = self._controller().queue(call.text("connection"))
        limit = call.number("limit", 1, _LISTED_MAX)
        attribute = call.get("attribute")
        if attribute is None:
            found = queue.listing.first(limit)
        else:
            found = queue.listing.search(AttributeIs(attribute, call.get("value") or ""), limit)
        now_ms = self._clock.now_ms()
        return {
            "queued": queue.size.count,
            "flowFiles": [flow_json.flowfile_json(one, now_ms) for one in found],
        }

    def _count(self, call: EndpointCall) -> object:
        queue = self._controller().queue(call.text("connection"))
        counts = queue.listing.count_by(call.text("attribute"))
        limit = call.number("limit", 1, _LISTED_MAX)
        most = sorted(counts.items(), key=lambda entry: -entry[1])
        return {
            "values": len(counts),
            "counts": [{"value": value, "count": count} for value, count in most[:limit]],
        }

    def _drop(self, call: EndpointCall) -> object:
        queue = self._controller().queue(call.text("connection"))
        attribute = call.get("attribute")
        chosen = None if attribute is None else AttributeIs(attribute, call.get("value") or "")
        request = queue.drop(chosen)
        with self._mutex:
            number = next(self._numbers)
            self._drops[number] = request
            while len(self._drops) > _REQUESTS_MAX:
                self._drops.popitem(last=False)
        return flow_json.drop_json(number, request.progress)

    def _drop_progress(self, call: EndpointCall) -> object:
        number, request = self._request(call)
        return flow_json.drop_json(number, request.progress)

    def _cancel_drop(self, call: EndpointCall) -> object:
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
