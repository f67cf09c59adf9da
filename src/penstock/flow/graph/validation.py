"""Validation of a flow: reports every problem with its position.

Owns the order of the checks and those of names, ids and parameters. Does not own those of
processors (`processorchecks`), connections (`connectionchecks`) and the flow of data (`feeding`).

Invariants: nothing is opened, connected or changed. A flow without problems starts, unless a value
that is loaded at the start is missing. A problem is reported once, at the place to correct;
problems that only follow from others are omitted. The time is linear in the size of the flow.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.names import normalised
from penstock.flow.graph.check_context import Checking, PrioritizerCheck
from penstock.flow.graph.connectionchecks import connection_problems
from penstock.flow.graph.declarations import ProcessorTypes
from penstock.flow.graph.feeding import feeding_problems
from penstock.flow.graph.flow_index import FlowIndex
from penstock.flow.graph.model import Flow
from penstock.flow.graph.processor_checks import processor_problems
from penstock.flow.graph.source_locations import Path, Places, Problem


def validate(
    flow: Flow,
    types: ProcessorTypes,
    *,
    places: Places | None = None,
    check_prioritizer: PrioritizerCheck | None = None,
) -> list[Problem]:
    """Return all problems that keep a flow from running, in the order of the file.

    Args:
        flow: The flow.
        types: Types of processors that the flow may use.
        places: Positions of its parts in a file.
        check_prioritizer: Raises `InvalidRequest` for an unknown prioritizer; without it only the
            standard ones are known.
    """
    check = Checking(FlowIndex.of(flow), types, places or Places(), check_prioritizer)
    found = {
        problem: None
        for checks in (
            _context_problems,
            _name_problems,
            _id_problems,
            processor_problems,
            connection_problems,
            feeding_problems,
        )
        for problem in checks(check)
    }
    return sorted(found)


def _context_problems(check: Checking) -> Iterator[Problem]:
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


def _context_cycles(check: Checking) -> Iterator[Problem]:
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


def _name_problems(check: Checking) -> Iterator[Problem]:
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


def _id_problems(check: Checking) -> Iterator[Problem]:
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
