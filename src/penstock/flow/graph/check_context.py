"""Context of all checks of a flow: its index, types, parameters and positions.

Owns the check of one text that may contain parameters. Does not own any other check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from penstock.core.durations import parse_nifi_period
from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import is_reference
from penstock.core.similar_names import nearest
from penstock.flow.graph.declarations import ProcessorDeclaration, ProcessorTypes
from penstock.flow.graph.flow_index import FlowIndex, PlacedComponent, PlacedGroup
from penstock.flow.graph.parameters import (
    MASK,
    Scopes,
    is_unclosed,
    put_in,
    references,
    unknown,
)
from penstock.flow.graph.source_locations import FlowProblem, Path, SourceLocations
from penstock.flow.prioritizers import STANDARD, prioritizer_named

# A user with more problems than this has repeated one mistake.
_HINTS: Final = 200

PrioritizerCheck: TypeAlias = Callable[[str], object]


class CheckContext:
    """One validation.

    Attributes:
        index: Index of the flow.
        types: Types of processors that the flow may use.
        places: Positions of its parts in the file.
        scopes: Parameters that each group sees.
        declarations: Type of each processor, by its id; those of unknown type are omitted.
        relationships: Relationships of each processor, by its id; None: unknown.
    """

    def __init__(
        self,
        index: FlowIndex,
        types: ProcessorTypes,
        places: SourceLocations,
        check_prioritizer: PrioritizerCheck | None,
    ) -> None:
        self.index = index
        self.types = types
        self.places = places
        self.scopes = Scopes(index)
        self.check_prioritizer = check_prioritizer or _check_standard
        self.declarations: Mapping[str, ProcessorDeclaration] = {
            placed.id: declaration
            for placed, processor in index.processors
            if (declaration := types.find(processor.type)) is not None
        }
        self.relationships: dict[str, frozenset[str] | None] = {}
        self._hints_left = _HINTS

    def nearest(self, name: str, known: Iterable[str]) -> str:
        """Return a hint at the most similar known name; the number of searches is limited."""
        self._hints_left -= 1
        return nearest(name, known) if self._hints_left >= 0 else ""

    def problem(self, path: Path, message: str, *, key: bool = False) -> FlowProblem:
        """Return a problem at a path."""
        return FlowProblem(self.places.at(path, key=key), message)

    def declaration(self, placed: PlacedComponent) -> ProcessorDeclaration | None:
        """Return the declaration of a processor's type; None if there is none, or it is unknown."""
        return self.declarations.get(placed.id)

    def resolved(self, group: PlacedGroup, text: str) -> tuple[str, bool]:
        """Return a text with known values substituted, and whether all values were known."""
        if "#{" not in text:
            return text, True
        scope, is_known = self.scopes.of(group), True

        def value_of(name: str) -> str:
            nonlocal is_known
            found = scope.find(name)
            if found is None or found.parameter.value is None:
                is_known = False
                return MASK
            return found.parameter.value

        return put_in(text, value_of), is_known

    def reference_problems(
        self, group: PlacedGroup, path: Path, text: str
    ) -> Iterator[FlowProblem]:
        """Find unknown parameters and unclosed references."""
        if "#{" not in text:
            return
        if is_unclosed(text):
            message = (
                "this reference is not closed: write #{name}, or ##{ for the characters themselves"
            )
            yield self.problem(path, message)
        scope = self.scopes.of(group)
        for name in references(text):
            if scope.find(name) is None:
                yield self.problem(path, unknown(name, scope, self.nearest))

    def period_problems(self, group: PlacedGroup, path: Path, text: str) -> Iterator[FlowProblem]:
        """Find errors in a period, including its parameters."""
        yield from self.public_problems(group, path, text)
        period, is_known = self.resolved(group, text)
        if is_known:
            yield from self.parse_problems(path, parse_nifi_period, period)

    def public_problems(self, group: PlacedGroup, path: Path, text: str) -> Iterator[FlowProblem]:
        """Find sensitive parameters, or the name of a secret, in a value that is shown."""
        if is_reference(text):
            yield self.problem(
                path,
                "this value is shown, so it must not name a secret: use a sensitive property",
            )
        yield from self.reference_problems(group, path, text)
        scope = self.scopes.of(group)
        for name in references(text):
            found = scope.find(name)
            if found is not None and found.parameter.sensitive:
                yield self.problem(
                    path,
                    f"parameter {name!r} is sensitive, but this value is shown: use another "
                    "parameter",
                )

    def parse_problems(
        self, path: Path, parse: Callable[[str], object], text: str
    ) -> Iterator[FlowProblem]:
        """Return the error of a parser for a text."""
        try:
            parse(text)
        except InvalidRequest as error:
            yield self.problem(path, str(error))


def _check_standard(name: str) -> None:
    try:
        prioritizer_named(name)
    except InvalidRequest:
        hint = nearest(name, STANDARD)
        if not hint:
            raise
        raise InvalidRequest(f"unknown prioritizer {name!r}{hint}") from None
