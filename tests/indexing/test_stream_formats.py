"""What a stream's messages are written in, and that its tasks know it."""

from __future__ import annotations

import orjson

from penstock.indexing.specs import SupervisorSpec, parse_supervisor_spec
from penstock.indexing.specs.input_formats import TsvFormat
from penstock.indexing.task_spec import (
    MessageTimes,
    StreamTaskSpec,
    base_sequence_name,
    make_task,
    parse_task_spec,
)
from tests.indexing.indexing_kit import spec_json


def spec_of(input_format: object) -> SupervisorSpec:
    raw = orjson.loads(orjson.dumps(spec_json()))
    raw["spec"]["ioConfig"]["inputFormat"] = input_format
    return parse_supervisor_spec(raw)


def task_of(spec: SupervisorSpec) -> StreamTaskSpec:
    return make_task(
        spec, 0, {0: 0}, None, topic_id="", times=MessageTimes(None, None), token="abcdefgh"
    )


def test_a_task_knows_how_its_messages_are_written() -> None:
    tsv = {"type": "tsv", "columns": ["a", "b"], "delimiter": "|", "listDelimiter": ","}
    task = task_of(spec_of(tsv))
    assert parse_task_spec(task.to_json()).delimited == TsvFormat(
        columns=("a", "b"), delimiter="|", list_delimiter=","
    )
    assert task_of(spec_of({"type": "json"})).delimited is None


def test_tasks_of_another_format_are_other_tasks() -> None:
    formats = [
        {"type": "json"},
        {"type": "csv", "columns": ["a"]},
        {"type": "csv", "columns": ["a", "b"]},
        {"type": "tsv", "columns": ["a", "b"]},
    ]
    names = {base_sequence_name(spec_of(one), {0: 0}) for one in formats}
    assert len(names) == len(formats)


def test_a_stream_may_leave_its_dimensions_to_the_data() -> None:
    raw = orjson.loads(orjson.dumps(spec_json()))
    raw["spec"]["dataSchema"]["dimensionsSpec"] = {"useSchemaDiscovery": True}
    schema = parse_supervisor_spec(raw).data_schema
    assert schema.dimensions_spec.discovers
    assert schema.dimensions == ()
