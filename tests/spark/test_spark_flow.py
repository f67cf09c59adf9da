"""SparkSQL and SparkScript on a real Spark."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.core.errors import Dependency, InvalidRequest
from penstock.core.read_guard import READ_GUARD, ReadGuard
from penstock.flow.processor import InvalidConfiguration, Processor, PropertyValue
from penstock.flow.user_modules import SERVICE_MODULES, FlowModules
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.flow.builtin import SPARK_PROCESSORS
from penstock.spark.flow.script import SparkScript
from penstock.spark.flow.service_spark import SERVICE_SPARK
from penstock.spark.flow.sql import SparkSQL
from penstock.testing.flow import ProcessorRunner
from tests.kits.this_host_kit import this_host_listed

pytestmark = pytest.mark.spark

FLIGHTS = b'{"flight":1,"carrier":"AA","delay":5}\n{"flight":2,"carrier":"UA","delay":-1}\n'
MORE = b'{"flight":3,"carrier":"AA","delay":2.5}\n'
LINES: dict[str, PropertyValue] = {"input_format": "json-lines"}


def rows(content: bytes) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in content.splitlines()]


@pytest.fixture(autouse=True)
def service_spark(spark_server: SparkServer) -> Iterator[None]:
    SERVICE_SPARK.set(spark_server.remote)
    yield
    SERVICE_SPARK.set(None)


def test_a_batch_is_one_view_and_each_query_one_result(tmp_path: Path) -> None:
    queries = {
        "late": "SELECT flight FROM input WHERE delay > 0 ORDER BY flight DESC",
        "by_carrier": "SELECT carrier, count(*) AS n FROM input GROUP BY carrier ORDER BY carrier",
        "work_folder": str(tmp_path),
    }
    with ProcessorRunner(SparkSQL, {**LINES, **queries}) as runner:
        runner.enqueue(FLIGHTS, month="1", year="2013")
        runner.enqueue(MORE, month="2", year="2013")
        runner.run()
        [late], [carriers] = runner.sent("late"), runner.sent("by_carrier")
        assert len(runner.sent("original")) == 2
    assert rows(late.content) == [{"flight": 3}, {"flight": 1}]
    assert rows(carriers.content) == [{"carrier": "AA", "n": 2}, {"carrier": "UA", "n": 1}]
    assert late.attributes["record.count"] == "2"
    assert late.attributes["spark.result"] == "late"
    assert late.attributes["year"] == "2013"
    assert "month" not in late.attributes
    assert list(tmp_path.iterdir()) == []


def test_views_by_attribute_and_tables_of_files_are_joined(tmp_path: Path) -> None:
    airlines = tmp_path / "airlines.csv"
    airlines.write_text("carrier,name\nAA,American\nUA,United\n")
    weather = tmp_path / "weather.parquet"
    pq.write_table(pa.table({"flight": [1, 2], "wind": [10.5, 3.0]}), weather)
    properties: dict[str, PropertyValue] = {
        "input_format": "csv",
        "output_format": "parquet",
        "view": "${table}",
        "tables": f"airlines={airlines},weather={weather}",
        "joined": "SELECT f.flight, name, wind, gate FROM flights f JOIN airlines USING (carrier) "
        "JOIN weather w ON w.flight = f.flight LEFT JOIN gates g ON g.flight = f.flight "
        "ORDER BY 1",
    }
    with ProcessorRunner(SparkSQL, properties) as runner:
        runner.enqueue(b"flight,carrier\n1,AA\n2,UA\n", table="flights")
        runner.enqueue(b"flight,gate\n2,B7\n", table="gates")
        runner.enqueue(b"a\n1\n", table="no name")
        runner.run()
        [joined], [failed] = runner.sent("joined"), runner.sent("failure")
        # The views of the last job are not there for the next.
        runner.enqueue(b"flight,carrier\n1,AA\n", table="flights")
        runner.run()
        assert "gates" in runner.sent("failure")[1].attributes["error.reason"]
    assert pq.read_table(pa.BufferReader(joined.content)).to_pylist() == [
        {"flight": 1, "name": "American", "wind": 10.5, "gate": None},
        {"flight": 2, "name": "United", "wind": 3.0, "gate": "B7"},
    ]
    assert "invalid view name" in failed.attributes["error.reason"]


@pytest.fixture
def secrets(tmp_path: Path) -> Iterator[Path]:
    """A folder that flows must not read, with a file that Spark could."""
    kept = tmp_path / "run"
    kept.mkdir()
    (kept / "options.json").write_text('{"token": "secret"}\n')
    (tmp_path / "link.json").symlink_to(kept / "options.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "folder.json" / "part.json").symlink_to(kept / "options.json")
    (tmp_path / "linked.json").mkdir()
    (tmp_path / "linked.json" / "inside").symlink_to(tmp_path)
    (tmp_path / "other").symlink_to("/usr/bin")
    READ_GUARD.set(ReadGuard((str(kept),)))
    yield kept
    READ_GUARD.set(ReadGuard())


def test_tables_are_no_files_that_flows_must_not_read(secrets: Path) -> None:
    own, above = secrets / "options.json", secrets.parent
    for place, why in {
        str(own): "must not read files",
        f"file:{own}": "must not read files",
        f"file://{own}": "must not read files",
        f"{above}/other/../run/options.json": "must not read files",
        f"{above}/link.json": "must not read files",
        f"{above}/folder.json": "must not read files",
        f"{above}/linked.json": "must not read files",
        "/proc/self/x.json": "must not read files",
        f"{above}/r*/options.json": "pattern",
        f"{above}/[r]un/options.json": "pattern",
        "../run/options.json": "not an absolute path",
        f"/{own}": "not an absolute path",
        f"file://localhost{own}": "not an absolute path",
        f"FILE:{own}": "cannot be opened",
        f"har:{above}/x.har/options.json": "cannot be opened",
        f"har://file-{above}/x.har/options.json": "must not use the file system",
        "hdfs:///x.json": "hdfs://HOST:PORT",
    }.items():
        with pytest.raises(InvalidConfiguration) as refused:
            SparkSQL.configured({**LINES, "out": "SELECT 1", "tables": f"a={place}"})
        [problem] = refused.value.problems
        assert problem.place == "tables"
        assert why in problem.message, place


def test_a_table_whose_links_form_a_loop_is_checked_to_its_end(tmp_path: Path) -> None:
    table = tmp_path / "table.json"
    table.mkdir()
    (table / "loop").symlink_to(table)
    SparkSQL.configured({**LINES, "out": "SELECT 1", "tables": f"a={table}"})


def test_a_list_of_files_in_a_folder_of_tables_is_not_followed(secrets: Path) -> None:
    """Spark's streams write such a list. It may name any file, and PutFile can write one, too."""
    folder = secrets.parent / "stream.csv"
    (folder / "_spark_metadata").mkdir(parents=True)
    (folder / "a.csv").write_text("open\n1\n")
    entry = {"isDir": False, "modificationTime": 0, "blockReplication": 1, "action": "add"}
    # Spark takes the names of columns from all files if one of them is in a partition.
    lines = [
        orjson.dumps({**entry, "path": place.as_uri(), "size": size, "blockSize": 1 << 20})
        for place, size in ((secrets / "options.json", 1_000), (secrets / "part=1" / "a.csv", 0))
    ]
    (folder / "_spark_metadata" / "0").write_bytes(b"\n".join([b"v1", *lines]))
    query = {"out": "SELECT t.* FROM input LEFT JOIN t ON true", "tables": f"t={folder}"}
    with ProcessorRunner(SparkSQL, {**LINES, **query}) as runner:
        runner.enqueue(b'{"a":1}\n')
        runner.run()
        assert [sent.content for sent in runner.sent("out")] == [b'{"open":1}\n']


