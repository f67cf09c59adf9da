"""Flat index of a flow: every component with its id, its group and its path; ends resolved.

Owns derived ids, and the component that the end of a connection names. Does not own the validation:
an unresolved end is None here, and `validation` reports why.

Invariants:

- A missing id is derived from the id of the parent group and the component's kind and name; that of
  a connection from the ids of its ends and its name. So the same flow has the same ids on every
  machine, and a component with a given id keeps the ids of its contents when it is renamed or
  moved.
- The order is that of the flow: groups before their contents.
- Entries are compared by identity: they are equal only within one index.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from penstock.core.errors import NotFound
from penstock.core.names import normalised
from penstock.core.similar_names import nearest
from penstock.flow.graph.flow_model import Connection, Flow, Funnel, Port, ProcessGroup, Processor
from penstock.flow.graph.source_locations import Path

_NAMESPACE: Final = uuid.UUID("6f2c7a3e-3d0b-5e5f-8a57-9f8f0f5f6c11")


class ComponentKind(StrEnum):
    """Kinds of components, as named in output."""

    PROCESSOR = "processor"
    FUNNEL = "funnel"
    INPUT_PORT = "input port"
    OUTPUT_PORT = "output port"
    GROUP = "process group"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGroup:
    """Process group in its flow.

    Attributes:
        id: Its id.
        names: Names of the groups down to it; empty for the root group.
        path: Path of fields to it.
        group: The group itself.
        parent: The parent group; None for the root group.
        members: Components that a connection of this group may name, by normalized name:
            processors, funnels and ports.
        children: Groups in it, by normalized name.
    """

    id: str
    names: tuple[str, ...]
    path: Path
    group: ProcessGroup
    parent: PlacedGroup | None
    members: dict[str, PlacedComponent] = field(default_factory=dict, repr=False)
    children: dict[str, PlacedGroup] = field(default_factory=dict, repr=False)

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the ids of the groups down to it, from the root's to its own."""
        return (*(self.parent.ids if self.parent else ()), self.id)

    def __str__(self) -> str:
        return "/".join(self.names) or "the root group"


@dataclass(frozen=True, slots=True, eq=False)
class PlacedComponent:
    """Processor, funnel or port in its flow.

    Attributes:
        id: Its id.
        kind: Its kind.
        name: Its name.
        path: Path of fields to it.
        component: The component itself.
        group: Group that contains it.
    """

    id: str
    kind: ComponentKind
    name: str
    path: Path
    component: Processor | Funnel | Port
    group: PlacedGroup = field(repr=False)

    @property
    def processor(self) -> Processor | None:
        """Return the processor; None for other components."""
        return self.component if isinstance(self.component, Processor) else None

    def __str__(self) -> str:
        return "/".join((*self.group.names, self.name))


@dataclass(frozen=True, slots=True, eq=False)
class PlacedConnection:
    """Connection in its flow.

    Attributes:
        id: Its id.
        path: Path of fields to it.
        connection: The connection itself, with its source and relationship separated as its group
            defines.
        group: Group that contains it.
        source: Its source; None if there is no such component.
        destination: Its destination; None if there is no such component.
    """

    id: str
    path: Path
    connection: Connection
    group: PlacedGroup = field(repr=False)
    source: PlacedComponent | None
    destination: PlacedComponent | None

    @property
    def is_loop(self) -> bool:
        """Return whether its source is also its destination."""
        return self.source is not None and self.source is self.destination

    def __str__(self) -> str:
        return "/".join((*self.group.names, arrow(self.connection)))


@dataclass(frozen=True, slots=True, eq=False)
class FlowIndex:
    """Flat index of a flow. Created by `of`.

    If two components have one id, which is an error, the first is found by it; the lists contain
    both.

    Attributes:
        flow: The flow.
        groups: All process groups, the root first.
        components: All processors, funnels and ports.
        connections: All connections.
        incoming: Incoming connections by id of a component.
        outgoing: Outgoing connections by id of a component.
    """

    flow: Flow
    groups: tuple[PlacedGroup, ...]
    components: tuple[PlacedComponent, ...]
    connections: tuple[PlacedConnection, ...]
    incoming: Mapping[str, tuple[PlacedConnection, ...]]
    outgoing: Mapping[str, tuple[PlacedConnection, ...]]

    @classmethod
    def of(cls, flow: Flow) -> Self:
        """Return the index of a flow."""
        groups: list[PlacedGroup] = []
        components: list[PlacedComponent] = []
        for group in _groups(flow):
            groups.append(group)
            components.extend(_members(group))
        connections = [placed for group in groups for placed in _connections(group)]
        incoming: dict[str, list[PlacedConnection]] = {}
        outgoing: dict[str, list[PlacedConnection]] = {}
        for placed in connections:
            if placed.destination is not None:
                incoming.setdefault(placed.destination.id, []).append(placed)
            if placed.source is not None:
                outgoing.setdefault(placed.source.id, []).append(placed)
        return cls(
            flow,
            tuple(groups),
            tuple(components),
            tuple(connections),
            {id_: tuple(found) for id_, found in incoming.items()},
            {id_: tuple(found) for id_, found in outgoing.items()},
        )

    @property
    def processors(self) -> Iterator[tuple[PlacedComponent, Processor]]:
        """Yield the processors with their entries."""
        for placed in self.components:
            if isinstance(placed.component, Processor):
                yield placed, placed.component

    def find_connection(self, target: str) -> PlacedConnection:
        """Return the connection that a user specified by id or name; `->` is also an arrow.

        Raises:
            NotFound: No connection has this id or name.
        """
        for placed in self.connections:
            if target == placed.id or _spelt(target) == _spelt(str(placed)):
                return placed
        names = [str(placed) for placed in self.connections]
        raise NotFound(f"unknown connection {target!r}{nearest(target, names)}")


