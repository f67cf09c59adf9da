"""What is known of a processor from its declarations: for commands, pages and validation.

Owns the facts as values, and their text. Does not own the declarations (`processor`).

Invariant: everything here follows from the class; nothing is written twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.flow.processor.functions import FUNCTIONS, SUBJECTLESS
from penstock.flow.processor.processor import (
    InputRequirement,
    Processor,
    declared_dynamic,
    declared_properties,
    declared_relationships,
)
from penstock.flow.processor.properties import PropertyFacts

_INPUT: Final = {
    InputRequirement.REQUIRED: "on what arrives: it needs a connection that leads to it",
    InputRequirement.ALLOWED: "with or without a connection that leads to it",
    InputRequirement.FORBIDDEN: "as a source: no connection leads to it",
}


@dataclass(frozen=True, slots=True)
class DynamicFacts:
    """What is documented of dynamic properties.

    Attributes:
        type: Of their values.
        about: What names and values mean.
        expressions: Whether they may hold expressions.
        relationships: Whether each adds a relationship.
    """

    type: str
    about: str
    expressions: bool
    relationships: bool


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """All that is documented of a processor.

    Attributes:
        name: Of the class.
        type: Import path, ``package.module:Class``.
        about: The first paragraph of its docstring.
        details: The rest of it.
        tags: Words to find it by.
        properties: In the order of declaration.
        dynamic: What is true of properties that are not named; None: there are none.
        relationships: What each is for, by name.
        reads_attributes: What it looks at, with what for.
        writes_attributes: What it sets, with what to.
        input: Whether connections may lead to it.
        state: What it remembers; empty: nothing.
        triggers_when_empty: It is triggered although nothing is queued.
        triggers_serially: Never on two threads at once.
        triggers_when_any_open: It is triggered while one relationship has room.
        supports_batching: Several triggers may be one commit.
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
            yield "also when nothing is queued"
        if self.triggers_serially:
            yield "on one thread at a time"
        if self.triggers_when_any_open:
            yield "while one relationship has room"
        if self.supports_batching:
            yield "several triggers may be one commit (run duration)"


def describe(processor: type[Processor]) -> ProcessorFacts:
    """Return what is documented of a processor's class."""
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
    """Return what each function of the expression language gives, by name."""
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