def test_tables_are_checked_again_when_a_job_runs(secrets: Path) -> None:
    table = secrets.parent / "table.json"
    query = {"out": "SELECT token FROM t", "tables": f"t={table}"}
    with ProcessorRunner(SparkSQL, {**LINES, **query}) as runner:
        table.symlink_to(secrets / "options.json")
        runner.enqueue(FLIGHTS)
        runner.run()
        [failed] = runner.sent("failure")
        assert "tables: " in failed.attributes["error.reason"]
        assert "must not read files of" in failed.attributes["error.reason"]
        table.unlink()
        table.write_text('{"token": "open"}\n')
        runner.enqueue(FLIGHTS)
        runner.run()
        [sent] = runner.sent("out")
    assert rows(sent.content) == [{"token": "open"}]


@pytest.mark.parametrize(
    ("kind", "metadata", "expected"),
    [
        ("string", {"EXISTS_DEFAULT": "concat('evalu', 'ated')"}, [{"id": 1, "other": None}]),
        ({"type": "udt", "pyClass": "a.X", "serializedClass": "x", "sqlType": "string"}, {}, []),
    ],
)
def test_nothing_in_the_footer_of_a_table_is_evaluated(
    tmp_path: Path, kind: object, metadata: object, expected: object
) -> None:
    place = tmp_path / "table.parquet"
    fields = [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "other", "type": kind, "nullable": True, "metadata": metadata},
    ]
    text = orjson.dumps({"type": "struct", "fields": fields})
    key = b"org.apache.spark.sql.parquet.row.metadata"
    schema = pa.schema([("id", pa.int64())], metadata={key: text})
    pq.write_table(pa.table({"id": [1]}, schema=schema), place)
    query = {"out": "SELECT id, other FROM t", "tables": f"t={place}"}
    with ProcessorRunner(SparkSQL, {**LINES, **query}) as runner:
        runner.enqueue(FLIGHTS)
        runner.run()
        if expected:
            [sent] = runner.sent("out")
            assert rows(sent.content) == expected
        else:
            [failed] = runner.sent("failure")
            assert "tables: " in failed.attributes["error.reason"]
            assert "user-defined type" in failed.attributes["error.reason"]


