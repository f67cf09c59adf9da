"""How long the checks of a dashboard's statement take before it runs: its text, and Spark's plan.

    .venv/bin/python -m benchmarks.statement_checks

The text is checked in this process alone. The plan is that of the statement over the outline of a
datasource, in a warm session of a Spark server of its own: the time has the request, Spark's
analysis and optimization, and the check of the printed plan. Figures are medians.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Final

from benchmarks.ingest import served_spark
from benchmarks.table import Row, against, print_rows
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.sql.query_statement import read_statement
from penstock.spark.sql.service import QUERY_CONF
from penstock.spark.sql_guard import GUARD_CONF, check_understood

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS: Final = int(os.environ.get("PENSTOCK_BENCH_ROUNDS", "200"))
WARM_UP_ROUNDS: Final = 30
ALL_MS: Final = 60.0
TEXT_MS: Final = 1.0
COLUMNS: Final = (
    "__time TIMESTAMP, country STRING, channel STRING, user STRING, robot BOOLEAN, added BIGINT,"
    " delta DOUBLE"
)
STATEMENT: Final = """\
SELECT date_trunc('HOUR', __time) AS "hour", country, COUNT(*) AS events, SUM(added) AS added,
    AVG(delta) AS mean, approx_count_distinct(user) AS users
FROM clicks
WHERE __time >= TIMESTAMP '2026-01-01' AND __time < TIMESTAMP '2026-02-01'
    AND country IN ('de', 'fr', 'us') AND (channel LIKE '#en%' OR channel IS NULL) AND NOT robot
GROUP BY 1, country
HAVING COUNT(*) > 10
ORDER BY events DESC, 1
LIMIT 100"""


def run() -> list[Row]:
    """Measure and return the rows."""
    text_ms = median_ms(lambda: read_statement(STATEMENT))
    query = read_statement(STATEMENT).query
    with served_spark({}) as (_, _, remote):
        conf = {**QUERY_CONF, **GUARD_CONF}
        sessions = SparkSessions(SparkSessionOptions(remote)).with_conf(conf)
        with sessions.use() as spark:
            spark.createDataFrame([], COLUMNS).createOrReplaceTempView("clicks")
            plan_ms = median_ms(lambda: check_understood(spark, query))
        sessions.close()
    return [
        against("check of a statement's text", text_ms, "ms", "limit", TEXT_MS, "<= 1"),
        against("all checks of a statement", text_ms + plan_ms, "ms", "limit", ALL_MS, "<= 1"),
    ]


def median_ms(work: Callable[[], object]) -> float:
    """Return the median time of repeated work in milliseconds, once it is warm."""
    took = []
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        started = time.perf_counter()
        work()
        if number >= WARM_UP_ROUNDS:
            took.append((time.perf_counter() - started) * 1_000)
    return statistics.median(took)


if __name__ == "__main__":
    print_rows(run())
