"""Base class of processors: class attributes declare a processor, and triggers do its work.

Owns the declarations, the reading of a configuration, and the hooks. Does not own when a processor
runs (`scheduling`), nor the operations on FlowFiles (`session`).

Invariants: every instance has a valid configuration. Its values never change: a changed
configuration makes a new instance. Triggers of one instance may run on several threads at once,
unless `triggers_serially` is set. Hooks do not overlap with triggers, except `on_unscheduled`.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Final, Self

from penstock.core.errors import InvalidRequest
from penstock.flow.processor.process_context import ProcessContext
from penstock.flow.processor.properties import DynamicProperties, Property
from penstock.flow.processor.property_types import PropertyValue
from penstock.flow.relationships import Relationship
from penstock.flow.session.process_session import ProcessSession

_MAX_DYNAMIC: Final = 10_000
_KEPT_CLASSES: Final = 1_024
_RESERVED: Final = {"values", "dynamic_values"}


class InputRequirement(enum.Enum):
    """Whether a processor may or must have incoming connections."""

    REQUIRED = "required"
    ALLOWED = "allowed"
    FORBIDDEN = "forbidden"


@dataclass(frozen=True, slots=True)
class Problem:
    """Error in a configuration.

    Attributes:
        place: Name of the property; empty if the error concerns several.
        message: Cause and remedy.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}" if self.place else self.message


class InvalidConfiguration(InvalidRequest):
    """The properties of a processor are invalid; `problems` lists every error."""

    def __init__(self, processor: str, problems: Sequence[Problem]) -> None:
        super().__init__(f"{processor}: " + "; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class Processor(ABC):
    """Base class of all processors.

    A subclass declares its properties, relationships and requirements as class attributes, and does
    its work in `on_trigger`. It needs no constructor.

    Attributes:
        input: Whether it may have incoming connections.
        triggers_when_empty: It is triggered even if its input queues are empty.
        triggers_serially: It is never triggered on two threads at once.
        triggers_when_any_open: It is triggered while at least one relationship has room, not only
            when all have.
        supports_batching: Several triggers may share one commit (run duration). Such a processor
            must acknowledge input to other systems only in `session.on_committed`.
        state: Description of its persistent state, for the documentation; empty if it has none.
        reads_attributes: FlowFile attributes that it reads, with their use.
        writes_attributes: FlowFile attributes that it sets, with their values.
        tags: Search words.
        values: Parsed values of its properties.
        dynamic_values: Parsed values of its dynamic properties.

    Args:
        **properties: Values by property name, as in a flow's file. For names that are not
            identifiers, use `configured`.

    Raises:
        InvalidConfiguration: Lists every error.
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
                    f"{cls.__name__}.{name}: the name is reserved by the base class Processor; "
                    "use another one, and name= for the name in flows"
                )

    @classmethod
    def configured(cls, properties: Mapping[str, PropertyValue]) -> Self:
        """Return an instance with these properties.

        Raises:
            InvalidConfiguration: Lists every error.
        """
        return cls(**properties)

    @classmethod
    def problems(cls, properties: Mapping[str, PropertyValue]) -> Sequence[Problem]:
        """Return every error of a configuration; empty if it is valid."""
        try:
            cls.configured(properties)
        except InvalidConfiguration as error:
            return error.problems
        return ()

    def relationships(self) -> Mapping[str, Relationship]:
        """Return the relationships by name, including those that dynamic properties add."""
        found = dict(declared_relationships(type(self)))
        dynamic = declared_dynamic(type(self))
        if dynamic is not None and dynamic.relationships:
            for name in self.dynamic_values:
                found.setdefault(name, Relationship(dynamic.about, name=name))
        return found

    def check(self) -> Iterator[Problem]:
        """Yield errors that involve several properties, each of which is valid by itself."""
        yield from ()

    # The hooks do nothing by default.

    def on_scheduled(self, context: ProcessContext) -> None:  # noqa: B027 - a hook
        """Prepare for the first trigger after a start.

        An exception fails the start, which is retried later. `on_stopped` is not called in that
        case, so the hook must release its resources before it raises.
        """

    @abstractmethod
    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        """Do one unit of work. The caller commits the session afterwards.

        Raises:
            ProcessError: An expected failure: the session is rolled back and its FlowFiles are
                penalized, but the processor does not yield. After any other exception the processor
                is also not triggered for a while.
        """

    def on_unscheduled(self, context: ProcessContext) -> None:  # noqa: B027 - a hook
        """Handle the start of a stop: no new trigger begins. The hook may end running triggers."""

    def on_stopped(self, context: ProcessContext) -> None:  # noqa: B027 - a hook
        """Release what `on_scheduled` acquired; no trigger runs any more."""


def declared_properties(processor: type[Processor]) -> Mapping[str, Property[object]]:
    """Return the properties that a class declares, by name, those of base classes first."""
    found: dict[str, Property[object]] = {}
    for attribute, value in _attributes(processor):
        if isinstance(value, Property):
            if value.name in found and attribute != value.name:
                raise TypeError(f"{processor.__name__} declares property {value.name!r} twice")
            found[value.name] = value
    return found


def declared_relationships(processor: type[Processor]) -> Mapping[str, Relationship]:
    """Return the relationships that a class declares, by name, those of base classes first."""
    found = (value for _, value in _attributes(processor) if isinstance(value, Relationship))
    return {relationship.name: relationship for relationship in found}


def declared_dynamic(processor: type[Processor]) -> DynamicProperties[object] | None:
    """Return the dynamic properties that a class declares; None if it accepts none."""
    for _, value in _attributes(processor):
        if isinstance(value, DynamicProperties):
            return value
    return None


@lru_cache(maxsize=_KEPT_CLASSES)
def _attributes(processor: type[Processor]) -> tuple[tuple[str, object], ...]:
    """Return the declarations of a class.

    Cached, because a flow has many processors of few classes.
    """
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
        problems.append(
            Problem(
                "", f"{len(extra):,} dynamic properties are too many: use at most {_MAX_DYNAMIC:,}"
            )
        )
        return values, dynamic_values, problems
    for name, value in extra.items():
        if dynamic is None:
            known = ", ".join(declared) or "none"
            problems.append(Problem(name, f"unknown property: use one of {known}"))
        elif value is not None:
            try:
                dynamic_values[name] = dynamic.read(value)
            except InvalidRequest as error:
                problems.append(Problem(name, str(error)))
    return values, dynamic_values, problems


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