def test_a_schema_is_given_and_types_come_through() -> None:
    properties: dict[str, PropertyValue] = {
        **LINES,
        "schema": "id long, at timestamp, price decimal(6,2), tags array<string>",
        "out": "SELECT id, at + INTERVAL 1 HOUR AS at, price * 2 AS price, tags[0] AS tag "
        "FROM input",
    }
    with ProcessorRunner(SparkSQL, properties) as runner:
        runner.enqueue(b'{"id":1,"at":"2026-01-31T10:00:00Z","price":"1.25","tags":["x"]}')
        runner.run()
        [sent] = runner.sent("out")
    [row] = rows(sent.content)
    assert row == {"id": 1, "at": "2026-01-31T11:00:00.000000Z", "price": 2.5, "tag": "x"}


def test_a_job_waits_for_the_views_that_it_needs() -> None:
    properties = {
        **LINES,
        "view": "${v}",
        "needs": "a,b",
        "both": "SELECT a.n, b.m FROM a JOIN b ON n = m",
    }
    with ProcessorRunner(SparkSQL, properties) as runner:
        runner.enqueue(b'{"n":1}', v="a")
        runner.enqueue(b'{"n":1}', v="not a name")
        runner.run()
        assert runner.counts() == {"failure": 1}
        assert runner.yielded_ms == 1_000
        runner.enqueue(b'{"m":1}', v="b")
        runner.run()
        assert rows(runner.sent("both")[0].content) == [{"n": 1, "m": 1}]
        assert runner.yielded_ms == 0


