"""The protocol of discovery, which leases and ZooKeeper both keep.

    announce(node) -> Announced .withdraw()
    watch(role, listener) -> Watch .stop()
    nodes(role) -> who is there now

A listener hears of everything that is there in one call, then that the view is initialised, then of
each change in a call of its own. If the view is not initialised within 30 s, it hears of what is
known so far, and that the time is over; what comes later are changes. One who listens late hears
the same from its point of view. No two calls to listeners run at the same time, whatever their
roles; what a listener raises is logged; a listener must not block, or all wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.services.discovery.node import Node

INITIALISED_WITHIN_S: Final = 30.0


class NodeListener(Protocol):
    """Hears of the nodes of a role."""

    def nodes_added(self, nodes: Sequence[Node]) -> None:
        """These are there now; never an empty sequence but in the first call."""
        ...

    def nodes_removed(self, nodes: Sequence[Node]) -> None:
        """These are gone."""
        ...

    def view_initialised(self) -> None:
        """All that were there at the start are told."""
        ...

    def view_initialised_timed_out(self) -> None:
        """It could not be found out in time who is there; what is known is told."""
        ...


class Watch(Protocol):
    """One listener's interest in a role."""

    def stop(self) -> None:
        """Have the listener hear no more; a call that runs just now may still end."""
        ...


class Announced(Protocol):
    """One node, announced until it is withdrawn; kept alive meanwhile, whatever happens."""

    def withdraw(self) -> None:
        """Have others know at once that it is gone; does not raise."""
        ...


class Discovery(Protocol):
    """Announces nodes and finds those of others; any thread."""

    def start(self) -> None:
        """Begin.

        Raises:
            Unavailable: What nodes announce themselves in does not answer.
        """
        ...

    def stop(self) -> None:
        """End; all that is announced still is withdrawn."""
        ...

    def announce(self, node: Node) -> Announced:
        """Have others find a node.

        Raises:
            Unavailable: What nodes announce themselves in does not answer.
        """
        ...

    def watch(self, role: str, listener: NodeListener) -> Watch:
        """Have a listener hear of the nodes of a role."""
        ...

    def nodes(self, role: str) -> Sequence[Node]:
        """Return the nodes of a role; waits for the view to be initialised, or for the time limit.

        Raises:
            Unavailable: Nothing was heard of the role in time.
        """
        ...
