"""An expression that fails on purpose is named by the error."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter

from penstock.indexing.batch.batch_engine import BatchRequest, ExternalInput, Partitioning
from penstock.indexing.engine import EngineFailure
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkRefusal, SparkSessions
from penstock.spark.transforms.transform_errors import translate_transform_errors

RAISED = "[USER_RAISED_EXCEPTION] too large SQLSTATE: P0001"


def schema(**expressions: str) -> DataSchema:
    transforms = [{"name": name, "expression": text} for name, text in expressions.items()]
    return parse_data_schema(
        {
            "dataSource": "d",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"dimensions": ["size", "other"]},
            "transformSpec": {"transforms": transforms},
        }
    )


@pytest.mark.parametrize(
    ("text", "given", "told"),
    [
        (RAISED, {"size": "raise_error('x')", "other": "1"}, "^transform 'size' fails on a row"),
        (
            RAISED,
            {"size": "ASSERT_TRUE (n > 1)", "other": "if(a, raise_error('x'), b)"},
            r"^one of the transforms \['size', 'other'\] fails",
        ),
        (RAISED, {"size": "n + 1"}, r"^\[USER_RAISED"),
        ("[DIVIDE_BY_ZERO] …", {"size": "raise_error('x')"}, r"^\[DIVIDE"),
    ],
)
def test_the_transforms_that_may_have_raised_an_error_are_named(
    text: str, given: dict[str, str], told: str
) -> None:
    with pytest.raises(SparkRefusal, match=told), translate_transform_errors(schema(**given)):
        raise SparkRefusal(text)


@pytest.mark.spark
def test_a_batch_task_names_the_transform(sessions: SparkSessions, tmp_path: Path) -> None:
    engine = SparkBatchEngine(sessions)
    rows = '{"at":"2013-01-01","n":1}\n{"at":"2013-01-02","n":7}\n'
    source = {"type": "inline", "data": rows}
    given = ExternalInput(
        TypeAdapter[InputSource](InputSource).validate_python(source), JsonFormat()
    )
    wanted = schema(other="if(n > 5, raise_error('too large'), n)", size="n")
    request = BatchRequest("t", wanted, given, (), Partitioning(), str(tmp_path / "out"))
    try:
        with pytest.raises(EngineFailure, match=r"transform 'other' fails on a row.*too large"):
            engine.write(request)
    finally:
        engine.close()
