"""Formats of records: what is read, what is written, and that both fit together."""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import math
import struct
from decimal import Decimal

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.flow.processors.records.formats import avro as avro_format
from penstock.flow.processors.records.formats import columnar, json_lines
from penstock.flow.processors.records.formats.batch_bounds import BATCH_BYTES_MAX, CELLS_MAX
from penstock.flow.processors.records.formats.format_protocols import (
    BadRecords,
    ReadingOptions,
    RecordSource,
    WritingOptions,
)
from penstock.flow.processors.records.formats.json_array import ListLines
from penstock.flow.processors.records.formats.json_text import json_objects
from penstock.flow.processors.records.formats.record_formats import (
    RecordFormat,
    read_records,
    record_writer,
)
from penstock.flow.processors.records.formats.schema_text import parse_schema

Rows = list[dict[str, object]]

UNSET = "<built-in function loads> returned NULL without setting an exception"
LINES, LIST, CSV = RecordFormat.JSON_LINES, RecordFormat.JSON, RecordFormat.CSV


def source(data: bytes) -> RecordSource:
    return RecordSource(lambda: io.BytesIO(data), len(data))


def read(format_: RecordFormat, data: bytes, options: ReadingOptions | None = None) -> Rows:
    records = read_records(format_, source(data), options or ReadingOptions())
    batches = list(records.batches)
    assert all(batch.schema == records.schema for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def schema_of(format_: RecordFormat, data: bytes) -> pa.Schema:
    return read_records(format_, source(data), ReadingOptions()).schema


def write(format_: RecordFormat, table: pa.Table) -> bytes:
    out = io.BytesIO()
    writer = record_writer(format_, out, table.schema, WritingOptions())
    for batch in table.to_batches():
        writer.write(batch)
    writer.close()
    assert not out.closed
    return out.getvalue()


# -- reading


@pytest.mark.parametrize(
    ("format_", "data", "rows"),
    [
        (LINES, b"", []),
        (LINES, b"\n \r\n", []),
        (LINES, b'{"a":1}\r\n\n{"a":2.5,"b":"x"}', [{"a": 1.0, "b": None}, {"a": 2.5, "b": "x"}]),
        (LINES, b'\xef\xbb\xbf{"a":null}', [{"a": None}]),
        (LINES, b'{"a":"2026-01-31"}', [{"a": "2026-01-31"}]),
        (LINES, b'{"a":[{"t":"2026-01-31"}]}', [{"a": [{"t": "2026-01-31"}]}]),
        (LIST, b"[]", []),
        (LIST, b' [ {"a":1},\n{"a":2} ] ', [{"a": 1}, {"a": 2}]),
        (LIST, b'[{"a":"],\\"[\\\\"}]', [{"a": '],"[\\'}]),
        (LIST, b'[{"a":[{"x":1},{"x":2}]},{"a":[]}]', [{"a": [{"x": 1}, {"x": 2}]}, {"a": []}]),
        (LIST, b'{"a":1}', [{"a": 1}]),
        (LIST, b'{"a":\n1}\n{"a":2}', [{"a": 1}, {"a": 2}]),
        (CSV, b"a,b\n", []),
        (CSV, b"a,b,c\n1,x,true\n2,,false\n", [
            {"a": 1, "b": "x", "c": True}, {"a": 2, "b": None, "c": False}
        ]),
        (CSV, b'a,b\n1,"x\ny, ""z"""\n2,""\n', [{"a": 1, "b": 'x\ny, "z"'}, {"a": 2, "b": ""}]),
        (CSV, b"a,b\n007,1.5\n8,2\n", [{"a": "007", "b": 1.5}, {"a": "8", "b": 2.0}]),
        (CSV, b"a,b\ntrue,1\n1,true\n", [{"a": "true", "b": "1"}, {"a": "1", "b": "true"}]),
        (CSV, b"a\n12345678901234567890\n", [{"a": "12345678901234567890"}]),
    ],
)  # fmt: skip
def test_content_is_read_as_records(format_: RecordFormat, data: bytes, rows: Rows) -> None:
    assert read(format_, data) == rows


@pytest.mark.parametrize(
    ("format_", "data", "reason"),
    [
        (LINES, b"[1]\n", "changed from object to array"),
        (LINES, b'{"a":', "not valid JSON"),
        (LINES, b'{"a":"\xff"}', "utf-8"),
        (LINES, b'{"a":1}\n{"a":"x"}', "not valid JSON records|incompatible"),
        (LIST, b"", "empty"),
        (LIST, b"x", "neither a JSON list"),
        (LIST, b"[1, 2]", "object is missing"),
        (LIST, b"[1]", "changed from object"),
        (LIST, b'[{"a":1},,{"a":2}]', "object is missing"),
        (LIST, b'[,{"a":1}]', "object is missing"),
        (LIST, b'[{"a":1},]', "object is missing"),
        (LIST, b'[{"a":1}', "incomplete"),
        (LIST, b'[{"a":"', "incomplete"),
        (LIST, b'[{"a":1}] x', "after the end"),
        (LIST, b'[{"a":1}][{"a":1}]', "after the end|not valid JSON"),
        (LIST, b'[{"a":1}]]', "not opened"),
        (CSV, b"", "empty"),
        (CSV, b"a,b\n1\n", "Expected 2 columns, got 1"),
        (CSV, b"a,a\n1,2\n", "duplicate"),
        (CSV, b"a\n\xff\n", "invalid UTF8"),
        (RecordFormat.PARQUET, b"", "Parquet"),
        (RecordFormat.PARQUET, b"PAR1 and no more", "Parquet"),
        (RecordFormat.ARROW, b"", "Arrow"),
        (RecordFormat.ARROW, b"ARROW1\0\0 and no more", "Arrow"),
        (RecordFormat.ARROW, b"\xff\xff\xff\xff\xff\xff\xff\x7f", "Arrow"),
        (RecordFormat.AVRO, b"", "Avro"),
        (RecordFormat.AVRO, b"Obj\x01 and no more", "Avro"),
    ],
)
def test_bad_content_says_what_is_wrong(format_: RecordFormat, data: bytes, reason: str) -> None:
    with pytest.raises(BadRecords, match=reason):
        read(format_, data)


def test_types_and_fields_are_those_of_all_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.flow.processors.records.formats.json_lines.CHUNK_BYTES", 10)
    lines = [{"a": 1}, {"a": None, "b": {"x": 1}}, {"a": 2.5}, {"b": {"y": "z"}}, {"c": []}]
    data = b"\n".join(orjson.dumps(line) for line in lines)
    expected = [
        {
            "a": line.get("a"),
            "b": {"x": None, "y": None, **line["b"]} if "b" in line else None,
            "c": line.get("c"),
        }
        for line in lines
    ]
    assert read(LINES, data) == expected
    assert read(LIST, b"[" + data.replace(b"\n", b",") + b"]") == expected


def test_a_long_record_is_refused_and_what_is_under_the_bound_is_not() -> None:
    data = b'{"a":"' + b"x" * (9 << 20) + b'"}\n'
    assert len(read(LINES, data * 2)) == 2
    with pytest.raises(BadRecords, match="longer than"):
        read(LINES, data, ReadingOptions(record_max_bytes=8 << 20))
    with pytest.raises(BadRecords, match="longer than"):
        read(LIST, b"[" + data + b"]", ReadingOptions(record_max_bytes=8 << 20))


SCHEMA = parse_schema(
    "a date, t timestamp, n int not null, d decimal(5, 2), s array<struct<x: long>>"
)


def test_a_schema_says_types_and_leaves_other_fields_out() -> None:
    data = (
        b'{"a":"2026-01-02","t":"2026-01-02T03:04:05+02:00","n":3,"d":"1.5","s":[{"x":1}],"z":1}\n'
        b'{"n":1,"t":"2026-01-02 01:02:03"}'
    )
    utc = dt.UTC
    rows: Rows = [
        {
            "a": dt.date(2026, 1, 2),
            "t": dt.datetime(2026, 1, 2, 1, 4, 5, tzinfo=utc),
            "n": 3,
            "d": Decimal("1.50"),
            "s": [{"x": 1}],
        },
        {"a": None, "t": dt.datetime(2026, 1, 2, 1, 2, 3, tzinfo=utc), "n": 1}
        | {"d": None, "s": None},
    ]
    assert read(LINES, data, ReadingOptions(SCHEMA)) == rows
    with pytest.raises(BadRecords, match="unexpected field"):
        read(LINES, data, ReadingOptions(SCHEMA, refuse_others=True))


@pytest.mark.parametrize(
    ("format_", "data", "reason"),
    [
        (LINES, b'{"z":1}', "column 'n': a value is missing"),
        (LINES, b'{"n":1,"a":"x"}', "column 'a' must be date32"),
        (LINES, b'{"n":1,"t":"noon"}', "column 't'"),
        (LINES, b'{"n":3000000000}', "int32"),
        (CSV, b"n,a\n1,x\n", "column 'a' must be date32"),
        (CSV, b"n,d\n1,1.555\n", "column 'd'"),
    ],
)
def test_what_does_not_fit_the_schema_names_the_column(
    format_: RecordFormat, data: bytes, reason: str
) -> None:
    with pytest.raises(BadRecords, match=reason):
        read(format_, data, ReadingOptions(SCHEMA))


def test_csv_without_a_header_has_the_names_of_the_schema_or_numbers() -> None:
    schema = parse_schema("k int, v string")
    options = ReadingOptions(schema, csv_header=False, csv_separator=";")
    assert read(CSV, b"1;x\n", options) == [{"k": 1, "v": "x"}]
    assert read(CSV, b"1,x\n", ReadingOptions(csv_header=False)) == [{"f0": 1, "f1": "x"}]
    assert read(CSV, b"a\n1\n", ReadingOptions(infer_types=False)) == [{"a": "1"}]


# -- writing

TYPED = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int64()),
        "f": [1.5, None, 2.0],
        "s": ['a"b\\', "\n", None],
        "b": [True, None, False],
        "l": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "st": [{"x": 1, "y": "q"}, None, {"x": None, "y": None}],
        "ts": pa.array([0, None, 1], pa.timestamp("us", "UTC")),
        "d": pa.array([0, 1, None], pa.date32()),
        "dec": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(5, 2)),
        "bin": [b"\xff", None, b""],
        "m": pa.array([[("k", 1)], None, []], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.mark.parametrize("format_", [RecordFormat.PARQUET, RecordFormat.AVRO, RecordFormat.ARROW])
def test_formats_with_types_keep_all(format_: RecordFormat) -> None:
    assert read(format_, write(format_, TYPED)) == TYPED.to_pylist()
    assert read(format_, write(format_, TYPED.slice(0, 0))) == []


@pytest.mark.parametrize("format_", [LINES, LIST])
def test_json_has_all_in_its_own_way(format_: RecordFormat) -> None:
    data = write(format_, TYPED)
    lines = data.splitlines() if format_ is LINES else json.loads(data)
    first = json.loads(lines[0]) if format_ is LINES else lines[0]
    assert first == {
        "i": 1, "f": 1.5, "s": 'a"b\\', "b": True, "l": [1, None], "st": {"x": 1, "y": "q"},
        "ts": "1970-01-01T00:00:00.000000Z", "d": "1970-01-01", "dec": 1.5, "bin": "/w==",
        "m": {"k": 1},
    }  # fmt: skip
    second = json.loads(lines[1]) if format_ is LINES else lines[1]
    assert {k for k, v in second.items() if v is not None} == {"s", "d"}
    empty = write(format_, TYPED.slice(0, 0))
    assert read(format_, empty) == []


def test_csv_has_nested_values_as_json() -> None:
    rows = read(CSV, write(CSV, TYPED), ReadingOptions(infer_types=False))
    assert rows[0]["l"] == "[1,null]"
    assert rows[0]["st"] == '{"x":1,"y":"q"}'
    assert rows[1]["st"] is None
    assert rows[0]["bin"] == "/w=="
    assert write(CSV, TYPED.slice(0, 0)).startswith(b'"i","f"')


def test_a_number_with_a_point_is_read_as_one_again() -> None:
    table = pa.table({"f": [1.0, -2.0, 1e300, math.nan, math.inf, -math.inf]})
    data = write(LINES, table)
    assert schema_of(LINES, data) == table.schema
    assert [row["f"] for row in read(LINES, data)] == [1.0, -2.0, 1e300, None, None, None]


def test_large_content_goes_through_in_batches_of_bounded_size() -> None:
    data = b"".join(b'{"id":%d,"text":"%s"}\n' % (n, b"x" * 100) for n in range(100_000))
    records = read_records(LINES, source(data), ReadingOptions(parse_schema("id long")))
    sizes = [batch.num_rows for batch in records.batches]
    assert sum(sizes) == 100_000
    assert len(sizes) > 2


@pytest.mark.parametrize("format_", [RecordFormat.PARQUET, RecordFormat.ARROW])
def test_very_many_columns_come_in_few_rows_at_once(format_: RecordFormat) -> None:
    """As JSON, 8,192 rows of 20,000 columns take gigabytes."""
    table = pa.table(dict.fromkeys(map(str, range(3_000)), pa.array([7] * 1_500)))
    records = read_records(format_, source(write(format_, table)), ReadingOptions())
    batches = list(records.batches)
    assert sum(batch.num_rows for batch in batches) == 1_500
    assert max(batch.num_rows for batch in batches) <= CELLS_MAX // 3_000


def test_large_values_come_in_few_rows_at_once() -> None:
    table = pa.table({"a": ["x" * (1 << 20)] * 80})
    records = read_records(
        RecordFormat.ARROW, source(write(RecordFormat.ARROW, table)), ReadingOptions()
    )
    sizes = [batch.nbytes for batch in records.batches]
    assert len(sizes) > 2
    assert max(sizes) <= BATCH_BYTES_MAX


def test_values_that_a_dictionary_has_once_count_for_each_row() -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int32()), ["0" * (1 << 20)])
    data = write(RecordFormat.ARROW, pa.table({"a": coded}))
    batches = list(read_records(RecordFormat.ARROW, source(data), ReadingOptions()).batches)
    assert max(batch.num_rows for batch in batches) <= BATCH_BYTES_MAX >> 20
    assert sum(batch.num_rows for batch in batches) == 100


