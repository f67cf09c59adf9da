"""Steps in flows before and after a message, from the provenance that their process records.

Owns the request to that process, which decides for the principal, and the text of a step. A trace
does not need these steps: it is complete without them when provenance is not recorded, or when the
principal may not read it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from penstock.core.bearer import Bearer
from penstock.core.errors import Forbidden, InvalidRequest, NotFound, Unavailable
from penstock.core.intervals import format_time
from penstock.services.json_client import JsonClient
from penstock.services.membership.leases import LeaseDirectory

# A trace answers within a second or two, with or without the flow.
_TIMEOUT_S: Final = 1.0
_STEPS_MAX: Final = 50
_GENERATIONS: Final = 5
_PATH: Final = "/penstock/v1/flow/provenance"


class FlowHistory(Protocol):
    """Records of flows about the messages that they received and published."""

    def steps(
        self, topic: str, partition: int, offset: int, headers: Mapping[str, str]
    ) -> Sequence[Mapping[str, object]]:
        """Return the steps of a message in flows, in the form of `Steps`.

        Args:
            topic: The topic.
            partition: The stream partition.
            offset: The offset.
            headers: The headers by which other processes know the principal of the trace.
        """
        ...


class NoFlowHistory:
    """Flows do not record where their messages come from."""

    def steps(
        self, _topic: str, _partition: int, _offset: int, _headers: Mapping[str, str]
    ) -> Sequence[Mapping[str, object]]:
        """Return no steps."""
        return ()


class _Event(msgspec.Struct):
    """The part of an event of provenance that a trace shows.

    The router has no other need for the package of flows, so it does not load its events.
    """

    time: int
    event: str
    component: str = ""
    relationship: str = ""
    queue: str = ""
    flowfile: int | None = None
    reason: str = ""


class _Lineage(msgspec.Struct):
    """The part of an answer about provenance that a trace shows."""

    events: list[_Event]
    names: dict[str, str]
    complete: bool


class RecordedFlowHistory:
    """Asks the process of flows for the lineage of a message. Any thread.

    Args:
        directory: Lookup of the process.
        bearer: Bearer token of this process.
    """

    def __init__(self, directory: LeaseDirectory, bearer: Bearer) -> None:
        self._directory = directory
        self._bearer = bearer

    def steps(
        self, topic: str, partition: int, offset: int, headers: Mapping[str, str]
    ) -> Sequence[Mapping[str, object]]:
        """Return the events of the FlowFiles that were this message, as steps.

        Returns:
            Up to 50 steps, the oldest first; none if provenance is not recorded, if the principal
            may not read it, or if the process does not answer within a second.
        """
        query = {"topic": topic, "partition": partition, "offset": offset, "depth": _GENERATIONS}
        try:
            client = JsonClient(
                self._directory.find("flow").url,
                token=self._bearer,
                timeout_s=_TIMEOUT_S,
                role="flow",
            )
            answer = client.request("GET", _PATH, query=query, headers=headers)
            found = msgspec.convert(answer, _Lineage)
        except (Forbidden, InvalidRequest, NotFound, Unavailable, msgspec.ValidationError):
            return ()
        events = sorted(found.events, key=lambda event: event.time)
        steps = [_step(event, found.names) for event in events[:_STEPS_MAX]]
        if len(events) > _STEPS_MAX or not found.complete:
            text = "there are more events: the lineage of the FlowFiles shows them"
            steps.append({"step": "more", "time": None, "text": text, "details": {}})
        return steps


def _step(event: _Event, names: Mapping[str, str]) -> dict[str, object]:
    """Return an event as a step."""
    what = "FlowFiles" if event.flowfile is None else f"FlowFile {event.flowfile}"
    text = f"{event.event} {what}"
    if event.component:
        text += f" by {names.get(event.component, event.component)}"
    if event.relationship:
        text += f", to {event.relationship}"
    if event.queue:
        text += f", into {names.get(event.queue, event.queue)}"
    if event.reason:
        text += f": {event.reason}"
    details = {"event": event.event, "flowfile": event.flowfile, "component": event.component}
    return {
        "step": "flow",
        "time": format_time(event.time),
        "text": text,
        "details": {name: value for name, value in details.items() if value not in {None, ""}},
    }
