"""Batch tasks that read a real PostgreSQL: `index_parallel`, combined inputs and EXTERN."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import orjson
import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.indexing.batch.batch_engine import (
    BatchRequest,
    BatchResult,
    CombinedInput,
    ExternalInput,
)
from penstock.indexing.batch.job import sql_job
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.engine import EngineFailure, EngineUnavailable, InputUnavailable
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.storage.secrets.secret_sources import Secrets
from tests.kits.this_host_kit import this_host_listed
from tests.spark.spark_batch_kit import JSON, external, request, rows_of
from tests.spark.table_kit import GivenTables
from tests.storage.reading_database_kit import PASSWORD, ReadDatabase

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

DIMENSIONS: JsonValue = {"dimensions": ["name", {"type": "long", "name": "size"}]}
VARIABLE: JsonValue = {"type": "environment", "variable": "PENSTOCK_INPUT_SHOP"}
SALES = (
    "SELECT timestamptz '2013-01-01 00:00:00Z' + n * interval '1 day' AS at,"
    " 'n' || n AS name, n::numeric AS size FROM generate_series(0, 39) AS g (n)"
)


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


@pytest.fixture
def engine(sessions: SparkSessions) -> Iterator[SparkBatchEngine]:
    options = SparkBatchOptions(secrets=Secrets(variables={"PENSTOCK_INPUT_SHOP": PASSWORD}))
    made = SparkBatchEngine(sessions, options, GivenTables())
    yield made
    made.close()


def given(source: Mapping[str, JsonValue]) -> ExternalInput:
    return ExternalInput(TypeAdapter[InputSource](InputSource).validate_python(source), None)


def test_rows_of_several_statements_become_segments_of_their_months(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    late = "SELECT at + interval '1 year' AS at, name, size + 0.00 AS size FROM ({}) AS s"
    source = database.source(SALES, late.format(SALES), password=VARIABLE)
    asked = request(tmp_path / "out", given(source), {"dimensionsSpec": DIMENSIONS})
    result = engine.write(asked)
    assert result.counts.processed == 80
    assert len(result.files) == 4
    rows = rows_of(result)
    assert sorted(int(str(row["size"])) for row in rows) == sorted([*range(40)] * 2)
    assert {row["name"] for row in rows} == {f"n{n}" for n in range(40)}


def test_types_are_found_where_the_spec_leaves_them_to_the_data(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    sql = (
        "SELECT 1356998400000 AS at, 1.5::numeric AS share, 7::numeric(10) AS size, 'x' AS name,"
        " '{\"a\": 1}'::jsonb AS more, ARRAY['b', 'a'] AS tags, true AS yes, NULL AS nothing,"
        " date '2026-11-22' AS day, timestamptz '2026-11-22 10:00+00' AS moment"
    )
    parts = {"dimensionsSpec": {"useSchemaDiscovery": True}}
    result = engine.write(request(tmp_path / "out", given(database.source(sql)), parts))
    types = {one.name: one.type for one in result.schema.dimensions}
    assert types == {
        "share": "double", "size": "long", "name": "string", "more": "json", "tags": "json",
        "yes": "long", "nothing": "string", "day": "string", "moment": "string",
    }  # fmt: skip
    (row,) = rows_of(result)
    assert (row["share"], row["size"], row["more"]) == (1.5, 7, '{"a": 1}')
    assert orjson.loads(str(row["tags"])) == ["b", "a"]
    assert (row["day"], row["moment"]) == ("2026-11-22", "2026-11-22T10:00:00.000Z")


def test_rows_that_do_not_fit_are_counted_with_their_places(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    sql = "SELECT at, CASE WHEN name = 'n3' THEN 'x' ELSE size::text END AS size FROM ({}) AS s"
    source = database.source(sql.format(SALES), "SELECT NULL AS at, 1 AS size")
    parts = {"dimensionsSpec": {"dimensions": [{"type": "long", "name": "size"}]}}
    asked = request(tmp_path / "out", given(source), parts, bears=2, saved=5)
    result = engine.write(asked)
    assert (result.counts.processed, result.counts.unparseable) == (39, 2)
    places = sorted(error.place for error in result.parse_errors)
    shop = f"of the database 127.0.0.1:{database.port}/shop"
    assert places == [f"sqls[0] {shop} row 4", f"sqls[1] {shop} row 1"]


def test_a_database_beside_files(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    line = {"at": "2013-01-05", "name": "z", "size": 99}
    inline = external({"type": "inline", "data": orjson.dumps(line).decode()}, JSON)
    both = CombinedInput((given(database.source(SALES)), inline))
    result = engine.write(request(tmp_path / "out", both, {"dimensionsSpec": DIMENSIONS}))
    assert {row["name"] for row in rows_of(result)} == {"z", *(f"n{n}" for n in range(40))}


def test_no_rows_are_no_segments(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    source = database.source(f"{SALES} WHERE false")
    result = engine.write(request(tmp_path / "out", given(source), {"dimensionsSpec": DIMENSIONS}))
    assert (result.files, result.counts.processed) == ((), 0)


def extern(engine: SparkBatchEngine, folder: Path, source: object) -> BatchResult:
    text = orjson.dumps(source).decode().replace("'", "''")
    spec = parse_ingest(
        "INSERT INTO d SELECT CAST(r.at AS TIMESTAMP) AS __time, upper(r.name) AS name, r.size,"
        " r.tags FROM"
        f" TABLE(EXTERN(inputSource => '{text}')) EXTEND (at VARCHAR, name VARCHAR, size BIGINT,"
        " tags VARCHAR ARRAY) AS r JOIN"
        f" TABLE(EXTERN(inputSource => '{text}')) EXTEND (name VARCHAR) AS s ON r.name = s.name"
        " PARTITIONED BY DAY"
    )
    job = sql_job(spec)
    return engine.write(
        BatchRequest("t", job.schema, job.input, job.intervals, job.partitioning, str(folder))
    )


def test_a_statement_reads_a_database(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    sql = "SELECT timestamp '2013-01-01' AS at, 'a' AS name, 5.0 AS size, ARRAY['x'] AS tags"
    result = extern(engine, tmp_path / "out", database.source(sql, password=VARIABLE))
    (row,) = rows_of(result)
    assert (row["name"], row["size"]) == ("A", 5)
    assert orjson.loads(str(row["tags"])) == ["x"]


def test_what_goes_wrong_is_the_tasks_failure_and_leaves_nothing(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    parts = {"dimensionsSpec": DIMENSIONS}
    for source, kind, told in (
        (database.source(SALES, "SELECT nowhere"), EngineFailure, r"sqls\[1\] .*correct the state"),
        (database.source(SALES, password="other"), EngineFailure, "authentication failed"),
        (
            database.source(SALES, password={"variable": "PENSTOCK_INPUT_ABSENT"}),
            EngineFailure,
            "PENSTOCK_INPUT_ABSENT is not set",
        ),
        (
            database.source(SALES, connectURI="jdbc:postgresql://127.0.0.1:1/shop"),
            InputUnavailable,
            "cannot open the database",
        ),
    ):
        out = tmp_path / "out"
        with pytest.raises((EngineFailure, EngineUnavailable), match=told) as caught:
            engine.write(request(out, given(source), parts))
        assert isinstance(caught.value, kind)
        assert "hush" not in str(caught.value)
        assert not [path for path in out.rglob("*") if path.is_file()]


def test_a_task_that_is_stopped_ends_the_statement(
    engine: SparkBatchEngine, database: ReadDatabase, tmp_path: Path
) -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            source = database.source("SELECT pg_sleep(600)")
            engine.write(request(tmp_path / "o", given(source), {"dimensionsSpec": DIMENSIONS}))
        except EngineFailure as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    while not any("pg_sleep" in one for one in database.running()):
        assert thread.is_alive()
    engine.cancel("task")
    thread.join()
    assert "was cancelled" in str(failed[0])
    while database.running():
        pass
