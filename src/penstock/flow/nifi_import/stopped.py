"""Folder of a flow whose service is stopped: the flow and its FlowFile repository.

Owns opening and closing it. Does not own its content (`controller`, `repository`).

Invariant: while it is open, the service cannot open it, and no part of the flow runs.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from penstock.core.errors import InvalidRequest, NotFound
from penstock.flow.controller.applied_flow import AppliedFlow
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.nifi_import.importing import Target
from penstock.flow.prioritizers import prioritizer_named
from penstock.flow.repository.repository import FlowFileRepository
from penstock.storage.content.repository import ContentRepository

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.clock import Clock
    from penstock.flow.graph.flow_index import PlacedConnection
    from penstock.flow.repository.changes import RecoveryEvent
    from penstock.storage.filesystem import FileSystem


class StoppedFlow:
    """Folder of a stopped flow; a context manager that closes it.

    Args:
        folder: The folder.
        fs: The file system.
        clock: The current time.

    Attributes:
        content: Content of its FlowFiles.
        repository: Its FlowFile repository.
        events: Events of recovery that an operator needs to know.

    Raises:
        NotFound: No flow was applied there.
        Conflict: The service of the flow is running.
        CorruptData: Durable data is damaged.
        Unavailable: I/O error.
    """

    def __init__(self, folder: str, *, fs: FileSystem, clock: Clock) -> None:
        self._index = FlowIndex.of(AppliedFlow.load(fs, f"{folder}/flow.json").flow)
        if not self._index.connections:
            raise NotFound(
                f"{folder} has no flow with a connection: apply one with penstock flow apply, or "
                "specify another folder with --data-dir"
            )
        with ExitStack() as resources:
            self.content = ContentRepository.open(f"{folder}/content", fs=fs, clock=clock)
            resources.callback(self.content.close)
            self.repository = FlowFileRepository.open(
                f"{folder}/flowfiles", fs=fs, clock=clock, content=self.content
            )
            resources.callback(self.repository.close)
            self.events: Sequence[RecoveryEvent] = self.repository.recovered.events
            self._resources = resources.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def connection(self, name: str) -> PlacedConnection:
        """Return a connection by its name or id.

        Raises:
            NotFound: The flow does not have this connection.
        """
        return self._index.find_connection(name)


def target_of(placed: PlacedConnection) -> Target:
    """Return a connection as a destination."""
    try:
        order = [prioritizer_named(name) for name in placed.connection.prioritizers]
    except InvalidRequest:
        # For a user's own prioritizer: the queue sorts swapped FlowFiles when it starts.
        order = []
    return Target(placed.id, order)
