"""Whether a component has work and room: plain functions over its connections.

Owns the rules for sources, self-loops and funnels. Does not own the connections: whoever has them
says of each what is asked here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Input:
    """An incoming connection.

    Attributes:
        available: A FlowFile can be handed out now; what is penalized or expired does not count.
        is_loop: It comes from the component itself.
    """

    available: bool
    is_loop: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """An outgoing connection; one that leads back to the component itself is a loop."""

    is_full: bool
    is_loop: bool = False


def is_source(inputs: Iterable[Input]) -> bool:
    """Say whether nothing but itself feeds the component, so that it runs without being fed."""
    return all(connection.is_loop for connection in inputs)


def has_work(inputs: Sequence[Input], *, when_empty: bool = False) -> bool:
    """Say whether a trigger of a processor would find something to do.

    Args:
        inputs: Its incoming connections.
        when_empty: It asks to be triggered with empty inputs, too.
    """
    return when_empty or is_source(inputs) or any(connection.available for connection in inputs)


def funnel_has_work(inputs: Sequence[Input], outputs: Sequence[Output]) -> bool:
    """Say whether a trigger of a funnel would move something; a funnel is never a source."""
    return (
        bool(outputs)
        and not is_source(inputs)
        and any(connection.available for connection in inputs)
    )


def is_open(relationships: Iterable[Sequence[Output]], *, any_is_enough: bool = False) -> bool:
    """Say whether there is room for what a component makes.

    A relationship has room if none of its connections is full. Loops do not count: a full one would
    stop the component that empties it, for ever.

    Args:
        relationships: The connections of each relationship, also of those without any.
        any_is_enough: One relationship with room is enough; else all must have it.
    """
    rooms = [
        not any(connection.is_full and not connection.is_loop for connection in connections)
        for connections in relationships
    ]
    return not rooms or (any(rooms) if any_is_enough else all(rooms))
