"""Row filters and column masks: what a principal sees, whatever its statement does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.core.access.row_rules import ALL_ROWS, RowRules
from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.projections.selector import ProjectionOptions
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.limited_tables import SqlReader, limited_table, without_details
from penstock.spark.sql.service import QUERY_CONF, SqlQuery, SqlService
from penstock.spark.sql_guard import explained, relation
from tests.spark.data_folder_kit import FEBRUARY, DataFolder, table

if TYPE_CHECKING:
    from penstock.spark.projections.selector import Projections

pytestmark = pytest.mark.spark

KEY = "0123456789abcdef" * 4
FILTER = RowRules("region = 'eu'")
# Hidden rows: `k` is 7 in all of them, and only in them.
HIDDEN = 7
ROWS = (
    {"n": 1, "region": "eu", "k": 0, "email": "ann@x.org"},
    {"n": 2, "region": "eu", "k": 1, "email": None},
    {"n": 3, "region": "us", "k": HIDDEN, "email": "hidden-one"},
    {"n": 4, "region": None, "k": HIDDEN, "email": "hidden-two"},
    {"n": 5, "region": "eu", "k": 2, "email": "bob@x.org"},
    {"n": 6, "region": "us", "k": HIDDEN, "email": "hidden-three"},
)


def reader_of(**limits: RowRules) -> SqlReader:
    """A reader of `sales` and `plain` with these limits."""
    rows = {"sales": ALL_ROWS, "plain": ALL_ROWS, "Twins": ALL_ROWS, **limits}
    return SqlReader(repr(limits), rows.get, lambda: KEY)


FILTERED = reader_of(sales=FILTER)


def part(rows: list[dict[str, object]], day: str) -> pa.Table:
    return table(
        [day] * len(rows),
        n=pa.array([row["n"] for row in rows], pa.int64()),
        region=pa.array([row["region"] for row in rows], pa.string()),
        k=pa.array([row["k"] for row in rows], pa.int64()),
        email=pa.array([row["email"] for row in rows], pa.string()),
    )


@pytest.fixture(scope="module")
def sql(sessions: SparkSessions, data: DataFolder) -> Iterator[SqlService]:
    rows = [dict(row) for row in ROWS]
    # Two files whose columns differ, so that the view is a union.
    data.publish("sales", part(rows[:4], "2013-01-01"))
    data.publish("sales", part(rows[4:], "2013-02-01").drop(["email"]), FEBRUARY)
    twins = {"Count": pa.array([1, 2], pa.int64()), "count": pa.array([7, 8], pa.int64())}
    data.publish("Twins", table(["2013-01-01"] * 2, **twins))
    data.publish("plain", table(["2013-01-01"] * 3, y=pa.array([1, 3, 5], pa.int64())))
    service = SqlService(sessions, data.source, SystemClock())
    yield service
    service.close()


def rows_of(sql: SqlService, statement: str, reader: SqlReader | None) -> list[dict[str, object]]:
    return sql.query(SqlQuery(statement, reader=reader)).table.to_pylist()


def told(sql: SqlService, statement: str, reader: SqlReader | None) -> str:
    """The answer as text, in any order of the rows."""
    try:
        return str(sorted(map(str, rows_of(sql, statement, reader))))
    except PenstockError as error:
        return f"{type(error).__name__}: {error}"


def by_hand(statement: str) -> str:
    """The statement over the visible rows, written out."""
    rows = ", ".join(
        f"(TIMESTAMP '{day}', {n}, 'eu', {k}, CAST({email} AS STRING))"
        for day, n, k, email in (
            ("2013-01-01", 1, 0, "'ann@x.org'"),
            ("2013-01-01", 2, 1, "NULL"),
            ("2013-02-01", 5, 2, "NULL"),
        )
    )
    columns = "CAST(n AS BIGINT) AS n, region, CAST(k AS BIGINT) AS k, email"
    values = f"SELECT __time, {columns} FROM VALUES {rows} AS v(__time, n, region, k, email)"
    return re.sub(r"\bsales\b", f"({values})", statement)


# Each would fail, or show a hidden row, if an expression saw one. `{p}` is such an expression, true
# for all visible rows.
FORMS = (
    "SELECT n, k FROM sales WHERE {p}",
    "SELECT n FROM sales WHERE NOT ({p}) OR n > 0",
    "SELECT count(*) AS c, sum(k) AS s FROM sales WHERE {p}",
    "SELECT region, max(n) AS m FROM sales GROUP BY region HAVING count(*) FILTER (WHERE {p}) > 0",
    "SELECT n, CASE WHEN {p} THEN 1 END AS x FROM sales",
    "SELECT a.n FROM sales a JOIN sales b ON a.n = b.n WHERE a.k < 7",
    "SELECT t.n FROM (SELECT * FROM sales WHERE {p}) t JOIN plain ON t.n = y",
    "SELECT y FROM plain LEFT JOIN (SELECT n, {p} AS q FROM sales) t ON t.n = y AND q",
    "SELECT y FROM plain FULL JOIN sales t ON t.n = y",
    "SELECT y FROM plain WHERE y IN (SELECT n FROM sales WHERE {p})",
    "SELECT y FROM plain WHERE y NOT IN (SELECT n FROM sales WHERE {p})",
    "SELECT y FROM plain WHERE EXISTS (SELECT 1 FROM sales t WHERE t.n = y AND {p})",
    "SELECT y FROM plain WHERE NOT EXISTS (SELECT 1 FROM sales t WHERE t.n = y AND {p})",
    "SELECT n FROM sales WHERE n IN (SELECT y FROM plain) AND {p}",
    "SELECT y, (SELECT count(*) FROM sales t WHERE t.n >= y AND {p}) AS c FROM plain",
    "SELECT y, x.n FROM plain, LATERAL (SELECT n FROM sales t WHERE t.n = y AND {p}) x",
    "WITH t AS (SELECT * FROM sales) SELECT a.n, b.k FROM t a, t b WHERE a.n = b.n AND a.k < 7",
    "WITH plain AS (SELECT n FROM sales WHERE {p}) SELECT * FROM plain",
    "SELECT n FROM sales WHERE {p} UNION ALL SELECT y FROM plain",
    "SELECT n FROM sales INTERSECT SELECT y FROM plain",
    "SELECT y AS n FROM plain EXCEPT SELECT n FROM sales WHERE {p}",
    "SELECT n, sum(k) OVER (PARTITION BY region ORDER BY n) AS s FROM sales WHERE {p}",
    "SELECT n, x FROM sales LATERAL VIEW explode(array(n, if({p}, 1, 0))) v AS x",
    "SELECT * FROM (SELECT region, k, n FROM sales) PIVOT (sum(n) FOR k IN (0, 1, 7))",
    "SELECT n FROM sales WHERE {p} ORDER BY if({p}, k, n), n LIMIT 2",
    "SELECT region, k, count(*) AS c FROM sales GROUP BY CUBE (region, k)",
    "SELECT DISTINCT region FROM sales WHERE {p}",
    "SELECT n FROM sales TABLESAMPLE (100 PERCENT) t WHERE {p}",
    "SELECT /*+ BROADCAST(t) */ n FROM sales t JOIN plain ON n = y WHERE {p}",
    "SELECT array_agg(email) AS e, min(struct(k, n)) AS m FROM sales",
)
PREDICATES = (
    "assert_true(k <> 7) IS NULL",
    "CASE WHEN k = 7 THEN raise_error('seen') IS NULL ELSE true END",
    "1 / (k - 7) < 5",
    "CAST(if(k = 7, 'x', '1') AS INT) = 1",
)


@pytest.mark.parametrize("form", FORMS)
def test_a_statement_sees_the_visible_rows_alone(sql: SqlService, form: str) -> None:
    for predicate in PREDICATES if "{p}" in form else ("",):
        statement = form.replace("{p}", predicate)
        answer = told(sql, statement, FILTERED)
        assert answer == told(sql, by_hand(statement), None)
        assert not answer.startswith(("Invalid", "Engine")), answer
        if form == FORMS[0] and predicate == PREDICATES[2]:
            # The predicate does fail where the rows are visible.
            assert "DIVIDE_BY_ZERO" in told(sql, statement, reader_of())


COMPARED = st.builds(
    "{} {} {}".format,
    st.sampled_from(
        ["n", "k", "n - k", "n * k", "10 % (k - 7)", "100 / (k - 7)", "length(region)"]
    ),
    st.sampled_from(["=", "<>", "<", ">=", "<=>"]),
    st.integers(-3, 9),
)
ANY_PREDICATE = st.recursive(
    COMPARED
    | st.sampled_from(["email IS NULL", "email LIKE '%x%'", "region > 'a'", "k IN (0, 7)"]),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
        st.builds("if({}, {}, true)".format, inner, inner),
    ),
    max_leaves=5,
)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(predicates=st.lists(ANY_PREDICATE, min_size=6, max_size=6))
def test_any_predicate_gives_the_rows_of_the_filtered_table(
    sql: SqlService, predicates: list[str]
) -> None:
    parts = (f"SELECT {at} AS q, n, k FROM sales WHERE {one}" for at, one in enumerate(predicates))
    statement = " UNION ALL ".join(parts)
    assert told(sql, statement, FILTERED) == told(sql, by_hand(statement), None)


def test_spark_keeps_a_condition_of_the_statement_above_the_filter(
    sessions: SparkSessions,
) -> None:
    """Rules of a later Spark that move it would be found here."""
    with sessions.with_conf(QUERY_CONF).use() as spark:
        rows = spark.sql("SELECT id AS n, id % 3 AS k, 'a' AS region FROM range(9)")
        rows.createOrReplaceTempView("limited_view")
        columns = (("n", "bigint"), ("k", "bigint"), ("region", "string"))
        limited = limited_table("limited_view", columns, RowRules("k = 1"), lambda: KEY)
        for query in (
            "SELECT n FROM t WHERE n > 4",
            "SELECT n FROM t WHERE n IN (SELECT id FROM range(9)) AND n > 4",
            "SELECT t.n FROM t JOIN (SELECT id FROM range(9) WHERE id > 4) ON id = t.n",
        ):
            made = relation(spark, query, (), {"t": "limited_view"}, {"t": limited})
            plan = explained(made, "extended").partition("== Optimized Logical Plan ==")[2]
            above, sample, below = plan.partition("== Physical")[0].partition("Sample 0.0, 1.0")
            assert sample
            assert "> 4" in above
            assert "> 4" not in below.split("Range", 1)[0]
            assert "= 1" in below
            assert "IN" not in below.split("Range", 1)[0]


MASKS = RowRules(
    masks=(("email", "hash"), ("k", "null"), ("region", "concat(left(region, 1), '*')"))
)


def test_masks_replace_values_below_the_statement(sql: SqlService) -> None:
    reader = reader_of(sales=MASKS)
    found = rows_of(sql, "SELECT n, region, k, email FROM sales ORDER BY n", reader)
    assert [row["n"] for row in found] == [1, 2, 3, 4, 5, 6]
    assert [row["region"] for row in found] == ["e*", "e*", "u*", None, "e*", "u*"]
    assert {row["k"] for row in found} == {None}
    hashes = [row["email"] for row in found]
    assert hashes[1] is None
    assert all(re.fullmatch(r"[0-9a-f]{64}", str(one)) for one in (hashes[0], hashes[2]))
    assert hashes[0] != hashes[2]
    again = rows_of(sql, "SELECT email FROM sales WHERE n = 1", reader)
    assert again == [{"email": hashes[0]}]
    other = replace(reader, rights="other key", mask_key=lambda: "f" * 64)
    assert rows_of(sql, "SELECT email FROM sales WHERE n = 1", other) != again
    for statement in (
        "SELECT n FROM sales WHERE email LIKE 'hidden%'",
        "SELECT n FROM sales WHERE k = 7",
        "SELECT n FROM sales WHERE assert_true(coalesce(region, '') <> 'us') IS NOT NULL",
        "SELECT a.n FROM sales a JOIN (SELECT 'us' AS r) ON a.region = r",
    ):
        assert rows_of(sql, statement, reader) == []
    assert rows_of(sql, "SELECT max(region) AS m FROM sales", reader) == [{"m": "u*"}]


def test_a_mask_keeps_the_type_and_hides_what_it_cannot_hash(sql: SqlService) -> None:
    rules = RowRules(
        masks=(("__time", "date_trunc('YEAR', __time)"), ("absent", "null"), ("n", "hash"))
    )
    statement = "SELECT DISTINCT n, __time FROM sales"
    found = sql.query(SqlQuery(statement, reader=reader_of(sales=rules)))
    assert found.column_types == ("bigint", "timestamp")
    assert [(row["n"], str(row["__time"])[:10]) for row in found.table.to_pylist()] == [
        (None, "2013-01-01")
    ]


def test_a_filter_uses_the_values_below_the_masks(sql: SqlService) -> None:
    reader = reader_of(sales=RowRules("region = 'eu'", (("region", "null"),)))
    found = rows_of(sql, "SELECT n, region FROM sales ORDER BY n", reader)
    assert found == [{"n": n, "region": None} for n in (1, 2, 5)]


def test_columns_that_differ_in_case_are_limited_too(sql: SqlService) -> None:
    statement = 'SELECT "Count", "count" FROM "Twins"'
    reader = reader_of(Twins=RowRules('"count" = 7'))
    assert rows_of(sql, statement, reader) == [{"Count": 1, "count": 7}]
    # A name in another case, which is not a column there.
    assert "the query failed" in told(sql, statement, reader_of(Twins=RowRules('"COUNT" = 7')))
    # A mask hides all columns that it may mean.
    masked = rows_of(sql, statement, reader_of(Twins=RowRules(masks=(("count", "null"),))))
    assert masked == [{"Count": None, "count": None}] * 2


def test_large_answers_are_limited_too(
    sessions: SparkSessions, data: DataFolder, sql: SqlService, tmp_path: Path
) -> None:
    """Their statement runs twice, the second time into files."""
    del sql  # it has published the rows
    service = SqlService(
        sessions, data.source, SystemClock(), answers=AnswerFolder(tmp_path / "answers")
    )
    try:
        statement = "SELECT n, k, id FROM sales, range(5000)"
        for _ in range(2):
            found = service.query(SqlQuery(statement, reader=FILTERED))
            with closing(found):
                assert found.is_in_files
                assert found.table.num_rows == 3 * 5000
                assert HIDDEN not in set(found.table["k"].to_pylist())
    finally:
        service.close()


def test_explain_and_projections_are_refused(sql: SqlService) -> None:
    for mode in ("", "EXTENDED", "FORMATTED", "CODEGEN", "COST", "ANALYZE"):
        answer = told(sql, f"EXPLAIN {mode} SELECT n FROM sales", FILTERED)
        assert "EXPLAIN is not available" in answer
        assert "'eu'" not in answer
    assert "== Physical" in told(sql, "EXPLAIN SELECT y FROM plain", FILTERED)
    options = ProjectionOptions(force=True)
    statement = "SELECT region, count(*) AS c FROM sales GROUP BY region"
    with pytest.raises(InvalidRequest, match="projections contain all rows"):
        sql.query(SqlQuery(statement, projections=options, reader=FILTERED))


class NoProjections:
    """Fails if it is asked for the projection that answers a query."""

    def choice(self, *_: object) -> None:
        raise AssertionError("a projection contains all rows")


def test_no_projection_is_chosen(
    sessions: SparkSessions, data: DataFolder, sql: SqlService
) -> None:
    """`sql` has published the rows."""
    projections = cast("Projections", NoProjections())
    service = SqlService(sessions, data.source, SystemClock(), projections=projections)
    try:
        statement = "SELECT region, count(*) AS c FROM sales GROUP BY region"
        for limits in (FILTER, MASKS):
            service.query(SqlQuery(statement, reader=reader_of(sales=limits)))
        with pytest.raises(AssertionError, match="all rows"):
            service.query(SqlQuery(statement, reader=reader_of()))
    finally:
        service.close()


@pytest.mark.parametrize(
    "condition",
    [
        "absent = 1",
        "n",
        "(n, k)",
        "__time, n, region, k, email",
        "region = ",
        "CAST(email AS INT) = 1",
    ],
)
def test_a_filter_that_does_not_fit_shows_nothing(sql: SqlService, condition: str) -> None:
    """Neither rows, nor the filter, nor the value at which it fails."""
    answer = told(sql, "SELECT n FROM sales", reader_of(sales=RowRules(condition)))
    assert re.match(r'InvalidRequest: (the query failed|"sales" shows no rows)', answer)
    assert "ask an administrator" in answer
    assert not re.search(r"absent|ann@|hidden|CAST\(|region", answer.partition(". Details")[0])


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT (SELECT count(*) FROM sales) AS c FROM (SELECT 1 AS absent) o",
        "SELECT o.absent, x.n FROM (SELECT 1 AS absent) o, LATERAL (SELECT n FROM sales) x",
        "SELECT 1 FROM (SELECT 1 AS absent) o WHERE EXISTS (SELECT 1 FROM sales)",
        "WITH t AS (SELECT *, 1 AS absent FROM sales) SELECT n FROM t",
        "SELECT n, 1 AS absent FROM sales WHERE absent = 1",
    ],
)
def test_a_statement_cannot_define_a_column_of_the_filter(sql: SqlService, statement: str) -> None:
    reader = reader_of(sales=RowRules("absent = 1"))
    refused = r'InvalidRequest: ("sales" shows no rows|\[UNRES)'
    assert re.match(refused, told(sql, statement, reader))


def test_a_mask_of_a_column_that_does_not_exist_is_reported(
    sessions: SparkSessions, data: DataFolder, sql: SqlService, caplog: pytest.LogCaptureFixture
) -> None:
    assert rows_of(sql, "SELECT count(*) AS c FROM sales", None)
    service = SqlService(sessions, data.source, SystemClock())
    try:
        reader = reader_of(sales=RowRules("n > 1", (("emial", "null"),)))
        told(service, "SELECT n FROM sales", reader)
    finally:
        service.close()
    (text,) = (one.getMessage() for one in caplog.records if "a mask" in one.getMessage())
    assert text == (
        "a mask for datasource 'sales' names the column 'emial', which does not exist (did you"
        " mean 'email'?), so it hides nothing: correct access.toml"
    )


def test_errors_of_the_statement_keep_their_details_unless_they_have_values(
    sql: SqlService,
) -> None:
    assert "`no_such`" in told(sql, "SELECT no_such FROM sales", FILTERED)
    answer = told(sql, "SELECT n FROM sales WHERE CAST(email AS INT) = 1", FILTERED)
    assert "CAST_INVALID_INPUT" in answer
    assert "ann@" not in answer


def test_limits_that_change_apply_to_the_next_query(sql: SqlService) -> None:
    limits: dict[str, RowRules] = {"sales": FILTER}
    reader = SqlReader("changing", limits.get, lambda: KEY)
    statement = "SELECT count(*) AS c FROM sales"
    assert rows_of(sql, statement, reader) == [{"c": 3}]
    limits["sales"] = RowRules("region = 'us'")
    assert rows_of(sql, statement, reader) == [{"c": 2}]
    limits["sales"] = ALL_ROWS
    assert rows_of(sql, statement, reader) == [{"c": 6}]
    del limits["sales"]
    assert "cannot be found" in told(sql, statement, reader) or "may read no" in told(
        sql, statement, reader
    )


def test_rows_and_rights_of_one_query_come_from_one_answer(sql: SqlService) -> None:
    """A filter that is taken away together with the right does not open the table in between."""
    answers = iter([FILTER])

    def once(name: str) -> RowRules | None:
        return next(answers, None) if name == "sales" else None

    assert rows_of(sql, "SELECT count(*) AS c FROM sales", SqlReader("once", once)) == [{"c": 3}]


def test_other_errors_have_no_details() -> None:
    for kind in (EngineFailure, EngineUnavailable):
        shown = without_details(kind("[SOME_CODE] /data/segments/sales/x.parquet has 'eu'"))
        assert type(shown) is kind
        assert "(SOME_CODE)" in str(shown)
        assert "parquet" not in str(shown)
