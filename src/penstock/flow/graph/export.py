"""Flows written as YAML and JSON, in short form and without default values.

Owns the document of a flow. Invariants: reading the document gives an equal flow. The same flow
gives the same text on every machine, in the order of its author. No secret is written, because
flows contain none: sensitive parameters contain only the locations of their values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import yaml

from penstock.core.errors import InvalidRequest
from penstock.core.secret_names import SCHEME
from penstock.flow.graph.declarations import ProcessorTypes
from penstock.flow.graph.flow_model import (
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
from penstock.flow.graph.parameters import secret_reference, sole_reference

_NAMES_ONLY: Final = {"funnels", "input_ports", "output_ports"}
# JSON allows these characters within quotes; YAML forbids some and treats others as line ends.
_NOT_IN_YAML: Final = re.compile("[\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_LINE_CHARACTERS: Final = (
    1 << 20
)  # long texts stay on one line, so that files can be compared line by line


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
    """Return a flow as JSON, which can also be read as a flow file."""
    text = json.dumps(document(flow), indent=2, ensure_ascii=False) + "\n"
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def document(flow: Flow) -> dict[str, object]:
    """Return a flow as a document: mappings, lists, texts, integers and booleans."""
    head: dict[str, object] = {"format": FORMAT_NUMBER, "name": flow.name}
    return head | _fields(flow)


def without_secrets(flow: Flow, types: ProcessorTypes) -> Flow:
    """Return a flow without clear text where only a sensitive parameter is allowed.

    A flow that `validate` accepts contains no such text. Other flows must only be shown this way.
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
    # If the type is unknown, any property may be sensitive.
    secret = frozenset(processor.properties) if declaration is None else declaration.sensitive
    kept = {
        name: value
        for name, value in processor.properties.items()
        if name not in secret or is_reference(value)
    }
    if len(kept) == len(processor.properties):
        return processor
    return processor.model_copy(update={"properties": kept})


def is_reference(value: str | tuple[str, ...]) -> bool:
    """Return whether the value of a property only names a parameter or a secret."""
    try:
        is_secret = secret_reference(value) is not None
    except InvalidRequest:
        return False
    return is_secret or (isinstance(value, str) and sole_reference(value) is not None)


def _fields(model: FlowModel) -> dict[str, object]:
    """Return the fields without default values, in the order of the model."""
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
    # Enumeration members are texts in Python, but YAML writers do not treat them so.
    return str(value) if isinstance(value, str) else value


def _short(model: FlowModel) -> object:
    """Return the short form of a model that has one, if it loses nothing."""
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
        if model.secret is not None and fields.keys() == {"secret", "sensitive"}:
            return f"{SCHEME}{model.secret}"
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
