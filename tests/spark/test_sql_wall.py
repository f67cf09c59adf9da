"""The walls around SQL on a real Spark, with canaries: a file, a program, a variable, a view."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import types
from pyspark.sql.types import DataType, StringType, StructField, StructType, UserDefinedType

from penstock.core.errors import InvalidRequest
from penstock.core.sql.call_check import REFUSED_FUNCTIONS
from penstock.core.sql.sizes import DEPTH_MAX, PIPES_MAX, UNIONS_MAX
from penstock.spark import sql_guard
from penstock.spark.connect.spark_server import SparkServer
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.connect.user_types import refuse_unloaded_types
from penstock.spark.sql import service
from penstock.spark.sql.service import SqlQuery
from penstock.spark.views import define_outline_view
from tests.fuzz.sql_canaries_kit import (
    VARIABLE,
    Watch,
    resolving,
    run_seeds,
    watching,
    without_text_check,
)
from tests.fuzz.sql_places_kit import PLACES, Expressions, FlowQueries, SqlTasks
from tests.fuzz.sql_statements_kit import (
    attacks,
    computed_schemas,
    default_of_schema,
    ingestion_of,
    type_of_schema,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SECRET = "canary-of-the-environment"  # `conftest` gives it to Spark
SEEDS = range(7_000_000, 7_000_200)
SEEDS_OF_PLANS = range(8_000_000, 8_000_100)
SEEDS_ELSEWHERE = range(9_000_000, 9_000_015)


@pytest.fixture(scope="module")
def watch(sessions: SparkSessions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    with watching(sessions, tmp_path_factory.mktemp("wall"), SECRET) as made:
        yield made


def sessions_of(server: SparkServer) -> SparkSessions:
    return SparkSessions(SparkSessionOptions(server.remote))


@pytest.fixture
def own(spark_server: SparkServer, tmp_path: Path) -> Iterator[Watch]:
    """A service with Spark sessions of its own, in which a test may leave things."""
    with watching(sessions_of(spark_server), tmp_path / "wall", SECRET) as made:
        yield made


def without_plan_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(spark: SparkSession, query: str, given: Sequence[object], *_: object) -> DataFrame:
        return spark.sql(query, args=list(given) or None)

    monkeypatch.setattr(service, "check_understood", lambda *_: None)
    monkeypatch.setattr(service, "relation", run)


def reached(watch: Watch, more: Sequence[tuple[str, tuple[str, ...]]] = ()) -> list[str]:
    """Run all attacks; return what they reached."""
    found = []
    for sql, parameters in [*attacks(watch.canaries), *more]:
        found += [f"{one}: {sql}" for one in watch.run(sql, parameters)]
    return found


def test_attacks_reach_nothing(watch: Watch) -> None:
    assert reached(watch, computed_schemas(watch.canaries)) + watch.state() == []


def test_random_statements_reach_nothing(watch: Watch) -> None:
    assert run_seeds(watch, SEEDS) == []
    assert watch.counts["answered"]


def test_the_check_of_texts_alone_holds(own: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        without_plan_check(patched)
        assert reached(own, computed_schemas(own.canaries)) == []
    assert own.state() == []


def test_the_check_of_plans_alone_holds(own: Watch) -> None:
    with without_text_check():
        assert reached(own) == []
        assert run_seeds(own, SEEDS_OF_PLANS) == []
    assert own.counts["refused by plan"]
    assert own.state() == []


def test_variables_are_not_replaced_where_the_texts_are_not_checked(own: Watch) -> None:
    with without_text_check():
        answer = own.service.query(SqlQuery(f"SELECT '${{env:{VARIABLE}}}' AS x"))
    assert answer.table.to_pylist() == [{"x": f"${{env:{VARIABLE}}}"}]


def test_each_session_turns_the_replacement_of_variables_off(sessions: SparkSessions) -> None:
    """The setting of the server is not enough: Spark may be started by others."""
    on = sessions.with_conf({"spark.sql.variable.substitute": "true"})
    with on.use() as spark:
        assert spark.conf.get("spark.sql.variable.substitute") == "false"
        (row,) = spark.sql(f"SELECT '${{env:{VARIABLE}}}' AS x").collect()
    on.close()
    assert row.x == f"${{env:{VARIABLE}}}"


def test_without_walls_each_detector_sees_its_attack(
    own: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(sql: str, *parameters: str) -> list[str]:
        with monkeypatch.context() as patched, without_text_check():
            without_plan_check(patched)
            return own.run(sql, parameters)

    with own.service._sessions._sessions.use() as spark:
        for name in ("spark.sql.variable.substitute", "spark.sql.runSQLOnFiles"):
            spark.conf.set(name, "true")
    assert "true" in str(own.state())
    own._normal = own._state()
    c = own.canaries
    xsd = f"map('rowValidationXSDPath', '{c.url}')"
    assert "secret" in run(f"SELECT '${{env:{VARIABLE}}}'")
    assert "secret" in run(f"SELECT * FROM text.`{c.file}`")
    assert "process" in run("SELECT TRANSFORM(1) USING ? AS (x string)", c.script)
    assert "file" in run(f"INSERT OVERWRITE DIRECTORY '{c.output}' USING csv SELECT 1")
    assert own.state() == []
    run("CREATE TEMPORARY VIEW forged AS SELECT 1")
    assert "forged" in str(own.state())
    own._normal = own._state()
    run("SET spark.penstock.canary = reached")
    assert "reached" in str(own.state())
    with monkeypatch.context() as patched:
        patched.setattr(UserDefinedType, "fromJson", as_pyspark_has_it())
        assert "process" in run("SELECT from_json('{}', ?)", type_of_schema(c))
    # Last, as a network that does not answer makes Penstock open another Spark session.
    assert "network" in run(f"SELECT from_xml('<a><b>1</b></a>', 'b INT', {xsd})")
    for sql, _ in computed_schemas(c):
        assert "network" in run(sql)
    assert "network" in run("SELECT from_json('{}', ?)", default_of_schema(c))


def as_pyspark_has_it() -> object:
    """Return the method that `connect.user_types` replaces, from another copy of its module."""
    spec = spec_from_file_location("types_of_pyspark", str(types.__file__))
    assert spec is not None
    assert spec.loader is not None
    copy = module_from_spec(spec)
    spec.loader.exec_module(copy)
    return vars(copy.UserDefinedType)["fromJson"]


def test_pyspark_imports_no_module_that_a_schema_names(own: Watch) -> None:
    """In any process that opens a Spark session, where neither texts nor plans are checked."""
    query = f"SELECT from_json('{{}}', '{type_of_schema(own.canaries)}') AS x"
    with own.service._sessions._sessions.use() as spark:
        rows = spark.sql(query)
        with pytest.raises(InvalidRequest, match="whose Python class is not loaded"):
            rows.schema  # noqa: B018 - reading it is the test
        with pytest.raises(InvalidRequest, match="whose Python class is not loaded"):
            rows.toArrow()
    assert own.canaries.module not in sys.modules
    assert own.marks() == []


class Loaded(UserDefinedType):
    """A type of a module that is imported already."""

    @classmethod
    def sqlType(cls) -> DataType:  # noqa: N802 - PySpark's name
        return StringType()

    @classmethod
    def module(cls) -> str:
        return __name__


def test_a_user_defined_type_is_known_where_its_module_is_loaded() -> None:
    refuse_unloaded_types()
    schema = StructType([StructField("a", Loaded())])
    assert StructType.fromJson(schema.jsonValue()) == schema
    for path in ("os.path", f"{__name__}.StringType", "Loaded", "unittest.__main__.X"):
        field = {"name": "a", "nullable": True, "metadata": {}}
        given = {**field, "type": {"type": "udt", "pyClass": path}}
        with pytest.raises(InvalidRequest, match="whose Python class is not loaded"):
            StructType.fromJson({"type": "struct", "fields": [given]})


@pytest.mark.parametrize(
    "query",
    [
        "SELECT from_json('{\"a\": 1}', 'a INT, b ARRAY<STRUCT<c: STRING>>') AS x",
        "SELECT from_json('{\"a\": 1}', schema_of_json('{\"a\": 1}')) AS x",
        "SELECT from_csv('1', '`a b` INT', map('sep', ';')) AS x",
        "SELECT from_xml('<a><b>1</b></a>', 'b INT') AS x",
        "SELECT variant_get(parse_json('[1]'), '$', 'ARRAY<INT>') AS x",
        "SELECT try_variant_get(parse_json('1'), '$', schema_of_variant(parse_json('1'))) AS x",
    ],
)
def test_plain_schemas_are_answered(watch: Watch, query: str) -> None:
    assert watch.service.query(SqlQuery(query)).table.to_pylist()[0]["x"]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n" + "+1" * DEPTH_MAX + " AS x FROM canary",
        "SELECT n" + " || 'a'" * DEPTH_MAX + " AS x FROM canary",
        "SELECT " + "- " * DEPTH_MAX + "n AS x FROM canary",
        "SELECT " + "NOT " * (DEPTH_MAX - 1) + "n = 1 AS x FROM canary",
        "SELECT " + "abs(" * 150 + "n" + "+1" * (DEPTH_MAX - 150) + ")" * 150 + " FROM canary",
        "SELECT n FROM canary WHERE " + " OR ".join(f"n = {n} AND n > 0" for n in range(2_000)),
        "SELECT 1 AS x" + " UNION ALL SELECT 1" * UNIONS_MAX,
        "TABLE canary" + " |> EXTEND 1 AS x" * PIPES_MAX,
        "SELECT 1 AS a0, " + ", ".join(f"a{n} + a{n} AS a{n + 1}" for n in range(12)),
    ],
    ids=lambda query: query[:20],
)
def test_what_is_within_the_limits_of_depth_fits_the_stack_of_spark(
    watch: Watch, query: str
) -> None:
    assert watch.service.query(SqlQuery(query)).table.num_rows


def test_a_view_of_another_statement_is_not_seen(
    own: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, without_text_check():
        without_plan_check(patched)
        own.run("CREATE OR REPLACE TEMPORARY VIEW canary AS SELECT 666 AS n, 'forged' AS s")
    answer = own.service.query(SqlQuery("SELECT max(n) AS n FROM canary"))
    assert answer.table.to_pylist() == [{"n": 3}]


@pytest.mark.parametrize(
    "statement",
    [
        "EXPLAIN SELECT n FROM canary",
        "EXPLAIN FORMATTED SELECT n FROM canary WHERE n = 1",
        "EXPLAIN EXTENDED SELECT n FROM canary",
        "EXPLAIN COST SELECT count(*) FROM canary",
    ],
)
def test_explanations_show_no_path(watch: Watch, statement: str) -> None:
    text = str(watch.service.query(SqlQuery(statement)).table.to_pydict())
    assert "Scan" in text
    assert str(watch.folder) not in text
    assert "view_" not in text


def test_a_text_of_several_lines_is_no_node(watch: Watch) -> None:
    text = "a\nScriptTransformation\n- b\n  : c\n== Optimized Logical Plan ==\nx"
    answer = watch.service.query(SqlQuery("SELECT ? AS x, n FROM canary WHERE n = 1", (text,)))
    assert answer.table.to_pylist() == [{"x": text, "n": 1}]
    for line in ("+- ScriptTransformation cat", ":  +- Foo", "   :- *"):
        with pytest.raises(InvalidRequest, match="its plan contains"):
            watch.service.query(SqlQuery("SELECT ?", (f"a\n{line}",)))


def test_a_type_that_cannot_be_sent_is_refused(watch: Watch) -> None:
    with pytest.raises(InvalidRequest, match="cast it to another one"):
        watch.service.query(SqlQuery("SELECT map() AS m"))


def test_a_plan_that_is_cut_is_refused(own: Watch) -> None:
    with resolving(own.service._sessions).use() as spark:
        spark.conf.set("spark.sql.maxPlanStringLength", "2000")
    with pytest.raises(InvalidRequest, match="too long"):
        own.service.query(SqlQuery(f"SELECT '{'x' * 3_000}'"))
    with resolving(own.service._sessions).use() as spark:
        spark.conf.unset("spark.sql.maxPlanStringLength")
        spark.conf.set("spark.sql.debug.maxToStringFields", "3")
    with pytest.raises(InvalidRequest, match="too long"):
        own.service.query(SqlQuery("SELECT 1, 2, 3, 4, 5, 6"))


def test_functions_over_constants_are_not_evaluated_for_a_plan(watch: Watch) -> None:
    with resolving(watch.service._sessions).use() as spark:
        sql_guard.check_understood(spark, "SELECT raise_error('evaluated'), n FROM canary")
        sql_guard.check_understood(spark, "SELECT 1 / 0")


# Functions over constants which Spark optimizes in spite of a limit of 0.
WITHIN = (
    "SELECT a.n FROM canary a LEFT JOIN canary b ON a.n = b.n WHERE coalesce(b.s, {0}) = 'x'",
    "SELECT (SELECT {0} FROM canary) AS x",
    "SELECT (SELECT max({0}) FROM canary) AS x FROM canary",
    "SELECT n FROM canary WHERE n IN (SELECT {0} FROM canary)",
    "SELECT n FROM canary WHERE EXISTS (SELECT n FROM canary WHERE {0} = 'x')",
    "SELECT (SELECT max(x) FROM (SELECT explode(array({0})) AS x)) AS y",
    "SELECT (SELECT first(n) FROM canary ORDER BY {0}) AS y",
    "SELECT (SELECT max(x) FROM (SELECT {0} AS x INTERSECT SELECT 'b')) AS y",
    "SELECT (SELECT coalesce({0}, s) FROM canary) AS y",
)


@pytest.mark.parametrize("query", WITHIN)
def test_functions_over_constants_are_not_evaluated_in_subqueries(
    watch: Watch, sessions: SparkSessions, query: str
) -> None:
    watch.requests.clear()
    options = f"map('rowValidationXSDPath', '{watch.canaries.url}')"
    query = query.format(f"to_json(from_xml('<a><b>1</b></a>', 'b INT', {options}))")
    with resolving(watch.service._sessions).use() as spark, refused_by_plan():
        sql_guard.check_understood(spark, query)
    with sessions.use() as spark:
        define_outline_view(spark, "canary", (("n", "bigint"), ("s", "string")))
        with sql_guard.constants_kept(spark), refused_by_plan():
            sql_guard.check_understood(spark, query)
        spark.catalog.dropTempView("canary")
    assert watch.requests == []


def refused_by_plan() -> pytest.RaisesExc[InvalidRequest]:
    return pytest.raises(InvalidRequest, match="its plan contains")


def test_every_function_of_spark_was_reviewed(spark: SparkSession) -> None:
    """A function that is new in Spark may run code or open files: `call_check` names it."""
    reviewed = set((Path(__file__).parent / "reviewed_functions.txt").read_text().split())
    known = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in known if name[0].isalpha()} - reviewed == set()
    assert reviewed >= REFUSED_FUNCTIONS.keys() - {"identifier"}


@pytest.fixture(params=list(PLACES))
def elsewhere(
    request: pytest.FixtureRequest, spark_server: SparkServer, tmp_path: Path
) -> Iterator[Watch]:
    """A watch over a place where users give SQL besides queries."""
    with watching(sessions_of(spark_server), tmp_path / "wall", SECRET, request.param) as made:
        yield made


def written_for(watch: Watch, query: str) -> str:
    """Return a query in the form that a place takes."""
    if isinstance(watch.place, SqlTasks):
        return ingestion_of(query)
    return query if isinstance(watch.place, FlowQueries) else f"({query})"


def attacks_of(watch: Watch) -> list[str]:
    c = watch.canaries
    default, kind = (one.replace("'", "''") for one in (default_of_schema(c), type_of_schema(c)))
    return [
        f"SELECT TRANSFORM(1) USING '{c.script}' AS (x string)",
        f"SELECT * FROM text.`{c.file}`",
        f"SELECT reflect('java.lang.System', 'getenv', '{c.variable}') AS x",
        "SELECT input_file_name() AS x FROM canary",
        f"SELECT from_json('{{}}', '{default}').a AS x",
        f"SELECT to_json(from_json('{{}}', '{kind}')) AS x",
    ]


def test_nothing_is_reached_in_other_places(elsewhere: Watch) -> None:
    for query in attacks_of(elsewhere):
        assert elsewhere.run(written_for(elsewhere, query)) == []
    assert elsewhere.counts["refused by text"] >= 5  # Spark refuses the other one
    assert run_seeds(elsewhere, SEEDS_ELSEWHERE) == []
    assert elsewhere.counts["refused by text"]


def test_the_check_of_plans_alone_holds_in_other_places(elsewhere: Watch) -> None:
    with without_text_check():
        for query in attacks_of(elsewhere):
            assert elsewhere.run(written_for(elsewhere, query)) == []
        assert elsewhere.counts["answered"] == 0
        # An expression is still parsed, and no tree has a script.
        is_parsed = isinstance(elsewhere.place, Expressions)
        assert elsewhere.counts["refused by plan"] >= 4 - is_parsed
        assert run_seeds(elsewhere, SEEDS_ELSEWHERE) == []
        variable = f"SELECT '${{env:{VARIABLE}}}' AS x"
        assert VARIABLE in elsewhere.place.run(written_for(elsewhere, variable))
    assert elsewhere.state() == []
