"""Checks of processors: type, properties, schedule, relationships.

Owns the checks of a processor and of its outgoing relationships. Does not own the checks of
properties by its type (`declarations`).
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.errors import InvalidRequest
from penstock.flow.graph.check_context import CheckContext
from penstock.flow.graph.declarations import NOT_IMPORTED, ProcessorDeclaration
from penstock.flow.graph.flow_index import PlacedComponent
from penstock.flow.graph.flow_model import Processor, Strategy
from penstock.flow.graph.parameters import MASK, secret_reference, sole_reference, texts_of
from penstock.flow.graph.source_locations import FlowProblem, Path, listed
from penstock.flow.processor.processor import InputRequirement
from penstock.flow.scheduling.cron.expression import CronExpression


def processor_problems(check: CheckContext) -> Iterator[FlowProblem]:
    """Find errors of processors."""
    for placed, processor in check.index.processors:
        declaration = check.declaration(placed)
        yield from _schedule_problems(check, placed, processor)
        if declaration is None or declaration is NOT_IMPORTED:
            if declaration is None:
                yield check.problem((*placed.path, "type"), _no_type(check, processor.type))
            for name, value in processor.properties.items():
                for text in texts_of(value):
                    path = (*placed.path, "properties", name)
                    yield from check.reference_problems(placed.group, path, text)
            continue
        yield from _property_problems(check, placed, processor, declaration)
        yield from _relationship_problems(check, placed, processor)
        yield from _input_problems(check, placed, declaration)
        if declaration.runs_serially and processor.concurrent_tasks > 1:
            yield check.problem(
                (*placed.path, "concurrent_tasks"),
                f"{processor.type} runs on one thread at a time: leave it at 1",
            )


def _no_type(check: CheckContext, type_: str) -> str:
    why = check.types.why_missing(type_)
    if why:
        return why
    hint = check.nearest(type_, check.types.names()) or (
        "; `penstock processor list` shows all of them"
    )
    return f"unknown processor type {type_!r}{hint}"


def _property_problems(
    check: CheckContext,
    placed: PlacedComponent,
    processor: Processor,
    declared: ProcessorDeclaration,
) -> Iterator[FlowProblem]:
    around: Path = (*placed.path, "properties")
    values: dict[str, str | tuple[str, ...]] = {}
    # Values that are unknown, or already reported, are not passed to the type for checking.
    unjudged: set[str] = set()
    for name, value in processor.properties.items():
        path = (*around, name)
        if not declared.takes_others and name not in declared.property_names:
            hint = check.nearest(name, declared.property_names)
            known = listed(declared.property_names)
            yield check.problem(
                path,
                f"{processor.type} has no property {name!r}{hint or f'; its properties: {known}'}",
                key=True,
            )
            continue
        if name in declared.sensitive:
            values[name] = MASK
            unjudged.add(name)
            yield from _secret_problems(check, placed, path, value)
            continue
        for text in texts_of(value):
            yield from check.public_problems(placed.group, path, text)
        resolved = [check.resolved(placed.group, text) for text in texts_of(value)]
        if not all(is_known for _, is_known in resolved):
            unjudged.add(name)
        texts = tuple(text for text, _ in resolved)
        values[name] = texts[0] if isinstance(value, str) else texts
    configuration = declared.configured(values)
    for problem in configuration.problems:
        is_of_all = not problem.place and unjudged  # it may concern a value that is unknown
        if problem.place not in unjudged and not is_of_all:
            is_there = problem.place in processor.properties
            path = (*around, problem.place) if problem.place else around
            shown = (
                problem.message
                if is_there or not problem.place
                else (f"property {problem.place!r} {problem.message}")
            )
            yield check.problem(path, shown)
    check.relationships[placed.id] = configuration.relationships


def _secret_problems(
    check: CheckContext, placed: PlacedComponent, path: Path, value: str | tuple[str, ...]
) -> Iterator[FlowProblem]:
    try:
        if secret_reference(value) is not None:
            return
    except InvalidRequest as error:
        yield check.problem(path, str(error))
        return
    name = sole_reference(value) if isinstance(value, str) else None
    if name is None:
        yield check.problem(
            path,
            "this property is sensitive: use only a sensitive parameter, #{name}, or a secret,"
            " secret://NAME",
        )
        return
    found = check.scopes.of(placed.group).find(name)
    if found is None:
        assert isinstance(value, str)
        yield from check.reference_problems(placed.group, path, value)
    elif not found.parameter.sensitive:
        yield check.problem(
            path,
            f"this property is sensitive, but parameter {name!r} is not: define it by secret, env"
            " or file",
        )


def _schedule_problems(
    check: CheckContext, placed: PlacedComponent, processor: Processor
) -> Iterator[FlowProblem]:
    schedule, around = processor.schedule, (*placed.path, "schedule")
    period = (*around, "period")
    if schedule.strategy is Strategy.TIMER:
        yield from check.period_problems(placed.group, period, schedule.period)
    elif schedule.strategy is Strategy.CRON:
        yield from check.public_problems(placed.group, period, schedule.period)
        text, is_known = check.resolved(placed.group, schedule.period)
        yield from _cron_problems(check, around, text if is_known else None, schedule.zone)
    elif schedule.period:
        yield check.problem(
            period, "an event driven processor has no period: remove it, or write every PERIOD"
        )
    if schedule.strategy is not Strategy.CRON and (schedule.catch_up or schedule.zone != "UTC"):
        yield check.problem(
            around, "zone and catch_up apply only to CRON driven processors: remove them"
        )
    for field in ("run_duration", "yield_duration", "penalty_duration"):
        text = getattr(processor, field)
        yield from check.period_problems(placed.group, (*placed.path, field), text)
    for name, retry in processor.retry.items():
        path = (*placed.path, "retry", name, "max_backoff")
        yield from check.period_problems(placed.group, path, retry.max_backoff)


def _cron_problems(
    check: CheckContext, around: Path, text: str | None, zone: str
) -> Iterator[FlowProblem]:
    try:
        CronExpression.parse("* * * * * ?", zone)
    except InvalidRequest as error:
        yield check.problem((*around, "zone"), str(error))
        zone = "UTC"
    if text is not None:
        yield from check.parse_problems(
            (*around, "period"), lambda expression: CronExpression.parse(expression, zone), text
        )


def _relationship_problems(
    check: CheckContext, placed: PlacedComponent, processor: Processor
) -> Iterator[FlowProblem]:
    known = check.relationships.get(placed.id)
    if known is None:
        return
    connected = {
        name
        for connection in check.index.outgoing.get(placed.id, ())
        for name in connection.connection.relationships
    }
    for field, names in (
        ("auto_terminated", processor.auto_terminated),
        ("retry", processor.retry),
    ):
        for name in names:
            if name not in known:
                path = (*placed.path, field, *((name,) if field == "retry" else ()))
                yield check.problem(path, unknown_relationship(check, processor.type, name, known))
    for name in sorted(known):
        if name in connected and name in processor.auto_terminated:
            yield check.problem(
                (*placed.path, "auto_terminated"),
                f"relationship {name!r} is connected, so its FlowFiles do not end here: remove "
                "the connection or this entry",
            )
        elif name not in connected and name not in processor.auto_terminated:
            yield check.problem(
                placed.path,
                f"relationship {name!r} is not connected: connect it, or list it in "
                "auto_terminated",
                key=True,
            )


def unknown_relationship(
    check: CheckContext, type_name: str, name: str, known: frozenset[str]
) -> str:
    """Return the error for a relationship that a type does not have."""
    hint = check.nearest(name, known) or f"; its relationships: {listed(sorted(known))}"
    return f"{type_name} has no relationship {name!r}{hint}"


def _input_problems(
    check: CheckContext, placed: PlacedComponent, declared: ProcessorDeclaration
) -> Iterator[FlowProblem]:
    incoming = check.index.incoming.get(placed.id, ())
    if declared.input is InputRequirement.REQUIRED and all(one.is_loop for one in incoming):
        what = (
            "its only incoming connection is a loop"
            if incoming
            else "it has no incoming connection"
        )
        yield check.problem(
            placed.path, f"{what}, but it works on incoming FlowFiles: connect it", key=True
        )
