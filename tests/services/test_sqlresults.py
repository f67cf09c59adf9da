"""The six result formats."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.services.api.sql_results import (
    CONTENT_TYPES,
    GROUP_ROWS,
    TypeName,
    check_columns,
    check_format,
    write_rows,
)

TABLE = pa.table(
    {
        "__time": pa.array(
            [dt.datetime(2013, 1, 1, 5, 0, 0, 123_456, tzinfo=dt.UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        'na"me': ["a,b", 'q"\n'],
        "n": pa.array([1, None], pa.int64()),
        "d": [decimal.Decimal("1.50"), None],
    }
)


def text(result_format: str, *, header: bool = False, table: pa.Table = TABLE) -> str:
    return b"".join(write_rows(table, result_format, header=header)).decode()


def test_object_and_array() -> None:
    first = {"__time": "2013-01-01T05:00:00.123Z", 'na"me': "a,b", "n": 1, "d": 1.5}
    second = {"__time": None, 'na"me': 'q"\n', "n": None, "d": None}
    assert json.loads(text("object")) == [first, second]
    assert json.loads(text("array")) == [list(first.values()), list(second.values())]
    assert json.loads(text("array", header=True))[0] == list(first)
    assert json.loads(text("object", header=True))[0] == dict.fromkeys(first)


TYPED = pa.table(
    {
        "t": pa.array([None], pa.timestamp("us", "UTC")),
        "s": pa.array([None], pa.string()),
        "l": pa.array([1], pa.int64()),
        "i": pa.array([1], pa.int32()),
        "d": pa.array([1.5], pa.float64()),
        "f": pa.array([1.5], pa.float32()),
        "b": pa.array([True]),
        "n": pa.array([None], pa.decimal128(10, 2)),
        "day": pa.array([None], pa.date32()),
        "a": pa.array([["x"]], pa.list_(pa.string())),
        "o": pa.array([{"x": 1}]),
        "raw": pa.array([b"x"]),
    }
)
DRUIDS = "LONG STRING LONG LONG DOUBLE FLOAT LONG DOUBLE LONG ARRAY<STRING> COMPLEX<json> COMPLEX"
SQLS = "TIMESTAMP VARCHAR BIGINT INTEGER DOUBLE FLOAT BOOLEAN DECIMAL DATE ARRAY OTHER OTHER"


def typed(result_format: str, *types: TypeName) -> str:
    return b"".join(write_rows(TYPED, result_format, header=True, types=types)).decode()


def test_a_header_tells_types() -> None:
    """By which clients of Druid, its console above all, know what is a number or a time."""
    names, druids, sqls = TYPED.column_names, DRUIDS.split(), SQLS.split()
    assert json.loads(typed("array", "type", "sqlType"))[:3] == [names, druids, sqls]
    assert json.loads(typed("array", "sqlType"))[:2] == [names, sqls]
    assert json.loads(typed("object", "type", "sqlType"))[0] == {
        name: {"type": druid, "sqlType": sql}
        for name, druid, sql in zip(names, druids, sqls, strict=True)
    }
    assert json.loads(typed("object", "type"))[0]["d"] == {"type": "DOUBLE"}
    assert typed("csv", "type", "sqlType").splitlines()[1:3] == [",".join(druids), ",".join(sqls)]
    assert json.loads(typed("arrayLines", "type").splitlines()[1]) == druids
    empty = pa.table({})
    assert json.loads(b"".join(write_rows(empty, "object", header=True, types=("type",)))) == [{}]


def test_lines_end_with_an_empty_line() -> None:
    lines = text("objectLines", header=True).split("\n")
    assert lines[-2:] == ["", ""]
    assert [json.loads(line)["n"] for line in lines[:-2]] == [None, 1, None]
    assert json.loads(text("arrayLines").split("\n", maxsplit=1)[0])[2] == 1


def test_csv() -> None:
    assert text("csv", header=True) == (
        '__time,"na""me",n,d\n2013-01-01T05:00:00.123Z,"a,b",1,1.5\n,"q""\n",,\n\n'
    )


def test_no_rows_and_equal_names() -> None:
    empty = TABLE.slice(0, 0)
    assert text("object", table=empty) == "[]"
    assert text("csv", table=empty) == "\n"
    twice = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert text("array", table=twice) == "[[1,2]]"


def test_times_of_any_year_and_nested_values() -> None:
    table = pa.table(
        {
            "t": pa.array([-62_135_596_800_000_000, 253_402_214_400_000_000], pa.timestamp("us")),
            "day": [dt.date(2013, 1, 1), None],
            "s": [{"a": [1, None]}, None],
            "b": [b"\xff", None],
        }
    )
    assert json.loads(text("array", table=table)) == [
        ["0001-01-01T00:00:00.000Z", "2013-01-01", {"a": [1, None]}, "/w=="],
        ["9999-12-31T00:00:00.000Z", None, None, None],
    ]


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    assert check_format(None) == "object"
    with pytest.raises(
        InvalidRequest, match=r"resultFormat: unknown result format 'xml'.*arrayLines"
    ):
        check_format("xml")


@given(
    st.lists(st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.text())),
    st.sampled_from([name for name in CONTENT_TYPES if name not in {"csv", "parquet", "arrow"}]),
)
def test_json_formats_say_what_the_table_says(
    rows: list[tuple[int | None, str | None]], result_format: str
) -> None:
    table = pa.table(
        {
            "n": pa.array([row[0] for row in rows], pa.int64()),
            "s": pa.array([row[1] for row in rows], pa.string()),
        }
    )
    written = text(result_format, table=table)
    if result_format.endswith("Lines"):
        found = [json.loads(line) for line in written.split("\n") if line]
    else:
        found = json.loads(written)
    assert [tuple(one.values() if isinstance(one, dict) else one) for one in found] == rows


DAYS = pa.array(
    [0, -719_162, -719_163, -719_529, 2_932_896, 2_932_897, 35_804_721, None], pa.int32()
)
DATES = [
    "1970-01-01",
    "0001-01-01",
    "0000-12-31",
    "-0001-12-31",
    "9999-12-31",
    "10000-01-01",
    "99999-12-31",
    None,
]


@pytest.mark.parametrize("form", ["array", "csv"])
def test_days_and_times_of_any_year_are_written(form: str) -> None:
    """Python has the years 1 to 9999; others cut an answer whose status was sent."""
    days = DAYS.cast(pa.date32())
    micros = pa.array(
        [None if one is None else one * 86_400_000_000 + 123_456 for one in DAYS.to_pylist()]
    )
    utc = micros.cast(pa.timestamp("us", "UTC"))
    table = pa.table({"day": days, "time": utc, "ntz": micros.cast(pa.timestamp("us"))})
    written = text(form, table=table)
    times = [one and f"{one}T00:00:00.123Z" for one in DATES]
    rows = list(zip(DATES, times, times, strict=True))
    if form == "array":
        assert json.loads(written) == [list(row) for row in rows]
    else:
        assert written == "".join(",".join(one or "" for one in row) + "\n" for row in rows) + "\n"


def test_days_of_any_year_are_written_within_others() -> None:
    day = pa.scalar(2_932_897, pa.int32()).cast(pa.date32())
    days = pa.array([day, None])
    row = pa.StructArray.from_arrays([days, pa.array([1, 2])], ["day", "n"])
    table = pa.table(
        {
            "list": pa.ListArray.from_arrays(pa.array([0, 2, 2], pa.int32()), days),
            "row": row,
            "rows": pa.ListArray.from_arrays(pa.array([0, 0, 2], pa.int32()), row),
            "map": pa.MapArray.from_arrays(pa.array([0, 1, 1], pa.int32()), days[:1], days[:1]),
        }
    )
    far = "10000-01-01"
    assert json.loads(text("array", table=table)) == [
        [[far, None], {"day": far, "n": 1}, [], [[far, far]]],
        [[], {"day": None, "n": 2}, [{"day": far, "n": 1}, {"day": None, "n": 2}], []],
    ]


def test_text_that_is_not_utf8_has_signs_for_what_is_not() -> None:
    raw = pa.array([b"a\xff", "é".encode(), None], pa.binary())
    table = pa.table({"t": pa.Array.from_buffers(pa.string(), 3, raw.buffers())})
    assert json.loads(text("array", table=table)) == [["a\ufffd"], ["é"], [None]]


def read_parquet(table: pa.Table) -> pq.ParquetFile:
    return pq.ParquetFile(io.BytesIO(b"".join(write_rows(table, "parquet", header=False))))


def test_parquet_keeps_types_and_values() -> None:
    assert read_parquet(TABLE).read().equals(TABLE)
    assert read_parquet(TABLE.slice(0, 0)).read().schema == TABLE.schema


def test_arrow_keeps_types_and_values() -> None:
    for table in (TABLE, TABLE.slice(0, 0)):
        stream = b"".join(write_rows(table, "arrow", header=False))
        assert pa.ipc.open_stream(stream).read_all().equals(table)
    many = pa.table({"n": range(50_000)})
    chunks = list(write_rows(many, "arrow", header=False))
    assert len(chunks) > 3, "a slow client keeps little in memory"
    assert pa.ipc.open_stream(b"".join(chunks)).read_all().equals(many)


def test_parquet_is_written_in_row_groups() -> None:
    table = pa.table({"n": range(2 * GROUP_ROWS + 20_000)})
    chunks = list(write_rows(table, "parquet", header=False))
    assert len(chunks) == 3
    found = read_parquet(table)
    assert found.metadata.num_row_groups == 3
    assert found.read().equals(table)


def test_columns_that_parquet_cannot_have_are_refused() -> None:
    twice = pa.table([pa.array([1]), pa.array([2])], names=["n", "n"])
    with pytest.raises(InvalidRequest, match="2 columns of the answer are named 'n'"):
        check_columns(twice.schema, "parquet")
    months = pa.schema([("m", pa.month_day_nano_interval())])
    with pytest.raises(InvalidRequest, match="'m' has the type month_day_nano_interval"):
        check_columns(months, "parquet")
    check_columns(months, "array")
    check_columns(TABLE.schema, "parquet")