def test_bad_content_fails_alone_and_a_query_that_fails_sends_all_to_failure() -> None:
    with ProcessorRunner(SparkSQL, {**LINES, "out": "SELECT flight FROM input"}) as runner:
        for content in (FLIGHTS, b"no json", b'{"other":1}'):
            runner.enqueue(content)
        runner.run()
        assert runner.counts() == {"out": 1, "failure": 1, "original": 2}
        runner.clear()
        runner.enqueue(b'{"other":1}')
        runner.enqueue(b"")
        runner.run()
        reasons = {sent.attributes["error.reason"] for sent in runner.sent("failure")}
        assert runner.counts() == {"failure": 2}
        assert "flight" in reasons.pop()
        runner.clear()
        runner.enqueue(b"")
        runner.run()
        [failed] = runner.sent("failure")
        assert "set a schema" in failed.attributes["error.reason"]


def test_a_value_that_cannot_be_computed_fails_with_sparks_reason() -> None:
    with ProcessorRunner(
        SparkSQL, {**LINES, "out": "SELECT CAST(carrier AS INT) AS n FROM input"}
    ) as runner:
        runner.enqueue(FLIGHTS)
        runner.run()
        [failed] = runner.sent("failure")
    assert "CAST_INVALID_INPUT" in failed.attributes["error.reason"]
    assert failed.content == FLIGHTS


def test_a_result_without_records_is_sent_unless_not_wanted() -> None:
    query = {"out": "SELECT * FROM input WHERE flight > 9"}
    with ProcessorRunner(SparkSQL, {**LINES, **query, "output_format": "csv"}) as runner:
        runner.enqueue(FLIGHTS)
        runner.run()
        [sent] = runner.sent("out")
        assert sent.content == b'"flight","carrier","delay"\n'
        runner.clear()
        runner.restart({**LINES, **query, "send_empty": False})
        runner.enqueue(FLIGHTS)
        runner.run()
        assert runner.counts() == {"original": 1}


def test_a_spark_that_is_gone_is_waited_for_and_nothing_is_lost() -> None:
    properties = {**LINES, "out": "SELECT * FROM input", "spark": "sc://127.0.0.1:1"}
    with this_host_listed(), ProcessorRunner(SparkSQL, properties) as runner:
        runner.enqueue(FLIGHTS)
        runner.run()
        assert runner.counts() == {}
        [waiting] = runner.queued
        assert not waiting.penalty_until_ms  # the FlowFile is at no fault
        reported = runner.unavailable
        assert reported is not None
        assert reported.dependency is Dependency.SPARK
        assert runner.yielded_ms == 1_000


def test_a_flow_does_not_connect_to_a_spark_of_this_host() -> None:
    properties = {**LINES, "out": "SELECT * FROM input", "spark": "sc://localhost:1"}
    told = pytest.raises(InvalidRequest, match="is this host")
    with told, ProcessorRunner(SparkSQL, properties) as runner:
        runner.run()


def test_without_an_address_it_does_not_start() -> None:
    SERVICE_SPARK.set(None)
    with pytest.raises(InvalidRequest, match="no Spark"):
        ProcessorRunner(SparkSQL, {**LINES, "out": "SELECT 1"}).start()


