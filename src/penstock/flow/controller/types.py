"""The types of processors that there are, as the graph asks for them."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.core.errors import PenstockError
from penstock.flow.graph.declarations import ClassDeclaration, ProcessorDeclaration
from penstock.flow.processor.registry import ProcessorRegistry


class RegistryTypes:
    """`ProcessorTypes` over a registry; each class is looked at once.

    Args:
        registry: Finds the classes.
    """

    def __init__(self, registry: ProcessorRegistry) -> None:
        self._registry = registry
        self._known: dict[str, ProcessorDeclaration] = {}

    def names(self) -> Iterable[str]:
        """Return the names of all types."""
        return self._registry.names()

    def find(self, name: str) -> ProcessorDeclaration | None:
        """Return a type by its name or import path; None: there is none."""
        if name not in self._known:
            try:
                self._known[name] = ClassDeclaration(self._registry.find(name))
            except PenstockError:
                return None
        return self._known[name]

    def why_missing(self, name: str) -> str:
        """Return why a class is not there that is named by import path; empty: it is no path."""
        if ":" not in name:
            return ""
        try:
            self._registry.find(name)
        except PenstockError as error:
            return str(error)
        return ""
