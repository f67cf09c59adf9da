"""A flow laid out flat: every component with its id, its group and its path; ends resolved.

Owns ids that are not given, and which component the end of a connection means. Does not own
whether a flow makes sense: what cannot be resolved is None here, and `validation` says why.

Invariants:

- An id that is not given follows from the id of the group around and the component's kind and
  name; a connection's from its ends' and its name. So the same flow has the same ids on every
  machine, and what keeps its given id keeps those of everything in it.
- Order is the flow's: groups before what is in them.
- What is laid out is compared by identity: two are one only within one index.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self

from penstock.core.errors import NotFound
from penstock.core.names import normalised
from penstock.flow.graph.model import Connection, Flow, Funnel, Port, ProcessGroup, Processor
from penstock.flow.graph.places import Path, nearest

_NAMESPACE: Final = uuid.UUID("6f2c7a3e-3d0b-5e5f-8a57-9f8f0f5f6c11")


class Kind(StrEnum):
    """Kinds of components, as their names appear in what is shown."""

    PROCESSOR = "processor"
    FUNNEL = "funnel"
    INPUT_PORT = "input port"
    OUTPUT_PORT = "output port"
    GROUP = "process group"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True, eq=False)
class PlacedGroup:
    """A process group in its flow.

    Attributes:
        id: Its id.
        names: Names on the way to it; none for the root group.
        path: Fields on the way to it.
        group: The group itself.
        parent: The group around it; None for the root group.
        members: What a connection of this group may name, by its name in normal form: processors,
            funnels and ports.
        children: Groups in it, by name in normal form.
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
        """Return the ids of the groups on the way to it, the root's first, its own last."""
        return (*(self.parent.ids if self.parent else ()), self.id)

    def __str__(self) -> str:
        return "/".join(self.names) or "the root group"


@dataclass(frozen=True, slots=True, eq=False)
class PlacedComponent:
    """A processor, funnel or port in its flow.

    Attributes:
        id: Its id.
        kind: What it is.
        name: Its name.
        path: Fields on the way to it.
        component: The component itself.
        group: The group that it is in.
    """

    id: str
    kind: Kind
    name: str
    path: Path
    component: Processor | Funnel | Port
    group: PlacedGroup = field(repr=False)

    @property
    def processor(self) -> Processor | None:
        """Return the processor, if it is one."""
        return self.component if isinstance(self.component, Processor) else None

    def __str__(self) -> str:
        return "/".join((*self.group.names, self.name))


@dataclass(frozen=True, slots=True, eq=False)
class PlacedConnection:
    """A connection in its flow.

    Attributes:
        id: Its id.
        path: Fields on the way to it.
        connection: The connection itself, its source and relationship parted as they are meant.
        group: The group that it is in.
        source: Where FlowFiles come from; None: there is no such component.
        destination: Where they go; None: there is no such component.
    """

    id: str
    path: Path
    connection: Connection
    group: PlacedGroup = field(repr=False)
    source: PlacedComponent | None
    destination: PlacedComponent | None

    @property
    def is_loop(self) -> bool:
        """Say whether it leads back to where it comes from."""
        return self.source is not None and self.source is self.destination

    def __str__(self) -> str:
        return "/".join((*self.group.names, arrow(self.connection)))


@dataclass(frozen=True, slots=True, eq=False)
class FlowIndex:
    """A flow laid out flat. Made by `of`.

    Where two components have one id, which is a mistake, the first is found by it; the lists hold
    both.

    Attributes:
        flow: The flow.
        groups: All process groups, the root first.
        components: All processors, funnels and ports.
        connections: All connections.
        incoming: By id of a component: the connections that lead to it.
        outgoing: By id of a component: the connections that leave it.
    """

    flow: Flow
    groups: tuple[PlacedGroup, ...]
    components: tuple[PlacedComponent, ...]
    connections: tuple[PlacedConnection, ...]
    incoming: Mapping[str, tuple[PlacedConnection, ...]]
    outgoing: Mapping[str, tuple[PlacedConnection, ...]]

    @classmethod
    def of(cls, flow: Flow) -> Self:
        """Lay out a flow."""
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
        """Go through the processors with their places."""
        for placed in self.components:
            if isinstance(placed.component, Processor):
                yield placed, placed.component

    def find_connection(self, target: str) -> PlacedConnection:
        """Return the connection that a user means by its id or its name; `->` is an arrow, too.

        Raises:
            NotFound: There is none.
        """
        for placed in self.connections:
            if target == placed.id or _spelt(target) == _spelt(str(placed)):
                return placed
        names = [str(placed) for placed in self.connections]
        raise NotFound(f"there is no connection {target!r}{nearest(target, names)}")


def _spelt(name: str) -> str:
    return "→".join(part.strip() for part in normalised(name).replace("->", "→").split("→"))


def arrow(connection: Connection) -> str:
    """Return a connection as people name it: ``Read.success → Validate``."""
    ways = ",".join(connection.relationships)
    source = f"{connection.source}.{ways}" if ways else connection.source
    named = f" ({connection.name})" if connection.name else ""
    return f"{source} → {connection.destination}{named}"


def _derived(around: str, kind: Kind, *names: str) -> str:
    # A separator that no name holds, so that no two lists of names give the same text.
    return str(uuid.uuid5(uuid.UUID(around), "\x1f".join((kind, *names))))


def _groups(flow: Flow) -> Iterator[PlacedGroup]:
    """Go through all groups, each before what is in it; without recursion, however deep."""
    root_id = flow.id or str(uuid.uuid5(_NAMESPACE, flow.name))
    waiting = [PlacedGroup(root_id, (), (), flow, None)]
    while waiting:
        placed = waiting.pop()
        yield placed
        children = [
            PlacedGroup(
                group.id or _derived(placed.id, Kind.GROUP, name),
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
    """Make the components of a group; of those that share a name the first is found by it."""
    group = placed.group
    kinds: tuple[tuple[Kind, str, Mapping[str, Processor | Funnel | Port]], ...] = (
        (Kind.INPUT_PORT, "input_ports", group.input_ports),
        (Kind.PROCESSOR, "processors", group.processors),
        (Kind.FUNNEL, "funnels", group.funnels),
        (Kind.OUTPUT_PORT, "output_ports", group.output_ports),
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
            Kind.CONNECTION,
            source.id if source else connection.source,
            destination.id if destination else connection.destination,
            connection.name,
        )
        path = (*placed.path, "connections", number)
        yield PlacedConnection(id_, path, connection, placed, source, destination)


def _meant(placed: PlacedGroup, connection: Connection) -> Connection:
    """Return a connection whose source and relationship are parted where its group says.

    In short they stand in one text, ``Fetch.not.found``, and were parted at its last dot; that is
    kept wherever it names something.
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
    """Return what ``Name``, or ``Group/Port``, means within a group; None: there is none.

    Whether it may be an end of a connection is not asked here.
    """
    first, slash, rest = normalised(name).partition("/")
    if not slash:
        return placed.members.get(first)
    child = placed.children.get(first)
    found = child.members.get(rest) if child is not None else None
    return found if found is not None and isinstance(found.component, Port) else None
