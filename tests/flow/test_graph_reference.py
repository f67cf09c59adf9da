"""docs/flow-reference.md names every field of the models with its default; its examples work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined

from penstock.flow.graph.declarations import ClassTypes
from penstock.flow.graph.flow_model import (
    Connection,
    Flow,
    FlowModel,
    Funnel,
    Label,
    Parameter,
    ParameterContext,
    Port,
    ProcessGroup,
    Processor,
    Retry,
    Schedule,
)
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processors.files.get_files import FetchFile, ListFiles
from penstock.flow.processors.files.put_file import PutFile
from penstock.flow.processors.routing.attributes import LogAttribute, UpdateAttribute

TYPES = ClassTypes(
    {cls.__name__: cls for cls in (FetchFile, ListFiles, LogAttribute, PutFile, UpdateAttribute)}
)

PAGE = (Path(__file__).parents[2] / "docs" / "flow-reference.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ROW = re.compile(r"^\| `([a-z_]+)` \| (.*?) \| ", re.MULTILINE)
RENAMED = {"source": "from", "destination": "to"}
MODELS: dict[str, tuple[type[FlowModel], ...]] = {
    "Flow": (Flow,),
    "Process group": (ProcessGroup,),
    "Processor": (Processor,),
    "Schedule": (Schedule,),
    "Retry": (Retry,),
    "Connection": (Connection,),
    "Funnel and port": (Funnel, Port),
    "Label": (Label,),
    "Parameter": (Parameter,),
    "Parameter context": (ParameterContext,),
}


def fields(model: type[FlowModel]) -> dict[str, str]:
    shown: dict[str, str] = {}
    for name, field in model.model_fields.items():
        default = field.get_default(call_default_factory=True)
        if default is PydanticUndefined:
            text = "required"
        elif default is None:
            text = "none"
        elif isinstance(default, Schedule):
            text = f"`{json.dumps(default.short())}`"
        else:
            text = f"`{json.dumps(default)}`"
        shown[RENAMED.get(name, name)] = text
    return shown


@pytest.mark.parametrize("section", MODELS)
def test_every_field_is_there_with_its_default(section: str) -> None:
    for model in MODELS[section]:
        expected = fields(model)
        if model is Flow:
            expected = {k: v for k, v in expected.items() if k not in ProcessGroup.model_fields}
        assert dict(ROW.findall(SECTIONS[section])) == expected


def test_the_example_is_a_flow_of_five_processors_in_about_forty_lines() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    read = read_flow(text)
    assert len(read.flow.processors) == 5
    assert text.count("\n") <= 46
    assert validate(read.flow, TYPES, places=read.places) == []


def test_the_example_in_python_is_a_flow() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(text, "flow-reference.md", "exec"), names)
    flow = names["model"]
    assert isinstance(flow, Flow)
    assert validate(flow, TYPES) == []
