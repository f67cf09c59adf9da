"""ValidateRecord."""

from __future__ import annotations

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.flow.processor import InvalidConfiguration, PropertyValue
from penstock.flow.processors.records.formats.format_protocols import BadRecords
from penstock.flow.processors.records.formats.record_formats import RecordFormat
from penstock.flow.processors.records.validate_record import InvalidRecord, ValidateRecord, separate
from penstock.testing.flow import ProcessorRunner, Sent

SCHEMA = "id long not null, name string, at timestamp"


def validated(
    format_: str, content: bytes, **more: PropertyValue
) -> tuple[Sent | None, Sent | None]:
    properties: dict[str, PropertyValue] = {"input_format": format_, "schema": SCHEMA, **more}
    with ProcessorRunner(ValidateRecord, properties) as runner:
        runner.enqueue(content, kept="k")
        runner.run()
        valid, invalid = runner.sent("valid"), runner.sent("invalid")
        assert runner.counts().get("failure") is None
        for sent in [*valid, *invalid]:
            assert sent.attributes["kept"] == "k"
    return (valid or [None])[0], (invalid or [None])[0]


def test_lines_that_fit_stay_as_they_are() -> None:
    content = b'{"name": "x",  "id": 1, "more": true}\n{"id":2,"at":"2026-01-31T10:00:00Z"}\n'
    valid, invalid = validated("json-lines", content)
    assert invalid is None
    assert valid is not None
    assert valid.content == content
    assert valid.attributes["record.count"] == "2"


def test_one_invalid_record_is_not_counted_in_the_plural() -> None:
    _, invalid = validated("json-lines", b'{"id":1}\nno json')
    assert invalid is not None
    assert invalid.attributes["error.reason"].startswith("1 invalid record: record 2: ")


def test_each_bad_line_is_set_apart_as_it_came_with_the_reason() -> None:
    lines = [
        b'{"id":1}', b'{"name":"x"}', b'{"id":"2"}', b'{"id":3,"at":"noon"}', b"no json",
        b"[1]", b'{"id":1.5}', b'{"id":7,"name":{"x":1}}', b'{"id":2}',
    ]  # fmt: skip
    valid, invalid = validated("json-lines", b"\n".join(lines))
    assert valid is not None
    assert invalid is not None
    assert valid.content == b'{"id":1}\n{"id":2}\n'
    assert invalid.content.splitlines() == lines[1:8]
    assert valid.attributes["record.count"] == "2"
    assert invalid.attributes["record.count"] == "7"
    reason = invalid.attributes["error.reason"]
    assert reason.startswith("7 invalid records: record 2: column 'id': a value is missing")
    assert "record 3: field 'id' is a string, but must be a number" in reason
    assert "record 4: column 'at'" in reason


def test_other_fields_are_a_fault_when_asked_for() -> None:
    valid, invalid = validated("json-lines", b'{"id":1,"z":2}\n{"id":1}\n', refuse_others=True)
    assert valid is not None
    assert invalid is not None
    assert "field 'z' is not in the schema" in invalid.attributes["error.reason"]


def test_a_json_list_gives_a_list_and_lines_of_what_is_bad() -> None:
    valid, invalid = validated("json", b'[{"id":1,"name":"x"},\n{"id":null},{"id":\n 3}]')
    assert valid is not None
    assert invalid is not None
    assert [row["id"] for row in orjson.loads(valid.content)] == [1, 3]
    assert invalid.content == b'{"id":null}\n'
    assert invalid.attributes["mime.type"] == "application/x-ndjson"


def test_rows_of_csv_are_judged_by_value_and_by_number_of_fields() -> None:
    content = b"id,name,at\n1,x,\nx,y,\n2\n3,z,2026-01-31 10:00:00\n"
    valid, invalid = validated("csv", content, output_format="json-lines")
    assert valid is not None
    assert invalid is not None
    assert [orjson.loads(line)["id"] for line in valid.content.splitlines()] == [1, 3]
    assert invalid.content == b'"id","name","at"\n"x","y",\n2\n'
    assert "1 fields instead of 3" in invalid.attributes["error.reason"]
    assert invalid.attributes["record.count"] == "2"


def test_csv_whose_only_fault_is_a_short_row_keeps_its_header() -> None:
    _, invalid = validated("csv", b"id,name\n1,x\n2\n")
    assert invalid is not None
    assert invalid.content == b'"id","name"\n2\n'


@pytest.mark.parametrize("format_", [RecordFormat.PARQUET, RecordFormat.AVRO, RecordFormat.ARROW])
def test_columns_are_judged_by_value(format_: RecordFormat) -> None:
    from tests.flow.test_record_formats import read, write

    table = pa.table({"id": ["1", None, "x", "4"], "other": [1, 2, 3, 4]})
    valid, invalid = validated(format_.value, write(format_, table), schema="id long not null")
    assert valid is not None
    assert invalid is not None
    assert read(format_, valid.content) == [{"id": 1}, {"id": 4}]
    bad = [{"id": None, "other": 2}, {"id": "x", "other": 3}]
    assert read(format_, invalid.content) == bad


@pytest.mark.parametrize(
    ("format_", "content"),
    [
        ("json", b""),
        ("json", b'[{"id":1}'),
        ("csv", b""),
        ("parquet", b"x"),
        ("json-lines", b'{"id":1,"name":"\xff"}'),
    ],
)
def test_what_is_not_of_the_format_fails_whole(format_: str, content: bytes) -> None:
    with ProcessorRunner(ValidateRecord, {"input_format": format_, "schema": SCHEMA}) as runner:
        runner.enqueue(content)
        runner.run()
        [failed] = runner.sent("failure")
        assert runner.counts() == {"failure": 1}
    assert failed.content == content
    assert failed.attributes["error.reason"]


def test_nothing_is_valid_and_only_bad_records_go_one_way() -> None:
    valid, invalid = validated("json-lines", b"")
    assert valid is not None
    assert invalid is None
    valid, invalid = validated("json-lines", b"{}\n")
    assert valid is None
    assert invalid is not None


def test_a_schema_is_required() -> None:
    with pytest.raises(InvalidConfiguration, match="schema"):
        ValidateRecord.configured({"input_format": "json"})


class _NoSevens:
    def __init__(self) -> None:
        self.calls = 0

    def fit(self, unit: list[int]) -> pa.RecordBatch:
        self.calls += 1
        if 7 in unit:
            raise BadRecords("a seven")
        return pa.RecordBatch.from_pydict({"n": unit})

    def part(self, unit: list[int], start: int, end: int) -> list[int]:
        return unit[start:end]

    def reason(self, unit: list[int], error: BadRecords) -> str:
        return f"{error} {unit}"


@given(st.lists(st.integers(5, 8), min_size=1, max_size=30))
def test_each_record_is_good_or_bad_and_in_order(numbers: list[int]) -> None:
    parts = list(separate(numbers, _NoSevens()))
    assert [n for part in parts for n in part.unit] == numbers
    for part in parts:
        if isinstance(part, InvalidRecord):
            assert part.unit == [7]
            assert numbers[part.index] == 7
        else:
            assert 7 not in part.unit


def test_a_few_bad_ones_among_many_cost_little() -> None:
    judge = _NoSevens()
    numbers = [1] * 10_000
    numbers[1234] = numbers[9000] = 7
    assert sum(isinstance(part, InvalidRecord) for part in separate(numbers, judge)) == 2
    assert judge.calls < 100
