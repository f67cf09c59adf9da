"""Messages of delimited text: one row each, or set aside with its offset and the reason."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.indexing.engine import PersistRequest, RowCounts, TopicRange
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.input_formats import CsvFormat, TsvFormat
from penstock.spark.batch.input.delimited import DelimitedParser
from penstock.spark.messages.delimited import DelimitedMessages
from penstock.spark.spark_engine import SparkEngine
from penstock.spark.topic.parse import ParsedRows
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField
from tests.spark.conftest import MakeTopic
from tests.spark.stream_kit import persist_request

COLUMNS = ("at", "name", "size")
SHAPE = RowShape(
    (("name", FieldType.STRING), ("size", FieldType.LONG)), TimeField("at", missing_ms=0)
)
CSV = CsvFormat(columns=COLUMNS)


def make_schema(**parts: object) -> DataSchema:
    return parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "auto"},
            "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]},
            "granularitySpec": {"segmentGranularity": "month"},
            **parts,
        }
    )


def request(
    tmp_path: Path,
    ranges: tuple[TopicRange, ...],
    delimited: CsvFormat | TsvFormat = CSV,
    schema: DataSchema | None = None,
) -> PersistRequest:
    return persist_request(tmp_path, ranges, schema or make_schema(), delimited=delimited)


def parse(messages: list[bytes], list_delimiter: str | None = None) -> ParsedRows:
    parser = DelimitedMessages(DelimitedParser(SHAPE, COLUMNS, ",", list_delimiter))
    return parser.parse(pa.array(messages, pa.binary()))


def names(parsed: ParsedRows) -> list[object]:
    return parsed.rows.column("name").to_pylist()


def test_lines_become_typed_rows_and_bad_ones_are_set_aside(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    messages = [
        b"2013-01-01,a,1",
        b'2013-01-02,"b, with ""quotes""",2\r\n',
        b"2013-01-03,c,many",
        b"",
        b"2013-01-04,d",
        b"2013-01-05,e,5,too,many",
        b"never,f,6",
    ]
    result = engine.persist(request(tmp_path, make_topic(messages)))
    assert result.counts == RowCounts(
        processed=4, unparseable=3, read_bytes=sum(len(one) for one in messages)
    )
    (file,) = result.files
    rows = pq.read_table(file.path).to_pylist()
    assert [(row["name"], row["size"]) for row in rows] == [
        ("a", 1),
        ('b, with "quotes"', 2),
        ("d", None),
        ("e", 5),
    ]
    (bad,) = result.bad_files
    records = [orjson.loads(line) for line in Path(bad).read_bytes().splitlines()]
    assert [record["offset"] for record in records] == [2, 3, 6]
    assert "'size'" in records[0]["reason"]
    assert "empty" in records[1]["reason"]


def test_tabs_lists_transforms_and_roll_up(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path
) -> None:
    messages = [b"1357000000000\tx|y\t%d" % i for i in range(3)]
    schema = make_schema(
        dimensionsSpec={"dimensions": ["name", "loud"]},
        metricsSpec=[
            {"type": "count", "name": "rows"},
            {"type": "longSum", "name": "total", "fieldName": "size"},
        ],
        transformSpec={
            "transforms": [{"type": "expression", "name": "loud", "expression": "upper(name)"}]
        },
        granularitySpec={"segmentGranularity": "month", "rollup": True},
    )
    tsv = TsvFormat(columns=COLUMNS, list_delimiter="|")
    result = engine.persist(request(tmp_path, make_topic(messages), tsv, schema))
    (file,) = result.files
    (row,) = pq.read_table(file.path).to_pylist()
    assert (row["name"], row["loud"]) == ('["x","y"]', '["X","Y"]')
    assert (row["rows"], row["total"]) == (3, 3)
    assert result.counts.processed == 3


def test_a_line_break_within_quotes_is_a_value_and_elsewhere_a_mistake() -> None:
    parsed = parse([b'0,"a\nb",1', b"0,c,2", b"0,d\n0,e,3", b"0,f,4"])
    assert names(parsed) == ["a\nb", "c", "f"]
    assert [bad.index for bad in parsed.bad] == [2]


def test_breaks_and_empty_messages_never_shift_rows() -> None:
    # As many lines as messages, and yet not a line for each.
    parsed = parse([b"0,a,1\n0,b,2", b"", b"0,c,3"])
    assert names(parsed) == ["c"]
    assert [bad.index for bad in parsed.bad] == [0, 1]
    parsed = parse([b'0,"a,1', b"0,b,2\r0,c,3", b"0,d,4"])
    assert names(parsed) == ["d"]


def test_no_messages_are_no_rows() -> None:
    assert parse([]).rows.num_rows == 0
    assert [bad.index for bad in parse([b"", b"\n"]).bad] == [0, 1]


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
            st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
            st.sampled_from([b"", b"\n", b"\r\n"]),
        ),
        max_size=300,
    )
)
def test_what_was_written_is_read_whatever_its_neighbours(
    rows: list[tuple[str, int | None, bytes]],
) -> None:
    messages = []
    for name, size, end in rows:
        line = io.StringIO()
        csv.writer(line, lineterminator="", quoting=csv.QUOTE_ALL).writerow(["0", name, size])
        messages.append(line.getvalue().encode() + end)
    parsed = parse(messages)
    assert not parsed.bad
    assert names(parsed) == [name or None for name, _, _ in rows]
    assert parsed.rows.column("size").to_pylist() == [size for _, size, _ in rows]


@given(st.lists(st.binary(max_size=12), max_size=200))
def test_each_message_is_one_row_or_one_bad_message(messages: list[bytes]) -> None:
    parsed = parse(messages)
    assert parsed.rows.num_rows + len(parsed.bad) == len(messages)
    places = [bad.index for bad in parsed.bad]
    assert places == sorted(set(places))


@pytest.mark.parametrize("message", [b"0,a, 5", b"0,a,5 ", b"0,a,0x10", b"0,a,+5", b"0,a,5.0"])
def test_a_number_is_read_alike_alone_and_beside_a_bad_one(message: bytes) -> None:
    alone, beside = parse([message]), parse([message, b"0,b,x"])
    assert alone.rows.column("size").to_pylist() == beside.rows.column("size").to_pylist()
