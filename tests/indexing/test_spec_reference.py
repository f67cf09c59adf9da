"""The page of specs: every model and field has a meaning, and no meaning is left over."""

from __future__ import annotations

import json

import pytest

from penstock.indexing.specs import parse_supervisor
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.retention_rules import parse_rules
from penstock.indexing.specs.spec_base import SpecModel
from penstock.indexing.specs.task_context import _FLAGS, _NUMBERS
from reference.spec_groups import CONTEXT, EXAMPLES, TITLES
from reference.spec_meanings import IGNORED, MEANINGS, OURS
from reference.specs import meaning, models

MODELS = {model.__name__: model for model in models()}


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_model_and_field_is_described(model: type[SpecModel]) -> None:
    assert model.__doc__
    assert all(meaning(model, field.alias or "") for field in model.model_fields.values())


def test_every_model_has_one_heading() -> None:
    assert TITLES.keys() == MODELS.keys()
    assert len(set(TITLES.values())) == len(TITLES)


def test_nothing_is_described_that_does_not_exist() -> None:
    fields = {
        (model.__name__, field.alias) for model in models() for field in model.model_fields.values()
    }
    names = {alias for _, alias in fields}
    known = names | {f"{model}.{alias}" for model, alias in fields}
    assert set(MEANINGS) - known == set()
    assert OURS - known == set()
    ignored = {name for model in models() for name in model.without_effect}
    assert set(IGNORED) - ignored == set()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_valid(name: str) -> None:
    value = json.loads(EXAMPLES[name])
    if name.endswith("SupervisorSpec"):
        parse_supervisor(value)
    elif name == "RuleList":
        parse_rules(value)
    elif name.endswith("Spec") and name != "LookupSpec":
        parse_batch_task(value)
    else:
        MODELS[name].model_validate(value)


def test_every_key_of_a_context_that_is_checked_is_described() -> None:
    assert CONTEXT.keys() == {*_FLAGS, *_NUMBERS, "taskLockType", "tags"}
