"""INSERT and REPLACE: what they are taken for, and what is said of those that are wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.indexing.batch.engine import Partitioning
from penstock.indexing.batch.job import sql_job
from penstock.indexing.batch.sql.statement import parse_ingest, writes
from penstock.indexing.spec.context import IngestionMode
from penstock.indexing.spec.text.clauses import overwrite_clause


def test_an_insert_appends_and_a_replace_replaces() -> None:
    insert = parse_ingest('INSERT INTO "my table" SELECT * FROM a PARTITIONED BY DAY')
    assert insert.datasource == "my table"
    assert insert.mode is IngestionMode.APPEND
    assert insert.query == "SELECT * FROM a"
    assert str(insert.segment_granularity) == "DAY"
    replace = parse_ingest(
        "REPLACE INTO t OVERWRITE WHERE __time >= TIMESTAMP '2026-01-01' AND"
        " __time < TIMESTAMP '2026-01-02 00:00:00' SELECT a, MAX(b) AS b FROM s GROUP BY 1"
        ' PARTITIONED BY FLOOR(__time TO HOUR) CLUSTERED BY a, "b";'
    )
    assert replace.mode is IngestionMode.REPLACE
    assert [str(one) for one in replace.intervals] == [
        "2026-01-01T00:00:00.000Z/2026-01-02T00:00:00.000Z"
    ]
    assert replace.clustered_by == ("a", "b")
    assert replace.query == "SELECT a, MAX(b) AS b FROM s GROUP BY 1"


@pytest.mark.parametrize(
    ("clause", "granularity"),
    [
        ("ALL", "ALL"),
        ("ALL TIME", "ALL"),
        ("day", "DAY"),
        ("TIME_FLOOR(__time, 'PT1H')", "HOUR"),
        ("FLOOR(__time TO MONTH)", "MONTH"),
        ("'P1W'", "WEEK"),
    ],
)
def test_time_chunks(clause: str, granularity: str) -> None:
    found = parse_ingest(f"INSERT INTO t (SELECT 1) PARTITIONED BY {clause} CLUSTERED BY x")
    assert str(found.segment_granularity) == granularity
    assert found.query == "(SELECT 1)"


def test_several_intervals_may_be_replaced() -> None:
    found = parse_ingest(
        "REPLACE INTO t OVERWRITE WHERE"
        " (__time >= TIMESTAMP '2026-01-01' AND __time < '2026-01-02') OR"
        " (__time < DATE '2026-01-04' AND __time >= DATE '2026-01-03')"
        " SELECT 1 PARTITIONED BY DAY"
    )
    assert [one.length_ms for one in found.intervals] == [86_400_000, 86_400_000]


WHERE = "REPLACE INTO t OVERWRITE WHERE"
REST = "SELECT 1 PARTITIONED BY DAY"


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("INSERT t SELECT 1 PARTITIONED BY DAY", "INTO is expected, not t, line 1, column 8"),
        ("INSERT INTO t SELECT 1", "PARTITIONED BY DAY"),
        ("INSERT INTO t SELECT (1 PARTITIONED BY DAY)", "PARTITIONED BY DAY"),
        ("INSERT INTO t (a, b) SELECT 1, 2 PARTITIONED BY DAY", "SELECT … AS name"),
        ("INSERT INTO t PARTITIONED BY DAY", "a query is expected"),
        ("INSERT INTO t SELECT 1 PARTITIONED BY FORTNIGHT", "no granularity"),
        ("INSERT INTO t SELECT 1 PARTITIONED BY DAY garbage", "the end of the statement"),
        ("INSERT INTO t OVERWRITE ALL SELECT 1 PARTITIONED BY DAY", "write REPLACE INTO"),
        ("REPLACE INTO t SELECT 1 PARTITIONED BY DAY", "OVERWRITE ALL"),
        ("REPLACE INTO t OVERWRITE WHERE a > 1 SELECT 1 PARTITIONED BY DAY", "only __time"),
        (
            f"{WHERE} __time >= TIMESTAMP '2026-01-01' AND __time <= TIMESTAMP '2026-01-02' {REST}",
            "half open",
        ),
        (
            f"{WHERE} __time >= TIMESTAMP '2026-01-02' AND __time < TIMESTAMP '2026-01-02' {REST}",
            "a later end",
        ),
        (
            f"{WHERE} __time >= TIMESTAMP '2026-01-01 01:00' AND __time < '2026-01-02' {REST}",
            (
                "overwrite[0]: OVERWRITE WHERE __time >= TIMESTAMP '2026-01-01 01:00:00' AND"
                " __time < TIMESTAMP '2026-01-02' does not begin and end with a time chunk"
                " (PARTITIONED BY DAY): write OVERWRITE WHERE __time >= TIMESTAMP '2026-01-01'"
                " AND __time < TIMESTAMP '2026-01-02', or a finer PARTITIONED BY"
            ),
        ),
        (
            f"{WHERE} __time >= '2026-01-01' AND __time < '2026-01-02' SELECT 1 PARTITIONED BY ALL",
            "(PARTITIONED BY ALL): write OVERWRITE ALL, or a finer PARTITIONED BY",
        ),
        ("INSERT INTO t SELECT reflect('a', 'b') PARTITIONED BY DAY", "not allowed"),
        ("INSERT INTO t SELECT 'a PARTITIONED BY DAY", "not closed"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(sql: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=None) as caught:
        parse_ingest(sql)
    assert told in str(caught.value)


@given(
    st.lists(
        st.tuples(st.integers(-62_135_596_800_000, 253_302_300_799_999), st.integers(1, 10**11)),
        min_size=1,
        max_size=3,
    )
)
def test_a_clause_that_an_error_shows_means_what_it_is_about(found: list[tuple[int, int]]) -> None:
    intervals = [Interval(start, start + length) for start, length in found]
    sql = f"REPLACE INTO t {overwrite_clause(intervals)} SELECT 1 PARTITIONED BY 'PT0.001S'"
    assert list(parse_ingest(sql).intervals) == intervals
    assert overwrite_clause([ETERNITY]) == "OVERWRITE ALL"
    many = overwrite_clause(intervals * 9)
    assert many.endswith(f" OR … ({len(intervals) * 9 - 3} more)")


def test_what_writes_becomes_a_task() -> None:
    assert writes(" /* so */ insert INTO t SELECT 1")
    assert writes("REPLACE INTO t")
    assert not writes("SELECT 'INSERT'")
    assert not writes("")


_TEXT = """INSERT REPLACE INTO t "q" OVERWRITE WHERE ALL __time > = < '2026-01-01' TIMESTAMP AND OR
( ) SELECT 1 PARTITIONED BY DAY CLUSTERED , ; FLOOR TO TIME_FLOOR"""
_WORDS = st.sampled_from(_TEXT.split())


@given(st.lists(_WORDS, max_size=30))
def test_any_words_are_a_statement_or_are_refused(words: list[str]) -> None:
    sql = " ".join(words)
    try:
        found = parse_ingest(sql)
    except InvalidRequest:
        return
    assert found.query


def test_the_context_says_how_many_rows_a_segment_has() -> None:
    statements = {
        "INSERT INTO t SELECT * FROM s PARTITIONED BY DAY": Partitioning(rows_max=7),
        "REPLACE INTO t OVERWRITE ALL SELECT * FROM s PARTITIONED BY DAY CLUSTERED BY a": (
            Partitioning("range", rows_target=7, dimensions=("a",))
        ),
        "INSERT INTO t SELECT * FROM s PARTITIONED BY DAY CLUSTERED BY a, b": (
            Partitioning("range", rows_target=7, dimensions=("a", "b"))
        ),
    }
    for sql, expected in statements.items():
        task = parse_ingest(sql, context={"rowsPerSegment": 7})
        assert task.rows_per_segment == 7
        assert sql_job(task).partitioning == expected
    with pytest.raises(InvalidRequest, match="rowsPerSegment"):
        parse_ingest(next(iter(statements)), context={"rowsPerSegment": 0})
