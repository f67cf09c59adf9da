"""What the graph needs to know of a type of processor, to judge the processors of a flow.

Owns the protocol, and its form for processors that are classes. Does not own the declarations
themselves (`flow.processor`), nor how types are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.flow.processor.kinds import PropertyValue
from penstock.flow.processor.processor import (
    InputRequirement,
    InvalidConfiguration,
    Problem,
    Processor,
    declared_dynamic,
    declared_properties,
    declared_relationships,
)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a type says of one configuration.

    Attributes:
        problems: What is wrong with the properties.
        relationships: Where FlowFiles may go; None: not known, as the properties are wrong.
    """

    problems: Sequence[Problem]
    relationships: frozenset[str] | None


class ProcessorDeclaration(Protocol):
    """A type of processor, as the graph sees it."""

    @property
    def input(self) -> InputRequirement:
        """Return whether connections may, or must, lead to it."""
        ...

    @property
    def runs_without_input(self) -> bool:
        """Say whether it is triggered although nothing is queued."""
        ...

    @property
    def runs_serially(self) -> bool:
        """Say whether it is never in two threads."""
        ...

    @property
    def sensitive(self) -> frozenset[str]:
        """Return the names of properties that are never shown."""
        ...

    @property
    def property_names(self) -> Sequence[str]:
        """Return the names of the properties it declares."""
        ...

    @property
    def takes_others(self) -> bool:
        """Say whether it takes properties that it does not declare."""
        ...

    def configured(self, properties: Mapping[str, PropertyValue]) -> Configuration:
        """Judge a configuration, parameters put in."""
        ...


class ProcessorTypes(Protocol):
    """The types of processors that there are."""

    def names(self) -> Iterable[str]:
        """Return the names of all types."""
        ...

    def find(self, name: str) -> ProcessorDeclaration | None:
        """Return a type by its name; None: there is none."""
        ...

    def why_missing(self, name: str) -> str:
        """Return why there is no type of a name; empty: it is none of those there are."""
        ...


class ClassDeclaration:
    """The declaration that a processor's class makes."""

    def __init__(self, processor: type[Processor]) -> None:
        declared = declared_properties(processor)
        self._class = processor
        self._fixed = frozenset(declared_relationships(processor))
        self._dynamic = declared_dynamic(processor)
        self.input = processor.input
        self.runs_without_input = processor.triggers_when_empty
        self.runs_serially = processor.triggers_serially
        self.sensitive = frozenset(name for name, one in declared.items() if one.sensitive)
        self.property_names: Sequence[str] = tuple(declared)
        self.takes_others = self._dynamic is not None

    def configured(self, properties: Mapping[str, PropertyValue]) -> Configuration:
        """Judge a configuration, parameters put in."""
        try:
            made = self._class.configured(properties)
        except InvalidConfiguration as error:
            is_fixed = self._class.relationships is Processor.relationships and not (
                self._dynamic is not None and self._dynamic.relationships
            )
            return Configuration(error.problems, self._fixed if is_fixed else None)
        return Configuration((), frozenset(made.relationships()))


class NotImported:
    """The declaration of a class that may be named, but was not imported: nothing is known of it.

    The checks leave out whatever depends on it; they are made when the flow is applied.
    """

    input = InputRequirement.ALLOWED
    runs_without_input = False
    runs_serially = False
    sensitive: frozenset[str] = frozenset()
    property_names: Sequence[str] = ()
    takes_others = True

    def configured(self, properties: Mapping[str, PropertyValue]) -> Configuration:
        """Return a configuration without problems, whose relationships are not known."""
        del properties
        return Configuration((), None)


NOT_IMPORTED: Final = NotImported()


class ClassTypes:
    """Types that are given as classes, by name."""

    def __init__(self, classes: Mapping[str, type[Processor]]) -> None:
        self._declarations = {name: ClassDeclaration(cls) for name, cls in classes.items()}

    def names(self) -> Iterable[str]:
        """Return the names of all types."""
        return self._declarations.keys()

    def find(self, name: str) -> ProcessorDeclaration | None:
        """Return a type by its name; None: there is none."""
        return self._declarations.get(name)

    def why_missing(self, name: str) -> str:  # noqa: ARG002 - the protocol's
        """Return nothing: these are all there are."""
        return ""
