"""Flows written in Python; they use the same model as those read from YAML.

    flow = FlowBuilder("flights")
    read = flow.processor("Read", GetFile, {"directory": "#{folder}"}, schedule="every 10 sec")
    validate = flow.processor("Validate", "ValidateRecord")
    read.success >> validate
    validate["invalid", "failure"] >> flow.funnel("Bad")
    flow.build()

Owns the notation. Does not own the validation of the flow (`validation`).

Invariants: a name is used once; both ends of a connection belong to one flow. A mistake raises at
once, at its line of Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self, TypeAlias, TypedDict, Unpack

from pydantic import ValidationError

from penstock.core.errors import Conflict, InvalidRequest
from penstock.flow.graph.flow_model import Flow
from penstock.flow.graph.source_locations import InvalidFlow, SourceLocations
from penstock.flow.graph.yaml_reader import problems_of

_Document: TypeAlias = dict[str, object]


class ProcessorOptions(TypedDict, total=False):
    """Fields of `flow_model.Processor` other than type and properties."""

    id: str
    comments: str
    position: tuple[int, int]
    schedule: str | Mapping[str, object]
    concurrent_tasks: int
    run_duration: str
    yield_duration: str
    penalty_duration: str
    bulletin_level: str
    auto_terminated: str | tuple[str, ...] | list[str]
    retry: Mapping[str, object]
    enabled: bool


class QueueConnectionOptions(TypedDict, total=False):
    """Fields of `flow_model.Connection` other than its ends."""

    id: str
    name: str
    prioritizers: str | tuple[str, ...] | list[str]
    expiration: str
    back_pressure_count: int
    back_pressure_size: str
    swap_threshold: int


class ComponentOptions(TypedDict, total=False):
    """Fields of `flow_model.Component`."""

    id: str
    comments: str
    position: tuple[int, int]


class FlowLink:
    """Connection that was made; `options` sets its fields."""

    def __init__(self, fields: _Document) -> None:
        self._fields = fields

    def options(self, **options: Unpack[QueueConnectionOptions]) -> Self:
        """Set prioritizers, limits and other fields."""
        self._fields.update(options)
        return self


class Connectable:
    """Possible destination of connections: a processor, a funnel or a port."""

    def __init__(self, group: GroupBuilder, name: str) -> None:
        self.group = group
        self.name = name


class RelationshipSource:
    """Outgoing relationships of a component: ``way >> end`` connects them."""

    def __init__(self, source: Connectable, relationships: tuple[str, ...]) -> None:
        self._source = source
        self._relationships = relationships

    def __rshift__(self, destination: Connectable) -> FlowLink:
        return self.to(destination)

    def to(self, destination: Connectable, **options: Unpack[QueueConnectionOptions]) -> FlowLink:
        """Connect the relationships to a destination.

        Raises:
            InvalidRequest: The two ends are neither in the same group nor in neighbouring groups.
        """
        return _connect(self._source, destination, self._relationships).options(**options)


class FunnelOrPort(Connectable):
    """Funnel or port, which has no relationships: ``funnel >> end``."""

    def __rshift__(self, destination: Connectable) -> FlowLink:
        return self.to(destination)

    def to(self, destination: Connectable, **options: Unpack[QueueConnectionOptions]) -> FlowLink:
        """Connect it to a destination.

        Raises:
            InvalidRequest: The two ends are neither in the same group nor in neighbouring groups.
        """
        return _connect(self, destination, ()).options(**options)


class ConnectableProcessor(Connectable):
    """Processor; its relationships are attributes, or in brackets: ``p["not found"]``."""

    def __getattr__(self, relationship: str) -> RelationshipSource:
        if relationship.startswith("_"):
            raise AttributeError(relationship)
        return RelationshipSource(self, (relationship,))

    def __getitem__(self, relationships: str | tuple[str, ...]) -> RelationshipSource:
        names = (relationships,) if isinstance(relationships, str) else relationships
        return RelationshipSource(self, names)


class GroupBuilder:
    """Builder of a process group. Created by `FlowBuilder` and `group`."""

    def __init__(self, around: GroupBuilder | None, name: str) -> None:
        self.around = around
        self.name = name
        self._document: _Document = {}
        self._names: set[str] = set()
        self._groups: dict[str, GroupBuilder] = {}
        self._connections: list[_Document] = []

    def processor(
        self,
        name: str,
        type_: str | type,
        properties: Mapping[str, object] | None = None,
        **options: Unpack[ProcessorOptions],
    ) -> ConnectableProcessor:
        """Add a processor.

        Args:
            name: Its name.
            type_: The name of its type, or its class.
            properties: Values by name.
            options: Fields of `flow_model.Processor`.

        Raises:
            Conflict: The name is already used.
        """
        type_name = type_ if isinstance(type_, str) else type_.__name__
        fields: _Document = {"type": type_name, "properties": dict(properties or {}), **options}
        self._add("processors", name, fields)
        return ConnectableProcessor(self, name)

    def funnel(self, name: str, **options: Unpack[ComponentOptions]) -> FunnelOrPort:
        """Add a funnel. Raises `Conflict` if the name is already used."""
        return self._funnel_or_port("funnels", name, {**options})

    def input_port(self, name: str, **options: Unpack[ComponentOptions]) -> FunnelOrPort:
        """Add an input port of this group. Raises `Conflict` if the name is already used."""
        return self._funnel_or_port("input_ports", name, {**options})

    def output_port(self, name: str, **options: Unpack[ComponentOptions]) -> FunnelOrPort:
        """Add an output port of this group. Raises `Conflict` if the name is already used."""
        return self._funnel_or_port("output_ports", name, {**options})

    def group(
        self,
        name: str,
        *,
        parameter_context: str | None = None,
        max_concurrent_tasks: int | None = None,
        **options: Unpack[ComponentOptions],
    ) -> GroupBuilder:
        """Add a group within this one. Raises `Conflict` if the name is already used."""
        self._take(name)
        child = GroupBuilder(self, name)
        child._document.update(options)
        child._document["parameter_context"] = parameter_context
        child._document["max_concurrent_tasks"] = max_concurrent_tasks
        self._groups[name] = child
        return child

    def parameter(self, name: str, value: str | float | bool, *, description: str = "") -> None:
        """Add a parameter of this group that is not sensitive.

        Raises:
            Conflict: The name is already used.
        """
        self._parameter(name, {"value": value, "description": description})

    def secret(
        self,
        name: str,
        *,
        secret: str | None = None,
        env: str | None = None,
        file: str | None = None,
        description: str = "",
    ) -> None:
        """Add a sensitive parameter; give exactly one of `secret`, `env` and `file`.

        Raises:
            Conflict: The name is already used.
        """
        self._parameter(
            name, {"secret": secret, "env": env, "file": file, "description": description}
        )

    def label(self, text: str, position: tuple[int, int] | None = None) -> None:
        """Add a label."""
        labels = self._document.setdefault("labels", [])
        assert isinstance(labels, list)
        labels.append({"text": text, "position": position})

    def document(self) -> _Document:
        """Return the group as a document."""
        document: _Document = {**self._document, "connections": self._connections}
        document["groups"] = {name: group.document() for name, group in self._groups.items()}
        return document

    def connect(self, fields: _Document) -> FlowLink:
        """Add a connection, given as the fields of `flow_model.Connection`."""
        self._connections.append(fields)
        return FlowLink(fields)

    def _parameter(self, name: str, fields: _Document) -> None:
        parameters = self._document.setdefault("parameters", {})
        assert isinstance(parameters, dict)
        if name in parameters:
            raise Conflict(f"parameter {name!r} already exists: use another name")
        parameters[name] = fields

    def _funnel_or_port(self, field: str, name: str, fields: _Document) -> FunnelOrPort:
        self._add(field, name, fields)
        return FunnelOrPort(self, name)

    def _add(self, field: str, name: str, fields: _Document) -> None:
        self._take(name)
        components = self._document.setdefault(field, {})
        assert isinstance(components, dict)
        components[name] = fields

    def _take(self, name: str) -> None:
        if name in self._names:
            raise Conflict(f"component {name!r} already exists in this group: use another name")
        self._names.add(name)


class FlowBuilder(GroupBuilder):
    """Builder of a flow and of its root group.

    Args:
        name: Name of the flow.
        version: Version of the flow, set by its author.
        id_: Id of the root group; without it ids are derived from the name.
        parameter_context: Name of the context of the root group.
    """

    def __init__(
        self,
        name: str,
        *,
        version: str = "",
        id_: str | None = None,
        parameter_context: str | None = None,
    ) -> None:
        super().__init__(None, name)
        self._document.update(
            name=name, version=version, id=id_, parameter_context=parameter_context
        )

    def context(
        self,
        name: str,
        parameters: Mapping[str, object],
        *,
        inherits: tuple[str, ...] = (),
        description: str = "",
    ) -> None:
        """Add a parameter context.

        Its parameters are values, or mappings such as ``{"env": name}``.

        Raises:
            Conflict: The name is already used.
        """
        contexts = self._document.setdefault("parameter_contexts", {})
        assert isinstance(contexts, dict)
        if name in contexts:
            raise Conflict(f"parameter context {name!r} already exists: use another name")
        contexts[name] = {
            "parameters": {**parameters}, "inherits": inherits, "description": description,
        }  # fmt: skip

    def build(self) -> Flow:
        """Return the flow.

        Raises:
            InvalidFlow: Lists every error.
        """
        try:
            return Flow.model_validate(self.document())
        except ValidationError as error:
            raise InvalidFlow(problems_of(error, SourceLocations())) from None


def _connect(
    source: Connectable, destination: Connectable, relationships: tuple[str, ...]
) -> FlowLink:
    """Connect two ends, in the group in which both can be named."""
    ours, theirs = source.group, destination.group
    if ours is theirs:
        group, names = ours, (source.name, destination.name)
    elif theirs.around is ours:
        group, names = ours, (source.name, f"{theirs.name}/{destination.name}")
    elif ours.around is theirs:
        group, names = theirs, (f"{ours.name}/{source.name}", destination.name)
    elif ours.around is not None and ours.around is theirs.around:
        group = ours.around
        names = (f"{ours.name}/{source.name}", f"{theirs.name}/{destination.name}")
    else:
        raise InvalidRequest(
            f"{source.name!r} and {destination.name!r} are in groups that are not neighbours: "
            "connect them through ports of the groups in between"
        )
    return group.connect(
        {"source": names[0], "relationships": relationships, "destination": names[1]}
    )