def views(value: bytes, rows: int) -> pa.Array:
    """Return a text that stands once, in the only buffer that all rows refer to."""
    each = struct.pack("<i4sii", len(value), value[:4], 0, 0)
    buffers = [None, pa.py_buffer(each * rows), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.string_view(), rows, buffers)


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays(pa.array([100], pa.int32()), ["0" * (1 << 20)]),
        views(b"0" * (1 << 20), 100),
        pa.ListViewArray.from_arrays(
            pa.array([0] * 100, pa.int32()), pa.array([1 << 17] * 100, pa.int32()), range(1 << 17)
        ),
        pa.StructArray.from_arrays([views(b"0" * (1 << 20), 100)], ["inner"]),
    ],
    ids=["runs", "views", "list views", "within a struct"],
)
def test_values_that_a_batch_has_once_count_for_each_row(column: pa.Array) -> None:
    """616 bytes stood for 4,000 rows of 1 MiB, and their JSON took all memory of the process."""
    data = write(RecordFormat.ARROW, pa.table({"a": column}))
    batches = list(read_records(RecordFormat.ARROW, source(data), ReadingOptions()).batches)
    assert max(batch.num_rows for batch in batches) <= BATCH_BYTES_MAX >> 20
    assert sum(batch.num_rows for batch in batches) == 100
    options = ReadingOptions(record_max_bytes=1 << 19)
    with pytest.raises(BadRecords, match="a record is longer"):
        list(read_records(RecordFormat.ARROW, source(data), options).batches)


