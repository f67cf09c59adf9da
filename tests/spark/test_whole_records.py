"""Columns of whole records are as a naive merge of each record has them, and no record is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.messages.formats import MetadataColumns, TextFormat
from penstock.spark.messages.found_columns import metadata_column_types
from penstock.spark.messages.headers import header_texts
from penstock.spark.messages.keys import KeyReader
from penstock.spark.messages.record_rows import RecordRows
from penstock.spark.topic.coerce import (
    Json,
    UnparseableError,
    Value,
    object_of,
    row_of,
    row_of_object,
)
from penstock.spark.topic.parse import ParsedRows
from penstock.spark.topic.row_shape import TIME_COLUMN, FieldType, RowShape, TimeField
from penstock.spark.topic.whole_records import WholeRecords, whole_records
from penstock.storage.queue.log_reader import MessageSlice

JSON = TextFormat()
COLUMNS = MetadataColumns(
    "kafka.timestamp",
    "kafka.topic",
    "kafka.partition",
    "kafka.offset",
    "kafka.key",
    JSON,
    "kafka.header.",
    "UTF-8",
)
FIELDS = (
    ("a", FieldType.STRING),
    ("kafka.key", FieldType.LONG),
    ("kafka.header.h", FieldType.STRING),
    ("kafka.header.n", FieldType.LONG),
    ("kafka.timestamp", FieldType.LONG),
    ("kafka.topic", FieldType.STRING),
    ("kafka.partition", FieldType.LONG),
    ("kafka.offset", FieldType.STRING),
)
SHAPE = RowShape(FIELDS, TimeField("kafka.timestamp"))

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Record:
    value: bytes | None = b"{}"
    key: bytes | None = None
    headers: tuple[Header, ...] | None = None
    time_ms: int | None = 7


def records_of(given: Sequence[Record]) -> WholeRecords:
    return WholeRecords(
        "things",
        3,
        pa.array([one.value for one in given], pa.binary()),
        pa.array(range(10, 10 + len(given)), pa.int64()),
        pa.array([one.time_ms for one in given], pa.int64()),
        pa.array([one.key for one in given], pa.binary()),
        pa.array([one.headers for one in given], pa.map_(pa.string(), pa.binary())),
    )


def parse(
    given: Sequence[Record],
    shape: RowShape = SHAPE,
    value_format: TextFormat = JSON,
    columns: MetadataColumns = COLUMNS,
) -> ParsedRows:
    parsed = RecordRows(shape, value_format, columns).parse_records(records_of(given))
    parsed.rows.validate(full=True)
    assert parsed.rows.schema.equals(shape.arrow_schema)
    assert parsed.rows.num_rows + len(parsed.bad) == len(given)
    return parsed


def rows_of(parsed: ParsedRows) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = parsed.rows.drop_columns([TIME_COLUMN]).to_pylist()
    return rows


def times_of(parsed: ParsedRows) -> list[int]:
    return [at // 1000 for at in parsed.rows.column(0).cast(pa.int64()).to_pylist()]


# What a record means, one at a time


def merged(record: Record, offset: int, shape: RowShape) -> dict[str, Json]:
    """Everything that a record has under its names, what its value has first."""
    types = dict(shape.fields)
    names = {*types, shape.time.name if shape.time else ""}
    own = {} if record.value is None else dict(object_of(record.value))
    if record.value is not None:
        row_of(record.value, replace(shape, time=None))
    found = {
        name: value
        for name, value in own.items()
        if value is not None and (value != "" or types.get(name) is FieldType.STRING)
    }
    headers = {f"kafka.header.{name}": value for name, value in record.headers or ()}
    for name in names & headers.keys() - found.keys():
        raw = headers[name]
        if raw is not None:
            found[name] = decoded(raw)
    beside = {"kafka.timestamp": record.time_ms, "kafka.topic": "things", "kafka.partition": 3}
    for name, value in {**beside, "kafka.offset": offset}.items():
        if value is not None:
            found.setdefault(name, value)
    if record.key and "kafka.key" not in found:
        found |= dict(zip(["kafka.key"], object_of(record.key).values(), strict=False))
    return found


def decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise UnparseableError("no text") from None


def expected(given: Sequence[Record], shape: RowShape) -> tuple[list[list[Value]], list[int]]:
    rows: list[list[Value]] = []
    bad: list[int] = []
    for index, record in enumerate(given):
        try:
            rows.append(row_of_object(merged(record, 10 + index, shape), shape))
        except UnparseableError:
            bad.append(index)
    return rows, bad


NAMES = ["a", "at", *(name for name, _ in FIELDS)]
SCALARS = st.sampled_from([None, "", "x", "5", 5, 12, True, -3])
OBJECTS = st.dictionaries(st.sampled_from(NAMES), SCALARS, max_size=4).map(orjson.dumps)
ODD = st.sampled_from([b"", b"{", b"[1]", b"7", b'{"\\u0061":5}', b' { "b" : 6}', b"\xff"])
HEADERS = st.lists(
    st.tuples(st.sampled_from("hno"), st.sampled_from([None, b"", b"5", b"6", b"x", b"\xff"])),
    max_size=3,
)
RECORDS = st.builds(
    Record,
    value=st.one_of(OBJECTS, OBJECTS, st.none(), ODD),
    key=st.one_of(st.none(), OBJECTS, ODD),
    headers=st.one_of(st.none(), HEADERS.map(tuple)),
    time_ms=st.one_of(st.none(), st.integers(0, 9)),
)
TIMES = st.builds(
    TimeField,
    name=st.sampled_from(["at", "kafka.timestamp", "kafka.header.n"]),
    missing_ms=st.sampled_from([None, 4]),
)


@given(st.lists(RECORDS, max_size=12), TIMES)
def test_rows_are_as_each_record_by_itself_has_them(given: list[Record], time: TimeField) -> None:
    shape = replace(SHAPE, time=time)
    parsed = parse(given, shape)
    rows, bad = expected(given, shape)
    assert [one.index for one in parsed.bad] == bad
    assert times_of(parsed) == [row[0] for row in rows]
    assert [list(row.values()) for row in rows_of(parsed)] == [row[1:] for row in rows]


SLICES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 9)), min_size=1)


@given(SLICES)
def test_records_of_a_topic_know_their_offsets_across_gaps(
    given: list[tuple[int, int, int]],
) -> None:
    slices, expected, at = [], [], 0
    for gap, count, time_ms in given:
        at += gap
        slices.append(MessageSlice(at, pa.array([b"x"] * count, pa.binary()), time_ms))
        expected += [(at + n, time_ms) for n in range(count)]
        at += count
    found = whole_records(slices, "things", 3)
    places = zip(found.offsets.to_pylist(), found.times_ms.to_pylist(), strict=True)
    assert list(places) == expected
    assert len(found) == len(expected)


def test_what_is_beside_values_becomes_columns() -> None:
    given = [
        Record(b'{"a":"x"}', b'{"id":8,"z":1}', (("h", b"old"), ("h", b"new"), ("n", b"4")), 1_000),
        Record(None, None, None, 2_000),
    ]
    parsed = parse(given)
    assert times_of(parsed) == [1_000, 2_000]
    assert rows_of(parsed) == [
        {
            "a": "x",
            "kafka.key": 8,
            "kafka.header.h": "new",
            "kafka.header.n": 4,
            "kafka.timestamp": 1_000,
            "kafka.topic": "things",
            "kafka.partition": 3,
            "kafka.offset": "10",
        },
        {
            "a": None,
            "kafka.key": None,
            "kafka.header.h": None,
            "kafka.header.n": None,
            "kafka.timestamp": 2_000,
            "kafka.topic": "things",
            "kafka.partition": 3,
            "kafka.offset": "11",
        },
    ]


def test_reasons_say_what_is_wrong_with_a_record() -> None:
    given = [
        Record(b"{"),
        Record(key=b"oops"),
        Record(key=b'{"id":"x"}'),
        Record(headers=(("h", b"\xff"),)),
        Record(headers=(("n", b"many"),)),
        Record(None, time_ms=None),
    ]
    reasons = [one.reason for one in parse(given).bad]
    assert "not JSON" in reasons[0]
    assert reasons[1].startswith("key: not JSON")
    assert reasons[2].startswith("key: field 'id': \"x\" is not a long")
    assert reasons[3] == "header 'h' is not UTF-8"
    assert "'kafka.header.n'" in reasons[4]
    assert reasons[5] == "no time: field 'kafka.timestamp' is missing or null"


def test_lines_have_values_and_keys_too() -> None:
    tsv = TextFormat(("x", "y"), "\t")
    csv = TextFormat(("a", "kafka.topic"))
    given = [Record(b"1,mine", b"5\tz"), Record(b"2,", b"6"), Record(b"3"), Record(None, b"")]
    parsed = parse(given, value_format=csv, columns=replace(COLUMNS, key_format=tsv))
    rows = rows_of(parsed)
    assert [row["a"] for row in rows] == ["1", "2", "3", None]
    assert [row["kafka.key"] for row in rows] == [5, 6, None, None]
    assert [row["kafka.topic"] for row in rows] == ["mine", "things", "things", "things"]


def test_keys_and_headers_are_columns_only_where_their_formats_are_given() -> None:
    columns = replace(COLUMNS, key_format=None, encoding=None)
    (row,) = rows_of(parse([Record(key=b"5", headers=(("h", b"x"),))], columns=columns))
    assert row["kafka.key"] is None
    assert row["kafka.header.h"] is None
    assert row["kafka.timestamp"] == 7


def test_a_topic_without_keys_and_headers_has_the_rest() -> None:
    given = replace(records_of([Record(b'{"kafka.key":3}')]), keys=None, headers=None)
    (row,) = rows_of(RecordRows(SHAPE, JSON, COLUMNS).parse_records(given))
    assert row["kafka.key"] == 3
    assert row["kafka.header.h"] is None
    assert row["kafka.offset"] == "10"
    assert metadata_column_types(given, COLUMNS).keys() == {
        "kafka.timestamp",
        "kafka.topic",
        "kafka.partition",
        "kafka.offset",
    }


def test_keys_of_many_shapes_are_read_each_by_its_first_name() -> None:
    keys = [b'{"k%d":%d,"k0":-1}' % (n, n) for n in range(40)]
    odd = [b'{"\\u006b":40}', b"{}", None, b'{"a":"z"}']
    reader = KeyReader(JSON, "kafka.key", FieldType.LONG)
    values, bad = reader.read(pa.array([*keys, *odd, *keys], pa.binary()))
    # Of a key given twice the last counts.
    numbers = [-1, *range(1, 40)]
    good = [*numbers, 40, None, None, None, *numbers]
    assert [one.index for one in bad] == [43]
    assert values.to_pylist() == good


@pytest.mark.parametrize(
    ("encoding", "raw", "text"),
    [
        ("UTF-8", "grün€".encode(), "grün€"),
        ("UTF-16", b"\xff\xfe" + "grün€".encode("utf-16-le"), "grün€"),
        ("UTF-16", "grün€".encode("utf-16-be"), "grün€"),
        ("UTF-16BE", "grün€".encode("utf-16-be"), "grün€"),
        ("UTF-16LE", "grün€".encode("utf-16-le"), "grün€"),
        ("ISO-8859-1", "grün".encode("latin-1"), "grün"),
        ("US-ASCII", b"green", "green"),
        ("US-ASCII", "grün".encode(), None),
        ("UTF-8", b"gr\xfcn", None),
        ("UTF-16LE", b"x", None),
    ],
)
def test_headers_are_text_of_their_encoding(encoding: str, raw: bytes, text: str | None) -> None:
    plain = "plain".encode(encoding)
    texts, bad = header_texts(pa.array([None, raw, plain, raw], pa.binary()), "h", encoding)
    assert texts.to_pylist() == [None, text, "plain", text]
    assert [one.index for one in bad] == ([] if text else [1, 3])


def test_columns_are_found_beside_values() -> None:
    given = [
        Record(key=b'{"id":1}', headers=(("h", b"x"), ("n", None))),
        Record(None, key=b'{"\\u0061":1.5}', headers=(("o", b"x"),)),
    ]
    assert metadata_column_types(records_of(given), COLUMNS) == {
        "kafka.header.h": "string",
        "kafka.header.n": "string",
        "kafka.header.o": "string",
        "kafka.timestamp": "long",
        "kafka.topic": "string",
        "kafka.partition": "long",
        "kafka.offset": "long",
        "kafka.key": "double",
    }
