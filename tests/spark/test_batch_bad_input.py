"""Input that is not as it should be: refused with its file and place, or counted with samples."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.batch.batch_engine import ExternalInput
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.input.file_finder import FileFinder
from penstock.spark.batch.input.file_splits import InputFile
from penstock.spark.batch.input.open_files import local_size, translated
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.topic.row_shape import TimeField
from tests.kits.this_host_kit import this_host_listed
from tests.spark.spark_batch_kit import JSON, inline, local, request, rows_of

pytestmark = pytest.mark.spark

CSV: Mapping[str, JsonValue] = {"type": "csv", "findColumnsFromHeader": True}
PARQUET: Mapping[str, JsonValue] = {"type": "parquet"}
ORC: Mapping[str, JsonValue] = {"type": "orc"}
PARTS: dict[str, JsonValue] = {
    "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]}
}
GOOD = b'{"at":"2013-01-01","name":"a","size":1}\n'
PACKED = gzip.compress(GOOD * 1000, mtime=0)


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


@pytest.fixture(scope="module")
def batch(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    options = SparkBatchOptions(split_bytes_min=4_000, parallelism=2, line_bytes_max=12_000_000)
    engine = SparkBatchEngine(sessions, options)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    ("name", "content", "format_", "message"),
    [
        ("absent.json", None, JSON, r"absent\.json does not exist"),
        ("cut.json.gz", PACKED[: len(PACKED) // 2], JSON, r"cut\.json\.gz.*complete"),
        ("plain.json.gz", GOOD, JSON, r"plain\.json\.gz.*format"),
        ("packed.json.zst", PACKED, JSON, r"packed\.json\.zst.*format"),
        ("rows.zip", b"PK", JSON, r"rows\.zip: \.zip cannot be read: unpack it"),
        ("empty.parquet", b"", PARQUET, r"empty\.parquet.*format"),
        ("text.parquet", GOOD, PARQUET, r"text\.parquet.*format"),
        ("text.orc", GOOD, ORC, r"text\.orc.*format"),
        ("twice.csv", b"at,a,a\n1,2,3\n", CSV, r"twice\.csv:1: the header has 'a' twice"),
        (
            "latin.csv",
            b"at,Stra\xdfe\n1,2\n",
            CSV,
            r"latin\.csv:1: the header is not UTF-8: .* at byte 7: .* iconv -f ISO-8859-1 -t UTF-8",
        ),
    ],
)
def test_files_that_cannot_be_read_are_named(
    batch: SparkBatchEngine,
    tmp_path: Path,
    name: str,
    content: bytes | None,
    format_: Mapping[str, JsonValue],
    message: str,
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(EngineFailure, match=message) as refusal:
        batch.write(request(tmp_path / "out", local(path, format_=format_), PARTS))
    assert "Traceback" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not list((tmp_path / "out").glob("**/*.parquet"))


@pytest.mark.parametrize("form", ["local", "fsspec"])
@pytest.mark.parametrize("name", ["pipe", "device", "folder", "link"])
def test_what_is_no_ordinary_file_is_not_opened(tmp_path: Path, name: str, form: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("link")
    path = str(tmp_path / name)
    source: object = {
        "local": {"type": "local", "files": [path]},
        "fsspec": {"type": "fsspec", "uris": [f"file://{path}"]},
    }[form]
    finder = FileFinder(TimeField("at"), tmp_path / "scratch", SparkBatchOptions(), lambda: None)
    wanted: InputSource = TypeAdapter(InputSource).validate_python(source)
    with pytest.raises(
        InvalidRequest,
        match=rf"{name}:? .*(not a regular file|folder|cannot be read|must not read)",
    ):
        finder.find(ExternalInput(wanted, JsonFormat()))
    with pytest.raises(InvalidRequest, match="invalid path"):
        local_size("a\0b")


@pytest.mark.parametrize("url", ["data://,abc", "dir:///tmp/x", "reference://x", "nope://x/y"])
@pytest.mark.parametrize("field", ["uris", "prefixes"])
def test_urls_that_no_file_system_can_read_are_refused(
    tmp_path: Path, url: str, field: str
) -> None:
    source: object = {"type": "fsspec", field: [url]}
    finder = FileFinder(TimeField("at"), tmp_path, SparkBatchOptions(), lambda: None)
    wanted: InputSource = TypeAdapter(InputSource).validate_python(source)
    with pytest.raises(
        InvalidRequest, match=r"cannot be opened: flows and tasks must not use the file system"
    ):
        finder.find(ExternalInput(wanted, JsonFormat()))


def test_a_variable_that_is_not_set_is_told_with_its_place_and_the_mend(tmp_path: Path) -> None:
    secret = {"type": "environment", "variable": "PENSTOCK_INPUT_SHOP"}
    login = {"httpAuthenticationUsername": "ann", "httpAuthenticationPassword": secret}
    source: object = {"type": "http", "uris": ["http://127.0.0.1:1/a.json"], **login}
    connector = {"connectURI": "jdbc:postgresql://127.0.0.1:1/d", "user": "ann", "password": secret}
    database = {"type": "postgresql", "connectorConfig": connector}
    rows: object = {"type": "sql", "database": database, "sqls": ["SELECT 1"]}
    for wanted, format_, field in (
        (source, JsonFormat(), "httpAuthenticationPassword"),
        (rows, None, "database.connectorConfig.password"),
    ):
        found: InputSource = TypeAdapter(InputSource).validate_python(wanted)
        finder = FileFinder(TimeField("at"), tmp_path, SparkBatchOptions(), lambda: None)
        with pytest.raises(
            InvalidRequest, match=r"PENSTOCK_INPUT_SHOP is not set where this runs.*secret://NAME"
        ) as told:
            finder.find(ExternalInput(found, format_))
        assert told.value.place == f"inputSource.{field}"


@pytest.mark.parametrize("lost", [TimeoutError(), ConnectionResetError("reset by peer")])
def test_a_store_that_breaks_off_is_no_damage_of_the_file(lost: OSError) -> None:
    file = InputFile("s3://lake/a.json", "s3://lake/a.json", 1, 0)
    with pytest.raises(Unavailable, match=r"a\.json cannot be read now"), translated(file):
        raise lost


def test_a_scratch_folder_that_cannot_be_written_is_tried_again(
    tmp_path: Path, sessions: SparkSessions
) -> None:
    (tmp_path / "file").write_text("no folder")
    engine = SparkBatchEngine(sessions, SparkBatchOptions(scratch_folder=str(tmp_path / "file")))
    with pytest.raises(EngineUnavailable, match=r"file/\.scratch-\w+ cannot be written.*its disk"):
        engine.write(request(tmp_path / "out", inline({"at": "2013-01-01"}), PARTS))
    engine.close()


def test_nothing_is_fetched_while_spark_is_not_there(tmp_path: Path) -> None:
    engine = SparkBatchEngine(
        SparkSessions(SparkSessionOptions("sc://localhost:1")),
        SparkBatchOptions(scratch_folder=str(tmp_path / "scratch")),
    )
    with pytest.raises(EngineUnavailable, match="nothing answers at sc://localhost:1"):
        engine.write(request(tmp_path / "out", inline({"at": "2013-01-01"}), PARTS))
    assert not (tmp_path / "scratch").exists()
    engine.close()


@pytest.mark.parametrize(
    ("name", "content", "format_", "bad", "rows"),
    [
        ("empty.json", b"", JSON, [], 0),
        ("blank.json", b" \n\n \r\n", JSON, [1, 3], 0),
        ("empty.csv", b"", CSV, [], 0),
        ("header.csv", b"at,name,size\n", CSV, [], 0),
        ("words.json", b"no json\nat all\n", JSON, [1, 2], 0),
        ("rows.csv", b"at,name,size\n2013-01-01,a,1\nx,b,2\n2013-01-01,c,many\n", CSV, [3, 4], 1),
        ("zeros.json", bytes(100) + b"\n" + GOOD, JSON, [1], 1),
        ("binary.json", bytes(range(128, 256)) + b"\n" + GOOD, JSON, [1], 1),
        ("cut.json", GOOD + GOOD[:20], JSON, [2], 1),
        ("scalars.json", GOOD + b'1\n"x"\nnull\n[]\ntrue\n', JSON, [2, 3, 4, 5, 6], 1),
        ("pretty.json", b'[\n{"at":"2013-01-01",\n"size":1},\n{"at":\n"x"}]', JSON, [4], 1),
        ("deep.json", GOOD + b'{"a":' * 2000 + b"1" + b"}" * 2000, JSON, [2], 1),
        (
            "types.json",
            b"\n".join(
                orjson.dumps({"at": "2013-01-01", "name": value, "size": value})
                for value in (1, "2", 3.0, True, None, "x", 1.5, [1], {"a": 1}, 2**63, "")
            ),
            JSON,
            [6, 7, 8, 9, 10],
            6,
        ),
        (
            "times.json",
            b"\n".join(
                orjson.dumps({"at": at})
                for at in (
                    "0001-01-01", "0000-01-01", "9999-12-31T23:59:59.999Z", "10000-01-01",
                    "2013-02-30", "soon", None, "", 0, -1, 2**62, 1e300, True, [], "1357000000000",
                )
            )
            + b"\n{}",
            JSON,
            [2, 4, 5, 6, 7, 8, 11, 12, 13, 14, 16],
            5,
        ),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_taken_are_counted_with_their_places(
    batch: SparkBatchEngine,
    tmp_path: Path,
    name: str,
    content: bytes,
    format_: Mapping[str, JsonValue],
    bad: list[int],
    rows: int,
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    wanted = request(tmp_path / "out", local(path, format_=format_), PARTS, saved=50)
    result = batch.write(wanted)
    assert [error.place for error in result.parse_errors] == [f"{path}:{line}" for line in bad]
    assert all(error.reason for error in result.parse_errors)
    assert result.counts.unparseable == len(bad)
    assert result.counts.processed == len(rows_of(result)) == rows


def test_large_wide_and_nested_rows(batch: SparkBatchEngine, tmp_path: Path) -> None:
    wide = {f"c{i}": i for i in range(5_000)}
    nested: JsonValue = {"a": [{"b": list(range(50))}] * 50}
    lines = [
        {"at": "2013-01-01", "name": "x" * 10_000_000, "size": 1},
        {"at": "2013-01-01", "name": "y" * 25_000_000, "size": 2},
        {"at": "2013-01-01", "name": nested, "size": 3},
        {"at": "2013-01-01", "name": "wide", "size": 4, **wide},
    ]
    path = tmp_path / "rows.json"
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    result = batch.write(request(tmp_path / "out", local(path), PARTS, saved=5))
    assert [error.place for error in result.parse_errors] == [f"{path}:2"]
    found = {row["size"]: row["name"] for row in rows_of(result)}
    assert len(str(found[1])) == 10_000_000
    assert json.loads(str(found[3])) == nested
    assert found[4] == "wide"


def test_thousands_of_columns_are_found_and_written(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    path = tmp_path / "rows.json"
    wide = {f"c{i}": i if i % 2 else f"t{i}" for i in range(5_000)}
    path.write_bytes(b"\n".join(orjson.dumps({"at": "2013-01-01", **wide}) for _ in range(20)))
    parts: dict[str, JsonValue] = {"dimensionsSpec": {"useSchemaDiscovery": True}}
    result = batch.write(request(tmp_path / "out", local(path), parts))
    (file,) = result.files
    assert len(file.data.columns) == 5_001
    assert rows_of(result)[7]["c4999"] == 4999


def test_parquet_rows_without_a_time_are_counted_by_their_number(
    batch: SparkBatchEngine, tmp_path: Path
) -> None:
    path = tmp_path / "rows.parquet"
    times = pa.array(["2013-01-01", None, "0000-01-01", "soon", "9999-12-31"])
    pq.write_table(pa.table({"at": times, "size": pa.array([1.0, 2, 3, 4, 5.5])}), path)
    wanted = request(tmp_path / "out", local(path, format_=PARQUET), PARTS, saved=9)
    result = batch.write(wanted)
    places = [error.place for error in result.parse_errors]
    assert places == [f"{path} row {number}" for number in (2, 3, 4, 5)]
    assert len(rows_of(result)) == 1
