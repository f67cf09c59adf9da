"""Inputs of batch tasks that are not files of this host: queries and HTTP; filters of a spec."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue, TypeAdapter

from penstock.core.errors import PenstockError
from penstock.core.intervals import Interval
from penstock.indexing.batch.batch_engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    ExternalInput,
    Partitioning,
    SegmentInput,
    SqlInput,
)
from penstock.indexing.batch.job import sql_job
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.engine import EngineFailure
from penstock.indexing.specs import parse_data_schema
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.input.http_files import fetch
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.tables import TableFile, Tables
from tests.kits.this_host_kit import this_host_listed
from tests.spark.spark_batch_kit import Asked, Reply, served
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

# Sums that never end, in as many parts as there are cores, are to be sent to all workers.
SUMS = "(SELECT sum(id % 7) FROM range(0, 1000000000000000, 1, 2) GROUP BY id % 3) AS sums (id)"
ENDLESS = (
    "SELECT /*+ BROADCAST(sums) */ current_timestamp() AS __time, string(id) AS name, id AS size"
    f" FROM range(10) AS few JOIN {SUMS} USING (id)"
)
JANUARY = "__time >= TIMESTAMP '2013-01-01' AND __time < TIMESTAMP '2013-02-01'"
ROWS = b'{"at":"2013-01-01","name":"a","size":1}\n{"at":"2013-01-02","name":"b_%","size":2}\n'


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


def write(
    engine: SparkBatchEngine,
    folder: Path,
    given: BatchInput,
    filter_: JsonValue = None,
    *,
    task: str = "task",
) -> BatchResult:
    schema = parse_data_schema(
        {
            "dataSource": "things",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": {"dimensions": ["name", {"type": "long", "name": "size"}]},
            "granularitySpec": {"segmentGranularity": "month", "rollup": False},
            "transformSpec": {"filter": filter_},
            # Nothing is made of them.
            "projections": [{"type": "aggregate", "name": "p", "groupingColumns": ["name"]}],
        }
    )
    return engine.write(BatchRequest(task, schema, given, (), Partitioning(), str(folder)))


def sizes(result: BatchResult) -> list[int]:
    return [
        row["size"] for file in result.files for row in pq.read_table(file.data.path).to_pylist()
    ]


class ToldTables(GivenTables):
    """No tables; tells a test of each query that asks for them, and so is about to be planned."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Semaphore(0)

    def tables(self) -> Tables:
        self.asked.release()
        return super().tables()


