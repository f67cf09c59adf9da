"""HTTP API of provenance: the lineage of a FlowFile or of a message, replays of one or of many.

Owns paths and parameters, and how many requests may wait. `services.host.provenance_service` does
the work.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.core.access.rules import Action, Resource, ResourceKind
from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.core.instants import parse_time
from penstock.flow.provenance.provenance_events import EVENT_BITS
from penstock.flow.provenance.provenance_reader import DEPTH_MAX
from penstock.flow.provenance.provenance_selection import STEP_MAX, TIME_MAX_MS, EventFilter
from penstock.services.api.endpoints import Endpoint, EndpointParameter
from penstock.services.api.flow.flow_access import permitted_flow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.flow.controller.controller import FlowController
    from penstock.services.api.endpoints import EndpointCall
    from penstock.services.host.provenance_service import ProvenanceLookups, ReplayStep

PROVENANCE: Final = "/penstock/v1/flow/provenance"
REPLAY: Final = "/penstock/v1/flow/replay"
REPLAYS: Final = "/penstock/v1/flow/replays"
REQUESTS_MAX: Final = 4
"""Requests that may wait for the record at once: one process reads it, for up to a minute each.

Without a bound, they would occupy all threads that pass on requests to the flow, such as a stop.
"""
_NUMBER_MAX: Final = 1 << 53
_DIGITS_MAX: Final = 11  # of the number of a commit, so that those of its events have 63 bits
_FLOWFILE: Final = EndpointParameter("flowfile", "id of a FlowFile", type="integer")
_SELECTION: Final = [
    EndpointParameter("component", "only events of this processor, by its id or name"),
    EndpointParameter("event", "only events of this kind"),
    EndpointParameter("from", "only events since this time, in ISO 8601"),
    EndpointParameter("to", "only events before this time, in ISO 8601"),
    EndpointParameter("attribute", "only FlowFiles with this attribute …"),
    EndpointParameter("value", "… and this value of it"),
    EndpointParameter("next", "`next` of the answer to the step before"),
    EndpointParameter(
        "until", "`until` of the answer to the first step: later commits are left out"
    ),
]
_ERRORS: Final = {
    404: "It is not in the record of provenance, or provenance is not recorded.",
    503: "The record cannot be read now, or too many requests wait for it: try again.",
}


class ProvenanceEndpoints:
    """The endpoints of provenance.

    Args:
        controller: Returns the flow; raises `Unavailable` while it is not open.
        lookups: Returns the record; None: it is not kept.
        datasource: Name of the datasource of the events.
    """

    def __init__(
        self,
        controller: Callable[[], FlowController],
        lookups: Callable[[], ProvenanceLookups | None],
        datasource: str,
    ) -> None:
        self._controller = controller
        self._lookups = lookups
        self._datasource = datasource
        self._turns = threading.BoundedSemaphore(REQUESTS_MAX)

    def all(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [
            Endpoint(
                "GET",
                PROVENANCE,
                "Show the events of a FlowFile, its ancestors and descendants.",
                self._show,
                [
                    _FLOWFILE,
                    EndpointParameter("topic", "topic of a message that it was, or became"),
                    EndpointParameter("partition", "its stream partition", type="integer"),
                    EndpointParameter("offset", "its offset", type="integer"),
                    EndpointParameter(
                        "depth",
                        f"most steps to a parent or a child, up to {DEPTH_MAX}",
                        type="integer",
                        default="5",
                    ),
                ],
                errors=_ERRORS,
            ),
            Endpoint(
                "POST",
                REPLAY,
                "Put a FlowFile with its kept content into its queue again.",
                self._replay,
                [
                    EndpointParameter("flowfile", _FLOWFILE.about, required=True, type="integer"),
                    EndpointParameter("event", "id of the event that put it there [default: last]"),
                    EndpointParameter(
                        "key", "unique text; a repeated request has the same", required=True
                    ),
                ],
                errors=_ERRORS,
            ),
            Endpoint(
                "GET",
                REPLAYS,
                "Count which FlowFiles with certain events could be replayed, step by step.",
                self._preview_many,
                _SELECTION,
                errors=_ERRORS,
            ),
            Endpoint(
                "POST",
                REPLAYS,
                f"Replay the FlowFiles with certain events, up to {STEP_MAX} in one step.",
                self._replay_many,
                _SELECTION,
                errors=_ERRORS,
            ),
        ]

    def _read(self, call: EndpointCall) -> FlowController:
        flow = permitted_flow(self._controller, call, Action.READ)
        if self._datasource:
            call.access.require(Action.READ, Resource(ResourceKind.DATASOURCE, self._datasource))
        return flow

    def _preview_many(self, call: EndpointCall) -> object:
        flow = self._read(call)
        lookups, selection = self._record(), _selection(call, flow)
        with self._turn():
            return _step_json(lookups.preview_many(flow, *selection))

    def _replay_many(self, call: EndpointCall) -> object:
        flow = self._read(call)
        permitted_flow(self._controller, call, Action.WRITE)
        lookups, selection = self._record(), _selection(call, flow)
        with self._turn():
            step = lookups.replay_many(flow, *selection, call.access.principal.id)
        return _step_json(step)

    def _show(self, call: EndpointCall) -> object:
        flow = self._read(call)
        lookups = self._record()
        depth = call.number("depth", 0, DEPTH_MAX)
        of_message = [name for name in ("topic", "partition", "offset") if call.get(name)]
        if call.get("flowfile") is not None and not of_message:
            flowfile = call.number("flowfile", 0, _NUMBER_MAX)
            with self._turn():
                found = lookups.of_flowfile(flowfile, depth)
        elif len(of_message) == 3 and call.get("flowfile") is None:
            partition = call.number("partition", 0, _NUMBER_MAX)
            offset = call.number("offset", 0, _NUMBER_MAX)
            with self._turn():
                found = lookups.of_message(call.text("topic"), partition, offset, depth)
        else:
            raise InvalidRequest("give flowfile, or topic, partition and offset", place="flowfile")
        names = {one for event in found.events for one in (event.component, event.queue) if one}
        return {
            "flowfiles": found.flowfiles,
            "events": [msgspec.to_builtins(event) for event in found.events],
            "complete": found.is_complete,
            "names": flow.names_of(names),
        }

    def _replay(self, call: EndpointCall) -> object:
        flow = permitted_flow(self._controller, call, Action.WRITE)
        flowfile = call.number("flowfile", 0, _NUMBER_MAX)
        lookups = self._record()
        with self._turn():
            done = lookups.replay(
                *(flow, flowfile, call.get("event") or "", call.text("key")),
                principal=call.access.principal.id,
            )
        return {"flowfile": done.flowfile, "parent": done.parent, "repeated": done.is_repeated}

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Count a request that waits for the record.

        Raises:
            Unavailable: Too many wait.
        """
        if not self._turns.acquire(blocking=False):
            raise Unavailable(
                f"busy: {REQUESTS_MAX} requests wait for the record of provenance; try again later"
            )
        try:
            yield
        finally:
            self._turns.release()

    def _record(self) -> ProvenanceLookups:
        lookups = self._lookups()
        if lookups is None:
            raise NotFound("provenance is not recorded: start Penstock with --provenance-topic")
        return lookups


