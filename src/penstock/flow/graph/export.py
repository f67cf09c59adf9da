"""Flows written as YAML and JSON, the short way, without what is as it is by default.

Owns the document that a flow makes. Invariants: what is read back equals the flow; the same flow
gives the same text everywhere, in the order of its author; no secret is written, as none is in a
flow: what sensitive parameters say is where their values are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import yaml

from penstock.flow.graph.declarations import ProcessorTypes
from penstock.flow.graph.model import (
    FORMAT_NUMBER,
    Connection,
    Flow,
    FlowModel,
    Label,
    Parameter,
    Position,
    ProcessGroup,
    Processor,
    Retry,
    Schedule,
)
from penstock.flow.graph.parameters import sole_reference

_NAMES_ONLY: Final = {"funnels", "input_ports", "output_ports"}
# JSON may hold these as they are, within quotes; YAML may not, or takes them for ends of lines.
_NOT_IN_YAML: Final = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_CHARACTERS: Final = 1 << 20  # texts are not broken: a file is compared line by line


def to_yaml(flow: Flow) -> str:
    """Return a flow as YAML."""
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        document(flow),
        Dumper=dumper,
        sort_keys=False,
        allow_unicode=True,
        width=_LINE_CHARACTERS,
    )
    return text


def to_json(flow: Flow) -> str:
    """Return a flow as JSON; it can be read as any flow file."""
    text = json.dumps(document(flow), indent=2, ensure_ascii=False) + "\n"
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def document(flow: Flow) -> dict[str, object]:
    """Return a flow as a document: mappings, lists, texts, whole numbers, true and false."""
    head: dict[str, object] = {"format": FORMAT_NUMBER, "name": flow.name}
    return head | _fields(flow)


def without_secrets(flow: Flow, types: ProcessorTypes) -> Flow:
    """Return a flow without what was written in clear where only a parameter may stand.

    A flow that `validate` accepts has nothing of the kind; one that it does not accept may be shown
    only so.
    """

    def cleaned(group: ProcessGroup) -> dict[str, object]:
        return {
            "processors": {
                name: _without_literals(processor, types)
                for name, processor in group.processors.items()
            },
            "groups": {
                name: child.model_copy(update=cleaned(child))
                for name, child in group.groups.items()
            },
        }

    return flow.model_copy(update=cleaned(flow))


def _without_literals(processor: Processor, types: ProcessorTypes) -> Processor:
    declaration = types.find(processor.type)
    # Of a type that is not known, any property may be sensitive.
    secret = frozenset(processor.properties) if declaration is None else declaration.sensitive
    kept = {
        name: value
        for name, value in processor.properties.items()
        if name not in secret or (isinstance(value, str) and sole_reference(value) is not None)
    }
    if len(kept) == len(processor.properties):
        return processor
    return processor.model_copy(update={"properties": kept})


def _fields(model: FlowModel) -> dict[str, object]:
    """Return the fields that are not as they are by default, in the order of the model."""
    return {
        name: _plain(name, value)
        for name, default in _defaults(type(model)).items()
        if (value := getattr(model, name)) != default
    }


@lru_cache
def _defaults(model: type[FlowModel]) -> dict[str, object]:
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
    }


def _plain(field: str, value: object) -> object:
    if isinstance(value, FlowModel):
        return _short(value)
    if isinstance(value, Mapping):
        items = {name: _plain("", item) for name, item in value.items()}
        if field in _NAMES_ONLY and not any(items.values()):
            return list(items)
        return items
    if isinstance(value, tuple):
        return [_plain("", item) for item in value]
    # Enumerations are texts to us, but not to who writes YAML.
    return str(value) if isinstance(value, str) else value


def _short(model: FlowModel) -> object:
    """Return the short form of what has one, where it says everything."""
    if isinstance(model, Schedule):
        return model.short() or _fields(model)
    if isinstance(model, Position):
        return [model.x, model.y]
    if isinstance(model, Connection):
        return _connection(model)
    fields = _fields(model)
    if isinstance(model, Retry):
        return model.count if not fields.keys() - {"count"} else fields
    if isinstance(model, Parameter):
        if model.value is not None and fields.keys() == {"value"}:
            return model.value
        if not model.sensitive and model.value is None:
            fields["sensitive"] = False
        elif model.sensitive:
            del fields["sensitive"]
    if isinstance(model, Label) and fields.keys() == {"text"}:
        return model.text
    return fields


def _connection(connection: Connection) -> dict[str, object]:
    fields = _fields(connection)
    ends: dict[str, object] = {"from": connection.source, "to": connection.destination}
    del fields["source"], fields["destination"]
    ways = connection.relationships
    if len(ways) == 1 and "." not in ways[0]:
        ends["from"] = f"{connection.source}.{ways[0]}"
        del fields["relationships"]
    elif not ways and "." in connection.source:
        fields["relationships"] = []
    return ends | fields
