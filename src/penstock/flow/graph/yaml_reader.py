"""Flows read from YAML or JSON: the model, and the position of each part in the file.

Owns the conversion of a document to the model, and the messages for errors of the model. Does not
own notation (`core.yaml_tree`), nor the validation of the flow (`validation`).

Invariant: a document that cannot be read changes nothing, and all its errors are reported, with
line and column. No message repeats the value of a property or a parameter, because it may be a
secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from penstock.core.similar_names import nearest
from penstock.core.yaml_tree import InvalidYaml, YamlLimits, YamlNode, read_tree
from penstock.flow.graph.flow_model import (
    Connection,
    Flow,
    FlowModel,
    Funnel,
    Label,
    Parameter,
    ParameterContext,
    Port,
    Position,
    ProcessGroup,
    Processor,
    Retry,
    Schedule,
)
from penstock.flow.graph.source_locations import (
    FlowProblem,
    InvalidFlow,
    Path,
    SourceLocation,
    SourceLocations,
)

LIMITS: Final = YamlLimits(16 << 20, depth=64, values=1_000_000, remedy="split the flow")

# Model at a field: of each item of a mapping or a list, or of the field itself.
_ITEMS: Final[dict[str, type[FlowModel]]] = {
    "processors": Processor,
    "funnels": Funnel,
    "input_ports": Port,
    "output_ports": Port,
    "groups": ProcessGroup,
    "connections": Connection,
    "labels": Label,
    "parameter_contexts": ParameterContext,
    "parameters": Parameter,
    "retry": Retry,
}
_SINGLE: Final[dict[str, type[FlowModel]]] = {"schedule": Schedule, "position": Position}

# May be lists of names: then the position of a name is that of the list item.
_NAMES_ONLY: Final = {"funnels", "input_ports", "output_ports"}

_IN_DOCUMENTS: Final = {"source": "from", "destination": "to"}

_WORDS: Final = {
    "string_type": "must be a text",
    "string_unicode": "must be Unicode text",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing_size": "must be a smaller number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "tuple_type": "must be a list",
    "dict_type": "must be a mapping",
    "mapping_type": "must be a mapping",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
}


@dataclass(frozen=True, slots=True)
class ReadFlow:
    """Flow and its file.

    Attributes:
        flow: The flow.
        places: Finds the position of a path in the file.
    """

    flow: Flow
    places: SourceLocations


def read_flow(document: str | bytes, file: str = "") -> ReadFlow:
    """Read a flow from YAML or JSON.

    Args:
        document: The text; bytes are UTF-8.
        file: Its name, for error messages.

    Raises:
        InvalidFlow: Lists every error with its position.
    """
    tree = _tree(document, file)
    expanded = _Expansion(file)
    data = expanded.plain(tree, ())
    try:
        flow = Flow.model_validate(data)
    except ValidationError as error:
        raise InvalidFlow(problems_of(error, expanded.source_locations())) from None
    return ReadFlow(flow, expanded.source_locations())


def locations(document: str | bytes, file: str = "") -> SourceLocations:
    """Return the positions in a file, without checking its fields.

    Raises:
        InvalidFlow: The file is not YAML, or uses a refused feature.
    """
    expanded = _Expansion(file)
    expanded.plain(_tree(document, file), ())
    return expanded.source_locations()


def _tree(document: str | bytes, file: str) -> YamlNode:
    try:
        tree = read_tree(document, LIMITS)
    except InvalidYaml as error:
        place = SourceLocation(error.line, error.column, "", file)
        raise InvalidFlow([FlowProblem(place, error.reason)]) from None
    if tree is None:
        message = "the file is empty: write a flow that begins with name:"
        raise InvalidFlow([FlowProblem(SourceLocation(1, 1, "", file), message)])
    return tree


class _Expansion:
    """Converts a tree to plain data, and records all positions.

    A connection whose ``from`` is a list becomes one connection for each component in it; all have
    the same position.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._marks: dict[Path, tuple[int, int]] = {}
        self._key_marks: dict[Path, tuple[int, int]] = {}
        self._written: dict[Path, int] = {}

    def source_locations(self) -> SourceLocations:
        return SourceLocations(self._file, self._marks, self._key_marks, self._written)

    def plain(self, node: YamlNode, path: Path) -> object:
        self._marks[path] = (node.line, node.column)
        if isinstance(node.value, dict):
            fields: dict[str, object] = {}
            for key, value in node.value.items():
                inner = (*path, key)
                self._key_marks[inner] = node.keys[key].line, node.keys[key].column
                if key == "connections" and isinstance(value.value, list) and _is_group(path):
                    fields[key] = self._connections(value, inner, _component_names(node.value))
                else:
                    fields[key] = self.plain(value, inner)
            return fields
        if isinstance(node.value, list):
            if path and path[-1] in _NAMES_ONLY:
                for item in node.value:
                    if isinstance(item.value, str):
                        self._marks[*path, item.value] = (item.line, item.column)
            return [self.plain(item, (*path, number)) for number, item in enumerate(node.value)]
        return node.value

    def _connections(self, node: YamlNode, path: Path, names: AbstractSet[str]) -> list[object]:
        assert isinstance(node.value, list)
        self._marks[path] = (node.line, node.column)
        found: list[object] = []
        for number, item in enumerate(node.value):
            for single in _singles(item, names):
                here = (*path, len(found))
                if len(found) != number:
                    self._written[here] = number
                found.append(self.plain(single, here))
        return found


