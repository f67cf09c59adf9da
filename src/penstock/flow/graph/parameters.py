"""Parameters: the meaning of ``#{name}`` in a property or a period of a group.

Owns the notation, the parameter that a name refers to in a group, and the loaded values. Does not
own declarations (`flow_model`), nor where external values are stored.

A name refers to the group's own parameter; otherwise to that of the group's context, or of a
context that it inherits from, in their order; otherwise to the parameter of that name in the parent
group. ``##{`` stands for the characters ``#{``. Parameters within a parameter's value are not
substituted.

A sensitive property may also name a secret itself, ``secret://NAME``. In other properties that text
is refused, because they are shown.

Invariants: a sensitive value is never shown, neither in errors nor by ``repr``. Loading reports
every missing value, not only the first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import PenstockError
from penstock.core.secret_names import is_reference, names_in, referenced_name
from penstock.core.similar_names import nearest
from penstock.flow.graph.flow_index import FlowIndex, PlacedComponent, PlacedGroup
from penstock.flow.graph.flow_model import Flow, Parameter, ParameterContext, Processor
from penstock.flow.graph.source_locations import (
    FlowProblem,
    InvalidFlow,
    Path,
    SourceLocations,
)
from penstock.storage.secrets.secret_sources import Secrets

MAX_VALUE_BYTES: Final = 1 << 20
MASK: Final = "********"

_REFERENCE: Final = re.compile(r"#(#\{)|#\{([^{}#]*)\}")
# Variables that may hold secrets of Penstock itself: its token, addresses with passwords, passwords
# of specs, and the token that Spark's client sends.
_KEPT_VARIABLE: Final = re.compile(r"PENSTOCK_.*|SPARK_CONNECT_AUTHENTICATE_TOKEN", re.DOTALL)


def references(text: str) -> tuple[str, ...]:
    """Return the names of the parameters in a text, in order."""
    if "#{" not in text:
        return ()
    return tuple(match[2].strip() for match in _REFERENCE.finditer(text) if match[1] is None)


def is_unclosed(text: str) -> bool:
    """Return whether a text contains an unclosed or invalid reference."""
    return "#{" in text and "#{" in _REFERENCE.sub("", text)


def sole_reference(text: str) -> str | None:
    """Return the parameter's name if the text is only a reference."""
    match = _REFERENCE.fullmatch(text.strip())
    return match[2].strip() if match is not None and match[1] is None else None


def put_in(text: str, value_of: Callable[[str], str]) -> str:
    """Return a text with its parameters replaced by their values."""
    if "#{" not in text:
        return text
    return _REFERENCE.sub(lambda m: value_of(m[2].strip()) if m[1] is None else m[1], text)


def secret_reference(value: str | tuple[str, ...]) -> str | None:
    """Return the name of the secret that a property's value is; None: it is another value.

    Raises:
        InvalidRequest: It begins like the reference to a secret, but is not one.
    """
    return referenced_name(value) if isinstance(value, str) else None


