"""Statements that read files: EXTERN in INSERT and REPLACE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import JsonValue

from penstock.core.errors import InvalidRequest, PenstockError
from penstock.indexing.batch.batch_engine import BatchRequest, BatchResult
from penstock.indexing.batch.job import sql_job
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.batch.spark_batch_engine import SparkBatchEngine
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.tables import TableFile
from penstock.storage.secrets.secret_sources import Secrets
from tests.kits.this_host_kit import this_host_listed
from tests.spark.spark_batch_kit import Asked, Reply, Served, served
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

JSON = {"type": "json"}
HEADER = {"type": "csv", "findColumnsFromHeader": True}
SHOPS = [{"name": "shop", "type": "string"}, {"name": "cents", "type": "long"}]
DAY = "TIMESTAMP '2026-11-20' AS __time"


@pytest.fixture(autouse=True)
def servers_of_this_host() -> Iterator[None]:
    """Allow servers of tests."""
    with this_host_listed():
        yield


class BatchEngineWorld:
    """An engine, and the folder that a test has."""

    def __init__(self, sessions: SparkSessions, folder: Path, options: SparkBatchOptions) -> None:
        self.folder = folder
        self.tables = GivenTables()
        self.engine = SparkBatchEngine(sessions, options, self.tables)
        self._calls = 0

    def write(
        self, sql: str, context: Mapping[str, JsonValue] | None = None, chunk: str = "DAY"
    ) -> BatchResult:
        spec = parse_ingest(f"{sql} PARTITIONED BY {chunk}", context=context)
        job = sql_job(spec)
        self._calls += 1
        return self.engine.write(
            BatchRequest(
                "task",
                job.schema,
                job.input,
                job.intervals,
                job.partitioning,
                str(self.folder / f"out-{self._calls}"),
                job.parse_errors_max,
                job.parse_errors_saved,
            )
        )

    def rows(self, select: str, **more: JsonValue) -> list[dict[str, object]]:
        return rows_of(self.write(f"INSERT INTO d {select}", **more))


def rows_of(result: BatchResult) -> list[dict[str, object]]:
    rows = [row for f in result.files for row in pq.read_table(f.data.path).to_pylist()]
    for row in rows:
        row.pop("__time")
    return sorted(rows, key=str)


def literal(value: object) -> str:
    return "'" + json.dumps(value).replace("'", "''") + "'"


def extern(source: object, format_: object = JSON, signature: object = SHOPS) -> str:
    return f"TABLE(EXTERN({literal(source)}, {literal(format_)}, {literal(signature)}))"


def inline(*lines: str) -> dict[str, object]:
    return {"type": "inline", "data": "\n".join(lines)}


@pytest.fixture
def world(sessions: SparkSessions, tmp_path: Path) -> Iterator[BatchEngineWorld]:
    options = SparkBatchOptions(secrets=Secrets(variables={"PENSTOCK_INPUT_TEST": "open sesame"}))
    made = BatchEngineWorld(sessions, tmp_path, options)
    yield made
    made.engine.close()


def test_rows_of_json_have_the_types_of_the_signature(world: BatchEngineWorld) -> None:
    signature = [
        {"name": "a", "type": "STRING"},
        {"name": "b", "type": "long"},
        {"name": "c", "type": "double"},
        {"name": "d", "type": "float"},
        {"name": "e", "type": "COMPLEX<json>"},
        {"name": "absent", "type": "long"},
        {"name": 'it\'s "f" `g` é', "type": "string"},
    ]
    line = {"a": 1, "b": "2", "c": 3, "d": 0.5, "e": {"x": [1]}, 'it\'s "f" `g` é': "'; --", "z": 1}
    found = world.rows(f"SELECT {DAY}, * FROM {extern(inline(json.dumps(line)), JSON, signature)}")
    assert found == [
        {"a": "1", "b": 2, "c": 3.0, "d": 0.5, "e": '{"x":[1]}', "absent": None,
         'it\'s "f" `g` é': "'; --"}
    ]  # fmt: skip


def test_csv_with_a_header_and_the_columns_in_sql(world: BatchEngineWorld) -> None:
    (world.folder / "a.csv").write_text("shop,left out,cents\nBern,x,350\n")
    (world.folder / "b.csv").write_text("cents,shop\n300,Basel\n,Chur\n")
    source = {"type": "local", "baseDir": str(world.folder), "filter": "*.csv"}
    table = f"EXTERN(inputSource => {literal(source)}, inputFormat => {literal(HEADER)})"
    for columns in ("EXTEND (shop VARCHAR, cents BIGINT)", "(shop VARCHAR(20), cents BIGINT)"):
        found = world.rows(f"SELECT {DAY}, shop, cents * 2 AS c FROM TABLE({table}) {columns} AS x")
        assert found == [{"shop": "Basel", "c": 600}, {"shop": "Bern", "c": 700},
                         {"shop": "Chur", "c": None}]  # fmt: skip


def test_lists_are_lists_whoever_wrote_them(world: BatchEngineWorld) -> None:
    signature = [
        {"name": "s", "type": "ARRAY<STRING>"},
        {"name": "n", "type": "ARRAY<LONG>"},
        {"name": "d", "type": "ARRAY<DOUBLE>"},
    ]
    wanted = "array_join(s, '-') AS s, aggregate(n, 0L, (x, y) -> x + y) AS n, d[0] AS d"
    lines = ('{"s":["a","b"],"n":[1,2],"d":[1.5]}', '{"s":"a","n":["3"],"d":[2]}')
    text = "s|n|d\na;b|1;2|1.5\na|3|2\n"
    tsv = {"type": "tsv", "delimiter": "|", "listDelimiter": ";", "findColumnsFromHeader": True}
    lists = pa.table({"s": [["a", "b"], ["a"]], "n": [[1, 2], [3]], "d": [[1.5], [2.0]]})
    pq.write_table(lists, world.folder / "lists.parquet")
    parquet = {"type": "local", "files": [str(world.folder / "lists.parquet")]}
    for source, format_ in (
        (inline(*lines), JSON),
        (inline(text), tsv),
        (parquet, {"type": "parquet"}),
    ):
        found = world.rows(f"SELECT {DAY}, {wanted} FROM {extern(source, format_, signature)}")
        assert found == [{"s": "a", "n": 3, "d": 2.0}, {"s": "a-b", "n": 3, "d": 1.5}]
    bad = extern(inline('{"n":[1,"x"]}'), JSON, signature)
    with pytest.raises(EngineFailure, match=r"inline:1: field 'n': \"x\" is not a long"):
        world.rows(f"SELECT {DAY}, n FROM {bad}")


def test_several_tables_joins_common_tables_and_sub_queries(world: BatchEngineWorld) -> None:
    shops = extern(inline('{"shop":"Bern","cents":1}', '{"shop":"Chur","cents":2}'))
    names = [{"name": "shop", "type": "string"}, {"name": "land", "type": "string"}]
    format_ = {"type": "csv", "columns": ["shop", "land"]}
    lands = extern(inline("Bern,CH", "Lyon,FR"), format_, names)
    first = world.write(f"INSERT INTO past SELECT {DAY}, * FROM {shops}")
    data = first.files[0].data
    world.tables.files["past"] = (TableFile(data.path, data.columns, data.interval),)
    found = world.rows(
        f"WITH s AS (SELECT * FROM {shops}), twice AS (SELECT * FROM s UNION ALL SELECT * FROM s)"
        f" SELECT {DAY}, t.shop, l.land, sum(t.cents) AS cents, max(p.cents) AS past FROM twice t"
        f" LEFT JOIN {lands} l ON t.shop = l.shop JOIN past p ON p.shop = t.shop"
        f" WHERE t.cents < (SELECT sum(cents) FROM {shops} AS x) GROUP BY 2, 3"
    )
    assert found == [
        {"shop": "Bern", "land": "CH", "cents": 2, "past": 1},
        {"shop": "Chur", "land": None, "cents": 4, "past": 2},
    ]


def test_rows_that_do_not_parse_are_counted_once_and_told(world: BatchEngineWorld) -> None:
    (world.folder / "rows.json").write_text('{"cents":1}\n\nnonsense\n{"cents":"x"}\n{"cents":2}\n')
    table = extern({"type": "local", "files": [str(world.folder / "rows.json")]})
    query = f"INSERT INTO d SELECT {DAY}, a.cents FROM {table} a JOIN {table} b USING (cents)"
    with pytest.raises(EngineFailure, match=r"2 rows cannot be parsed.*rows\.json:3: not JSON"):
        world.write(query)
    result = world.write(query, {"maxParseExceptions": 2})
    assert (result.counts.processed, result.counts.unparseable) == (2, 2)
    places = [error.place.rsplit("/", 1)[-1] for error in result.parse_errors]
    assert places == ["rows.json:3", "rows.json:4"]
    # They count although nobody needs the rows.
    nothing = world.write(f"{query} LIMIT 0", {"maxParseExceptions": -1}, "ALL")
    assert (nothing.files, nothing.counts.unparseable) == ((), 2)


def test_a_table_of_which_no_row_parses_is_borne_by_a_number_alone(world: BatchEngineWorld) -> None:
    query = f"INSERT INTO d SELECT {DAY}, * FROM {extern(inline('x'))}"
    with pytest.raises(EngineFailure, match=r"the only row cannot be parsed.*inline:1"):
        world.write(query, {"maxParseExceptions": -1})
    bad = world.write(query, {"maxParseExceptions": 1})
    assert (bad.files, bad.counts.unparseable) == ((), 1)
    # Not those of all tables together: one good table does not stand for another.
    good = extern(inline('{"cents":1}'))
    both = f"{query} UNION ALL SELECT {DAY}, * FROM {good}"
    with pytest.raises(EngineFailure, match="the only row cannot"):
        world.write(both, {"maxParseExceptions": -1})


def test_a_table_may_be_empty_and_a_limit_takes_few_rows(world: BatchEngineWorld) -> None:
    for format_ in (JSON, HEADER):
        assert world.rows(f"SELECT {DAY}, * FROM {extern(inline(''), format_)}") == []
    many = extern(inline(*(f'{{"cents":{n}}}' for n in range(1_000))))
    limited = world.rows(f"SELECT {DAY}, cents FROM {many} ORDER BY cents LIMIT 2", chunk="ALL")
    assert limited == [{"cents": 0}, {"cents": 1}]


def test_a_number_as_time_counts_milliseconds(world: BatchEngineWorld) -> None:
    signature = [{"name": "__time", "type": "long"}, {"name": "a", "type": "string"}]
    table = extern(inline('{"__time":1763596800000,"a":"x"}'), JSON, signature)
    result = world.write(f"INSERT INTO d SELECT * FROM {table}")
    assert str(result.files[0].data.interval).startswith("2025-11-20")


def test_parquet_and_files_of_a_store(world: BatchEngineWorld) -> None:
    pq.write_table(pa.table({"shop": ["Bern"], "cents": [5]}), world.folder / "a.parquet")
    source = {"type": "fsspec", "uris": [f"file://{world.folder}/a.parquet"]}
    found = world.rows(f"SELECT {DAY}, * FROM {extern(source, {'type': 'parquet'})}")
    assert found == [{"shop": "Bern", "cents": 5}]


def test_partitions_by_ranges_read_the_files_once(world: BatchEngineWorld) -> None:
    lines = [f'{{"shop":"s{n % 9}","cents":{n}}}' for n in range(900)]
    result = world.write(
        f"REPLACE INTO d OVERWRITE ALL SELECT {DAY}, * FROM {extern(inline(*lines))}",
        {"rowsPerSegment": 200},
        "DAY CLUSTERED BY shop",
    )
    assert len(result.files) > 1
    assert sorted(row["cents"] for row in rows_of(result)) == list(range(900))  # type: ignore[type-var]


def reply(asked: Asked) -> Reply:
    allowed = asked.headers.get("Authorization") == "Basic YW5uOm9wZW4gc2VzYW1l"
    known = {"/rows.json": 200 if allowed else 403, "/busy": 503}
    return Reply(known.get(asked.path.partition("?")[0], 404), b'{"shop":"Bern","cents":7}\n')


@pytest.fixture
def server() -> Iterator[Served]:
    with served(reply) as made:
        yield made


def test_http_is_asked_once_with_a_password_of_the_environment(
    world: BatchEngineWorld, server: Served
) -> None:
    source = {
        "type": "http",
        "uris": [f"{server.address}/rows.json"],
        "httpAuthenticationUsername": "ann",
        "httpAuthenticationPassword": {"type": "environment", "variable": "PENSTOCK_INPUT_TEST"},
    }
    table = extern(source)
    found = world.rows(f"SELECT {DAY}, a.* FROM {table} a JOIN {table} b USING (shop)")
    assert found == [{"shop": "Bern", "cents": 7}]
    assert [asked.path for asked in server.asked] == ["/rows.json"]
    source["httpAuthenticationPassword"] = {"type": "environment", "variable": "PENSTOCK_INPUT_NO"}
    with pytest.raises(EngineFailure, match="PENSTOCK_INPUT_NO is not set where this runs"):
        world.rows(f"SELECT {DAY}, * FROM {extern(source)}")


def test_what_cannot_be_read_is_named_without_its_secrets(
    world: BatchEngineWorld, server: Served
) -> None:
    address = server.address
    (world.folder / "cut.json.gz").write_bytes(b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab")
    (world.folder / "no.parquet").write_bytes(b"PAR1nothing")
    files = {"type": "local", "files": [str(world.folder / "cut.json.gz")]}
    parquet = {"type": "local", "files": [str(world.folder / "no.parquet")]}
    cases: list[tuple[object, object, str]] = [
        (files, JSON, "cut.json.gz"),
        (parquet, {"type": "parquet"}, "no.parquet"),
        ({"type": "local", "files": ["/nowhere/a.json"]}, JSON, "/nowhere/a.json does not exist"),
        (
            {"type": "http", "uris": [f"{address}/gone?sig=hush"]},
            JSON,
            "gone.sig=<masked> does not exist",
        ),
        ({"type": "http", "uris": [f"{address}/rows.json?sig=hush"]}, JSON, "is refused .HTTP 403"),
    ]
    for source, format_, told in cases:
        with pytest.raises(EngineFailure, match=told) as caught:
            world.rows(f"SELECT {DAY}, * FROM {extern(source, format_)}")
        assert "hush" not in str(caught.value)
    with pytest.raises(EngineUnavailable, match="HTTP 503"):
        world.rows(f"SELECT {DAY}, * FROM {extern({'type': 'http', 'uris': [f'{address}/busy']})}")
    assert not list(world.folder.glob("**/extern-*")), "the scratch folders are gone"


def test_files_are_reached_by_extern_alone(world: BatchEngineWorld) -> None:
    (world.folder / "a.json").write_text('{"cents":1}\n')
    table = extern(inline('{"cents":1}'))
    for source in (
        f"json.`{world.folder}/a.json`",
        f"read_files('{world.folder}/a.json')",
        "__penstock_extern_2",
    ):
        with pytest.raises(PenstockError):
            world.rows(f"SELECT {DAY}, x.* FROM {source} x, {table} y")


def test_a_function_of_druids_in_the_query_is_told_in_sparks_words(world: BatchEngineWorld) -> None:
    first_line = r"^[^\n]*In Spark SQL: approx_percentile\(added, 0.5\)"
    with pytest.raises(InvalidRequest, match=first_line):
        world.rows(f"SELECT {DAY}, TDIGEST_QUANTILE(cents, 0.5) FROM {extern(inline(''))}")


def test_a_table_of_one_call_is_not_that_of_another(world: BatchEngineWorld) -> None:
    query = f"SELECT {DAY}, cents FROM "
    assert world.rows(query + extern(inline('{"cents":1}'))) == [{"cents": 1}]
    assert world.rows(query + extern(inline('{"cents":2}'))) == [{"cents": 2}]
