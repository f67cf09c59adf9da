"""Times in patterns of Joda: at once as they are one by one, from JSON, CSV and typed columns."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.instants import parse_time
from penstock.core.time_patterns import TimePattern
from penstock.indexing.engine import PersistRequest, RowCounts
from penstock.indexing.specs import parse_data_schema
from penstock.spark.batch.input.schema_casts import conformed
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.spark_engine import SparkEngine
from penstock.spark.topic.parse import MessageParser
from penstock.spark.topic.pattern_times import by_pattern
from penstock.spark.topic.row_shape import FieldType, RowShape, TimeField, TimeFormat, time_format
from tests.spark.spark_batch_kit import local, request, rows_of

if TYPE_CHECKING:
    from tests.spark.conftest import MakeTopic

PATTERNS = (
    "yyyy-MM-dd HH:mm:ss",
    "yyyyMMdd",
    "yyyy-MM-dd'T'HH:mm:ss.SSS",
    "dd/MMM/yyyy:HH:mm:ss Z",
    "M/d/yyyy",
    "yyyy-MM",
    "yyyy-DDD HH",
    "yyyy dd 'Ü' HH.SSSSSS",
    "ss.S mm HH d M yyyy",
)
TEXTS = (
    "2013-02-03 04:05:06",
    "20130230",
    "2013-02-03T24:05:06.789",
    "03/Feb/2013:04:05:06 +0100",
    "12/31/1969",
    "0000-01",
    "2013-366 01",
    "2012 29 Ü 10.123456",
    "59.9 59 23 31 12 9999",
)
DAY = TimePattern.compile("yyyy-MM-dd")


def one_by_one(text: str, pattern: TimePattern) -> int | None:
    try:
        return pattern.parse(text)
    except InvalidRequest:
        return None


def at_once(texts: list[str | None], pattern: TimePattern) -> list[int | None]:
    times: list[int | None] = by_pattern(pa.array(texts, pa.string()), pattern).to_pylist()
    return times


def written(time: dt.datetime, pattern: str) -> str:
    """Write a time as a pattern says that has numbers alone."""
    parts = {
        "yyyy": f"{time.year:04}",
        "MM": f"{time.month:02}",
        "dd": f"{time.day:02}",
        "HH": f"{time.hour:02}",
        "mm": f"{time.minute:02}",
        "ss": f"{time.second:02}",
        "SSS": f"{time.microsecond // 1000:03}",
        "'T'": "T",
    }
    for letters, text in parts.items():
        pattern = pattern.replace(letters, text)
    return pattern


@given(
    st.lists(st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)), max_size=5),  # noqa: DTZ001 - in UTC
    st.sampled_from(PATTERNS[:3]),
)
def test_many_are_read_as_they_are_one_by_one(times: list[dt.datetime], pattern: str) -> None:
    compiled = TimePattern.compile(pattern)
    texts = [written(time, pattern) for time in times]
    wanted = [compiled.parse(text) for text in texts]
    assert at_once([*texts, None, ""], compiled) == [*wanted, None, None]


@given(
    st.lists(st.sampled_from(TEXTS) | st.text("0123456789-/: .TÜ", max_size=20), max_size=4),
    st.sampled_from(PATTERNS),
)
@example(["2013-02-30", "2013-02-03"], "yyyy-MM-dd")
@example(["2013-1-1", "2013-01-01", "2013-1-1"], "yyyy-MM-dd")
def test_what_is_no_time_is_none_either_way(texts: list[str], pattern: str) -> None:
    compiled = TimePattern.compile(pattern)
    filled = [text for text in texts if text]
    wanted = [one_by_one(text, compiled) for text in filled]
    if None in wanted:
        with pytest.raises(InvalidRequest):
            at_once([*filled], compiled)
    else:
        assert at_once([*filled], compiled) == wanted


def test_part_of_a_column_is_read_in_its_place() -> None:
    column = pa.array(["x", "2013-01-01", None, "2013-1-2", "2013-01-03", "y"]).slice(1, 4)
    wanted = [parse_time("2013-01-01"), None, parse_time("2013-01-02"), parse_time("2013-01-03")]
    assert by_pattern(column, DAY).to_pylist() == wanted


def test_a_message_without_such_a_time_is_bad_and_its_neighbours_are_rows() -> None:
    shape = RowShape((("n", FieldType.LONG),), TimeField("at", DAY))
    good = [orjson.dumps({"at": f"2013-01-{1 + n % 28:02}", "n": n}) for n in range(300)]
    for value in ("2013-02-30", 5, True, [1], 2013.5, None):
        messages = [*good[:150], orjson.dumps({"at": value, "n": -1}), *good[150:]]
        parsed = MessageParser(shape).parse(pa.array(messages, pa.binary()))
        assert [bad.index for bad in parsed.bad] == [150]
        assert parsed.rows.column("n").to_pylist() == list(range(300))


@pytest.mark.parametrize("also", [None, FieldType.LONG, FieldType.STRING, FieldType.DOUBLE])
def test_digits_may_be_a_number(also: FieldType | None) -> None:
    fields = () if also is None else (("at", also),)
    shape = RowShape(fields, TimeField("at", TimePattern.compile("yyyyMMdd")))
    messages = [b'{"at":20130203}', b'{"at":"20130204"}']
    for given_ in (messages, messages[:1] * 3, messages[1:]):
        parsed = MessageParser(shape).parse(pa.array(given_, pa.binary()))
        assert not parsed.bad
        assert {t.day for t in parsed.rows.column("__time").to_pylist()} <= {3, 4}


@pytest.mark.parametrize("format_", [DAY, TimeFormat.POSIX])
def test_typed_times_are_times_whatever_is_beside_them(format_: TimePattern | TimeFormat) -> None:
    shape = RowShape((("n", FieldType.LONG),), TimeField("at", format_))
    times = pa.array([0, 86_400_000_000], pa.timestamp("us"))
    for numbers, count in ((["1", "2"], 2), (["1", "two"], 1)):
        batch = pa.RecordBatch.from_arrays([times, pa.array(numbers)], ["at", "n"])
        rows, bad = conformed(batch, shape)
        assert [t.day for t in rows.column("__time").to_pylist()] == [1, 2][:count]
        assert len(bad) == 2 - count


def test_a_pattern_reads_the_same_where_it_was_sent_to() -> None:
    shape = RowShape((), TimeField("at", time_format("yyyy-MM-dd'T'HH")))
    assert pickle.loads(pickle.dumps(shape)) == shape
    with pytest.raises(InvalidRequest):
        time_format("weeks")


@pytest.fixture
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    engine = SparkBatchEngine(sessions)
    yield engine
    engine.close()


@pytest.mark.spark
@pytest.mark.parametrize("rollup", [False, True])
def test_streams_with_times_in_a_pattern(
    engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path, *, rollup: bool
) -> None:
    days = ("03/Feb/2013", "31/Feb/2013", "04/Feb/2013")
    messages = [orjson.dumps({"at": day, "n": n}) for n, day in enumerate(days)]
    ranges = make_topic(messages)
    schema = parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "dd/MMM/yyyy"},
            "dimensionsSpec": {"dimensions": [{"type": "long", "name": "n"}]},
            "granularitySpec": {"segmentGranularity": "day", "rollup": rollup},
        }
    )
    folders = str(tmp_path / "out"), str(tmp_path / "bad")
    result = engine.persist(PersistRequest("task", "topic", ranges, schema, *folders))
    assert result.counts == RowCounts(
        processed=2, unparseable=1, read_bytes=sum(len(one) for one in messages)
    )
    days_ms = [parse_time("2013-02-03"), parse_time("2013-02-04")]
    assert sorted(file.min_time_ms for file in result.files) == days_ms


@pytest.mark.spark
def test_files_with_times_in_a_pattern(batch: SparkBatchEngine, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    # As a number the first would lose its zero.
    file.write_text("01022013,1\n30022013,2\n12312013,3\n")
    parts = {
        "timestampSpec": {"column": "at", "format": "MMddyyyy"},
        "dimensionsSpec": {"dimensions": [{"type": "long", "name": n} for n in ("at", "n")]},
    }
    csv = {"type": "csv", "columns": ["at", "n"], "findColumnsFromHeader": False}
    result = batch.write(request(tmp_path / "out", local(file, format_=csv), parts))
    assert result.counts.unparseable == 1
    rows = sorted((row["n"], str(row["__time"])[:10], row["at"]) for row in rows_of(result))
    assert rows == [(1, "2013-01-02", 1022013), (3, "2013-12-31", 12312013)]
