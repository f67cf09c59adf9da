"""Dimensions that are found in the data: there is an end to how many, and none is lost untold."""

from __future__ import annotations

import logging

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.specs import parse_data_schema
from penstock.indexing.specs.rows.dimensions import COLUMNS_MAX
from penstock.spark.batch.input.dimension_discovery import Found, discovered

SCHEMA = parse_data_schema(
    {
        "dataSource": "wide",
        "timestampSpec": {"column": "t", "format": "auto"},
        "dimensionsSpec": {"dimensions": ["k"], "includeAllDimensions": True},
    }
)


def columns(count: int) -> Found:
    return {f"c{number}": "long" for number in range(count)}


def test_a_batch_of_too_many_columns_is_refused() -> None:
    most = discovered(SCHEMA, columns(COLUMNS_MAX - 1))
    assert len(most.dimensions) == COLUMNS_MAX
    with pytest.raises(InvalidRequest, match="more than 10000 columns: list the dimensions"):
        discovered(SCHEMA, columns(COLUMNS_MAX))


def test_a_stream_of_too_many_columns_keeps_the_first_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        found = discovered(SCHEMA, columns(COLUMNS_MAX + 5), lenient=True)
    assert [d.name for d in found.dimensions] == ["k", *columns(COLUMNS_MAX - 1)]
    [record] = caplog.records
    assert "wide" in record.getMessage()


@pytest.mark.parametrize("lenient", [False, True])
def test_columns_that_can_have_no_name_are_told(
    lenient: bool, caplog: pytest.LogCaptureFixture
) -> None:
    names: Found = dict.fromkeys([" ", "", "__penstock_x", "a"], "long")
    with caplog.at_level(logging.WARNING):
        found = discovered(SCHEMA, names, lenient=lenient)
    assert [d.name for d in found.dimensions] == ["k", "a"]
    [record] = caplog.records
    assert record.getMessage() == (
        "datasource wide: left out 3 columns whose names dimensions cannot have, such as ' ', '',"
        " '__penstock_x'; rename them in the data, or add them to dimensionExclusions to avoid this"
        " warning"
    )


def test_columns_that_are_excluded_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    spec = SCHEMA.dimensions_spec.model_copy(update={"dimension_exclusions": (" ",)})
    discovered(SCHEMA.model_copy(update={"dimensions_spec": spec}), {" ": "long"})
    assert not caplog.records
