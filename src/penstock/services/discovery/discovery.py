"""Protocol of discovery, which leases and ZooKeeper implement.

    announce(node) -> Announced .withdraw()
    watch(role, listener) -> Watch .stop()
    nodes(role) -> the present nodes

A listener receives the present nodes in one call, then the call that the view is initialised, then
one call for each change. If the view is not initialised within 30 s, the listener receives the
known nodes and the call that initialisation timed out; nodes found later are changes. A listener
that registers late receives the same calls. Calls to listeners never overlap, whatever their roles.
Exceptions of a listener are logged. A listener must not block, because all others would wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.services.discovery.node import Node

INITIALISED_WITHIN_S: Final = 30.0


class NodeListener(Protocol):
    """Receives the changes of one role's nodes."""

    def nodes_added(self, nodes: Sequence[Node]) -> None:
        """Nodes appeared; the sequence is empty only in the first call, if at all."""
        ...

    def nodes_removed(self, nodes: Sequence[Node]) -> None:
        """Nodes disappeared."""
        ...

    def view_initialised(self) -> None:
        """All initial nodes have been reported."""
        ...

    def view_initialised_timed_out(self) -> None:
        """The initial list was not complete in time; the nodes known so far have been reported."""
        ...


class Watch(Protocol):
    """Registration of one listener for a role."""

    def stop(self) -> None:
        """Stop calling the listener; a call that is running may still finish."""
        ...


class Announced(Protocol):
    """One node that stays announced until it is withdrawn, whatever fails meanwhile."""

    def withdraw(self) -> None:
        """Report to others at once that the node is gone; does not raise."""
        ...


class Discovery(Protocol):
    """Announces nodes and finds those of other processes; thread-safe."""

    def start(self) -> None:
        """Begin.

        Raises:
            Unavailable: The store of announcements does not answer.
        """
        ...

    def stop(self) -> None:
        """Stop, and withdraw all announcements."""
        ...

    def announce(self, node: Node) -> Announced:
        """Make a node known to others.

        Raises:
            Unavailable: The store of announcements does not answer.
        """
        ...

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Register a listener for the nodes of a role."""
        ...

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role; waits for the view to be initialised, or for the time limit.

        Raises:
            Unavailable: No nodes of the role were received in time.
        """
        ...
