"""Connections of a component: whether inputs have work and outputs have room.

`ComponentConnections` reads the state of the queues. The functions over inputs and outputs have the
rules for sources, self-loops and funnels: whether a component has work, and room for its output.
They are pure. Does not own the queues (`connection_queues`), nor when a component is checked
(`flow.scheduling`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.flow.queue.queue_size import Availability

if TYPE_CHECKING:
    from penstock.flow.queue.queue import FlowFileQueue


@dataclass(frozen=True, slots=True)
class Input:
    """Incoming connection.

    Attributes:
        available: Whether a FlowFile can be taken now; penalized and expired ones do not count.
        is_loop: Whether it comes from the component itself.
    """

    available: bool
    is_loop: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """Outgoing connection; one that leads back to the component itself is a loop."""

    is_full: bool
    is_loop: bool = False


def is_source(inputs: Iterable[Input]) -> bool:
    """Return whether no other component feeds this one, so that it runs without input."""
    return all(connection.is_loop for connection in inputs)


def has_work(inputs: Sequence[Input], *, when_empty: bool = False) -> bool:
    """Return whether a trigger of a processor would have work to do.

    Args:
        inputs: Incoming connections.
        when_empty: Whether it is triggered with empty inputs, too.
    """
    return when_empty or is_source(inputs) or any(connection.available for connection in inputs)


def funnel_has_work(inputs: Sequence[Input], outputs: Sequence[Output]) -> bool:
    """Return whether a trigger of a funnel would move FlowFiles; a funnel is never a source."""
    return (
        bool(outputs)
        and not is_source(inputs)
        and any(connection.available for connection in inputs)
    )


def is_open(relationships: Iterable[Sequence[Output]], *, any_is_enough: bool = False) -> bool:
    """Return whether the outputs of a component have room.

    A relationship has room if none of its connections is full. Loops do not count: otherwise a full
    loop would permanently block the component that empties it.

    Args:
        relationships: Connections of each relationship, including relationships without
            connections.
        any_is_enough: Whether one relationship with room is enough; otherwise all need room.
    """
    rooms = [
        not any(connection.is_full and not connection.is_loop for connection in connections)
        for connections in relationships
    ]
    return not rooms or (any(rooms) if any_is_enough else all(rooms))


@dataclass(frozen=True)
class ComponentConnections:
    """Connections of a component.

    Attributes:
        inputs: Queues of incoming connections.
        outputs: Queues of outgoing connections, by relationship.
    """

    inputs: Sequence[FlowFileQueue] = ()
    outputs: Mapping[str, Sequence[FlowFileQueue]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        away = {queue.id for queues in self.outputs.values() for queue in queues}
        object.__setattr__(self, "loops", frozenset(q.id for q in self.inputs if q.id in away))

    loops: frozenset[str] = field(init=False)

    def input_states(self, now_ms: int) -> list[Input]:
        """Return the current state of the inputs."""
        return [
            Input(queue.availability(now_ms) is Availability.AVAILABLE, queue.id in self.loops)
            for queue in self.inputs
        ]

    def output_states(self, relationships: Sequence[str]) -> list[list[Output]]:
        """Return the current state of the connections of each relationship."""
        return [
            [
                Output(queue.is_full, queue.id in self.loops)
                for queue in self.outputs.get(relationship, ())
            ]
            for relationship in relationships
        ]

    def next_due_ms(self) -> int | None:
        """Return when the first penalty in the inputs ends, epoch ms; None if there is none."""
        due = (queue.next_due_ms() for queue in self.inputs)
        return min((one for one in due if one is not None), default=None)

    def loop_is_full(self) -> bool:
        """Return whether a connection of the component to itself is full."""
        return any(queue.is_full for queue in self.inputs if queue.id in self.loops)
