"""Checks of connections: their ends, relationships and limits."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.names import normalised
from penstock.flow.graph.check_context import Checking
from penstock.flow.graph.flow_index import Kind, PlacedComponent, PlacedConnection, PlacedGroup
from penstock.flow.graph.model import Processor
from penstock.flow.graph.processor_checks import unknown_relationship
from penstock.flow.graph.source_locations import Path, Problem, listed
from penstock.flow.processor.processor import InputRequirement
from penstock.flow.processor.property_types import parse_size


def connection_problems(check: Checking) -> Iterator[Problem]:
    """Find errors of connections."""
    for placed in check.index.connections:
        connection, path = placed.connection, placed.path
        yield from _source_problems(check, placed)
        yield from _destination_problems(check, placed)
        yield from check.period_problems(placed.group, (*path, "expiration"), connection.expiration)
        yield from check.parse_problems(
            (*path, "back_pressure_size"), parse_size, connection.back_pressure_size
        )
        for number, prioritizer in enumerate(connection.prioritizers):
            yield from check.parse_problems(
                (*path, "prioritizers", number), check.check_prioritizer, prioritizer
            )


def _source_problems(check: Checking, placed: PlacedConnection) -> Iterator[Problem]:
    path, source = (*placed.path, "from"), placed.source
    connection = placed.connection
    if source is None:
        yield check.problem(path, _nothing(check, placed, connection.source, is_source=True))
        return
    if not _may_be_end(placed.group, source, Kind.INPUT_PORT, Kind.OUTPUT_PORT):
        yield check.problem(path, _wrong_port(placed.group, source, "from"))
    if not isinstance(source.component, Processor):
        if connection.relationships:
            yield check.problem(
                path, f"{source.kind} {source.name!r} has no relationships: write only its name"
            )
        return
    known = check.relationships.get(source.id)
    if not connection.relationships:
        which = f", such as {source.name}.{min(known)}" if known else ""
        yield check.problem(path, f"specify a relationship of {source.name!r}{which}")
    for name in connection.relationships:
        if known is not None and name not in known:
            message = unknown_relationship(check, source.component.type, name, known)
            yield check.problem(_relationships_path(check, placed), message)


def _relationships_path(check: Checking, placed: PlacedConnection) -> Path:
    long_form = (*placed.path, "relationships")
    return long_form if long_form in check.places.marks else (*placed.path, "from")


def _destination_problems(check: Checking, placed: PlacedConnection) -> Iterator[Problem]:
    path, destination = (*placed.path, "to"), placed.destination
    if destination is None:
        yield check.problem(
            path, _nothing(check, placed, placed.connection.destination, is_source=False)
        )
        return
    if not _may_be_end(placed.group, destination, Kind.OUTPUT_PORT, Kind.INPUT_PORT):
        yield check.problem(path, _wrong_port(placed.group, destination, "to"))
    declaration = check.declaration(destination)
    if declaration is not None and declaration.input is InputRequirement.FORBIDDEN:
        yield check.problem(
            path,
            f"{destination.name!r} is a source and takes no input: connect another destination",
        )


def _may_be_end(
    group: PlacedGroup, component: PlacedComponent, own_port: Kind, inner_port: Kind
) -> bool:
    if component.kind in {Kind.PROCESSOR, Kind.FUNNEL}:
        return True
    return component.kind is (own_port if component.group is group else inner_port)


def _wrong_port(group: PlacedGroup, port: PlacedComponent, field: str) -> str:
    is_out = port.kind is Kind.OUTPUT_PORT
    side = "inside" if port.group is group else "outside"
    way = "leads out of its group" if is_out else "leads into its group"
    return f"{port.kind} {port.name!r} {way}: seen from {side} it cannot be {field!r}"


def _nothing(check: Checking, placed: PlacedConnection, name: str, *, is_source: bool) -> str:
    """Return the error for an end of a connection that names no component."""
    group = placed.group
    if (meant := group.children.get(normalised(name))) is not None:
        child = meant.group
        ports = child.output_ports if is_source else child.input_ports
        return (
            f"{name!r} is a process group: specify one of its ports "
            f"({listed(f'{name}/{port}' for port in ports)})"
        )
    known = [*group.members]
    for child_name, placed_child in group.children.items():
        child = placed_child.group
        ports = child.output_ports if is_source else child.input_ports
        known += [f"{child_name}/{port}" for port in ports]
    where = "" if group.parent is None else f" in {group}"
    hint = check.nearest(name, known) or "; use a processor, a funnel, a port or GROUP/PORT"
    return f"unknown component {name!r}{where}{hint}"
