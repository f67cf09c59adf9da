"""Single parts of a running flow as users see them: a component, a connection, a FlowFile.

Owns the values that are only made for one part, and the look-up of parts by id or name. Changes
nothing. Does not own the parts (`components`, `connection_queues`), nor the status of the whole
flow (`flow_status`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import InvalidRequest, NotFound, counted
from penstock.flow.controller.flow_status import ComponentStatus, ConnectionStatus
from penstock.flow.controller.request_waits import answer
from penstock.flow.flowfile import FlowFile
from penstock.flow.graph.flow_index import PlacedComponent

if TYPE_CHECKING:
    from penstock.flow.controller.components import FlowComponents
    from penstock.flow.controller.connection_queues import ConnectionQueues
    from penstock.flow.queue.queue import FlowFileQueue
    from penstock.flow.scheduling.scheduler import Scheduler
    from penstock.storage.content.content_repository import ContentRepository

FIRINGS_MAX: Final = 5
"""Firing times in the details of a CRON driven component."""


@dataclass(frozen=True, slots=True)
class ComponentDetail:
    """One component with its definition and its connections.

    Attributes:
        status: Its status.
        placed: Its definition in the flow.
        next_firings_ms: CRON driven: its next firing times, epoch ms, the same if it is stopped.
        state_entries: Number of entries of its persistent state.
        inputs: Status of its incoming connections.
        outputs: Status of its outgoing connections.
    """

    status: ComponentStatus
    placed: PlacedComponent
    next_firings_ms: Sequence[int]
    state_entries: int
    inputs: Sequence[ConnectionStatus]
    outputs: Sequence[ConnectionStatus]


@dataclass(frozen=True, slots=True)
class FlowFileContent:
    """A part of the content of a FlowFile.

    Attributes:
        flowfile: The FlowFile.
        offset: Place of the first byte in the content.
        data: The bytes.
    """

    flowfile: FlowFile
    offset: int
    data: bytes


class FlowInspection:
    """Look-ups of single parts; any thread.

    Args:
        parts: Components and connections.
        queues: Queues of the connections.
        scheduler: Runs the components.
        content: Content of the FlowFiles.
    """

    def __init__(
        self,
        parts: FlowComponents,
        queues: ConnectionQueues,
        scheduler: Scheduler,
        content: ContentRepository,
    ) -> None:
        self._parts = parts
        self._queues = queues
        self._scheduler = scheduler
        self._content = content

    def queue(self, target: str) -> FlowFileQueue:
        """Return the queue of a connection, by its id or its name.

        Raises:
            NotFound: The flow does not have this connection.
        """
        return self._queues.find(self._parts.connection_id(target))

    def content(self, target: str, flowfile_id: int, offset: int, limit: int) -> FlowFileContent:
        """Return a part of the content of a FlowFile that waits in a connection.

        Args:
            target: Id or name of the connection.
            flowfile_id: Id of the FlowFile.
            offset: Number of bytes to leave out.
            limit: Maximum number of bytes.

        Raises:
            NotFound: The flow does not have this connection, or the FlowFile has left it.
            InvalidRequest: The content ends before the offset.
            CorruptData: The content is damaged.
        """
        flowfile = self.queue(target).listing.find(flowfile_id)
        if flowfile is None:
            raise NotFound(
                f"there is no FlowFile {flowfile_id} in {target}: it was taken, dropped, or never"
                " in this connection"
            )
        if offset > flowfile.size:
            raise InvalidRequest(
                f"{offset} is behind the end: the content has {counted(flowfile.size, 'byte')}",
                place="offset",
            )
        data = b""
        if flowfile.claim is not None and (length := min(limit, flowfile.size - offset)):
            start = flowfile.content_offset + offset
            data = self._content.read(flowfile.claim, start, length)
        return FlowFileContent(flowfile, offset, data)

    def state_of(self, target: str) -> Mapping[str, str]:
        """Return the persistent state of a component.

        Raises:
            NotFound: The flow does not have this component.
            CorruptData: The journal contains another value in its place.
        """
        return self._parts.state_of(self._parts.component_id(target))

    def detail(self, target: str) -> ComponentDetail:
        """Return a component with its definition and its connections.

        Raises:
            NotFound: The flow does not have this component.
        """
        parts = self._parts
        one = parts.component_id(target)
        scheduling = answer(self._scheduler.statistics([one])).components
        statuses = parts.component_statuses(scheduling)
        placed = parts.placed(one)
        if not statuses:
            raise NotFound(f"component {one} was removed from the flow")
        incoming, outgoing = parts.ends_of(one)
        return ComponentDetail(
            statuses[0],
            placed,
            self._firings_ms(statuses[0]),
            len(parts.state_of(one)),
            parts.connection_statuses(incoming),
            parts.connection_statuses(outgoing),
        )

    def _firings_ms(self, status: ComponentStatus) -> list[int]:
        schedule = self._parts.schedules.get(status.id)
        if schedule is None or schedule.cron is None:
            return []
        next_ms = status.scheduling.next_firing_ms
        if next_ms is None:
            return schedule.cron.next_times(self._parts.clock.now_ms(), FIRINGS_MAX)
        return [next_ms, *schedule.cron.next_times(next_ms, FIRINGS_MAX - 1)]

    def connection(self, target: str) -> ConnectionStatus:
        """Return the status of a connection, by its id or its name.

        Raises:
            NotFound: The flow does not have this connection.
        """
        found = self._parts.connection_statuses([self._parts.connection_id(target)])
        if not found:
            raise NotFound(f"connection {target} was removed from the flow")
        return found[0]

    def component_id(self, target: str) -> str:
        """Return the id of a component, by its id or its name.

        Raises:
            NotFound: The flow does not have this component, or it is a group.
        """
        return self._parts.component_id(target)

    def name_of(self, component_id: str) -> str:
        """Return the kind and the name of a component, for people."""
        return self._parts.name_of(component_id)
