"""INSERT and REPLACE: what they are taken for, and what is said of those that are wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import InvalidRequest
from penstock.core.intervals import ETERNITY, Interval
from penstock.indexing.batch.batch_engine import Partitioning
from penstock.indexing.batch.job import sql_job
from penstock.indexing.batch.sql.ingest_statement import parse_ingest, writes
from penstock.indexing.specs.task_context import IngestionMode
from penstock.indexing.specs.text.clauses import overwrite_clause


def test_an_insert_appends_and_a_replace_replaces() -> None:
    insert = parse_ingest('INSERT INTO "my table" SELECT * FROM a PARTITIONED BY DAY')
    assert insert.datasource == "my table"
    assert insert.mode is IngestionMode.APPEND
    assert insert.query == "SELECT * FROM a"
    assert str(insert.segment_granularity) == "DAY"
    replace = parse_ingest(
        "REPLACE INTO t OVERWRITE WHERE __time >= TIMESTAMP '2026-01-01' AND"
        " __time < TIMESTAMP '2026-01-02 00:00:00' SELECT __time, MAX(b) AS b FROM s GROUP BY 1"
        ' PARTITIONED BY FLOOR(__time TO HOUR) CLUSTERED BY a, "b";'
    )
    assert replace.mode is IngestionMode.REPLACE
    assert [str(one) for one in replace.intervals] == [
        "2026-01-01T00:00:00.000Z/2026-01-02T00:00:00.000Z"
    ]
    assert replace.clustered_by == ("a", "b")
    assert replace.query == "SELECT __time, MAX(b) AS b FROM s GROUP BY 1"


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
    found = parse_ingest(
        f"INSERT INTO t (SELECT 1 AS __time) PARTITIONED BY {clause} CLUSTERED BY x"
    )
    assert str(found.segment_granularity) == granularity
    assert found.query == "(SELECT 1 AS __time)"


def test_several_intervals_may_be_replaced() -> None:
    found = parse_ingest(
        "REPLACE INTO t OVERWRITE WHERE"
        " (__time >= TIMESTAMP '2026-01-01' AND __time < '2026-01-02') OR"
        " (__time < DATE '2026-01-04' AND __time >= DATE '2026-01-03')"
        " SELECT 1 AS __time PARTITIONED BY DAY"
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
        ("INSERT INTO t SELECT 1 PARTITIONED BY FORTNIGHT", "unknown granularity"),
        ("INSERT INTO t SELECT 1 PARTITIONED BY DAY garbage", "the end of the statement"),
        ("INSERT INTO t OVERWRITE ALL SELECT 1 PARTITIONED BY DAY", "use REPLACE INTO"),
        ("REPLACE INTO t SELECT 1 PARTITIONED BY DAY", "OVERWRITE ALL"),
        ("REPLACE INTO t OVERWRITE WHERE a > 1 SELECT 1 PARTITIONED BY DAY", "only __time"),
        (
            f"{WHERE} __time >= DATE '2024-01-01' {REST}",
            "the interval needs a start and an end",
        ),
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
        (
            "INSERT INTO t SELECT 1 AS __time, '${env:HOME}' AS x PARTITIONED BY DAY",
            "${env:HOME} is not allowed, line 1, column 36",
        ),
        (
            "REPLACE INTO t OVERWRITE ALL SELECT 1 AS __time -- ${system:x}\nPARTITIONED BY ALL",
            "variable of the host",
        ),
        ("INSERT INTO t /* ${x} */ SELECT 1 AS __time PARTITIONED BY DAY", "variable of the host"),
        ('INSERT INTO "${x}" SELECT 1 AS __time PARTITIONED BY DAY', "variable of the host"),
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
    sql = (
        f"REPLACE INTO t {overwrite_clause(intervals)} SELECT 1 AS __time PARTITIONED BY 'PT0.001S'"
    )
    assert list(parse_ingest(sql).intervals) == intervals
    assert overwrite_clause([ETERNITY]) == "OVERWRITE ALL"
    many = overwrite_clause(intervals * 9)
    assert many.endswith(f" OR … ({len(intervals) * 9 - 3} more)")


FILES = (
    'TABLE(EXTERN(\'{"type": "http", "uris": ["http://a/b"]}\', \'{"type": "json"}\'))'
    " EXTEND (größe VARCHAR, n BIGINT)"
)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS a",
        "SELECT a FROM s WHERE __time > TIMESTAMP '2024-01-01'",
        "SELECT DISTINCT a, count(*) AS n, date_trunc('DAY', __time) FROM s GROUP BY 1",
        "SELECT __time AS at, a IS DISTINCT FROM b FROM s",
        "(SELECT a FROM s) UNION ALL (SELECT __time FROM s)",
        "SELECT a FROM s UNION ALL SELECT __time FROM s",
        "SELECT * FROM (SELECT a FROM s) AS inner_one",
        "WITH one AS (SELECT a FROM s), two AS (SELECT * FROM one) SELECT * FROM two",
        # Looked at once for each level; twice would never end.
        "SELECT *, * FROM (" * 60 + "SELECT a FROM s" + ")" * 60,
        "VALUES (1, 'a')",
        f"SELECT * FROM {FILES}",
        f"SELECT n FROM {FILES}",
    ],
)
@pytest.mark.parametrize("granularity", ["ALL", "DAY"])
def test_a_query_without_a_time_is_refused(query: str, granularity: str) -> None:
    with pytest.raises(InvalidRequest, match="the query returns no column __time") as caught:
        parse_ingest(f"INSERT INTO t {query} PARTITIONED BY {granularity}")
    assert f"PARTITIONED BY {granularity}" in str(caught.value)
    assert "AS __time" in str(caught.value)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM s",
        "SELECT s.* FROM s",
        "SELECT a, * EXCEPT (a) FROM s",
        'SELECT 1 AS "__TIME"',
        "SELECT CAST(a AS TIMESTAMP) __time FROM s",
        "SELECT CAST(__time AS TIMESTAMP) FROM s",
        "SELECT __time::timestamp FROM s",
        "SELECT (__time) FROM s",
        "SELECT inline(array(struct(1 AS __time))) FROM s",
        "SELECT stack(1, 1, 2) AS (a, __time)",
        "SELECT s.at.__time, 1 FROM s",
        "SELECT a FROM s |> EXTEND at AS __time",
        "(SELECT __time FROM s) UNION ALL (SELECT a FROM s)",
        "SELECT * FROM (SELECT a FROM s) x JOIN s ON x.a = s.a",
        "SELECT * FROM (SELECT a FROM s) AS x(__time)",
        "WITH one(__time) AS (SELECT a FROM s) SELECT * FROM one",
        "WITH one AS (SELECT * FROM s) SELECT * FROM one",
        "VALUES (1) AS t(__time)",
        "TABLE s",
        f"SELECT *, 1 AS __time FROM {FILES}",
        f"SELECT * FROM {FILES.replace('n BIGINT', '__time BIGINT')}",
    ],
)
def test_a_query_that_may_give_a_time_becomes_a_task(query: str) -> None:
    assert parse_ingest(f"INSERT INTO t {query} PARTITIONED BY ALL").mode is IngestionMode.APPEND


def test_texts_of_clauses_may_be_raw() -> None:
    query = "SELECT 1 AS __time PARTITIONED BY r'P1D'"
    time = "__time >= TIMESTAMP R'2024-01-01' AND __time < '2024-01-02'"
    found = parse_ingest(f"REPLACE INTO t OVERWRITE WHERE {time} {query}")
    assert str(found.segment_granularity) == "DAY"
    assert [str(one) for one in found.intervals] == [str(Interval.parse("2024-01-01/P1D"))]


def test_names_with_other_letters_stand_in_double_quotes() -> None:
    with pytest.raises(
        InvalidRequest, match='line 2, column 8: write it in double quotes, "größe"'
    ):
        parse_ingest("INSERT INTO t\nSELECT größe, __time FROM s PARTITIONED BY DAY")
    # Names that Penstock reads itself need no quotes, as in Druid.
    task = parse_ingest(
        f'INSERT INTO größen SELECT "größe", 1 AS __time FROM {FILES} PARTITIONED BY DAY'
        " CLUSTERED BY größe"
    )
    assert (task.datasource, task.clustered_by) == ("größen", ("größe",))


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
