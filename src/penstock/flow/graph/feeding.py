"""Flow of data: cycles without input, and ends where FlowFiles would stay forever.

Owns the traversal of the whole graph. Invariant: no recursion; each connection is followed once.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.flow.graph.check_context import Checking
from penstock.flow.graph.flow_index import Kind, PlacedComponent
from penstock.flow.graph.source_locations import Problem
from penstock.flow.processor.processor import InputRequirement


def feeding_problems(check: Checking) -> Iterator[Problem]:
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


def _dead_ends(check: Checking) -> Iterator[Problem]:
    index = check.index
    for placed in index.components:
        if placed.kind is Kind.OUTPUT_PORT and placed.group.parent is None:
            yield check.problem(
                placed.path,
                "the root group has no parent group, so its output port leads "
                "nowhere: remove the port",
                key=True,
            )
        elif placed.kind is Kind.INPUT_PORT and placed.group.parent is None:
            yield check.problem(
                placed.path,
                "the root group has no parent group, so nothing arrives at its "
                "input port: use a source processor",
                key=True,
            )
        elif placed.kind is not Kind.PROCESSOR and (
            placed.id in index.incoming and placed.id not in index.outgoing
        ):
            yield check.problem(
                placed.path,
                f"FlowFiles would stay in this {placed.kind} forever: connect it",
                key=True,
            )


def _is_fed(check: Checking, placed: PlacedComponent, cycle: dict[str, PlacedComponent]) -> bool:
    """Return whether a member of a cycle creates data itself, or receives it from outside."""
    incoming = check.index.incoming.get(placed.id, ())
    if any(one.source is None or one.source.id not in cycle for one in incoming):
        return True
    if placed.kind is not Kind.PROCESSOR:
        return False
    declaration = check.declaration(placed)
    if declaration is None:
        return True  # unknown, because its type is already an error
    if declaration.input is InputRequirement.FORBIDDEN:
        return True  # a source with an incoming connection, which is already an error
    return declaration.runs_without_input and declaration.input is not InputRequirement.REQUIRED


def _cycles(check: Checking) -> Iterator[dict[str, PlacedComponent]]:
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


def _following(check: Checking, placed: PlacedComponent) -> Iterator[PlacedComponent]:
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
