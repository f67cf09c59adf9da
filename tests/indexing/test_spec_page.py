"""docs/ingestion-spec.md names every field of the models, with its default, and no other."""

from __future__ import annotations

import json
import re
import types
from pathlib import Path
from typing import Annotated, Union, get_args, get_origin

from pydantic_core import PydanticUndefined

from penstock.indexing.spec import SupervisorSpec
from penstock.indexing.spec.model import SpecModel

PAGE = (Path(__file__).parents[2] / "docs" / "ingestion-spec.md").read_text()
ROW = re.compile(r"^\| `([A-Za-z.\[\]]+)` \| (.*?) \| ", re.MULTILINE)


def models_in(annotation: object) -> list[type[SpecModel]]:
    if isinstance(annotation, type) and issubclass(annotation, SpecModel):
        return [annotation]
    if get_origin(annotation) in {tuple, list, Union, types.UnionType, Annotated}:
        return [model for arg in get_args(annotation) for model in models_in(arg)]
    return []


def fields(model: type[SpecModel], place: str = "") -> dict[str, str]:
    """Return the place and default of every field, but those of filters."""
    found: dict[str, str] = {}
    for name, field in model.model_fields.items():
        here = f"{place}{field.alias}"
        found[here] = default_of(model, name)
        inner = models_in(field.annotation)
        if len(inner) == 1:
            many = "[]" if get_origin(field.annotation) is tuple else ""
            found |= fields(inner[0], f"{here}{many}.")
    return found


def default_of(model: type[SpecModel], name: str) -> str:
    field = model.model_fields[name]
    if field.default_factory is not None:
        return "`{}`"
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "none"
    if isinstance(field.default, SpecModel):
        return "all defaults"
    shown = model.model_construct(**{name: field.default}).model_dump(
        mode="json", include={name}, warnings=False
    )[name]
    return f"`{json.dumps(shown)}`"


def all_models(model: type[SpecModel] = SupervisorSpec) -> set[type[SpecModel]]:
    found = {model}
    for field in model.model_fields.values():
        for inner in models_in(field.annotation):
            if inner not in found:
                found |= all_models(inner) if inner.__name__[-6:] != "Filter" else {inner}
    return found


def test_every_field_is_there_with_its_default():
    documented = dict(ROW.findall(PAGE))
    described = {
        "id": "the datasource",
        "spec.ioConfig.deadLetterTopic": "the topic with `.dead-letter`",
    }
    expected = fields(SupervisorSpec)
    told = {place: documented.get(place) for place in expected}
    assert told == expected | described


def test_no_field_is_there_that_is_none():
    known = set(fields(SupervisorSpec)) | {
        "selector",
        "equals",
        "null",
        "in",
        "bound",
        "range",
        "not",
    }
    assert {place for place, _ in ROW.findall(PAGE)} <= known


def test_fields_without_effect_and_refused_ones_are_listed():
    missing = [
        name
        for model in all_models()
        for name in (*model.without_effect, *model.unsupported)
        if f"`{name}`" not in PAGE
    ]
    assert missing == []


def test_every_field_of_a_filter_is_listed():
    section = PAGE.split("### Filters")[1].split("##")[0]
    filters = [model for model in all_models() if model.__name__.endswith("Filter")]
    assert len(filters) == 9
    missing = [
        field.alias
        for model in filters
        for field in model.model_fields.values()
        if f"`{field.alias}`" not in section
    ]
    assert missing == []
