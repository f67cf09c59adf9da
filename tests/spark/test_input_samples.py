"""Samples of inputs: what is guessed, which rows fail, and what a granularity would make."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, InvalidRequest, NotFound
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.input_sample import parse_sample_request
from penstock.spark.batch.input.input_guesses import guessed_format, guessed_times
from penstock.spark.batch.input.input_sample import HEAD_BYTES, ROWS_SHOWN, InputSampler
from penstock.spark.batch.input.text_lines import BLOCK_BYTES
from penstock.spark.batch.options import SparkBatchOptions
from tests.spark.spark_batch_kit import Reply, served

CSV = "day,shop,cents,open\n2025-11-20,Bern,350,true\n2025-12-21,Basel,1.5,false\n"


def sample(body: dict[str, Any], folder: Path, fetch_bytes_max: int = 1 << 30) -> dict[str, Any]:
    request = parse_sample_request(json.dumps(body))
    options = SparkBatchOptions(line_bytes_max=1 << 20, fetch_bytes_max=fetch_bytes_max)
    return InputSampler(request, options, folder / "scratch").sample()


def of_text(text: str, folder: Path, **more: object) -> dict[str, Any]:
    return sample({"inputSource": {"type": "inline", "data": text}, **more}, folder)


def of_file(name: str, content: bytes, folder: Path, **more: object) -> dict[str, Any]:
    (folder / name).write_bytes(content)
    return sample({"inputSource": {"type": "local", "files": [str(folder / name)]}, **more}, folder)


def test_a_csv_file_is_proposed_as_it_is(tmp_path: Path) -> None:
    found = of_text(CSV + "yesterday,Chur,1,true\n", tmp_path)
    assert found["inputFormat"] == {"type": "csv", "findColumnsFromHeader": True}
    assert found["timestampSpec"] == {"column": "day", "format": "iso"}
    assert found["dimensions"] == [
        {"name": "shop", "type": "string"},
        {"name": "cents", "type": "double"},
        {"name": "open", "type": "string"},
    ]
    assert found["rows"][0] == {
        "__time": "2025-11-20T00:00:00.000Z",
        "shop": "Bern",
        "cents": 350.0,
        "open": "true",
    }
    [error] = found["errors"]
    assert (error["place"], error["row"]) == ("line 4", "yesterday,Chur,1,true")
    assert "not an ISO 8601 time" in error["reason"]
    assert found["read"] == {"rows": 2, "bad": 1, "whole": True}
    time = found["time"]
    assert (time["start"][:10], time["end"][:10]) == ("2025-11-20", "2025-12-21")
    assert (time["rows"], time["exact"], time["usualGranularity"]) == (2, True, "MONTH")
    chunks = {one["name"]: (one["chunks"], one["rowsEach"]) for one in time["granularities"]}
    assert chunks["MONTH"] == (2, 1)
    assert chunks["YEAR"] == chunks["ALL"] == (1, 2)


def test_a_line_that_is_not_a_row_makes_no_text_of_numbers(tmp_path: Path) -> None:
    text = (
        "when,shop,n,price,code,none\n"
        "2026-11-01T00:00:00Z,Bern,1,1.5,a1,\n"
        "2026-11-02T00:00:00Z,Basel,2,,7,\n"
        "total,in all,three,-,x,y\n"
    )
    found = of_text(text, tmp_path)
    types = {one["name"]: one["type"] for one in found["dimensions"]}
    assert types == {
        "shop": "string",
        "n": "long",
        "price": "double",
        "code": "string",
        "none": "string",
    }
    assert [one["place"] for one in found["errors"]] == ["line 4"]
    assert [row["n"] for row in found["rows"]] == [1, 2]


def test_what_a_person_changes_is_used(tmp_path: Path) -> None:
    found = of_text(
        CSV,
        tmp_path,
        timestampSpec={"column": "none", "missingValue": "2020-01-01"},
        dimensions=[{"name": "day"}, {"name": "cents", "type": "long"}],
    )
    assert [row["day"] for row in found["rows"]] == ["2025-11-20"]
    assert found["rows"][0]["__time"] == "2020-01-01T00:00:00.000Z"
    assert "'cents'" in found["errors"][0]["reason"]  # 1.5 is not a long


def test_without_a_time_the_rows_are_shown_and_the_time_is_left_open(tmp_path: Path) -> None:
    found = of_text("1,Bern\n2,Basel\n", tmp_path)
    assert found["inputFormat"] == {"type": "csv", "columns": ["column_1", "column_2"]}
    assert found["timestampSpec"] is None
    assert found["time"] is None
    assert found["rows"] == [
        {"column_1": 1, "column_2": "Bern"},
        {"column_1": 2, "column_2": "Basel"},
    ]


@pytest.mark.parametrize(
    ("head", "format_"),
    [
        ("a;b\n1;2\n", {"type": "tsv", "delimiter": ";", "findColumnsFromHeader": True}),
        ("a\tb\nx\t1\n", {"type": "tsv", "findColumnsFromHeader": True}),
        ("a|b\n1|2\n", {"type": "tsv", "delimiter": "|", "findColumnsFromHeader": True}),
        ("a,b;c\n1,2;3\n4,5;6\n", {"type": "csv", "findColumnsFromHeader": True}),
        ("2025-11-20,x\n", {"type": "csv", "columns": ["column_1", "column_2"]}),
        ("x,y\nx,z\n", {"type": "csv", "columns": ["column_1", "column_2"]}),
        ("a,a,\n1,2,3\n",
         {"type": "csv", "columns": ["a", "a_2", "column_3"], "skipHeaderRows": 1}),
        ("\ufeffa,b\n1,2\n", {"type": "csv", "findColumnsFromHeader": True}),
        ('{"a":1}\n', {"type": "json"}),
        ('  [{"a":1}]', {"type": "json"}),
        ("one\ntwo\n", {"type": "csv", "findColumnsFromHeader": True}),
    ],
)  # fmt: skip
def test_formats_are_guessed(head: str, format_: dict[str, object]) -> None:
    found = guessed_format(head.encode(), "f")
    given = found.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    assert {"type": found.type, **given} == format_


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (b"PK\x03\x04...", "zip archive or an Excel file"),
        (b"%PDF-1.7", "is a PDF"),
        ("a,b\n".encode("utf-16"), "is UTF-16"),
        (b"\x7fELF\0\0", "neither text nor Parquet"),
    ],
)
def test_files_without_rows_are_refused(head: bytes, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        guessed_format(head, "sales.csv")


@given(st.binary(max_size=300))
def test_a_guess_never_fails_otherwise(head: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        guessed_format(head, "f")


@pytest.mark.parametrize(
    ("name", "values", "format_"),
    [
        ("when", ["2025-11-20T10:00:00Z", None], "iso"),
        ("a", ["2025-11-20 10:00:00"], "iso"),
        ("a", ["20.11.2025 10:00"], "dd.MM.yyyy HH:mm"),
        ("a", ["11/20/2025"], "MM/dd/yyyy"),
        ("a", ["20/11/2025"], "dd/MM/yyyy"),
        ("a", ["20/Nov/2025:10:00:00 +0100"], "dd/MMM/yyyy:HH:mm:ss Z"),
        ("day", [20251120, 20251121], "yyyyMMdd"),
        ("id", [20251120], None),
        ("created_at", [1763629200], "posix"),
        ("amount", [1763629200], None),
        ("a", [1763629200123], "millis"),
        ("a", [1763629200123456], "micro"),
        ("time", ["x", "y"], None),
        ("time", ["00123"], None),
        ("time", [None], None),
        ("time", [], None),
    ],
)
def test_times_are_guessed(name: str, values: list[object], format_: str | None) -> None:
    kind = pa.int64() if any(isinstance(one, int) for one in values) else pa.string()
    rows = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=[name])
    assert [one.format for one in guessed_times(rows)] == ([] if format_ is None else [format_])


def test_a_time_that_can_be_read_in_two_ways_says_so() -> None:
    rows = pa.RecordBatch.from_pydict({"at": ["01/02/2025"], "ts": ["2025-02-01"]})
    best, other = guessed_times(rows)
    assert (best.column, best.also) == ("ts", "")
    assert {other.format, other.also} == {"dd/MM/yyyy", "MM/dd/yyyy"}


@given(
    st.lists(
        st.none() | st.text(max_size=12) | st.from_regex(r"\d{1,4}[-/.]\d{1,2}", fullmatch=True),
        max_size=5,
    )
)  # fmt: skip
def test_a_guess_of_times_never_fails(values: list[str | None]) -> None:
    guessed_times(pa.RecordBatch.from_arrays([pa.array(values, pa.string())], names=["time"]))


def test_a_large_file_is_read_in_places(tmp_path: Path) -> None:
    """Its rows are of twelve months, of which the first MiB has one."""
    lines = [f"2025-{1 + n // 10_000:02}-05,{n:020}" for n in range(120_000)]
    found = of_file("a.csv", ("day,n\n" + "\n".join(lines)).encode(), tmp_path)
    assert len(found["rows"]) == ROWS_SHOWN
    assert not found["read"]["whole"]
    time = found["time"]
    assert (time["start"][:7], time["end"][:7]) == ("2025-01", "2025-12")
    assert time["rows"] == pytest.approx(120_000, rel=0.02)
    months = next(one for one in time["granularities"] if one["name"] == "MONTH")
    assert months["chunks"] == 12
    assert time["usualGranularity"] == "MONTH"


@pytest.mark.parametrize(
    ("step_ms", "usual", "hours", "days"),
    [
        (10, "HOUR", (720, 720, 360_000), (30, 60, 8_640_000)),
        # The rows of one minute, which are in one month, are not reasons for months.
        (1_000, "DAY", (720, 720, 3_600), (30, 30, 86_400)),
        (30 * 86_400_000, "DAY", (720, 720, 1), (30, 30, 1)),
        (0, "DAY", (720, None, None), (30, None, None)),
    ],
)
def test_a_stream_gets_days_or_hours_by_the_rate_of_its_sample(
    tmp_path: Path, step_ms: int, usual: str, hours: tuple[object, ...], days: tuple[object, ...]
) -> None:
    lines = "\n".join(f'{{"ts": {1_763_629_200_000 + n * step_ms}}}' for n in range(61))
    time = of_text(lines, tmp_path, stream=True)["time"]
    assert (time["usualGranularity"], time["exact"]) == (usual, False)
    found = {
        one["name"]: (one["chunks"], one["segments"], one["rowsEach"])
        for one in time["granularities"]
    }
    assert (found["HOUR"], found["DAY"], found["MONTH"][0]) == (hours, days, 1)
    # As files, they are all there is.
    assert of_text(lines, tmp_path)["time"]["exact"]


def test_parquet_has_types_and_counts(tmp_path: Path) -> None:
    table = pa.table(
        {"ts": pa.array([1, 2], pa.timestamp("s")), "n": [2**60, 1], "b": [True, False]}
    )
    pq.write_table(table, tmp_path / "a", row_group_size=1)
    found = of_file("a", (tmp_path / "a").read_bytes(), tmp_path)
    assert found["inputFormat"] == {"type": "parquet"}
    assert found["timestampSpec"]["column"] == "ts"
    assert found["rows"][0]["n"] == str(2**60)  # a browser would round it
    assert found["time"]["end"] == "1970-01-01T00:00:02.000Z"
    assert found["time"]["rows"] == 2


def test_compression_is_found_by_content_for_uploads_and_by_name_for_files(tmp_path: Path) -> None:
    found = of_file("a.csv.gz", gzip.compress(CSV.encode()), tmp_path)
    assert found["read"] == {"rows": 2, "bad": 0, "whole": True}
    with pytest.raises(CorruptData, match=r"a\.gz"):
        of_file("a.gz", CSV.encode(), tmp_path)


def test_a_line_that_is_too_long_is_an_error_of_its_place(tmp_path: Path) -> None:
    long = "x" * (BLOCK_BYTES + 1)
    found = of_file("a.csv", f"day,shop\n2025-01-01,{long}\n2025-01-02,Bern\n".encode(), tmp_path)
    assert [one["reason"] for one in found["errors"]] == ["longer than 1048576 bytes"]


def test_many_files_are_counted_and_a_few_are_read(tmp_path: Path) -> None:
    for number in range(1, 13):
        (tmp_path / f"{number:02}.csv").write_text(f"day,n\n2025-{number:02}-01,1\n")
    (tmp_path / "00.csv").write_text("")
    body = {"inputSource": {"type": "local", "baseDir": str(tmp_path), "filter": "*.csv"}}
    found = sample(body, tmp_path)
    assert found["files"]["count"] == 13
    assert found["time"]["end"] > "2025-06"
    assert not found["time"]["exact"]


def test_only_the_beginning_of_a_url_is_fetched(tmp_path: Path) -> None:
    table = pa.table({"time": ["2025-01-01"] * 9, "n": list(range(9))})
    pq.write_table(table, tmp_path / "a")
    bodies = {"/a.csv": (CSV * 100).encode(), "/a.parquet": (tmp_path / "a").read_bytes()}
    with served(lambda asked: Reply(200, bodies[asked.path])) as server:

        def source(name: str) -> dict[str, Any]:
            urls = [f"{server.address}/{name}", f"{server.address}/other"]
            return {"inputSource": {"type": "http", "uris": urls}}

        found = sample(source("a.csv"), tmp_path, 400)
        assert found["files"] == {
            "count": 1,
            "bytes": 400,
            "first": f"{server.address}/a.csv",
            "allCounted": False,
        }
        assert not found["read"]["whole"]
        assert found["time"]["rows"] is None
        assert sample(source("a.parquet"), tmp_path)["read"]["rows"] == 9
        with pytest.raises(InvalidRequest, match="only from a whole file"):
            sample(source("a.parquet"), tmp_path, 400)
    assert "/other" not in [one.path for one in server.asked]


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_empty_input_says_so(tmp_path: Path, text: str) -> None:
    if text:
        assert of_text(text, tmp_path)["rows"] == []
    else:
        with pytest.raises(NotFound, match="empty"):
            of_text(text, tmp_path)


def test_columns_with_odd_names_are_left_out_with_a_note(tmp_path: Path) -> None:
    row = {"time": "2025-01-01", "__TIME": 1, " ": 2, "<script>": "x"}
    found = of_text(json.dumps(row), tmp_path)
    assert [one["name"] for one in found["dimensions"]] == ["<script>"]
    assert len(found["notes"]) == 2


def test_columns_of_text_are_kept_in_bounds(tmp_path: Path) -> None:
    found = of_text(json.dumps({"time": "2025-01-01", "a": "x" * HEAD_BYTES}), tmp_path)
    assert found["inputFormat"] == {"type": JsonFormat().type}
    assert len(json.dumps(found)) < 5_000