def _selection(call: EndpointCall, flow: FlowController) -> tuple[EventFilter, int, int]:
    """Return the filter, the number of the first event of the step, and of the last commit.

    Raises:
        InvalidRequest: A parameter is not valid.
    """
    component = call.get("component") or ""
    attribute, value = call.get("attribute") or "", call.get("value") or ""
    if value and not attribute:
        raise InvalidRequest("it has no attribute: add the parameter attribute", place="value")
    wanted = EventFilter(
        flow.inspection.component_id(component) if component else "",
        (call.get("event") or "").upper(),
        _time(call, "from", 0),
        _time(call, "to", TIME_MAX_MS),
        attribute,
        value,
    )
    until = call.number("until", 0, _NUMBER_MAX) if call.get("until") else 0
    return wanted, _following(call.get("next") or ""), until


def _time(call: EndpointCall, name: str, default: int) -> int:
    text = call.get(name)
    try:
        return parse_time(text) if text else default
    except InvalidRequest as error:
        raise InvalidRequest(str(error), place=name) from error


def _following(text: str) -> int:
    """Return the number of the event with an id; 0: of the first one."""
    commit, dash, place = text.partition("-")
    if not text:
        return 0
    is_id = dash and all(
        one.isascii() and one.isdecimal() and len(one) <= _DIGITS_MAX for one in (commit, place)
    )
    if not is_id or int(place) >> EVENT_BITS:
        raise InvalidRequest(f"{text!r} is not the id of an event, such as 12-0", place="next")
    return (int(commit) << EVENT_BITS) + int(place)


def _step_json(step: ReplayStep) -> dict[str, object]:
    following = step.following
    place = None if following is None else following & ((1 << EVENT_BITS) - 1)
    return {
        "outcomes": dict(step.outcomes),
        "examples": [
            {"flowfile": flowfile, "outcome": outcome, "reason": reason}
            for flowfile, outcome, reason in step.examples
        ],
        "next": None if following is None else f"{following >> EVENT_BITS}-{place}",
        "until": step.until,
        "time": step.time_ms or None,
    }