NO_VALUES = pa.nulls(100 << 16)


@pytest.mark.parametrize(
    "column",
    [
        pa.FixedSizeListArray.from_arrays(NO_VALUES, 1 << 16),
        pa.ListArray.from_arrays(pa.array(range(0, 101 << 16, 1 << 16), pa.int32()), NO_VALUES),
        pa.StructArray.from_arrays([pa.FixedSizeListArray.from_arrays(NO_VALUES, 1 << 16)], ["x"]),
        pa.FixedSizeListArray.from_arrays(pa.repeat(pa.scalar(value=False), 100 << 16), 1 << 16),
        pa.FixedSizeListArray.from_arrays(
            pa.StructArray.from_buffers(pa.struct([]), 100 << 16, [None]), 1 << 16
        ),
        pa.FixedSizeListArray.from_arrays(
            pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), ["0" * (1 << 16)]), 1
        ),
        pa.DictionaryArray.from_arrays(
            pa.array(range(100), pa.int8()), views(b"0" * (1 << 16), 100)
        ),
    ],
    ids=["fixed", "list", "struct", "booleans", "structs", "list of a dictionary", "dictionary"],
)
def test_values_that_take_no_bytes_count(column: pa.Array) -> None:
    """312 bytes stood for 60 lists of a million nulls each, which were read as one batch."""
    data = write(RecordFormat.ARROW, pa.table({"a": column}))
    options = ReadingOptions(record_max_bytes=1 << 16)
    batches = list(read_records(RecordFormat.ARROW, source(data), options).batches)
    assert sum(batch.num_rows for batch in batches) == 100
    options = ReadingOptions(record_max_bytes=(1 << 16) - 1)
    with pytest.raises(BadRecords, match="a record is longer"):
        list(read_records(RecordFormat.ARROW, source(data), options).batches)


