"""Declaration of a type of processor, for checking the processors of a flow.

Owns the protocol, and its implementation for processor classes. Does not own the declarations in
the class (`flow.processor`), nor how types are found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.flow.processor.processor import (
    InputRequirement,
    InvalidConfiguration,
    Problem,
    Processor,
    declared_dynamic,
    declared_properties,
    declared_relationships,
)
from penstock.flow.processor.property_types import PropertyValue


@dataclass(frozen=True, slots=True)
class Configuration:
    """Result of checking one configuration.

    Attributes:
        problems: Errors of the properties.
        relationships: Relationships of the processor; None: unknown, because the properties are
            invalid.
    """

    problems: Sequence[Problem]
    relationships: frozenset[str] | None


class ProcessorDeclaration(Protocol):
    """Type of processor, as the graph uses it."""

    @property
    def input(self) -> InputRequirement:
        """Return whether it may, or must, have incoming connections."""
        ...

    @property
    def runs_without_input(self) -> bool:
        """Return whether it is triggered even if its input queues are empty."""
        ...

    @property
    def runs_serially(self) -> bool:
        """Return whether it never runs on two threads at once."""
        ...

    @property
    def sensitive(self) -> frozenset[str]:
        """Return the names of sensitive properties."""
        ...

    @property
    def property_names(self) -> Sequence[str]:
        """Return the names of the declared properties."""
        ...

    @property
    def takes_others(self) -> bool:
        """Return whether it accepts dynamic properties."""
        ...

    def configured(self, properties: Mapping[str, PropertyValue]) -> Configuration:
        """Check a configuration whose parameters are substituted."""
        ...


class ProcessorTypes(Protocol):
    """Types of processors that flows may use."""

    def names(self) -> Iterable[str]:
        """Return the names of all types."""
        ...

    def find(self, name: str) -> ProcessorDeclaration | None:
        """Return a type by its name; None if it does not exist."""
        ...

    def why_missing(self, name: str) -> str:
        """Return why a type cannot be used; empty if the name is unknown."""
        ...


class ClassDeclaration:
    """Declaration made by a processor's class."""

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
        """Check a configuration whose parameters are substituted."""
        try:
            made = self._class.configured(properties)
        except InvalidConfiguration as error:
            is_fixed = self._class.relationships is Processor.relationships and not (
                self._dynamic is not None and self._dynamic.relationships
            )
            return Configuration(error.problems, self._fixed if is_fixed else None)
        return Configuration((), frozenset(made.relationships()))


class NotImported:
    """Declaration of a class that may be named, but was not imported and is unknown.

    Checks that depend on it are skipped; they are made when the flow is applied.
    """

    input = InputRequirement.ALLOWED
    runs_without_input = False
    runs_serially = False
    sensitive: frozenset[str] = frozenset()
    property_names: Sequence[str] = ()
    takes_others = True

    def configured(self, properties: Mapping[str, PropertyValue]) -> Configuration:
        """Return a configuration without errors and with unknown relationships."""
        del properties
        return Configuration((), None)


NOT_IMPORTED: Final = NotImported()


class ClassTypes:
    """Types given as classes, by name."""

    def __init__(self, classes: Mapping[str, type[Processor]]) -> None:
        self._declarations = {name: ClassDeclaration(cls) for name, cls in classes.items()}

    def names(self) -> Iterable[str]:
        """Return the names of all types."""
        return self._declarations.keys()

    def find(self, name: str) -> ProcessorDeclaration | None:
        """Return a type by its name; None if it does not exist."""
        return self._declarations.get(name)

    def why_missing(self, name: str) -> str:  # noqa: ARG002 - the protocol's
        """Return an empty text: all types are known."""
        return ""
