"""docs/spec-reference.md is what the models say, and the guide knows every name of a table."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from penstock.indexing.specs.aggregators import AggregatorType
from penstock.indexing.specs.druid_expressions.functions import DRUIDS_ALONE, REFUSED
from penstock.indexing.specs.spec_base import SpecModel
from spec_meanings import IGNORED, MEANINGS, OURS
from spec_page import meaning, models, reference_page

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "ingestion-spec.md").read_text()


def test_the_page_is_what_the_models_say() -> None:
    told = "is stale: python tests/spec_page.py"
    assert (DOCS / "spec-reference.md").read_text() == reference_page(), told


@pytest.mark.parametrize("model", models(), ids=lambda model: model.__name__)
def test_every_model_and_field_is_described(model: type[SpecModel]) -> None:
    assert model.__doc__
    assert all(meaning(model, field.alias or "") for field in model.model_fields.values())


def test_nothing_is_described_that_is_not_there() -> None:
    fields = {
        (model.__name__, field.alias) for model in models() for field in model.model_fields.values()
    }
    names = {alias for _, alias in fields}
    known = names | {f"{model}.{alias}" for model, alias in fields}
    assert set(MEANINGS) - known == set()
    assert OURS - known == set()
    ignored = {name for model in models() for name in model.without_effect}
    assert set(IGNORED) - ignored == set()


def test_the_guide_names_filters_metrics_and_functions() -> None:
    filters = [m for m in models() if m.__name__.endswith("Filter")]
    wanted = [get_args(m.model_fields["type"].annotation)[0] for m in filters]
    wanted += [f.alias or "" for m in filters for f in m.model_fields.values()]
    wanted += [
        name for name in get_args(AggregatorType) if not name.endswith(("Min", "Max", "Last"))
    ]
    folded = GUIDE.lower()
    assert [name for name in wanted if f"`{name}`".lower() not in folded] == []
    functions = DRUIDS_ALONE - REFUSED.keys()
    assert [name for name in functions if f"`{name}`" not in folded] == []