DENSE = pa.UnionArray.from_dense(
    pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array(["x"]), pa.array([1])]
)


@pytest.mark.parametrize(
    "column",
    [
        DENSE,
        pa.UnionArray.from_sparse(pa.array([0, 0], pa.int8()), [pa.array(["x", "y"])]),
        pa.StructArray.from_arrays([DENSE], ["inner"]),
        pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), DENSE),
        pa.ExtensionArray.from_storage(pa.opaque(DENSE.type, "a", "b"), DENSE),
    ],
    ids=["dense", "sparse", "within a struct", "within a list", "extension"],
)
def test_unions_are_refused_with_their_column(column: pa.Array) -> None:
    data = write(RecordFormat.ARROW, pa.table({"whole": [1, 2], "mixed": column}))
    with pytest.raises(BadRecords, match="column 'mixed' has a union type"):
        read_records(RecordFormat.ARROW, source(data), ReadingOptions())


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"no name": [1]}),
        pa.table({"d": pa.array([1], pa.duration("s"))}),
        pa.table({"d": pa.array([10**10], pa.decimal128(38, -5))}),
        pa.table({"d": pa.array([None], pa.decimal128(5, 10))}),
        pa.table({"a": [{"b": {"c": 1}}], "a_b": [{"c": 1}]}),
    ],
)
def test_what_avro_has_no_place_for_is_refused(table: pa.Table) -> None:
    with pytest.raises(BadRecords, match="Avro"):
        write(RecordFormat.AVRO, table)


