"""What a processor is: a class whose attributes declare it, and whose triggers do the work.

Owns the declarations, the reading of a configuration, and the hooks. Does not own when a processor
runs (`scheduling`), nor what it does to FlowFiles (`session`).

Invariants: an instance is configured validly or does not exist; its values never change, a changed
configuration makes a new instance. Triggers of one instance may run on several threads at once,
unless `triggers_serially`; hooks do not overlap, but for `on_unscheduled`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Self

from penstock.core.errors import InvalidRequest
from penstock.flow.processor.context import ProcessContext
from penstock.flow.processor.kinds import PropertyValue
from penstock.flow.processor.properties import DynamicProperties, Property
from penstock.flow.relationships import Relationship
from penstock.flow.session.session import ProcessSession

_MAX_DYNAMIC: Final = 10_000
_KEPT_CLASSES: Final = 1_024
_RESERVED: Final = {"values", "dynamic_values"}


class InputRequirement(enum.Enum):
    """Whether a processor has connections that lead to it."""

    REQUIRED = "required"
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a configuration.

    Attributes:
        place: The property's name; empty if it is about several.
        message: What is wrong and the mend.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class InvalidConfiguration(InvalidRequest):
    """A processor's properties will not do; `problems` has all that is wrong."""

    def __init__(self, processor: str, problems: Sequence[Problem]) -> None:
        super().__init__(f"{processor}: " + "; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class Processor(ABC):
    """The base of all processors.

    A subclass declares properties, relationships and what it needs as class attributes, and does
    its work in `on_trigger`. It needs no constructor.

    Attributes:
        input: Whether connections may lead to it.
        triggers_when_empty: It is triggered although nothing is queued.
        triggers_serially: Never on two threads at once.
        triggers_when_any_open: It is triggered while one relationship has room, not only when all
            have.
        supports_batching: Several triggers may be one commit (run duration): it tells nobody
            outside before the commit, but by `session.on_committed`.
        state: What it remembers in its state, for the documentation; empty: nothing.
        reads_attributes: Attributes of FlowFiles that it looks at, with what for.
        writes_attributes: Attributes that it sets, with what to.
        tags: Words to find it by.
        values: What its properties are, read.
        dynamic_values: What its dynamic properties are, read.

    Args:
        **properties: Values by property name, as a flow's file has them. Names that are no
            identifiers: use `configured`.

    Raises:
        InvalidConfiguration: With everything that is wrong.
    """

    input: ClassVar[InputRequirement] = InputRequirement.ALLOWED
    triggers_when_empty: ClassVar[bool] = False
    triggers_serially: ClassVar[bool] = False
    triggers_when_any_open: ClassVar[bool] = False
    supports_batching: ClassVar[bool] = False
    state: ClassVar[str] = ""
    reads_attributes: ClassVar[Mapping[str, str]] = {}
    writes_attributes: ClassVar[Mapping[str, str]] = {}
    tags: ClassVar[Sequence[str]] = ()

    def __init__(self, /, **properties: PropertyValue) -> None:
        values, dynamic_values, problems = _read(type(self), properties)
        self.values: Mapping[str, object] = values
        self.dynamic_values: Mapping[str, object] = dynamic_values
        if not problems:
            problems = list(self.check())
        if problems:
            raise InvalidConfiguration(type(self).__name__, problems)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, value in vars(cls).items():
            declares = isinstance(value, Property | DynamicProperties | Relationship)
            if declares and (hasattr(Processor, name) or name in _RESERVED):
                raise TypeError(
                    f"{cls.__name__}.{name}: the name means something else for every processor; "
                    "use another, and name= for what flows write"
                )

    @classmethod
    def configured(cls, properties: Mapping[str, PropertyValue]) -> Self:
        """Make one with these properties.

        Raises:
            InvalidConfiguration: With everything that is wrong.
        """
        return cls(**properties)

    @classmethod
    def problems(cls, properties: Mapping[str, PropertyValue]) -> Sequence[Problem]:
        """Return everything that is wrong with a configuration; nothing: it is valid."""
        try:
            cls.configured(properties)
        except InvalidConfiguration as error:
            return error.problems
        return ()

    def relationships(self) -> Mapping[str, Relationship]:
        """Return where it sends FlowFiles, by name; configured, so with the dynamic ones."""
        found = dict(declared_relationships(type(self)))
        dynamic = declared_dynamic(type(self))
        if dynamic is not None and dynamic.relationships:
            for name in self.dynamic_values:
                found.setdefault(name, Relationship(dynamic.about, name=name))
        return found

    def check(self) -> Iterator[Problem]:
        """Yield what is wrong between properties that are right each by itself."""
        yield from ()

    # The hooks do nothing unless a subclass wants them.

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: B027 - a hook
        """Make ready, before the first trigger after a start.

        What it raises fails the start, which is tried again later; `on_stopped` is not called then,
        so what was made before is to be let go of first.
        """

    @abstractmethod
    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Do a piece of work. Whoever called commits the session afterwards.

        Raises:
            ProcessError: An expected failure: rolled back, FlowFiles penalized, no yield.
                Whatever else is raised keeps the processor from running for a while, too.
        """

    def on_unscheduled(self, context: ProcessContext) -> None:  # noqa: B027 - a hook
        """Hear that no trigger begins any more; those that run may be told to end."""

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: B027 - a hook
        """Let go of what `on_scheduled` made; no trigger runs any more."""


def declared_properties(processor: type[Processor]) -> Mapping[str, Property[object]]:
    """Return the properties that a class declares, by name, its bases' first."""
    found: dict[str, Property[object]] = {}
    for attribute, value in _attributes(processor):
        if isinstance(value, Property):
            if value.name in found and attribute != value.name:
                raise TypeError(f"{processor.__name__} declares property {value.name!r} twice")
            found[value.name] = value
    return found


def declared_relationships(processor: type[Processor]) -> Mapping[str, Relationship]:
    """Return the relationships that a class declares, by name, its bases' first."""
    found = (value for _, value in _attributes(processor) if isinstance(value, Relationship))
    return {relationship.name: relationship for relationship in found}


def declared_dynamic(processor: type[Processor]) -> DynamicProperties[object] | None:
    """Return what a class says of dynamic properties; None: it takes none."""
    for _, value in _attributes(processor):
        if isinstance(value, DynamicProperties):
            return value
    return None


@lru_cache(maxsize=_KEPT_CLASSES)
def _attributes(processor: type[Processor]) -> tuple[tuple[str, object], ...]:
    """Return what a class declares; looked for once, as a flow has many processors of few."""
    names: dict[str, None] = {}
    for cls in reversed(processor.__mro__):
        names.update(dict.fromkeys(vars(cls)))
    found = [
        (name, next(vars(cls)[name] for cls in processor.__mro__ if name in vars(cls)))
        for name in names
    ]
    declarations = (Property, DynamicProperties, Relationship)
    return tuple(entry for entry in found if isinstance(entry[1], declarations))


def _read(
    processor: type[Processor], given: Mapping[str, PropertyValue]
) -> tuple[dict[str, object], dict[str, object], list[Problem]]:
    declared, dynamic = declared_properties(processor), declared_dynamic(processor)
    problems: list[Problem] = []
    values: dict[str, object] = {}
    dynamic_values: dict[str, object] = {}
    for name, declaration in declared.items():
        value = given.get(name)
        if value is None:
            values[name] = declaration.default()
            if declaration.required:
                problems.append(Problem(name, f"is required: give {_a(declaration.kind.name)}"))
            continue
        try:
            values[name] = declaration.read(value)
        except InvalidRequest as error:
            problems.append(Problem(name, str(error)))
    extra = {name: value for name, value in given.items() if name not in declared}
    if dynamic is not None and len(extra) > _MAX_DYNAMIC:
        problems.append(Problem("", f"{len(extra):,} dynamic properties: at most {_MAX_DYNAMIC:,}"))
        return values, dynamic_values, problems
    for name, value in extra.items():
        if dynamic is None:
            known = ", ".join(declared) or "none"
            problems.append(Problem(name, f"there is no such property; there are: {known}"))
        elif value is not None:
            try:
                dynamic_values[name] = dynamic.read(value)
            except InvalidRequest as error:
                problems.append(Problem(name, str(error)))
    return values, dynamic_values, problems


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
