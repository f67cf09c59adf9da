"""Columns that differ in case alone on a real Spark: ingested, queried, read and written again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue, TypeAdapter
from pyspark.errors import PySparkException

import penstock.spark
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.indexing.batch.batch_engine import (
    BatchInput,
    BatchRequest,
    BatchResult,
    ExternalInput,
    Partitioning,
    SegmentInput,
    SqlInput,
)
from penstock.indexing.engine import DataFile, EngineFailure
from penstock.indexing.specs import DataSchema, parse_data_schema
from penstock.indexing.specs.input_formats import JsonFormat
from penstock.indexing.specs.inputs import InputSource
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import EXACT_CONF, SparkSessions
from penstock.spark.projections.selector import ProjectionOptions
from penstock.spark.spark_engine import SparkEngine
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.sql_guard import check_understood
from penstock.spark.tables import TableFile
from tests.spark.conftest import MakeTopic
from tests.spark.data_folder_kit import FEBRUARY, DataFolder, table
from tests.spark.stream_kit import Story
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

Row = dict[str, object]
ROLL_UP: dict[str, JsonValue] = {"segmentGranularity": "month", "queryGranularity": "day"}
RAW: dict[str, JsonValue] = {"segmentGranularity": "month", "rollup": False}
DISCOVERING: dict[str, JsonValue] = {"useSchemaDiscovery": True}
LISTED: dict[str, JsonValue] = {"dimensions": ["City", "city"]}
BOTH = [
    {"at": "2013-01-01", "City": "Bern", "city": "bern"},
    {"at": "2013-01-01", "City": "Bern", "city": "bern"},
    {"at": "2013-01-02", "City": "Chur"},
    {"at": "2013-01-03", "city": "genf"},
]
PAIRS = {("Bern", "bern"), ("Chur", None), (None, "genf")}


def make_schema(
    dimensions: JsonValue, *, rollup: bool = False, metrics: JsonValue = (), **more: JsonValue
) -> DataSchema:
    listed: list[JsonValue] = [{"type": "count", "name": "rows"}] if rollup else []
    return parse_data_schema(
        {
            "dataSource": "trips",
            "timestampSpec": {"column": "at", "format": "iso"},
            "dimensionsSpec": dimensions,
            "metricsSpec": [*listed, *(metrics if isinstance(metrics, list) else [])],
            "granularitySpec": ROLL_UP if rollup else RAW,
            **more,
        }
    )


def persist(story: Story, schema: DataSchema, rows: list[Row]) -> DataFile:
    (file,) = story.persist(schema, [orjson.dumps(row) for row in rows]).files
    return file


@pytest.fixture
def story(engine: SparkEngine, make_topic: MakeTopic, tmp_path: Path) -> Story:
    return Story(engine, make_topic, tmp_path)


class Asking:
    """A service and what it knows."""

    def __init__(self, sessions: SparkSessions) -> None:
        self.tables = GivenTables()
        self.service = SqlService(sessions, self.tables, SystemClock())

    def show(self, name: str, *files: DataFile, part_of: str = "") -> None:
        found = tuple(
            TableFile(f.path, f.columns, f.interval, size_bytes=f.bytes, part_of=part_of)
            for f in files
        )
        self.tables.files[name] = found
        self.tables.number += 1

    def ask(self, sql: str, *parameters: str | float | None) -> list[tuple]:
        result = self.service.query(SqlQuery(sql, parameters))
        return [
            tuple(row) for row in zip(*(c.to_pylist() for c in result.table.columns), strict=True)
        ]


@pytest.fixture
def asking(sessions: SparkSessions) -> Iterator[Asking]:
    made = Asking(sessions)
    yield made
    made.service.close()


# streams


@pytest.mark.parametrize(
    ("computed", "rollup", "dimensions"),
    [
        (False, False, DISCOVERING),
        (False, True, LISTED),
        (True, True, DISCOVERING),
        (True, True, LISTED),
        (True, False, LISTED),
    ],
)
def test_a_stream_keeps_both(
    story: Story,
    asking: Asking,
    *,
    dimensions: dict[str, JsonValue],
    rollup: bool,
    computed: bool,
) -> None:
    sketch: JsonValue = {"type": "HLLSketchBuild", "name": "cities", "fieldName": "id"}
    transforms: JsonValue = [{"name": "CITY", "expression": """upper("city") || "City" """}]
    listed = {"dimensions": [*LISTED["dimensions"], "CITY"]}  # type: ignore[misc]
    schema = make_schema(
        dimensions if not computed or dimensions is DISCOVERING else listed,
        rollup=rollup,
        metrics=[sketch] if computed and rollup else [],
        transformSpec={"transforms": transforms if computed else []},
    )
    both = persist(story, schema, BOTH)
    names = [name for name, _ in both.columns]
    assert {"City", "city"} <= set(names)
    asking.show("trips", both)
    pairs = 'SELECT DISTINCT "City", "city" FROM trips'
    assert set(asking.ask(pairs)) == PAIRS
    if computed and "CITY" in names:
        assert ("BERNBern",) in asking.ask('SELECT "CITY" FROM trips')
    rows = "sum(rows)" if rollup else "count(*)"
    assert asking.ask(f'SELECT {rows} FROM trips WHERE "city" = ?', "bern") == [(2,)]
    # One that has but one of them, and one with the other, each merged with the rows before.
    large = persist(story, schema, [{"at": "2013-01-01", "City": "Bern"}])
    small = persist(story, schema, [{"at": "2013-01-01", "city": "bern"}])
    asking.show("trips", both, large, small, part_of="one segment")
    counted = (
        f'SELECT "City", "city", {rows} FROM trips GROUP BY "City", "city" ORDER BY "City", "city"'
    )
    before = asking.ask(counted)
    assert (None, "bern", 1) in before
    assert ("Bern", None, 1) in before
    asking.show("trips", story.merge(schema, [story.merge(schema, [large, small]), both]))
    assert asking.ask(counted) == before


def test_a_field_of_a_metric_beside_a_column_that_is_found(story: Story, asking: Asking) -> None:
    metric: JsonValue = {"type": "longSum", "name": "sum", "fieldName": "Value"}
    schema = make_schema(DISCOVERING, rollup=True, metrics=[metric])
    file = persist(story, schema, [{"at": "2013-01-01", "Value": 7, "value": 1}] * 2)
    assert [name for name, _ in file.columns] == ["__time", "value", "rows", "sum"]
    asking.show("trips", file)
    assert asking.ask("SELECT VALUE, sum(sum), sum(rows) FROM trips GROUP BY value") == [(1, 14, 2)]


# queries


@pytest.fixture
def trips(asking: Asking, story: Story) -> Asking:
    schema = make_schema(DISCOVERING)
    named = [one | {"Name": "x", "n": number} for number, one in enumerate(BOTH)]
    asking.show("trips", persist(story, schema, named))
    asking.show("Others", persist(story, schema, [{"at": "2013-01-01", "Town": "Bern"}]))
    return asking


def test_each_is_asked_for_by_its_name(trips: Asking) -> None:
    assert trips.ask("SELECT \"City\", `city` FROM trips WHERE city = 'bern' LIMIT 1") == [
        ("Bern", "bern")
    ]
    joined = "SELECT city, Town FROM trips JOIN Others ON Town = City ORDER BY n LIMIT 1"
    assert trips.ask(joined) == [("bern", "Bern")]
    assert trips.ask("SELECT City FROM (SELECT * FROM trips) AS t ORDER BY n LIMIT 1") == [
        ("Bern",)
    ]


def test_all_columns_are_shown(trips: Asking) -> None:
    names = ["__time", "City", "city", "Name", "n"]
    found = trips.service.query(SqlQuery("SELECT * FROM trips LIMIT 1")).table
    assert found.column_names == names
    for command in ("DESCRIBE trips", "SHOW COLUMNS IN trips", "DESCRIBE SELECT * FROM trips"):
        assert [row[0] for row in trips.ask(command)] == names, command
    assert {row[1] for row in trips.ask("SHOW TABLES")} == {"trips", "Others"}
    assert [row[0] for row in trips.ask("DESCRIBE OTHERS")] == ["__time", "Town"]
    assert "ReadSchema: struct<city:string>" in trips.ask("EXPLAIN SELECT city FROM trips")[0][0]


WHY = r'case counts in this query, because "City" and "city" of "trips" differ only in case'
AMBIGUOUS = r'may be "City" or "city" of "trips", which differ only in case: write the intended'
REFUSED = {
    "SELECT n,\n CITY FROM trips": rf'"CITY" \(line 2, column 2\) {AMBIGUOUS} name exactly',
    "SELECT t.CITY FROM trips t": AMBIGUOUS,
    "SELECT 1 FROM trips t JOIN trips u USING (CITY)": AMBIGUOUS,
    "SELECT NAME FROM trips": rf'"NAME" .*, but there is "Name" of "trips": {WHY}; write "Name"',
    "SELECT count(*) AS Total FROM trips ORDER BY total": rf"UNRESOLVED_COLUMN(.|\n)*{WHY}",
    "SELECT 1 FROM TRIPS": rf'no datasource "TRIPS", but there is "trips": {WHY}',
    "SELECT 1 FROM trips JOIN others": rf'no datasource "others", but there is "Others": {WHY}',
    "SELECT 1 FROM trips JOIN absent": "TABLE_OR_VIEW_NOT_FOUND",
}


@pytest.mark.parametrize(("sql", "message"), REFUSED.items())
def test_a_name_in_another_case_is_refused_with_the_names_that_fit(
    trips: Asking, sql: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        trips.ask(sql)


def test_queries_of_others_fold_case_as_ever(trips: Asking) -> None:
    for sql in (
        "SELECT TOWN FROM others",
        # A word that is the name of a datasource with twins makes no difference.
        "SELECT TOWN AS trips FROM others WHERE 'trips' = lower('TRIPS')",
        "WITH trips AS (SELECT * FROM others) SELECT town FROM trips",
    ):
        assert trips.ask(sql) == [("Bern",)], sql
    with pytest.raises(InvalidRequest) as caught:
        trips.ask("SELECT absent AS trips FROM others")
    assert "case counts" not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM trips, parquet.`/etc`",
        "SELECT java_method('java.lang.System', 'getenv', city) FROM trips",
        "SELECT TRANSFORM(city) USING 'id' AS (x string) FROM trips",
        "WITH x AS (SELECT city FROM trips) INSERT INTO y SELECT * FROM x",
        "SELECT City, input_file_name() FROM trips",
        "SELECT from_xml(city, 'a INT', map('rowValidationXSDPath', '/etc/passwd')) FROM trips",
        "SELECT city FROM `View_trips`",
    ],
)
def test_the_wall_holds_where_case_counts(trips: Asking, sql: str) -> None:
    with pytest.raises(InvalidRequest):
        trips.ask(sql)
    # The second wall alone, and the settings that it relies on.
    exact, files = trips.service._exact, trips.tables.files
    with exact.analysis_session(RunningCall(), files, ["trips"]) as spark:
        assert spark.conf.get("spark.sql.runSQLOnFiles") == "false"
        assert spark.conf.get("spark.sql.variable.substitute") == "false"
        with pytest.raises((InvalidRequest, PySparkException)):
            check_understood(spark, sql)
    with exact.row_session(files, ["trips"]) as (spark, _):
        assert spark.conf.get("spark.sql.runSQLOnFiles") == "false"
        assert spark.conf.get("spark.sql.variable.substitute") == "false"


def test_a_query_where_case_counts_ends_in_time(trips: Asking) -> None:
    endless = "SELECT sum(id % 7) FROM range(0, 1000000000000000, 1, 2) WHERE id > (%s)"
    sql = endless.replace("%s", "SELECT min(n) FROM trips WHERE city IS NOT NULL")
    with pytest.raises(EngineFailure, match="longer than 1000 ms"):
        trips.service.query(SqlQuery(sql, timeout_ms=1000))
    assert trips.ask("SELECT count(city) FROM trips") == [(3,)]


def test_no_projection_answers_where_case_counts(trips: Asking) -> None:
    query = SqlQuery("SELECT count(*) FROM trips", projections=ProjectionOptions(force=True))
    with pytest.raises(InvalidRequest, match=r'no projection .*"City" and "city" of "trips"'):
        trips.service.query(query)


def test_a_column_whose_case_changed_stays_one(asking: Asking, story: Story) -> None:
    schema = make_schema(DISCOVERING)
    old = persist(story, schema, [{"at": "2013-01-01", "City": "Bern"}])
    new = persist(story, schema, [{"at": "2013-01-02", "city": "Chur"}])
    asking.show("trips", old, new)
    assert asking.ask("SELECT CITY FROM trips ORDER BY __time") == [("Bern",), ("Chur",)]
    # Now a segment has both, and the names of the datasource are exact.
    asking.show("trips", old, new, persist(story, schema, BOTH))
    assert asking.ask("SELECT count(City), count(city) FROM trips") == [(4, 4)]
    asking.show("trips", old, new)
    assert asking.ask("SELECT count(CITY) FROM trips") == [(2,)]


# batch tasks


class Batch:
    """A batch engine, and what its queries see."""

    def __init__(self, sessions: SparkSessions, folder: Path) -> None:
        self.tables = GivenTables()
        self._engine = SparkBatchEngine(sessions, tables=self.tables)
        self._folder = folder
        self._calls = 0

    def write(self, given: BatchInput, schema: DataSchema, **more: object) -> BatchResult:
        self._calls += 1
        folder = str(self._folder / f"made-{self._calls}")
        partitioning = Partitioning(**more)  # type: ignore[arg-type]
        return self._engine.write(BatchRequest("task", schema, given, (), partitioning, folder))

    def close(self) -> None:
        self._engine.close()


@pytest.fixture
def batch(sessions: SparkSessions, tmp_path: Path) -> Iterator[Batch]:
    made = Batch(sessions, tmp_path)
    yield made
    made.close()


def rows_of(result: BatchResult) -> set[tuple[object, ...]]:
    rows = [row for f in result.files for row in pq.read_table(f.data.path).to_pylist()]
    return {(row["City"], row["city"]) for row in rows}


def inline(rows: list[Row]) -> ExternalInput:
    data = "\n".join(orjson.dumps(row).decode() for row in rows)
    source: dict[str, JsonValue] = {"type": "inline", "data": data}
    return ExternalInput(
        TypeAdapter[InputSource](InputSource).validate_python(source), JsonFormat()
    )


def segments(*files: DataFile, **more: object) -> SegmentInput:
    return SegmentInput(tuple((file, file.interval) for file in files), **more)  # type: ignore[arg-type]


FILTER: JsonValue = {
    "type": "not",
    "field": {"type": "selector", "dimension": "city", "value": "x"},
}


# Each value meets each value of the others once.
@pytest.mark.parametrize(
    ("kind", "rollup", "dimensions"),
    [
        ("workers", False, DISCOVERING),
        ("workers", True, LISTED),
        ("filter", True, DISCOVERING),
        ("filter", False, LISTED),
        ("hashed", False, DISCOVERING),
        ("hashed", True, LISTED),
        ("range", True, DISCOVERING),
        ("range", False, LISTED),
    ],
)
def test_a_batch_task_keeps_both(
    batch: Batch, *, dimensions: JsonValue, rollup: bool, kind: str
) -> None:
    transform: JsonValue = {"filter": FILTER} if kind == "filter" else {}
    schema = make_schema(dimensions, rollup=rollup, transformSpec=transform)
    partitioning: dict[str, object] = {}
    if kind == "hashed":
        partitioning = {"kind": "hashed", "shards": 2, "dimensions": ("city",)}
    elif kind == "range":
        partitioning = {"kind": "range", "rows_target": 1, "dimensions": ("City", "city")}
    result = batch.write(inline(BOTH), schema, **partitioning)
    assert rows_of(result) == PAIRS
    # And what it wrote is read again.
    again = make_schema(
        LISTED, transformSpec=transform, timestampSpec={"column": "__time", "format": "millis"}
    )
    files = [file.data for file in result.files]
    assert rows_of(batch.write(segments(*files), again, **partitioning)) == PAIRS


def test_a_filter_of_segments_sees_the_column_that_it_names(batch: Batch) -> None:
    made = batch.write(inline(BOTH), make_schema(LISTED)).files[0].data
    only: JsonValue = {"dimensions": ["City"]}
    time: JsonValue = {"column": "__time", "format": "millis"}
    schema = make_schema(only, timestampSpec=time)
    with_filter = make_schema(only, transformSpec={"filter": FILTER}, timestampSpec=time)
    wanted = {"type": "equals", "column": "city", "matchValueType": "STRING", "matchValue": "genf"}
    chosen = make_schema(only, transformSpec={"filter": wanted}, timestampSpec=time)
    for one, values in ((schema, {"Bern", "Chur", None}), (with_filter, {"Bern", "Chur", None})):
        found = batch.write(segments(made), one)
        assert set(pq.read_table(found.files[0].data.path)["City"].to_pylist()) == values
    found = batch.write(segments(made, filter=chosen.filter), schema)
    assert pq.read_table(found.files[0].data.path)["City"].to_pylist() == [None]


def test_queries_of_tasks_read_and_write_both(batch: Batch) -> None:
    made = batch.write(inline(BOTH), make_schema(LISTED)).files[0].data
    batch.tables.files["trips"] = (TableFile(made.path, made.columns, made.interval),)
    plain = batch.write(inline([{"at": "2013-01-01", "Town": "Bern"}]), make_schema(DISCOVERING))
    town = plain.files[0].data
    batch.tables.files["towns"] = (TableFile(town.path, town.columns, town.interval),)
    schema = make_schema(DISCOVERING)
    for dimensions in (LISTED, DISCOVERING):
        schema = make_schema(dimensions)
        for sql in ("SELECT * FROM trips", "SELECT __time, City, city FROM trips"):
            assert rows_of(batch.write(SqlInput(sql), schema)) == PAIRS, sql
        # Here case does not count, but in the columns that the query gives.
        for sql in (
            "SELECT __time, TOWN AS City, lower(town) AS city FROM towns",
            "SELECT __time, TOWN AS City, lower(town) AS city FROM towns WHERE 'trips' > ''",
        ):
            assert rows_of(batch.write(SqlInput(sql), schema)) == {("Bern", "bern")}, sql
    with pytest.raises(EngineFailure, match=r'"CITY" may be "City" or "city" of "trips"'):
        batch.write(SqlInput("SELECT __time, CITY FROM trips"), schema)


def test_columns_that_are_one_to_queries_are_read_as_one(batch: Batch) -> None:
    time: JsonValue = {"column": "__time", "format": "millis"}
    old, new = (
        batch.write(inline([{"at": "2013-01-01", name: "Bern"}]), make_schema(DISCOVERING))
        for name in ("City", "city")
    )
    files = [old.files[0].data, new.files[0].data]
    schema = make_schema({"dimensions": ["City"]}, timestampSpec=time)
    found = batch.write(segments(*files, renamed=(("city", "City"),)), schema)
    rows = [row for f in found.files for row in pq.read_table(f.data.path).to_pylist()]
    assert [row["City"] for row in rows] == ["Bern", "Bern"]


# other readers


def test_the_data_source_reads_both(
    sessions: SparkSessions, data: DataFolder, asking: Asking
) -> None:
    texts = {"City": pa.array(["Bern", "Chur"]), "city": pa.array(["bern", None])}
    data.publish("twin columns", table(["2013-01-01", "2013-01-02"], **texts))
    data.publish("twin columns", table(["2013-02-01"], City=pa.array(["Genf"])), FEBRUARY)
    where = {"dataDir": str(data.folder), "datasource": "twin columns"}
    exact = sessions.with_conf(EXACT_CONF)
    try:
        with exact.use() as spark:
            penstock.spark.register(spark)
            reader = spark.read.format("penstock").options(**where)
            wanted = [("Bern", "bern"), ("Chur", None), ("Genf", None)]
            for rows in (reader.load(), penstock.spark.table(spark, **where)):
                assert rows.columns == ["__time", "City", "city"]
                assert rows.orderBy("__time").select("City", "city").collect() == wanted
            # One of them alone: the other is not taken in its place where a file lacks it.
            one = spark.read.format("penstock").options(**where).schema("city string").load()
            assert sorted(str(row[0]) for row in one.collect()) == ["None", "None", "bern"]
    finally:
        exact.close()
    with sessions.use() as spark:
        penstock.spark.register(spark)
        picked = spark.read.format("penstock").options(**where).schema("City string").load()
        assert sorted(row[0] for row in picked.collect()) == ["Bern", "Chur", "Genf"]
        with pytest.raises(InvalidRequest, match=r"spark\.sql\.caseSensitive"):
            penstock.spark.table(spark, **where)
        with pytest.raises(PySparkException):
            spark.read.format("penstock").options(**where).load().select("city").collect()