SCRIPT = """
from pyspark.sql import functions as sf


def place(_spark, frames):
    return frames["input"].select(sf.input_file_name().alias("file"))


def double(spark, frames):
    flights = frames["input"].withColumn("delay", sf.col("delay") * 2)
    return {"doubled": flights.orderBy("flight"), "count": spark.range(1)}


def raises(spark, frames):
    return 1 // 0


def nothing(spark, frames):
    return None


def other(spark, frames):
    return {"other": spark.range(1)}


def column(spark, frames):
    return frames["input"].select("none")


text = "no function"
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Write a module with functions, and list its folder."""
    (tmp_path / "spark_flow_script.py").write_text(SCRIPT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    SERVICE_MODULES.set(FlowModules([str(tmp_path)]))
    yield
    SERVICE_MODULES.set(FlowModules())
    sys.modules.pop("spark_flow_script", None)


@pytest.mark.usefixtures("script")
def test_a_function_makes_dataframes() -> None:
    properties = {**LINES, "function": "spark_flow_script:double", "outputs": "doubled,count"}
    with ProcessorRunner(SparkScript, properties) as runner:
        runner.enqueue(FLIGHTS)
        runner.run()
        assert [row["delay"] for row in rows(runner.sent("doubled")[0].content)] == [10, -2]
        assert rows(runner.sent("count")[0].content) == [{"id": 0}]


@pytest.mark.usefixtures("script")
def test_files_are_in_the_folder_of_the_service_and_go_with_the_job(
    tmp_path: Path, spark_server: SparkServer
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    SERVICE_SPARK.set(spark_server.remote, folder)
    with ProcessorRunner(SparkScript, {**LINES, "function": "spark_flow_script:place"}) as runner:
        runner.enqueue(MORE)
        runner.run()
        [row] = rows(runner.sent("success")[0].content)
    assert str(folder) in str(row["file"])
    assert not list(folder.iterdir())


@pytest.mark.usefixtures("script")
def test_what_a_function_does_wrong_is_the_reason() -> None:
    for name, reason in [
        ("raises", "raised ZeroDivisionError"),
        ("nothing", "return a DataFrame"),
        ("other", "name it in `outputs`"),
        ("column", "none"),
    ]:
        properties = {**LINES, "function": f"spark_flow_script:{name}"}
        with ProcessorRunner(SparkScript, properties) as runner:
            runner.enqueue(FLIGHTS)
            runner.run()
            [failed] = runner.sent("failure")
        assert reason in failed.attributes["error.reason"]


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    "path",
    ["no_such_module:f", "json:loads", "spark_flow_script:absent", "spark_flow_script:text"],
)
def test_a_function_that_is_none_does_not_start(path: str) -> None:
    with pytest.raises(InvalidRequest, match=path):
        ProcessorRunner(SparkScript, {**LINES, "function": path}).start()


@pytest.mark.usefixtures("script")
@pytest.mark.parametrize(
    ("processor", "properties", "place"),
    [
        (SparkSQL, {}, ""),
        (SparkSQL, {"out": "DROP TABLE x"}, "out"),
        (SparkSQL, {"out": "SHOW TABLES"}, "out"),
        (SparkSQL, {"out": "SELECT reflect('a', 'b')"}, "out"),
        (SparkSQL, {"original": "SELECT 1"}, "original"),
        (SparkSQL, {"out": "SELECT 1", "tables": "a=b.xml"}, "tables"),
        (SparkSQL, {"out": "SELECT 1", "view": "a b"}, "view"),
        (SparkSQL, {"out": "SELECT 1", "max_flowfiles": 0}, "max_flowfiles"),
        (SparkSQL, {"out": "SELECT 1", "spark": "spark://h:7077"}, "spark"),
        (SparkScript, {"function": "f"}, "function"),
        (SparkScript, {"function": "os:system"}, "function"),
        (SparkScript, {"function": "spark_flow_script:absent"}, "function"),
        (SparkScript, {"function": "spark_flow_script:double", "outputs": "failure"}, "outputs"),
        (SparkSQL, {"out": "SELECT 1", "work_folder": str(Path(__file__).parent)}, "work_folder"),
    ],
)
def test_a_wrong_configuration_names_the_property(
    processor: type[Processor], properties: dict[str, PropertyValue], place: str
) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        processor.configured({**LINES, **properties})
    assert [problem.place for problem in refused.value.problems] == [place]


def test_the_table_names_what_is_there() -> None:
    from penstock.flow.processor.processor_registry import ProcessorRegistry

    registry = ProcessorRegistry(SPARK_PROCESSORS)
    assert {registry.find(name) for name in registry.names()} == {SparkSQL, SparkScript}
