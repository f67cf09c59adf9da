"""Checks whether a component has work and room, as plain functions of its connections.

Owns the rules for sources, self-loops and funnels. Does not own the connections: the caller
describes each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


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
    """Return whether a trigger of a processor would find something to do.

    Args:
        inputs: Incoming connections.
        when_empty: Whether it wants to be triggered with empty inputs, too.
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
    loop would block forever the component that empties it.

    Args:
        relationships: Connections of each relationship, including relationships without
            connections.
        any_is_enough: Whether one relationship with room is enough; else all need room.
    """
    rooms = [
        not any(connection.is_full and not connection.is_loop for connection in connections)
        for connections in relationships
    ]
    return not rooms or (any(rooms) if any_is_enough else all(rooms))
