"""Errors of a task whose query Spark refuses."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidRequest
from penstock.indexing.batch.batch_engine import SqlInput
from penstock.indexing.batch.sql.ingest_statement import parse_ingest
from penstock.spark.batch.batch_run import BatchSessions
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkRefusal, SparkSessions
from tests.spark.table_kit import GivenTables

pytestmark = pytest.mark.spark

ROWS = "(SELECT TIMESTAMP '2024-01-01' AS __time, 1 AS a)"


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        (
            f"INSERT INTO t SELECT __time, nope AS b\nFROM {ROWS}\nPARTITIONED BY DAY",
            "UNRESOLVED_COLUMN",
        ),
        (
            f"REPLACE INTO t OVERWRITE ALL\nSELECT __time FROM {ROWS} WHERE b\nPARTITIONED BY DAY",
            "UNRESOLVED_COLUMN",
        ),
        (
            f"INSERT INTO t SELECT __time, 1 / 0 AS b FROM {ROWS} PARTITIONED BY DAY",
            "DIVIDE_BY_ZERO",
        ),
    ],
)
def test_no_place_is_told_because_spark_got_only_the_query(
    sessions: SparkSessions, statement: str, said: str
) -> None:
    """The query has other lines and columns than the statement of which it is a part."""
    query = SqlInput(parse_ingest(statement).query)
    made = BatchSessions(sessions, GivenTables())
    try:
        with (
            pytest.raises(SparkRefusal, match=said) as caught,
            made.rows_of_query(query, (), RunningCall()) as (_, rows),
        ):
            rows.collect()
    finally:
        made.close()
    assert "line " not in str(caught.value)
    assert "^" not in str(caught.value)


def test_a_mistake_of_syntax_has_its_place_in_the_whole_statement() -> None:
    with pytest.raises(InvalidRequest, match="FROM is not expected, line 2, column 20"):
        parse_ingest(f"INSERT INTO t\nSELECT __time, 1 + FROM {ROWS} PARTITIONED BY DAY")