def _is_group(path: Path) -> bool:
    return len(path) % 2 == 0 and all(step == "groups" for step in path[::2])


def _component_names(group: Mapping[str, YamlNode]) -> AbstractSet[str]:
    """Return the names before a dot that connections of a group may use, as written."""
    names: set[str] = set()
    for field in ("processors", *_NAMES_ONLY):
        members = group[field].value if field in group else None
        if isinstance(members, dict):
            names.update(members)
        elif isinstance(members, list):
            names.update(one.value for one in members if isinstance(one.value, str))
    return names


def _singles(connection: YamlNode, names: AbstractSet[str]) -> Iterator[YamlNode]:
    """Create one connection for each component of a list, with all its relationships there."""
    fields = connection.value
    sources = fields.get("from") if isinstance(fields, dict) else None
    if not isinstance(fields, dict) or sources is None or not isinstance(sources.value, list):
        yield connection
        return
    together: dict[str, list[tuple[YamlNode, str]]] = {}
    for number, source in enumerate(sources.value):
        parts = None if "relationships" in fields else _parted(source.value, names)
        name, way = parts or (f"[{number}]", "")
        together.setdefault(name, []).append((source, way))
    for name, ways in together.items():
        source, keys = ways[0][0], connection.keys
        own = {"from": source}
        if len(ways) > 1:
            own = {"from": YamlNode(name, source.line, source.column)}
            listed = [YamlNode(way, one.line, one.column) for one, way in ways]
            own["relationships"] = YamlNode(listed, source.line, source.column)
            keys = {**keys, "relationships": YamlNode("relationships", source.line, source.column)}
        yield YamlNode({**fields, **own}, connection.line, connection.column, keys=keys)


def _parted(source: object, names: AbstractSet[str]) -> tuple[str, str] | None:
    """Split ``Component.relationship`` as the graph does; None: it is not such a text."""
    if not isinstance(source, str):
        return None
    name = source.rpartition(".")[0]
    if name not in names and source in names:
        return None
    while name and name not in names:
        name = name.rpartition(".")[0]
    return (name, source[len(name) + 1 :]) if name else None


def problems_of(error: ValidationError, places: SourceLocations) -> list[FlowProblem]:
    """Convert errors of the model to problems, in the order of their positions."""
    found: dict[FlowProblem, None] = {}
    for details in error.errors(include_url=False, include_input=False):
        found.setdefault(_problem(details, places))
    return sorted(found)


def _problem(details: ErrorDetails, places: SourceLocations) -> FlowProblem:
    kind, loc = details["type"], details["loc"]
    is_key = bool(loc) and loc[-1] == "[key]"
    path = _as_written(loc[:-1] if is_key else loc)
    if kind == "extra_forbidden":
        known = _fields(path[:-1])
        name = str(path[-1])
        hint = nearest(name, known) or f"; use one of {', '.join(known)}"
        return FlowProblem(places.at(path, key=True), f"unknown field {name!r}{hint}")
    if kind == "missing":
        return FlowProblem(places.at(path[:-1], key=True), f"{path[-1]!r} is missing: add it")
    return FlowProblem(places.at(path, key=is_key), _message(details))


def _as_written(loc: tuple[int | str, ...]) -> Path:
    """Return the path in the document; only connections have different field names there."""
    if len(loc) >= 3 and loc[-3] == "connections" and isinstance(loc[-2], int):
        return (*loc[:-1], _IN_DOCUMENTS.get(str(loc[-1]), loc[-1]))
    return loc


def _fields(path: Path) -> list[str]:
    """Return the names of the fields that are allowed at a path."""
    model: type[FlowModel] = Flow
    steps = iter(path)
    for step in steps:
        if step in _SINGLE:
            model = _SINGLE[str(step)]
        elif step in _ITEMS:
            model = _ITEMS[str(step)]
            next(steps, None)  # its name or number
    return [_IN_DOCUMENTS.get(name, name) for name in model.model_fields]


def _message(details: ErrorDetails) -> str:
    kind, context = details["type"], details.get("ctx", {})
    if kind in _WORDS:
        return _WORDS[kind]
    if kind == "greater_than_equal":
        return f"must be at least {context['ge']}"
    if kind == "less_than_equal":
        return f"must be at most {context['le']}"
    if kind == "enum":
        return f"must be {context['expected']}"
    return details["msg"]