# -- properties

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=3), _json, max_size=3), max_size=4),
    st.sampled_from([None, 2]),
    st.data(),
)
def test_any_list_in_any_pieces_gives_its_records_as_lines(
    records: list[dict[str, object]], indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(records, indent=indent, ensure_ascii=data.draw(st.booleans())).encode(
        "utf-8", "surrogatepass"
    )
    lines = ListLines()
    made = b""
    while text:
        cut = data.draw(st.integers(1, len(text)))
        made += lines.feed(text[:cut])
        text = text[cut:]
    lines.finish()
    assert [json.loads(line) for line in made.splitlines() if line.strip()] == records


_rows = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | st.text(st.characters(exclude_categories=["Cs"])),
            "l": st.none() | st.lists(st.none() | st.text("a\"\\\n'é", max_size=3), max_size=3),
            "st": st.none() | st.fixed_dictionaries({"x\"'": st.none() | st.booleans()}),
        }
    ),
    min_size=1,
    max_size=5,
)
_ROWS_SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "l": pa.list_(pa.string()),
        "st": pa.struct({"x\"'": pa.bool_()}),
    }
)


@given(_rows, st.integers(0, 4))
def test_columns_as_json_are_the_records(rows: Rows, start: int) -> None:
    batch = pa.RecordBatch.from_pylist(rows, _ROWS_SCHEMA).slice(start)
    assert [json.loads(text) for text in json_objects(batch).to_pylist()] == rows[start:]


@given(_rows)
def test_what_is_written_as_json_lines_is_read_back(rows: Rows) -> None:
    table = pa.Table.from_pylist(rows, _ROWS_SCHEMA)
    assert read(LINES, write(LINES, table), ReadingOptions(_ROWS_SCHEMA)) == rows
    assert read(LIST, write(LIST, table), ReadingOptions(_ROWS_SCHEMA)) == rows


def test_a_name_that_is_no_text_is_an_error_of_ours() -> None:
    content = write(RecordFormat.ARROW, pa.table({"name": [1]})).replace(b"name", b"\xecame")
    with pytest.raises(BadRecords, match="names of the columns"):
        read(RecordFormat.ARROW, content)


@given(st.sampled_from([RecordFormat.PARQUET, RecordFormat.AVRO, RecordFormat.ARROW]), st.data())
def test_damaged_content_is_an_error_of_ours_or_some_records(
    format_: RecordFormat, data: st.DataObject
) -> None:
    content = bytearray(write(format_, TYPED.select(["i", "s", "l"])))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadRecords):
        read(format_, bytes(content))


