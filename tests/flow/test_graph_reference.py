"""The page of flow files: every field has a meaning, and the examples work."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.flow.graph.declarations import ClassTypes
from penstock.flow.graph.flow_model import Component, Flow, FlowModel
from penstock.flow.graph.validation import validate
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processors.files.get_files import FetchFile, ListFiles
from penstock.flow.processors.files.put_file import PutFile
from penstock.flow.processors.routing.attributes import LogAttribute, UpdateAttribute
from reference.flow_files import TITLES, meaning

TYPES = ClassTypes(
    {cls.__name__: cls for cls in (FetchFile, ListFiles, LogAttribute, PutFile, UpdateAttribute)}
)

PAGE = (Path(__file__).parents[2] / "docs/reference/flow-files.md").read_text()


@pytest.mark.parametrize("model", TITLES, ids=lambda model: model.__name__)
def test_every_field_has_a_meaning(model: type[FlowModel]) -> None:
    assert all(meaning(model, name) for name in model.model_fields)


def test_every_model_is_on_the_page() -> None:
    parts = {*FlowModel.__subclasses__(), *Component.__subclasses__(), Flow}
    assert set(TITLES) == parts - {Component}


def test_the_example_is_a_flow_of_five_processors_in_about_forty_lines() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    read = read_flow(text)
    assert len(read.flow.processors) == 5
    assert text.count("\n") <= 46
    assert validate(read.flow, TYPES, places=read.places) == []


def test_the_example_in_python_is_a_flow() -> None:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(text, "flow-files.md", "exec"), names)
    flow = names["model"]
    assert isinstance(flow, Flow)
    assert validate(flow, TYPES) == []