def _spelt(name: str) -> str:
    return "→".join(part.strip() for part in normalised(name).replace("->", "→").split("→"))


def arrow(connection: Connection) -> str:
    """Return the display name of a connection: ``Read.success → Validate``."""
    ways = ",".join(connection.relationships)
    source = f"{connection.source}.{ways}" if ways else connection.source
    named = f" ({connection.name})" if connection.name else ""
    return f"{source} → {connection.destination}{named}"


def _derived(around: str, kind: ComponentKind, *names: str) -> str:
    # No name contains the separator, so that different lists of names give different texts.
    return str(uuid.uuid5(uuid.UUID(around), "\x1f".join((kind, *names))))


def _groups(flow: Flow) -> Iterator[PlacedGroup]:
    """Yield all groups, each before its contents; without recursion, because groups may be deep."""
    root_id = flow.id or str(uuid.uuid5(_NAMESPACE, flow.name))
    waiting = [PlacedGroup(root_id, (), (), flow, None)]
    while waiting:
        placed = waiting.pop()
        yield placed
        children = [
            PlacedGroup(
                group.id or _derived(placed.id, ComponentKind.GROUP, name),
                (*placed.names, name),
                (*placed.path, "groups", name),
                group,
                placed,
            )
            for name, group in placed.group.groups.items()
        ]
        for child in children:
            placed.children.setdefault(normalised(child.names[-1]), child)
        waiting.extend(reversed(children))


def _members(placed: PlacedGroup) -> Iterator[PlacedComponent]:
    """Yield the components of a group; if some share a name, the first is found by it."""
    group = placed.group
    kinds: tuple[tuple[ComponentKind, str, Mapping[str, Processor | Funnel | Port]], ...] = (
        (ComponentKind.INPUT_PORT, "input_ports", group.input_ports),
        (ComponentKind.PROCESSOR, "processors", group.processors),
        (ComponentKind.FUNNEL, "funnels", group.funnels),
        (ComponentKind.OUTPUT_PORT, "output_ports", group.output_ports),
    )
    for kind, field_name, components in kinds:
        for name, component in components.items():
            member = PlacedComponent(
                component.id or _derived(placed.id, kind, name),
                kind,
                name,
                (*placed.path, field_name, name),
                component,
                placed,
            )
            placed.members.setdefault(normalised(name), member)
            yield member


def _connections(placed: PlacedGroup) -> Iterator[PlacedConnection]:
    for number, written in enumerate(placed.group.connections):
        connection = _meant(placed, written)
        source = find(placed, connection.source)
        destination = find(placed, connection.destination)
        id_ = connection.id or _derived(
            placed.id,
            ComponentKind.CONNECTION,
            source.id if source else connection.source,
            destination.id if destination else connection.destination,
            connection.name,
        )
        path = (*placed.path, "connections", number)
        yield PlacedConnection(id_, path, connection, placed, source, destination)


def _meant(placed: PlacedGroup, connection: Connection) -> Connection:
    """Return a connection whose source and relationship are separated as its group defines.

    The short form has both in one text, ``Fetch.not.found``, which was split at its last dot. That
    split is kept if it names a component.
    """
    source, ways = connection.source, connection.relationships
    if len(ways) != 1 or find(placed, source) is not None:
        return connection
    whole, name = f"{source}.{ways[0]}", source
    if find(placed, whole) is not None:
        return connection.model_copy(update={"source": whole, "relationships": ()})
    while "." in name:
        name = name.rpartition(".")[0]
        if find(placed, name) is not None:
            way = whole[len(name) + 1 :]
            return connection.model_copy(update={"source": name, "relationships": (way,)})
    return connection


def find(placed: PlacedGroup, name: str) -> PlacedComponent | None:
    """Return the component that ``Name``, or ``Group/Port``, names in a group; None: unknown.

    This does not check whether it may be an end of a connection.
    """
    first, slash, rest = normalised(name).partition("/")
    if not slash:
        return placed.members.get(first)
    child = placed.children.get(first)
    found = child.members.get(rest) if child is not None else None
    return found if found is not None and isinstance(found.component, Port) else None