def texts_of(value: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return the texts of a property's value."""
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class FoundParameter:
    """Parameter and where it is declared."""

    path: Path
    parameter: Parameter


@dataclass(frozen=True, slots=True)
class Scope:
    """Parameters that a group sees.

    Attributes:
        own: Those of the group and its context.
        around: Scope of the parent group; None for the root group.
    """

    own: Mapping[str, FoundParameter]
    around: Scope | None

    def find(self, name: str) -> FoundParameter | None:
        """Return the parameter of a name; None: unknown."""
        scope: Scope | None = self
        while scope is not None:
            if (found := scope.own.get(name)) is not None:
                return found
            scope = scope.around
        return None

    def names(self) -> set[str]:
        """Return the names of all parameters."""
        return {*self.own, *(self.around.names() if self.around is not None else ())}


class Scopes:
    """Scopes of all groups of a flow."""

    def __init__(self, index: FlowIndex) -> None:
        self._contexts = index.flow.parameter_contexts
        self._flat: dict[str, Mapping[str, FoundParameter]] = {}
        self._by_path: dict[Path, Scope] = {}
        for group in index.groups:  # parent groups first
            around = self._by_path[group.parent.path] if group.parent is not None else None
            own = {
                name: FoundParameter((*group.path, "parameters", name), parameter)
                for name, parameter in group.group.parameters.items()
            }
            if group.group.parameter_context is not None:
                own = {**self._context(group.group.parameter_context), **own}
            self._by_path[group.path] = Scope(own, around) if own or around is None else around

    def of(self, group: PlacedGroup) -> Scope:
        """Return the scope of a group."""
        return self._by_path[group.path]

    def _context(self, name: str) -> Mapping[str, FoundParameter]:
        if name not in self._flat:
            merged: dict[str, FoundParameter] = {}
            for each in lineage(self._contexts, name):
                path = ("parameter_contexts", each, "parameters")
                for parameter_name, parameter in self._contexts[each].parameters.items():
                    merged.setdefault(
                        parameter_name, FoundParameter((*path, parameter_name), parameter)
                    )
            self._flat[name] = merged
        return self._flat[name]


def lineage(contexts: Mapping[str, ParameterContext], name: str) -> Iterator[str]:
    """Yield a context and those it inherits from, in the order of precedence, each once."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each in seen or each not in contexts:
            continue
        seen.add(each)
        yield each
        waiting.extend(reversed(contexts[each].inherits))


def used_texts(processor: Processor) -> Iterator[tuple[Path, str]]:
    """Yield all texts of a processor that may contain parameters, with their fields."""
    for name, value in processor.properties.items():
        for text in texts_of(value):
            yield ("properties", name), text
    yield ("schedule", "period"), processor.schedule.period
    for field in ("run_duration", "yield_duration", "penalty_duration"):
        yield (field,), getattr(processor, field)
    for name, retry in processor.retry.items():
        yield ("retry", name, "max_backoff"), retry.max_backoff


def named_secrets(index: FlowIndex) -> frozenset[str]:
    """Return the names of all secrets that a flow names, for the check of access to them."""
    names = {one.secret for _, one in _declared(index.flow, index) if one.secret is not None}
    for _, processor in index.processors:
        names.update(names_in(processor.properties))
    return frozenset(names)


def reads_outside(index: FlowIndex) -> bool:
    """Return whether a flow has parameters whose values are in files or environment variables."""
    return any(
        one.file is not None or one.env is not None for _, one in _declared(index.flow, index)
    )


class ResolvedProperties(dict[str, str | tuple[str, ...]]):
    """Properties with substituted parameters; ``repr`` shows no values, some of them secret."""

    def __repr__(self) -> str:
        return f"ResolvedProperties({', '.join(self)})"

    __str__ = __repr__


class ParameterValues:
    """Values of a flow's parameters. Created by `load` or `load_known`.

    Attributes:
        missing: Reason why a value is missing, by the path of its parameter.
    """

    def __init__(
        self,
        scopes: Scopes,
        values: Mapping[Path, str],
        missing: Mapping[Path, str],
        secrets: Secrets,
    ) -> None:
        self._scopes = scopes
        self._values = values
        self._secrets = secrets
        self.missing = missing

    @classmethod
    def load(
        cls,
        index: FlowIndex,
        environment: Mapping[str, str],
        read_file: Callable[[str], bytes],
        places: SourceLocations | None = None,
        secrets: Secrets | None = None,
    ) -> ParameterValues:
        """Load all values, before a flow is applied.

        Args:
            index: The flow.
            environment: Environment variables.
            read_file: Returns the content of a file; raises `OSError` or `PenstockError`.
            places: Positions for error messages.
            secrets: The secrets of this process; None: there are none.

        Raises:
            InvalidFlow: Missing values, with the position of each parameter.
        """
        places = places or SourceLocations()
        found = cls.load_known(index, environment, read_file, secrets)
        if found.missing:
            problems = [FlowProblem(places.at(path), why) for path, why in found.missing.items()]
            raise InvalidFlow(sorted(problems))
        return found

    @classmethod
    def load_known(
        cls,
        index: FlowIndex,
        environment: Mapping[str, str],
        read_file: Callable[[str], bytes],
        secrets: Secrets | None = None,
    ) -> ParameterValues:
        """Load the available values; using a missing one raises an error.

        So at a start, a missing file affects only the components that need it. Arguments as for
        `load`.
        """
        values: dict[Path, str] = {}
        missing: dict[Path, str] = {}
        for path, parameter in _declared(index.flow, index):
            value = _fetch(parameter, environment, read_file, secrets or Secrets())
            if isinstance(value, _Missing):
                missing[path] = value.why
            else:
                values[path] = value
        return cls(Scopes(index), values, missing, secrets or Secrets())

    def text(self, group: PlacedGroup, text: str) -> str:
        """Return a text with its parameters substituted.

        Raises:
            InvalidFlow: A parameter is unknown, or its value is missing.
        """

        def value_of(name: str) -> str:
            found = self._scopes.of(group).find(name)
            if found is None:
                place = SourceLocations().at(group.path)
                raise InvalidFlow([FlowProblem(place, unknown(name, self._scopes.of(group)))])
            if found.path in self.missing:
                why = f"parameter {name!r}: {self.missing[found.path]}"
                raise InvalidFlow([FlowProblem(SourceLocations().at(found.path), why)])
            return self._values[found.path]

        return put_in(text, value_of)

    def properties(
        self, placed: PlacedComponent, sensitive: Collection[str] = ()
    ) -> ResolvedProperties:
        """Return the properties of a processor with parameters substituted, secrets in clear text.

        They are for the processor only: never log or store them.

        Args:
            placed: The processor.
            sensitive: Names of its sensitive properties, which may name secrets.

        Raises:
            InvalidFlow: A value is missing.
        """
        given = placed.component.properties if isinstance(placed.component, Processor) else {}
        return ResolvedProperties(
            {
                name: self._secret((*placed.path, "properties", name), value)
                if name in sensitive and isinstance(value, str) and is_reference(value)
                else self.text(placed.group, value)
                if isinstance(value, str)
                else tuple(self.text(placed.group, text) for text in value)
                for name, value in given.items()
            }
        )

    def check_secret(self, value: str | tuple[str, ...]) -> None:
        """Look up the secret that a sensitive property names; other values are accepted.

        Raises:
            InvalidRequest: It has no value.
            CorruptData: The file of sealed secrets is damaged.
            Unavailable: The command that prints it fails.
        """
        if isinstance(value, str):
            self._secrets.text(value)

    def _secret(self, path: Path, reference: str) -> str:
        try:
            return self._secrets.text(reference)
        except PenstockError as error:
            problem = FlowProblem(SourceLocations().at(path), str(error))
            raise InvalidFlow([problem]) from None


@dataclass(frozen=True, slots=True)
class _Missing:
    why: str


def unknown(name: str, scope: Scope, hint_at: Callable[[str, Iterable[str]], str] = nearest) -> str:
    """Return the error for an unknown parameter."""
    hint = hint_at(name, scope.names()) or "; declare it under parameters"
    return f"unknown parameter {name!r}{hint}"


def _declared(flow: Flow, index: FlowIndex) -> Iterator[tuple[Path, Parameter]]:
    for context_name, context in flow.parameter_contexts.items():
        for name, parameter in context.parameters.items():
            yield ("parameter_contexts", context_name, "parameters", name), parameter
    for group in index.groups:
        for name, parameter in group.group.parameters.items():
            yield (*group.path, "parameters", name), parameter


def _fetch(
    parameter: Parameter,
    environment: Mapping[str, str],
    read_file: Callable[[str], bytes],
    secrets: Secrets,
) -> str | _Missing:
    if parameter.secret is not None:
        try:
            return secrets.value(parameter.secret)
        except PenstockError as error:
            return _Missing(str(error))
    if parameter.env is not None:
        if _KEPT_VARIABLE.fullmatch(parameter.env):
            return _Missing(
                f"flows must not read environment variable {parameter.env!r}, because it may hold "
                "a secret of Penstock or Spark: use a variable of another name"
            )
        value = environment.get(parameter.env)
        return (
            _Missing(f"environment variable {parameter.env!r} is not set: set it for the service")
            if (value is None)
            else value
        )
    if parameter.file is None:
        return parameter.value or ""
    try:
        content = read_file(parameter.file)
    except OSError as error:
        why = f"{error.strerror}; make it readable"
        return _Missing(f"file {parameter.file!r} cannot be read: {why}")
    except PenstockError as error:
        return _Missing(f"file {parameter.file!r} cannot be read: {error}")
    if len(content) > MAX_VALUE_BYTES:
        return _Missing(
            f"file {parameter.file!r} has more than {MAX_VALUE_BYTES} bytes: shorten it"
        )
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        return _Missing(f"file {parameter.file!r} is not valid UTF-8: encode it in UTF-8")
