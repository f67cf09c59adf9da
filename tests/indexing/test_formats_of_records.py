"""Specs of streams whose rows have columns beside the values of records: `kafka` formats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.indexing.specs import SpecError, SupervisorSpec, parse_supervisor_spec
from penstock.indexing.specs.batch.batch_task_specs import parse_batch_task
from penstock.indexing.specs.input_formats import JsonFormat, TsvFormat
from penstock.indexing.specs.rows.stream_formats import HeaderFormat, KafkaFormat
from penstock.indexing.task_spec import MessageTimes, base_sequence_name, make_task, parse_task_spec
from tests.indexing.indexing_kit import OneTask, event, spec_json

TSV = {"type": "tsv", "findColumnsFromHeader": False, "columns": ["x"]}
# As Druid's documentation has it.
DRUIDS = {
    "type": "kafka",
    "valueFormat": {"type": "json"},
    "timestampColumnName": "kafka.timestamp",
    "topicColumnName": "kafka.topic",
    "headerFormat": {"type": "string", "encoding": "UTF-8"},
    "headerColumnPrefix": "kafka.header.",
    "keyFormat": TSV,
    "keyColumnName": "kafka.key",
}


def spec_of(
    input_format: object, io: Mapping[str, object] | None = None, **schema: object
) -> SupervisorSpec:
    raw = orjson.loads(orjson.dumps(spec_json()))
    raw["spec"]["ioConfig"] |= {"inputFormat": input_format, **(io or {})}
    raw["spec"]["dataSchema"] |= schema
    return parse_supervisor_spec(raw)


def test_a_format_of_druids_is_taken_with_its_defaults() -> None:
    format_ = spec_of(DRUIDS).io.record_format
    assert format_ == KafkaFormat(
        type="kafka",
        value_format=JsonFormat(),
        header_format=HeaderFormat(),
        key_format=TsvFormat(columns=("x",), find_columns_from_header=False),
    )
    assert format_.partition_column_name == "kafka.partition"
    assert format_.offset_column_name == "kafka.offset"
    plain = spec_of({"type": "kafka", "valueFormat": {}}).io
    assert plain.record_format == KafkaFormat(type="kafka", value_format=JsonFormat())
    assert plain.delimited is None


def test_a_format_is_taken_as_druid_writes_it() -> None:
    tsv = TSV | {"delimiter": "\t", "listDelimiter": None, "skipHeaderRows": 0}
    written = {
        "type": "kafka",
        "headerFormat": None,
        "keyFormat": tsv | {"tryParseNumbers": False},
        "valueFormat": {"type": "json", "keepNullColumns": False, "useJsonNodeReader": False},
        "headerColumnPrefix": "kafka.header.",
        "keyColumnName": "kafka.key",
        "timestampColumnName": "kafka.timestamp",
        "topicColumnName": "kafka.topic",
        "partitionColumnName": None,
        "offsetColumnName": "kafka.offset",
    }
    format_ = spec_of(written).io.record_format
    assert format_ is not None
    assert format_.header_format is None
    assert format_.partition_column_name == "kafka.partition"


def test_a_task_knows_what_its_records_have_beside_their_values() -> None:
    spec = spec_of({**DRUIDS, "valueFormat": TSV})
    times = MessageTimes(None, None)
    task = make_task(spec, 0, {0: 0}, None, topic_id="", times=times, token="abcdefgh")
    again = parse_task_spec(task.to_json())
    assert again == task
    assert again.record_format == spec.io.record_format
    assert again.delimited == TsvFormat(columns=("x",), find_columns_from_header=False)
    assert parse_supervisor_spec(spec.to_json()) == spec
    # Workers of an earlier release take tasks that need nothing of it.
    plain = make_task(
        spec_of({"type": "json"}), 0, {0: 0}, None, topic_id="", times=times, token="abcdefgh"
    )
    assert "recordFormat" not in plain.to_json()


def test_a_task_asks_its_engine_for_the_columns_of_records(tmp_path: Path) -> None:
    format_ = spec_of(DRUIDS).io.record_format
    world = OneTask(tmp_path, record_format=format_)
    world.broker.add("flights", 0, map(event, range(3)))
    world.run(lambda: bool(world.engine.persists))
    assert world.engine.persists[0].record_format == format_
    world.metadata.close()


def test_tasks_of_other_columns_are_other_tasks() -> None:
    formats = [
        {"type": "json"},
        {"type": "kafka", "valueFormat": {"type": "json"}},
        {"type": "kafka", "valueFormat": {"type": "json"}, "keyColumnName": "k"},
        DRUIDS,
    ]
    names = {base_sequence_name(spec_of(one), {0: 0}) for one in formats}
    assert len(names) == len(formats)


@pytest.mark.parametrize(
    ("changes", "place", "remedy"),
    [
        ({"valueFormat": None}, "valueFormat", "must be an object"),
        ({"valueFormat": {"type": "parquet"}}, "valueFormat.type", "read it in a batch task"),
        ({"valueFormat": DRUIDS}, "valueFormat.type", "set the format of the value"),
        (
            {"keyFormat": {"type": "csv", "findColumnsFromHeader": True}},
            "keyFormat.findColumnsFromHeader",
            "list the columns",
        ),
        ({"headerFormat": {"encoding": "UTF-7"}}, "headerFormat.encoding", "UTF-16"),
        ({"headerLabelPrefix": "h."}, "headerLabelPrefix", "headerColumnPrefix"),
        ({"topicColumnName": ""}, "topicColumnName", "must not be empty"),
        ({"keyColumnName": "Kafka.Topic"}, "keyColumnName", "of topicColumnName already"),
        ({"keyColumName": "k"}, "keyColumName", "keyColumnName"),
    ],
)
def test_mistakes_are_told_in_their_place(changes: dict[str, Any], place: str, remedy: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec_of(DRUIDS | changes)
    (found,) = caught.value.mistakes
    assert found.place == f"spec.ioConfig.inputFormat.{place}"
    assert remedy in found.message


def test_a_format_without_that_of_the_value_is_a_mistake() -> None:
    with pytest.raises(SpecError, match=r"inputFormat\.valueFormat: is required"):
        spec_of({"type": "kafka"})


def test_an_encoding_has_no_case() -> None:
    header = {"headerFormat": {"type": "string", "encoding": "iso-8859-1"}}
    format_ = spec_of(DRUIDS | header).io.record_format
    assert format_ is not None
    assert format_.header_format == HeaderFormat(encoding="ISO-8859-1")


def test_lines_of_files_have_nothing_beside_them() -> None:
    raw = orjson.loads(orjson.dumps(spec_json()))
    raw["type"] = "folder"
    raw["spec"]["ioConfig"] = {"type": "folder", "baseDir": "/data", "inputFormat": DRUIDS}
    with pytest.raises(SpecError, match="lines of files have no keys") as caught:
        parse_supervisor_spec(raw)
    assert caught.value.place == "spec.ioConfig.inputFormat.type"


def test_a_batch_task_says_what_to_do_instead() -> None:
    task: dict[str, Any] = {
        "type": "index_parallel",
        "spec": {
            "dataSchema": {"dataSource": "things", "dimensionsSpec": {"dimensions": ["a"]}},
            "ioConfig": {
                "type": "index_parallel",
                "inputSource": {"type": "inline", "data": "{}"},
                "inputFormat": DRUIDS,
            },
        },
    }
    with pytest.raises(SpecError, match="set the format of the value: only records of a stream"):
        parse_batch_task(task)


@pytest.mark.parametrize("format_", ["iso", "posix", "yyyy-MM-dd"])
def test_a_records_own_time_is_read_as_what_it_is(format_: str) -> None:
    time = {"column": "kafka.timestamp", "format": format_}
    with pytest.raises(SpecError, match="counts milliseconds: write millis") as caught:
        spec_of(DRUIDS, timestampSpec=time)
    assert caught.value.place == "spec.dataSchema.timestampSpec.format"
    for good in ("millis", "auto"):
        spec_of(DRUIDS, timestampSpec=time | {"format": good})
    # A column of that name in messages is what the messages say.
    spec_of({"type": "json"}, timestampSpec=time)