# -- schemas as text


@pytest.mark.parametrize(
    ("text", "schema"),
    [
        ("a int", {"a": pa.int32()}),
        ("`odd ``name` STRING, b.c bigint", {"odd `name": pa.string(), "b.c": pa.int64()}),
        (
            "a array<map<string,double>>, b struct<x: int, y: array<date>>",
            {
                "a": pa.list_(pa.map_(pa.string(), pa.float64())),
                "b": pa.struct({"x": pa.int32(), "y": pa.list_(pa.date32())}),
            },
        ),
        ("d decimal, e decimal(3,1)", {"d": pa.decimal128(10, 0), "e": pa.decimal128(3, 1)}),
    ],
)
def test_a_schema_is_read(text: str, schema: dict[str, pa.DataType]) -> None:
    assert parse_schema(text) == pa.schema(schema)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "name of a field"),
        ("a", "a type is expected"),
        ("a int,", "name of a field"),
        ("a int b int", "comma"),
        ("a number", "character 2: a type is expected"),
        ("a array<int", "> is expected"),
        ("a decimal(40)", "1 to 38 digits"),
        ("a int, a long", "duplicate"),
        ("a struct<x: int not null>", "only a top-level field"),
        ("a " + "array<" * 60 + "int" + ">" * 60, "nest deeper"),
    ],
)
def test_a_wrong_schema_says_where(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        parse_schema(text)


@pytest.mark.parametrize(
    "error", [MemoryError(), pa.ArrowMemoryError("malloc of size 8 failed"), SystemError(UNSET)]
)
@pytest.mark.parametrize("format_", [LINES, RecordFormat.PARQUET, RecordFormat.AVRO])
def test_memory_that_runs_out_is_not_the_contents_fault(
    monkeypatch: pytest.MonkeyPatch, format_: RecordFormat, error: Exception
) -> None:
    data = write(format_, pa.table({"a": [1, 2]}))

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(json_lines.pj, "read_json", fails)
    monkeypatch.setattr(columnar, "_batches", lambda *_: iter(fails, None))
    monkeypatch.setattr(avro_format, "gathered_records", lambda *_: iter(fails, None))
    with pytest.raises(BadRecords, match=r"^the process ran out of its memory.*may be intact"):
        read(format_, data)


@pytest.mark.parametrize(
    ("before", "after"),
    [("[", "]"), ('{"a":', "}"), ('{"a":[', "]}")],
    ids=["lists", "objects", "both"],
)
@pytest.mark.parametrize("format_", [RecordFormat.JSON_LINES, RecordFormat.JSON])
def test_types_of_many_levels_are_refused_before_a_writer_recurses(
    format_: RecordFormat, before: str, after: str
) -> None:
    """From about 250 levels on, a RecursionError rolled the session back without end."""
    width = before.count("[") + before.count("{")
    for levels in (100, 102, 340, 498):
        times = levels // width
        content = ('{"v":' + before * times + "1" + after * times + "}").encode()
        if levels > 100:
            with pytest.raises(BadRecords, match="'v' has more than 100 levels"):
                read_records(format_, source(content), ReadingOptions())
            continue
        table = pa.Table.from_batches(
            read_records(format_, source(content), ReadingOptions()).batches
        )
        for out in (RecordFormat.JSON_LINES, RecordFormat.CSV, RecordFormat.AVRO):
            assert write(out, table)


@pytest.mark.parametrize(
    "field",
    [
        {"type": "fixed", "name": "f", "size": 2**40},
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2**40},
        {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2**20},
    ],
)
def test_types_of_avro_that_no_column_can_have_are_refused(field: dict[str, object]) -> None:
    def bytes_of(schema: object) -> bytes:
        text = orjson.dumps(schema)
        head = b"Obj\x01\x02\x16avro.schema" + _long(len(text)) + text + b"\x00" + b"s" * 16
        return head + b"\x02\x04\x02\x01" + b"s" * 16

    record = {"type": "record", "name": "r", "fields": [{"name": "v", "type": field}]}
    with pytest.raises(BadRecords):
        list(avro_format.read_avro(source(bytes_of(record)), ReadingOptions()).batches)


def _long(number: int) -> bytes:
    """Return a non-negative number in Avro's encoding."""
    left, found = number << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
