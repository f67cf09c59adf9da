"""Validation of a flow graph: all problems with their source locations.

Owns the order of the checks, the checks of names, ids and parameters, the checks of connections
(their ends, relationships and limits), and the graph walk that finds cycles without an input
and components whose FlowFiles could never leave (`unreachable_problems`). Does not own the
checks of processors (`processor_checks`).

Invariants: validation opens, connects and changes nothing. A valid flow starts, except for
values that are fetched at the start. Each problem is reported once, where it must be fixed;
problems that follow from another problem are left out. The time is linear in the size of the
flow: the walk is not recursive and follows each connection once.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.byte_sizes import parse_size
from penstock.core.errors import InvalidRequest
from penstock.core.names import CONNECTION, check_stored_name, normalised
from penstock.flow.graph.check_context import CheckContext, PrioritizerCheck
from penstock.flow.graph.declarations import ProcessorTypes
from penstock.flow.graph.flow_index import (
    ComponentKind,
    FlowIndex,
    PlacedComponent,
    PlacedConnection,
    PlacedGroup,
)
from penstock.flow.graph.flow_model import Flow, Processor
from penstock.flow.graph.processor_checks import processor_problems, unknown_relationship
from penstock.flow.graph.source_locations import FlowProblem, Path, SourceLocations, listed
from penstock.flow.processor.processor import InputRequirement


def connection_problems(check: CheckContext) -> Iterator[FlowProblem]:
    """Find errors of connections."""
    for placed in check.index.connections:
        connection, path = placed.connection, placed.path
        if connection.name:
            try:
                check_stored_name(connection.name, CONNECTION)
            except InvalidRequest as error:  # narrow: restores nothing
                yield check.problem((*path, "name"), str(error))
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


def _source_problems(check: CheckContext, placed: PlacedConnection) -> Iterator[FlowProblem]:
    path, source = (*placed.path, "from"), placed.source
    connection = placed.connection
    if source is None:
        yield check.problem(path, _nothing(check, placed, connection.source, is_source=True))
        return
    if not _may_be_end(placed.group, source, ComponentKind.INPUT_PORT, ComponentKind.OUTPUT_PORT):
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


def _relationships_path(check: CheckContext, placed: PlacedConnection) -> Path:
    long_form = (*placed.path, "relationships")
    return long_form if long_form in check.places.marks else (*placed.path, "from")


def _destination_problems(check: CheckContext, placed: PlacedConnection) -> Iterator[FlowProblem]:
    path, destination = (*placed.path, "to"), placed.destination
    if destination is None:
        yield check.problem(
            path, _nothing(check, placed, placed.connection.destination, is_source=False)
        )
        return
    if not _may_be_end(
        placed.group, destination, ComponentKind.OUTPUT_PORT, ComponentKind.INPUT_PORT
    ):
        yield check.problem(path, _wrong_port(placed.group, destination, "to"))
    declaration = check.declaration(destination)
    if declaration is not None and declaration.input is InputRequirement.FORBIDDEN:
        yield check.problem(
            path,
            f"{destination.name!r} is a source and takes no input: connect another destination",
        )


def _may_be_end(
    group: PlacedGroup,
    component: PlacedComponent,
    own_port: ComponentKind,
    inner_port: ComponentKind,
) -> bool:
    if component.kind in {ComponentKind.PROCESSOR, ComponentKind.FUNNEL}:
        return True
    return component.kind is (own_port if component.group is group else inner_port)


def _wrong_port(group: PlacedGroup, port: PlacedComponent, field: str) -> str:
    is_out = port.kind is ComponentKind.OUTPUT_PORT
    side = "inside" if port.group is group else "outside"
    way = "leads out of its group" if is_out else "leads into its group"
    return f"{port.kind} {port.name!r} {way}: seen from {side} it cannot be {field!r}"


def _nothing(check: CheckContext, placed: PlacedConnection, name: str, *, is_source: bool) -> str:
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


def unreachable_problems(check: CheckContext) -> Iterator[FlowProblem]:
    """Find components that data cannot enter or leave."""
    yield from _dead_ends(check)
    for cycle in _cycles(check):
        if not any(_is_fed(check, placed, cycle) for placed in cycle.values()):
            names = [str(placed) for placed in cycle.values()]
            shown = " → ".join((*names[:6], "…") if len(names) > 6 else (*names, names[0]))
            yield check.problem(
                next(iter(cycle.values())).path,
                f"no component feeds this cycle, {shown}: connect a source to it",
                key=True,
            )


def _dead_ends(check: CheckContext) -> Iterator[FlowProblem]:
    index = check.index
    for placed in index.components:
        if placed.kind is ComponentKind.OUTPUT_PORT and placed.group.parent is None:
            yield check.problem(
                placed.path,
                "the root group has no parent group, so its output port leads "
                "nowhere: remove the port",
                key=True,
            )
        elif placed.kind is ComponentKind.INPUT_PORT and placed.group.parent is None:
            yield check.problem(
                placed.path,
                "the root group has no parent group, so nothing arrives at its "
                "input port: use a source processor",
                key=True,
            )
        elif placed.kind is not ComponentKind.PROCESSOR and (
            placed.id in index.incoming and placed.id not in index.outgoing
        ):
            yield check.problem(
                placed.path,
                f"FlowFiles would stay in this {placed.kind} forever: connect it",
                key=True,
            )


def _is_fed(
    check: CheckContext, placed: PlacedComponent, cycle: dict[str, PlacedComponent]
) -> bool:
    """Return whether a member of a cycle creates data itself, or receives it from outside."""
    incoming = check.index.incoming.get(placed.id, ())
    if any(one.source is None or one.source.id not in cycle for one in incoming):
        return True
    if placed.kind is not ComponentKind.PROCESSOR:
        return False
    declaration = check.declaration(placed)
    if declaration is None:
        return True  # unknown, because its type is already an error
    if declaration.input is InputRequirement.FORBIDDEN:
        return True  # a source with an incoming connection, which is already an error
    return declaration.runs_without_input and declaration.input is not InputRequirement.REQUIRED


def _cycles(check: CheckContext) -> Iterator[dict[str, PlacedComponent]]:
    """Find groups of components that all lead to each other (Tarjan's algorithm, with a stack)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: dict[str, PlacedComponent] = {}
    for start in check.index.components:
        if start.id in number:
            continue
        way = [(start, _following(check, start))]
        number[start.id] = lowest[start.id] = len(number)
        waiting[start.id] = start
        while way:
            placed, following = way[-1]
            after = next(following, None)
            if after is None:
                way.pop()
                if way:
                    around = way[-1][0].id
                    lowest[around] = min(lowest[around], lowest[placed.id])
                if lowest[placed.id] == number[placed.id]:
                    yield from _taken(waiting, placed)
            elif after.id not in number:
                number[after.id] = lowest[after.id] = len(number)
                waiting[after.id] = after
                way.append((after, _following(check, after)))
            elif after.id in waiting:
                lowest[placed.id] = min(lowest[placed.id], number[after.id])


def _following(check: CheckContext, placed: PlacedComponent) -> Iterator[PlacedComponent]:
    for connection in check.index.outgoing.get(placed.id, ()):
        if connection.destination is not None:
            yield connection.destination


def _taken(
    waiting: dict[str, PlacedComponent], first: PlacedComponent
) -> Iterator[dict[str, PlacedComponent]]:
    """Remove the components found since `first`; a single component is not a cycle."""
    members: list[PlacedComponent] = []
    while not members or members[-1] is not first:
        members.append(waiting.popitem()[1])
    if len(members) > 1:
        yield {placed.id: placed for placed in reversed(members)}


def validate(
    flow: Flow,
    types: ProcessorTypes,
    *,
    places: SourceLocations | None = None,
    check_prioritizer: PrioritizerCheck | None = None,
) -> list[FlowProblem]:
    """Return all problems that keep a flow from running, in the order of the file.

    Args:
        flow: The flow.
        types: Types of processors that the flow may use.
        places: Positions of its parts in a file.
        check_prioritizer: Raises `InvalidRequest` for an unknown prioritizer; without it only the
            standard ones are known.
    """
    check = CheckContext(FlowIndex.of(flow), types, places or SourceLocations(), check_prioritizer)
    found = {
        problem: None
        for checks in (
            _context_problems,
            _name_problems,
            _id_problems,
            processor_problems,
            connection_problems,
            unreachable_problems,
        )
        for problem in checks(check)
    }
    return sorted(found)


def _context_problems(check: CheckContext) -> Iterator[FlowProblem]:
    contexts = check.index.flow.parameter_contexts
    for name, context in contexts.items():
        for number, base in enumerate(context.inherits):
            path: Path = ("parameter_contexts", name, "inherits", number)
            if base not in contexts:
                message = f"unknown parameter context {base!r}{check.nearest(base, contexts)}"
                yield check.problem(path, message)
    yield from _context_cycles(check)
    for group in check.index.groups:
        named = group.group.parameter_context
        if named is not None and named not in contexts:
            message = f"unknown parameter context {named!r}{check.nearest(named, contexts)}"
            yield check.problem((*group.path, "parameter_context"), message)


def _context_cycles(check: CheckContext) -> Iterator[FlowProblem]:
    """Find cycles of contexts: a context that is found again during its own traversal."""
    contexts = check.index.flow.parameter_contexts
    done: set[str] = set()
    for start in contexts:
        way: dict[str, Iterator[str]] = {}
        if start not in done:
            way[start] = iter(contexts[start].inherits)
        while way:
            name = next(reversed(way))
            base = next(way[name], None)
            if base is None:
                done.add(name)
                del way[name]
            elif base in way:
                names = [*list(way)[list(way).index(base) :], base]
                yield check.problem(
                    ("parameter_contexts", name, "inherits"),
                    f"contexts inherit in a cycle, {' → '.join(names)}: remove one",
                )
            elif base in contexts and base not in done:
                way[base] = iter(contexts[base].inherits)


def _name_problems(check: CheckContext) -> Iterator[FlowProblem]:
    for placed in check.index.components:
        first = placed.group.members[normalised(placed.name)]
        if first is not placed:
            yield check.problem(
                placed.path,
                f"{first.kind} {placed.name!r} has the same name: names in a group must be unique",
                key=True,
            )
    for group in check.index.groups:
        if group.parent is not None:
            name = group.names[-1]
            if group.parent.children[normalised(name)] is not group:
                yield check.problem(
                    group.path,
                    f"another group is also named {name!r}: names in a group must be unique",
                    key=True,
                )
        for name, child in group.children.items():
            if name in group.members:
                yield check.problem(
                    child.path,
                    f"{group.members[name].kind} {name!r} has the same name: names in a group "
                    "must be unique",
                    key=True,
                )


def _id_problems(check: CheckContext) -> Iterator[FlowProblem]:
    """Find duplicate ids, and connections that differ only in their relationships."""
    first: dict[str, tuple[Path, str]] = {}
    index = check.index
    given = [(one.id, one.path, one.group.id is not None) for one in index.groups]
    given += [(one.id, one.path, one.component.id is not None) for one in index.components]
    for id_, path, is_given in given:
        known = first.setdefault(id_, (path, id_))
        if known[0] != path and is_given:
            where = check.places.at(known[0])
            yield check.problem(
                (*path, "id"), f"{where.path or 'the flow'} has the same id: ids must be unique"
            )
    ends: dict[str, Path] = {}
    for one in index.connections:
        if one.id in first and one.connection.id is not None:
            where = check.places.at(first[one.id][0])
            yield check.problem(
                (*one.path, "id"),
                f"{where.path or 'the flow'} has the same id: ids must be unique",
            )
        known_path = ends.setdefault(one.id, one.path)
        if known_path is one.path:
            continue
        where = check.places.at(known_path)
        if one.connection.id is not None:
            message = f"{where.path} has the same id: ids must be unique"
            yield check.problem((*one.path, "id"), message)
        else:
            yield check.problem(
                one.path,
                f"{where.path} connects the same two components: join them by relationships: "
                "[...], or give each a name",
            )
