"""The fast path gives the answers of Spark, over the same files.

`make soak ARGS="fast-path"` compares 100,000 generated statements; here is a fixed sample, and
every statement that once differed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from penstock.core.clock import pause
from penstock.core.intervals import Interval
from penstock.core.sql import tree
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath.answer_checks import AnswerChecks, FastAnswer, PinnedTables
from penstock.fastpath.comparison import AnswerShape
from penstock.fastpath.compiled_query import CompiledQuery
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.spark.tables.table_files import TableFile, Tables
from penstock.testing.clock import VirtualClock
from tests.fastpath.engine_kit import CLOCK
from tests.kits.fast_comparison_kit import SETTINGS, WITHOUT_CODE, Comparison, compare_seeds
from tests.kits.fast_rows_kit import DATASOURCE, RowSet, write_rows
from tests.kits.fast_statements_kit import EXPRESSIONS_MIN, Statement, statement_of
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

SEEDS = tuple(start + at for start in (1_000_000, 1_000_250, 1_000_500) for at in range(25))
ROWS_SEED = 10_005
COLUMNS_OF_TEXT = (("__time", "timestamp"), ("page", "string"))

# Statements that differed once, by what was wrong.
FORMER_DIFFERENCES = {
    "Spark moves days between two calendars": (
        "SELECT page FROM wiki WHERE __time = TIMESTAMP '1582-10-10'"
    ),
    "WHERE as an alias of the table": "SELECT page FROM wiki WHERE (flag)",
    "ORDER BY of an aggregate beside HAVING": (
        "SELECT channel FROM wiki GROUP BY channel HAVING max(price) > 1 ORDER BY sum(price)"
    ),
    "DuckDB compares without the arithmetic": (
        "SELECT count(*) FILTER (WHERE __time = timestamp_millis(big)) FROM wiki"
    ),
    "DuckDB adds after the sum": "SELECT sum(small + 1) FROM wiki",
    "the name of a substring without a length": "SELECT substr(channel, 2) FROM wiki",
    "an integer of NaN raises where the other condition is not met": (
        "SELECT ratio FROM wiki WHERE ceiling(rate) <> 1 AND __time = TIMESTAMP '2026-01-15'"
    ),
    "a number of arguments that Spark refuses": "SELECT max_by(small) FROM wiki",
    "the order in which distinct fractions are added": (
        "SELECT pmod(added, 3), avg(DISTINCT CAST(worth / 10 AS DOUBLE)) FROM wiki GROUP BY 1"
    ),
    "Spark raises errors of constants without a row": (
        "SELECT CAST(CAST('ab' AS BIGINT) AS STRING) FROM wiki WHERE page = 'of no row'"
    ),
    "ranges of values in files leave out NaN": (
        "SELECT rate, count(*) FROM wiki WHERE isnan(ratio) OR isnan(rate) GROUP BY rate"
    ),
}
# What the issue demands, each against nasty rows.
STATEMENTS = (
    "SELECT * FROM wiki",
    "SELECT rate, count(*) FROM wiki GROUP BY rate",
    "SELECT ratio, count(*), min(rate), max(rate) FROM wiki GROUP BY 1",
    "SELECT count(DISTINCT rate), count(DISTINCT ratio), count(DISTINCT channel) FROM wiki",
    "SELECT channel, sum(added), avg(added), sum(price), avg(rate) FROM wiki GROUP BY channel",
    "SELECT page FROM wiki WHERE rate > 1e15 OR rate = 0 OR NOT rate <= 0.1",
    "SELECT sum(big) FROM wiki",
    "SELECT min(big), max(big), avg(big) FROM wiki",
    "SELECT big / small AS q FROM wiki WHERE small <> 0",
    "SELECT FLOOR(__time TO WEEK) AS w, TIME_FLOOR(day, 'P1M') FROM wiki GROUP BY 1, 2",
    "SELECT weekofyear(__time), dayofweek(__time), weekday(day), quarter(day) FROM wiki",
    "SELECT extract(DOW FROM __time), extract(DOY FROM day), hour(__time) FROM wiki",
    "SELECT page LIKE '_', page LIKE '%👍%', length(page), substring(page, 2, 1) FROM wiki",
    "SELECT CAST(big AS STRING), CAST(big AS DOUBLE), CAST(day AS TIMESTAMP) FROM wiki",
    "SELECT (added + 1) * 2 - 3, added div 7, added % -7, pmod(added, 7) FROM wiki",
    "SELECT DISTINCT ratio, flag FROM wiki",
    "SELECT w.*, W.Page FROM wiki AS w ORDER BY w.__time, added",
    "SELECT channel AS page, count(*) AS added FROM wiki GROUP BY channel ORDER BY added, page",
    "SELECT added % 2 AS added, count(*) FROM wiki GROUP BY added ORDER BY 1, 2",
    "SELECT count(*) AS n FROM wiki GROUP BY flag HAVING n > 1",
    "SELECT DISTINCT channel AS c, page FROM wiki ORDER BY page DESC, c",
    "SELECT -5, - 5, -(-5), +added, 1e2, 1.5D, 2147483648, -2147483648, 'a' 'b' FROM wiki",
    "SELECT added IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 5L IN (added, 5) FROM wiki",
    "SELECT count(*) FILTER (WHERE flag) AS a, sum(price) FILTER (WHERE added > 1) FROM wiki",
    "SELECT sum(small), max(flag), min(day) FROM wiki WHERE page IS NULL OR flag IS NOT FALSE",
    "SELECT sum(price) / count(*) AS m FROM wiki GROUP BY page HAVING count(*) > 0 ORDER BY m",
    "SELECT channel, sum(price) / count(*) AS m FROM wiki GROUP BY channel ORDER BY m LIMIT 3",
    "SELECT mean(price) FROM wiki WHERE __time >= to_timestamp('2026-01-01T00:00:00Z')",
    "SELECT CAST((added) AS DOUBLE), added::double + 1, (CAST(small AS BIGINT)) FROM wiki",
    "SELECT page FROM wiki WHERE added <= 2.5 AND added > -1.5 OR small >= 1.0 OR big = 5.0",
    "SELECT price * -0.0, rate * -0D, price + 1., price > .5 FROM wiki",
    "SELECT day = DATE '1970-01-01', day < '2026-01-01', __time > day FROM wiki",
    "SELECT cost + 1, cost - 0.5, cost * 2.25, cost + small, added * 0.5, cost * price FROM wiki",
    "SELECT cost / 3, cost / 0.7, worth / 3 AS b, added * 1.0 / 7, 1 / (cost + 0.001) FROM wiki",
    "SELECT sum(cost), sum(worth), avg(cost), avg(worth), min(cost), max(worth) FROM wiki",
    "SELECT 100.0 * sum(small) / count(*), sum(cost) / nullif(count(*), 0) FROM wiki GROUP BY flag",
    "SELECT page FROM wiki WHERE cost * 1.5 > 3.75 OR worth BETWEEN 0 AND 3.14 OR cost IN (1, 2.5)",
    "SELECT coalesce(cost, added), greatest(worth, cost, 3), if(flag, 1, 0.5) FROM wiki",
    "SELECT CASE WHEN flag THEN cost ELSE price END, nullif(cost, 0), abs(cost), -worth FROM wiki",
    "SELECT CAST(cost AS INT), CAST(cost AS DECIMAL(20, 1)), added::DECIMAL(24, 2) FROM wiki",
    "SELECT CAST(flag AS INT), CAST(added AS BOOLEAN), CAST(__time AS BIGINT) FROM wiki",
    "SELECT __time::STRING, date_format(__time, 'HH') FROM wiki WHERE __time > '2025-01-02'",
    "SELECT CAST(day AS STRING), date_format(day, 'yyyy-MM') FROM wiki WHERE day > '2025-01-01'",
    "SELECT round(price, 1), round(price / 3, 4), round(cost, 1), round(worth) FROM wiki",
    "SELECT round(rate, 2), floor(rate), ceil(rate) FROM wiki WHERE rate BETWEEN -1e9 AND 1e9",
    "SELECT floor(price), ceil(cost), ceiling(added), FLOOR(price / 10) * 10 FROM wiki",
    "SELECT upper(channel), lower(channel) FROM wiki WHERE channel ILIKE 'A%'",
    "SELECT upper(page), lower(page) FROM wiki WHERE page IN ('é', 'É', 'zażółć', 'aB', '👍', 'ä')",
    "SELECT page = 'it''s', 'it''s', '''' || page AS q, page LIKE '%''%' FROM wiki",
    "SELECT trim(channel), ltrim(page), rtrim(page), replace(channel, 'a', 'bb') FROM wiki",
    "SELECT substring(page, 0, 2), substring(page, -2, 2), substring(page, -5, 3) FROM wiki",
    "SELECT substr(page, -2), right(page, 1), left(page, 0), locate('b', page) FROM wiki",
    "SELECT page LIKE 'a!%%' ESCAPE '!', page NOT LIKE '%#_%' ESCAPE '#' FROM wiki",
    "SELECT datediff(day, DATE '2026-01-01'), date_add(day, 3), trunc(day, 'MONTH') FROM wiki",
    "SELECT extract(DOW_ISO FROM __time), date_part('YEAROFWEEK', day) FROM wiki",
    "SELECT TIMESTAMPADD(QUARTER, 1, __time) AS a, TIMESTAMPADD(day, -40, __time) AS b FROM wiki",
    "SELECT __time + INTERVAL 1 MONTH AS a, __time - INTERVAL '13' MONTHS AS b FROM wiki",
    "SELECT count(*) FROM wiki WHERE __time >= date_trunc('WEEK', TIMESTAMP '2026-01-15 10:11')",
    "SELECT channel, count(*), sum(price) + 1 FROM wiki GROUP BY ALL ORDER BY 1",
    "SELECT count(DISTINCT channel, page), count(DISTINCT rate, ratio), count(rate, day) FROM wiki",
    "SELECT sum(DISTINCT added), avg(DISTINCT price), sum(DISTINCT cost) FROM wiki",
    "SELECT max_by(page, __time), min_by(rate, __time), LATEST(cost) FROM wiki GROUP BY channel",
    "SELECT first(page), any_value(page) FILTER (WHERE flag), last(page) FROM wiki GROUP BY page",
    "SELECT sum(small) + 1 > 5 FROM wiki GROUP BY page HAVING sum(price) / sum(small) > 1 OR 1 = 1",
    "SELECT page, sum(price) / count(flag) > 2 OR max(flag) AS a FROM wiki GROUP BY page",
    "SELECT bool_and(flag), every(flag), some(added > 1), any(flag), bool_or(flag) FROM wiki",
    "SELECT channel, max(price) AS s FROM wiki GROUP BY channel HAVING s > 1 ORDER BY count(*), 1",
    "SELECT p, sum(a) FROM (SELECT page AS p, added AS a FROM wiki WHERE flag) AS v GROUP BY p",
    "SELECT p FROM (SELECT __time AS t, page AS p FROM wiki) AS v WHERE t >= '2026-01-01'",
    "WITH v AS (SELECT page AS p, flag FROM wiki) SELECT p, count(*) FROM V GROUP BY p",
    "SELECT avg(n), max(p) FROM (SELECT page AS p, count(*) AS n FROM wiki GROUP BY page) AS s",
)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    settings = {**SETTINGS, **WITHOUT_CODE}
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    spark.catalog.dropTempView(DATASOURCE)
    for name, value in before.items():
        spark.conf.set(name, value)


@pytest.fixture
def comparison(session: SparkSession, tmp_path: Path) -> Iterator[Comparison]:
    found = Comparison(session, write_rows(ROWS_SEED, tmp_path, is_plain=True), is_kept=True)
    yield found
    found.close()


def test_generated_statements_have_the_answers_of_spark(
    session: SparkSession, tmp_path: Path
) -> None:
    failures, counts = compare_seeds(session, tmp_path, SEEDS, is_kept=True)

    assert failures == []
    assert counts["equal"] == len(SEEDS), counts


def test_generated_statements_have_at_least_ten_expressions() -> None:
    for seed in range(200):
        sql = statement_of(seed).sql
        nodes = tree.walk(checked_query(sql).root)
        count = sum(isinstance(node, tree.Expression) for node in nodes)
        assert count >= EXPRESSIONS_MIN or sql.startswith("SELECT *"), sql


@pytest.mark.parametrize("statements", [tuple(FORMER_DIFFERENCES.values()), STATEMENTS])
def test_values_on_which_engines_disagree(
    comparison: Comparison, statements: tuple[str, ...]
) -> None:
    found = dict(zip(statements, comparison.outcomes(map(_whole, statements)), strict=True))

    assert not {sql for sql, outcome in found.items() if outcome.startswith("differs")}, found
    assert statements is not STATEMENTS or (
        sum(outcome == "equal" for outcome in found.values()) > len(STATEMENTS) / 2
    ), found


def test_text_that_is_not_utf8_is_left_to_spark_or_equal(
    session: SparkSession, tmp_path: Path
) -> None:
    broken = pa.array([b"a\xff", b"b", b"\xc3"], pa.binary())
    text = pa.StringArray.from_buffers(3, broken.buffers()[1], broken.buffers()[2])
    table = pa.table({"__time": pa.array([1, 2, 3], pa.timestamp("us", "UTC")), "page": text})
    path = tmp_path / "broken.parquet"
    pq.write_table(table, path, store_schema=False)
    file = TableFile(str(path), COLUMNS_OF_TEXT, Interval(0, 1))
    comparison = Comparison(session, RowSet(0, (file,), has_unreal=False, names={}), is_kept=True)

    statements = (
        "SELECT page FROM wiki",
        "SELECT page, count(*) FROM wiki GROUP BY page",
        "SELECT count(*) FROM wiki WHERE page > 'a'",
        "SELECT count(DISTINCT page), max(page) FROM wiki",
        "SELECT count(*) FROM wiki WHERE length(page) > 1",
    )
    found = comparison.outcomes(map(_whole, statements))
    comparison.close()

    assert not [outcome for outcome in found if outcome.startswith("differs")], found


def test_sums_that_cancel_out_depend_on_the_order_of_rows(
    session: SparkSession, tmp_path: Path
) -> None:
    prices = [1e15, 0.1, -1e15, 0.3, 1e15, 0.7, -1e15, 1e-3]
    times = pa.array(range(len(prices)), pa.timestamp("us", "UTC"))
    path = tmp_path / "cancel.parquet"
    pq.write_table(pa.table({"__time": times, "price": prices}), path, store_schema=False)
    columns = (("__time", "timestamp"), ("price", "double"))
    file = TableFile(str(path), columns, Interval(0, 1))
    comparison = Comparison(session, RowSet(0, (file,), has_unreal=False, names={}), is_kept=True)

    decided = {}
    for sql in ("SELECT sum(price) FROM wiki", "SELECT max(price), count(*) FROM wiki"):
        found = comparison.answered(_whole(sql))
        assert not isinstance(found, str), found
        decided[sql] = comparison.is_decided_by_order(found)
    comparison.close()

    assert list(decided.values()) == [True, False]


def test_a_check_asks_spark_over_the_files_of_the_answer(
    sessions: SparkSessions, tmp_path: Path
) -> None:
    files = write_rows(ROWS_SEED, tmp_path, is_plain=True).files
    pinned, clock = PinnedTables(GivenTables({})), VirtualClock()
    service = SqlService(sessions, pinned, clock)
    alerts: list[str] = []
    checks = AnswerChecks(
        service, pinned, tmp_path / "kept", lambda text, _: alerts.append(text), clock
    )
    checks.start()
    query = SqlQuery("SELECT count(*) AS n FROM wiki", engine="auto", principal="ann")
    compiled = CompiledQuery(DATASOURCE, "", (), (), (("n", "bigint"),))
    count = sum(file.rows for file in files)
    try:
        for number, outcome in ((count, "equal"), (count + 1, "different")):
            rows = pa.table({"n": pa.array([number], pa.int64())})
            tables = Tables(1, {DATASOURCE: files})
            checks.offer(FastAnswer(query, compiled, AnswerShape(compiled.columns), tables, rows))
            _wait_for(checks, outcome)
    finally:
        checks.stop()
        service.close()
    assert len(alerts) == len(list((tmp_path / "kept").iterdir())) == 1


def _wait_for(checks: AnswerChecks, outcome: str) -> None:
    until_s = CLOCK.monotonic_s() + 120
    while CLOCK.monotonic_s() < until_s:
        found = {sample.labels[0][1] for sample in checks.samples() if sample.value}
        if outcome in found:
            return
        assert found <= {"equal", outcome}, found
        pause(CLOCK, 0.02)
    raise AssertionError(outcome)


def _whole(sql: str) -> Statement:
    return Statement(whole=sql)
