"""Page of the files of flows, from the models of flows."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Final, Union, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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
from penstock.flow.prioritizers import STANDARD
from reference.docstrings import parse
from reference.markdown import head, sentence, slug, table, written

_ABOUT: Final = """\
Every field of a flow file, which `penstock flow apply FILE` reads: its type, its default and its
meaning. A file is YAML or JSON with the same fields. `penstock flow validate FILE` reports every
mistake with its line and column. [Processors](processors.md) lists the types of processors.
"""
TITLES: Final[Mapping[type[FlowModel], str]] = {
    Flow: "Flow",
    ProcessGroup: "Process group",
    Processor: "Processor",
    Schedule: "Schedule",
    Retry: "Retry",
    Connection: "Connection",
    Funnel: "Funnel",
    Port: "Port",
    Label: "Label",
    Position: "Position",
    Parameter: "Parameter",
    ParameterContext: "Parameter context",
}
# Fields whose docstrings are about the program, or that need none there.
_MEANINGS: Final[Mapping[str, str]] = {
    "format": "Format of the document.",
    "name": "Name of the flow. Ids that are not given are derived from it.",
    "input_ports": "Entries of the group: a list of names, or ports by name.",
    "output_ports": "Exits of the group: a list of names, or ports by name.",
    "processors": "Processors by name.",
    "funnels": "Funnels: a list of names, or funnels by name.",
    "connections": "Connections between components of this group and ports of its groups.",
    "groups": "Groups within this group, by name.",
    "labels": "Texts beside the components.",
    "text": "The text.",
    "position": "Position in a drawing.",
    "x": "Horizontal position.",
    "y": "Vertical position.",
    "strategy": "`event`: as soon as a FlowFile arrives; `timer`: at a fixed interval; `cron`: at fixed times.",
    "period": "`timer`: time from the end of a run to the next; `cron`: the expression.",
    "zone": "`cron`: time zone, such as `Europe/Berlin`.",
    "catch_up": "`cron`: run once for all times that were missed while nothing could run.",
    "backoff": "`penalize`: the FlowFile waits between two retries; `yield`: the processor waits.",
    "bulletin_level": "Minimum level of messages that become bulletins: `DEBUG`, `INFO`, `WARN`, `ERROR` or `NONE`.",
    "source": "The source: `Name.relationship`, a list of those, or with `relationships` a name.",
    "destination": "The destination: `Name`, or `Group/Port` for a port of a group within.",
    "max_concurrent_tasks": "Maximum number of threads in all of its processors; none: no limit.",
}
_RENAMED: Final = {"source": "from", "destination": "to"}
_PLAIN: Final = {
    str: "text",
    int: "whole number",
    bool: "`true`, `false`",
}


def page() -> str:
    """Return docs/reference/flow-files.md."""
    lines = [head("Flow files", "the models of flows", _ABOUT), "", *written("flow_example")]
    lines += ["", "## How a file is read", "", *written("flow_reading")]
    for model, title in TITLES.items():
        lines += _section(model, title)
    return "\n".join(lines) + "\n"


def _section(model: type[FlowModel], title: str) -> Iterator[str]:
    found = parse(model)
    yield from ("", f"## {title}", "", found.summary)
    if model is Flow:
        yield from ("", "It also has all fields of a [process group](#process-group).")
    elif found.details:
        yield from ("", *_details(model, found.details))
    rows = [
        (
            f"`{_RENAMED.get(name, name)}`",
            _type(one.annotation),
            _default(one),
            meaning(model, name),
        )
        for name, one in model.model_fields.items()
        if model is not Flow or name not in ProcessGroup.model_fields
    ]
    yield from table(("field", "type", "default", "meaning"), rows)
    if model is Connection:
        names = ", ".join(f"`{name}`" for name in sorted(STANDARD))
        yield from ("", f"Prioritizers: {names}, or the import path of your own class.")


def _details(model: type[FlowModel], details: str) -> list[str]:
    return written("flow_connections") if model is Connection else details.splitlines()


def meaning(model: type[FlowModel], name: str) -> str:
    """Return the meaning of a field; a `KeyError` for a field without one."""
    if name in _MEANINGS and not (name == "name" and model is not Flow):
        return _MEANINGS[name]
    for one in model.__mro__:
        texts = parse(one).entries.get("Attributes", {})
        if issubclass(one, FlowModel) and name in texts:
            return sentence(texts[name])
    raise KeyError(name)


def _type(annotation: object) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin in {Union, types.UnionType}:
        kinds = dict.fromkeys(_type(one) for one in arguments if one is not type(None))
        return " or ".join(kinds)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"{_type(arguments[1])} by name"
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return ", ".join(f"`{one.value}`" for one in annotation)
    if isinstance(annotation, type) and issubclass(annotation, FlowModel):
        title = TITLES[annotation]
        return f"[{title.lower()}](#{slug(title)})"
    return _PLAIN[annotation] if isinstance(annotation, type) else "any"


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if default is None:
        return "none"
    shown: object = default.short() if isinstance(default, Schedule) else default
    return f"`{json.dumps(shown)}`"
