"""Types of processors, for validation of the graph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.core.errors import NotFound, PenstockError
from penstock.flow.graph.declarations import (
    NOT_IMPORTED,
    ClassDeclaration,
    ProcessorDeclaration,
)
from penstock.flow.processor.processor import declared_properties
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processor.properties import PropertyFacts


class RegistryTypes:
    """`ProcessorTypes` over a registry; the declaration of each class is read once.

    Args:
        registry: Finds the classes.
        imports: Whether user classes may be imported. A validation imports nothing: of a class that
            was not imported before, it only knows that flows may name it.
    """

    def __init__(self, registry: ProcessorRegistry, *, imports: bool) -> None:
        self._registry = registry
        self._imports = imports
        self._known: dict[str, ProcessorDeclaration] = {}

    def without_imports(self) -> RegistryTypes:
        """Return the same types, of which those of users are only known if they were imported."""
        return RegistryTypes(self._registry, imports=False)

    def names(self) -> Iterable[str]:
        """Return the names of all types."""
        return self._registry.names()

    def find(self, name: str) -> ProcessorDeclaration | None:
        """Return a type by its name or import path; None if it does not exist."""
        if name not in self._known:
            try:
                found = self._registry.find(name) if self._imports else self._registry.check(name)
            except PenstockError:
                return None
            if found is None:
                return NOT_IMPORTED
            self._known[name] = ClassDeclaration(found)
        return self._known[name]

    def facts(self, name: str) -> Mapping[str, PropertyFacts] | None:
        """Return the declared properties of a type by name; None if the type is not known."""
        try:
            found = self._registry.find(name) if self._imports else self._registry.check(name)
        except PenstockError:
            return None
        if found is None:
            return None
        return {one: prop.facts() for one, prop in declared_properties(found).items()}

    def why_missing(self, name: str) -> str:
        """Return why a class may not be named or does not exist; empty if the name is unknown."""
        try:
            if self._imports:
                self._registry.find(name)
            else:
                self._registry.check(name)
        except NotFound as error:
            return str(error) if ":" in name else ""
        except PenstockError as error:
            return str(error)
        return ""