def test_a_query_of_a_task_that_was_cancelled_gives_its_cores_back(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    """Spark begins some of it later; and its session, which knows it, is closed at its end."""
    tables = ToldTables()
    engines = [SparkBatchEngine(sessions, tables=tables) for _ in range(2)]
    try:
        with ThreadPoolExecutor(2) as pool:
            # Each a little later, so that planning is cut in many places.
            for turn in range(5):
                runs = [
                    pool.submit(
                        write, engine, tmp_path / f"{turn} {at}", SqlInput(ENDLESS), task=f"{turn}"
                    )
                    for at, engine in enumerate(engines)
                ]
                assert all(tables.asked.acquire(timeout=120) for _ in runs)
                for _ in range(7 * turn):
                    assert sessions.get().range(1).schema  # needs no core
                for engine in engines:
                    engine.cancel(f"{turn}")
                for run in runs:
                    with pytest.raises(EngineFailure, match="was cancelled"):
                        run.result()
                assert sessions.get().range(0, 100, 1, 2).count() == 100
    finally:
        for engine in engines:
            engine.close()


def external(**source: JsonValue) -> ExternalInput:
    found = TypeAdapter[InputSource](InputSource).validate_python(source)
    return ExternalInput(found, JsonFormat())


def test_a_query_reads_datasources_and_nothing_else(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    tables = GivenTables({"things": ()})
    engine = SparkBatchEngine(sessions, tables=tables)
    try:
        first = write(engine, tmp_path / "first", external(type="inline", data=ROWS.decode()))
        data = first.files[0].data
        tables.files["things"] = (TableFile(data.path, data.columns, data.interval),)
        query = 'SELECT __time, name, size * 10 AS size FROM "things" WHERE size > 1'
        result = write(engine, tmp_path / "second", SqlInput(query))
        assert result.counts.processed == 1
        assert sizes(result) == [20]
        for refused in (
            "SELECT name FROM things",
            f"SELECT * FROM parquet.`{data.path}`",
            "DROP VIEW things",
            "SHOW TABLES",
            "SELECT * FROM absent",
        ):
            with pytest.raises(PenstockError):
                write(engine, tmp_path / "third", SqlInput(refused))
    finally:
        engine.close()


def test_the_columns_of_an_ingesting_query_become_dimensions_of_their_types(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    engine = SparkBatchEngine(sessions, tables=GivenTables({"things": ()}))
    spec = parse_ingest(
        "INSERT INTO copies SELECT TIMESTAMP '2013-01-01 10:00:00' AS __time, 'a' AS name,"
        " 7 AS size, 1.5 AS share, named_struct('x', 1) AS more, true AS yes"
        " PARTITIONED BY DAY"
    )
    try:
        job = sql_job(spec)
        request = BatchRequest("t", job.schema, job.input, (), Partitioning(), str(tmp_path / "o"))
        result = engine.write(request)
        (row,) = [r for f in result.files for r in pq.read_table(f.data.path).to_pylist()]
        assert {name: row[name] for name in row if name != "__time"} == {
            "name": "a", "size": 7, "share": 1.5, "more": '{"x":1}', "yes": 1
        }  # fmt: skip
        named = {d.name: d.type for d in result.schema.dimensions}
        assert named["size"] == "long"
        for wrong in ("1 AS a, 2 AS a", "CAST('x' AS BINARY) AS a"):
            query = SqlInput(f"SELECT current_timestamp() AS __time, {wrong}")
            with pytest.raises(EngineFailure, match="'a'"):
                engine.write(replace(request, input=query, output_folder=str(tmp_path / "p")))
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("query", "by", "message"),
    [
        ("'2013-01-02 00:00:00', '2013-02-01 00:00:00'", (), r"returns 1 row outside .*2013-01-01"),
        ("'2013-01-02 00:00:00', NULL", (), "the query returns 1 row without __time: "),
        ("'2013-01-02 00:00:00', NULL", ("nowhere",), "'nowhere': no such column"),
    ],
)
def test_an_ingesting_query_loses_no_rows(
    sessions: SparkSessions, tmp_path: Path, query: str, by: tuple[str, ...], message: str
) -> None:
    engine = SparkBatchEngine(sessions, tables=GivenTables({"things": ()}))
    spec = parse_ingest(
        "REPLACE INTO copies OVERWRITE WHERE __time >= TIMESTAMP '2013-01-01' AND"
        f" __time < TIMESTAMP '2013-02-01' SELECT CAST(t AS TIMESTAMP) AS __time FROM"
        f" (SELECT explode(array({query})) AS t) PARTITIONED BY DAY"
    )
    job = sql_job(spec)
    parted = Partitioning("range", rows_target=5, dimensions=by) if by else Partitioning()
    request = BatchRequest("t", job.schema, job.input, job.intervals, parted, str(tmp_path / "o"))
    try:
        with pytest.raises(EngineFailure, match=message):
            engine.write(request)
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("verb", "time", "message"),
    [
        ("INSERT INTO copies", "NULL", "the query returns 3 rows without __time: set it"),
        (
            "INSERT INTO copies",
            "CAST(NULL AS TIMESTAMP)",
            "the query returns 3 rows without __time",
        ),
        (
            f"REPLACE INTO copies OVERWRITE WHERE {JANUARY}",
            "TIMESTAMP '2014-01-01'",
            f"the query returns 3 rows outside of OVERWRITE WHERE {JANUARY}: widen it",
        ),
    ],
)
def test_a_query_whose_rows_are_known_to_be_lost_beforehand_is_refused(
    sessions: SparkSessions, tmp_path: Path, verb: str, time: str, message: str
) -> None:
    engine = SparkBatchEngine(sessions, tables=GivenTables({"things": ()}))
    try:
        for source in ("range(3)", "(VALUES (1), (2), (3)) AS t (id)"):
            job = sql_job(
                parse_ingest(f"{verb} SELECT {time} AS __time, id FROM {source} PARTITIONED BY DAY")
            )
            folder = str(tmp_path / source[:2])
            with pytest.raises(EngineFailure, match=message):
                engine.write(
                    BatchRequest("t", job.schema, job.input, job.intervals, Partitioning(), folder)
                )
        # No rows at all are nothing that could be lost.
        job = sql_job(
            parse_ingest(
                f"{verb} SELECT {time} AS __time, id FROM range(3) WHERE 1 = 0 PARTITIONED BY DAY"
            )
        )
        request = BatchRequest(
            "t", job.schema, job.input, job.intervals, Partitioning(), str(tmp_path / "none")
        )
        assert engine.write(request).files == ()
    finally:
        engine.close()


def test_an_insert_parts_its_rows_by_what_it_is_clustered_by(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    engine = SparkBatchEngine(sessions, tables=GivenTables({"things": ()}))
    insert = (
        "INSERT INTO copies SELECT TIMESTAMP '2013-01-01' AS __time, id % 7 AS size FROM range(700)"
        " PARTITIONED BY DAY CLUSTERED BY "
    )

    def asked(by: str) -> BatchRequest:
        job = sql_job(parse_ingest(insert + by, context={"rowsPerSegment": 200}))
        return BatchRequest(
            "t", job.schema, job.input, job.intervals, job.partitioning, str(tmp_path / by)
        )

    try:
        found = [
            pq.read_table(file.data.path).column("size").to_pylist()
            for file in engine.write(asked("size")).files
        ]
        assert len(found) > 1
        assert sum(map(len, found)) == 700
        assert all(sizes == sorted(sizes) for sizes in found)
        kinds = [set(sizes) for sizes in found]
        assert sum(map(len, kinds)) == len(set[int]().union(*kinds)) == 7
        with pytest.raises(EngineFailure, match="'nowhere': no such column"):
            engine.write(asked("nowhere"))
    finally:
        engine.close()


def test_an_ingesting_query_reads_what_is_published_or_given(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    tables = GivenTables({"things": ()})
    engine = SparkBatchEngine(sessions, tables=tables)
    query = "SELECT * FROM things"
    try:
        first = write(engine, tmp_path / "first", external(type="inline", data=ROWS.decode()))
        data = first.files[0].data
        file = TableFile(data.path, data.columns, data.interval)
        tables.files["things"] = (file, replace(file, announced=True))
        published = write(engine, tmp_path / "second", SqlInput(query))
        assert sizes(published) == [1, 2]  # what a running task shows will be published by itself
        second_day = Interval.parse("2013-01-02/2013-01-03")
        given = (("things", SegmentInput(((data, second_day),))),)
        assert sizes(write(engine, tmp_path / "third", SqlInput(query, given))) == [2]
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("wanted", "left"),
    [
        ({"type": "like", "dimension": "name", "pattern": "b\\_\\%", "escape": "\\"}, [2]),
        ({"type": "like", "dimension": "name", "pattern": "_"}, [1]),
        ({"type": "regex", "dimension": "name", "pattern": "^a"}, [1]),
        ({"type": "interval", "dimension": "__time", "intervals": ["2013-01-02/P1D"]}, [2]),
        ({"type": "expression", "expression": '"size" > 1'}, [2]),
        ({"type": "columnComparison", "dimensions": ["name", "size"]}, []),
    ],
)  # fmt: skip
def test_filters_keep_rows(
    sessions: SparkSessions, tmp_path: Path, wanted: JsonValue, left: list[int]
) -> None:
    engine = SparkBatchEngine(sessions)
    try:
        given = external(type="inline", data=ROWS.decode())
        result = write(engine, tmp_path / "out", given, wanted)
        assert sizes(result) == left
        assert result.counts.thrown_away_filtered == 2 - len(left)
    finally:
        engine.close()


def reply(asked: Asked) -> Reply:
    ends = {"/rows.json": 200, "/away": 302, "/loop": 302, "/file": 302}
    places = {"/away": "/rows.json", "/loop": "/loop", "/file": "file:///etc/passwd"}
    body = ROWS if asked.path == "/rows.json" else b""
    return Reply(ends.get(asked.path, 404), body, places.get(asked.path, ""))


@pytest.fixture
def address() -> Iterator[str]:
    with served(reply) as made:
        yield made.address


def test_files_from_http(sessions: SparkSessions, tmp_path: Path, address: str) -> None:
    engine = SparkBatchEngine(sessions)
    try:
        result = write(engine, tmp_path / "out", external(type="http", uris=[f"{address}/away"]))
        assert sizes(result) == [1, 2]
    finally:
        engine.close()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/loop", "redirects more than"),
        ("/file", "use http or https"),
        ("/gone", "does not exist"),
        ("/rows.json", "larger than 10 bytes"),
    ],
)
def test_what_http_may_not_do(tmp_path: Path, address: str, path: str, message: str) -> None:
    with pytest.raises(PenstockError, match=message):
        fetch(
            f"{address}{path}",
            tmp_path / "file",
            headers={},
            auth=None,
            bytes_max=10,
            timeout_s=5.0,
            check=lambda: None,
        )


def test_no_error_shows_what_of_a_url_is_secret(tmp_path: Path, address: str) -> None:
    url = f"{address.replace('://', '://hush@')}/gone?signature=hush"
    with pytest.raises(PenstockError, match="does not exist") as caught:
        fetch(
            *(url, tmp_path / "file"),
            headers={"X-Auth": "hush"},
            auth=None,
            bytes_max=10,
            timeout_s=5.0,
            check=lambda: None,
        )
    assert "hush" not in str(caught.value)
    assert "gone?signature=<masked>" in str(caught.value)
