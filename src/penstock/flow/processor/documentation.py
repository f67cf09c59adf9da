"""Documentation of a processor, derived from its declarations: for commands, pages and validation.

Owns the facts as values, and their text. Does not own the declarations (`processor`).

Invariant: every fact is derived from the class; none is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.flow.processor.expression_functions import FUNCTIONS, SUBJECTLESS
from penstock.flow.processor.processor import (
    InputRequirement,
    Processor,
    declared_dynamic,
    declared_properties,
    declared_relationships,
)
from penstock.flow.processor.properties import PropertyFacts

_INPUT: Final = {
    InputRequirement.REQUIRED: "on incoming FlowFiles: it needs an incoming connection",
    InputRequirement.ALLOWED: "with or without an incoming connection",
    InputRequirement.FORBIDDEN: "as a source: it must not have an incoming connection",
}


@dataclass(frozen=True, slots=True)
class DynamicFacts:
    """Documentation of a processor's dynamic properties.

    Attributes:
        type: Type of their values.
        about: Meaning of names and values.
        expressions: Whether values may hold expressions.
        relationships: Whether each property adds a relationship.
    """

    type: str
    about: str
    expressions: bool
    relationships: bool


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """Documentation of a processor.

    Attributes:
        name: Name of the class.
        type: Import path, ``package.module:Class``.
        about: First paragraph of the class's docstring.
        details: Other paragraphs of the docstring.
        tags: Search words.
        properties: Named properties, in the order of declaration.
        dynamic: Dynamic properties, or None.
        relationships: Descriptions of the relationships, by name.
        reads_attributes: Attributes that it reads, with their use.
        writes_attributes: Attributes that it sets, with their values.
        input: Whether it may have incoming connections.
        state: Description of its persistent state; empty without such a state.
        triggers_when_empty: It is triggered even if its input queues are empty.
        triggers_serially: It is never triggered on two threads at once.
        triggers_when_any_open: It is triggered while at least one relationship has room.
        supports_batching: Several triggers may share one commit.
    """

    name: str
    type: str
    about: str
    details: str
    tags: tuple[str, ...]
    properties: tuple[PropertyFacts, ...]
    dynamic: DynamicFacts | None
    relationships: Mapping[str, str]
    reads_attributes: Mapping[str, str]
    writes_attributes: Mapping[str, str]
    input: InputRequirement
    state: str
    triggers_when_empty: bool
    triggers_serially: bool
    triggers_when_any_open: bool
    supports_batching: bool

    def lines(self) -> Iterator[str]:
        """Yield the documentation as plain text, line by line."""
        yield f"{self.name} ({self.type})"
        yield from ("", self.about)
        if self.details:
            yield from ("", *self.details.splitlines())
        yield from _section("Properties", [_property_line(facts) for facts in self.properties])
        if self.dynamic is not None:
            yield from _section("Other properties", [_dynamic_line(self.dynamic)])
        yield from _section("Relationships", _pairs(self.relationships))
        yield from _section("Reads attributes", _pairs(self.reads_attributes))
        yield from _section("Writes attributes", _pairs(self.writes_attributes))
        yield from _section("State", [self.state] if self.state else [])
        yield from _section("Runs", list(self._running()))

    def _running(self) -> Iterator[str]:
        yield _INPUT[self.input]
        if self.triggers_when_empty:
            yield "even if the input queues are empty"
        if self.triggers_serially:
            yield "on one thread at a time"
        if self.triggers_when_any_open:
            yield "while at least one relationship has room"
        if self.supports_batching:
            yield "several triggers may share one commit (run duration)"


def describe(processor: type[Processor]) -> ProcessorFacts:
    """Return the documentation of a processor's class."""
    about, _, details = inspect.cleandoc(processor.__doc__ or "").partition("\n\n")
    dynamic = declared_dynamic(processor)
    return ProcessorFacts(
        name=processor.__name__,
        type=type_name(processor),
        about=" ".join(about.split()),
        details=details.strip(),
        tags=tuple(processor.tags),
        properties=tuple(p.facts() for p in declared_properties(processor).values()),
        dynamic=None
        if dynamic is None
        else DynamicFacts(
            dynamic.kind.name, dynamic.about, dynamic.expressions, dynamic.relationships
        ),
        relationships={
            name: relationship.about
            for name, relationship in declared_relationships(processor).items()
        },
        reads_attributes=dict(processor.reads_attributes),
        writes_attributes=dict(processor.writes_attributes),
        input=processor.input,
        state=processor.state,
        triggers_when_empty=processor.triggers_when_empty,
        triggers_serially=processor.triggers_serially,
        triggers_when_any_open=processor.triggers_when_any_open,
        supports_batching=processor.supports_batching,
    )


def type_name(processor: type[Processor]) -> str:
    """Return the import path of a class, ``package.module:Class``."""
    return f"{processor.__module__}:{processor.__qualname__}"


def expression_functions() -> Mapping[str, str]:
    """Return the description of each function of the expression language, by name."""
    both = {**FUNCTIONS, **SUBJECTLESS}
    return {name: both[name].about for name in sorted(both)}


def _property_line(facts: PropertyFacts) -> str:
    notes = [facts.type]
    if facts.choices:
        notes.append("one of " + ", ".join(facts.choices))
    if facts.required:
        notes.append("required")
    elif facts.default:
        notes.append(f"default {facts.default!r}")
    if facts.sensitive:
        notes.append("sensitive")
    if facts.expressions:
        notes.append("expressions")
    return f"{facts.name} ({'; '.join(notes)}): {facts.about}".rstrip(": ")


def _dynamic_line(facts: DynamicFacts) -> str:
    notes = [facts.type]
    if facts.expressions:
        notes.append("expressions")
    if facts.relationships:
        notes.append("each adds a relationship")
    return f"any name ({'; '.join(notes)}): {facts.about}".rstrip(": ")


def _pairs(texts: Mapping[str, str]) -> list[str]:
    return [f"{name}: {text}" if text else name for name, text in texts.items()]


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield from ("", title)
        for line in lines:
            yield f"  {line}"
