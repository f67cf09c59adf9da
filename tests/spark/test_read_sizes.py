"""How many bytes of files a query may read: by the datasources and the times that it selects."""

from __future__ import annotations

import pytest

from penstock.core.errors import TooLargeForQuota
from penstock.core.intervals import Interval
from penstock.core.sql.checked_query import checked_query
from penstock.spark.sql.read_sizes import check_read_size, read_size, selected_times
from penstock.spark.tables import TableFile

DAYS = ("2026-01-01/2026-01-02", "2026-01-02/2026-01-03", "2026-01-03/2026-01-04")
# The sizes tell which files were counted.
FILES = {
    "clicks": tuple(
        TableFile(f"/c{n}.parquet", (), Interval.parse(day), size_bytes=10**n)
        for n, day in enumerate(DAYS)
    ),
    "payments": (TableFile("/p.parquet", (), Interval.parse(DAYS[0]), size_bytes=1_000),),
}
ALL = 111


@pytest.mark.parametrize(
    ("where", "size"),
    [
        ("", ALL),
        ("WHERE __time >= TIMESTAMP '2026-01-02'", 110),
        ("WHERE __time >= TIMESTAMP '2026-01-02 00:00:00'", 110),
        ("WHERE __time > '2026-01-02T23:59:59.999Z'", 110),
        ("WHERE __time < DATE '2026-01-02'", 11),
        ("WHERE __time <= DATE '2026-01-01'", 1),
        ("WHERE \"__time\" >= '2026-01-02' AND __TIME < '2026-01-02 12:00:00'", 10),
        ("WHERE clicks.__time >= '2026-01-03' AND n > 1 AND country = 'de'", 100),
        ("WHERE n > 1 AND __time BETWEEN '2026-01-02' AND '2026-01-02 05:00:00' AND n < 9", 10),
        ("WHERE n BETWEEN 1 AND 2 AND __time >= '2026-01-03' GROUP BY n ORDER BY n LIMIT 3", 100),
        ("WHERE __time = '2026-01-02 05:00:00'", 10),
        ("WHERE (n = 1 OR n = 2) AND __time >= '2026-01-03'", 100),
        ("WHERE CASE WHEN n = 1 AND n = 2 THEN TRUE END AND __time >= '2026-01-03'", 100),
        ("WHERE __time >= '2030-01-01'", 0),
        # Conditions that do not narrow the time, or that are not understood.
        ("WHERE __time >= '2026-01-03' OR n = 1", ALL),
        ("WHERE n = 1 AND n = 2 OR __time >= '2026-01-03'", ALL),
        ("WHERE (__time >= '2026-01-03')", 100),
        ("WHERE (n = 1 AND (__time >= '2026-01-03'))", 100),
        ("WHERE NOT __time < '2026-01-03'", ALL),
        ("WHERE __time <> '2026-01-03'", ALL),
        ("WHERE __time IN ('2026-01-03')", ALL),
        ("WHERE __time NOT BETWEEN '2026-01-02' AND '2026-01-03'", ALL),
        ("WHERE __time >= 'yesterday'", ALL),
        ("WHERE __time >= ?", ALL),
        ("WHERE __time >= '2026-01-03' IS NULL", ALL),
        ("WHERE __time >= concat('2026-01-03', '')", ALL),
        ("WHERE __time >= current_timestamp() - INTERVAL 1 DAY", ALL),
        ("WHERE __time >= '2026-01-03' UNION ALL SELECT * FROM clicks", ALL),
        ("c JOIN clicks d USING (n) WHERE __time >= '2026-01-03'", ALL),
        ("WHERE n IN (SELECT n FROM clicks) AND __time >= '2026-01-03'", ALL),
        ("HAVING __time >= '2026-01-03'", ALL),
        ("|> WHERE __time >= '2026-01-03'", ALL),
        ("WHERE other.__time >= '2026-01-03'", ALL),
        ("WHERE clicks.__time.x >= '2026-01-03'", ALL),
    ],
)
def test_files_outside_of_the_selected_time_are_not_counted(where: str, size: int) -> None:
    assert read_size(checked_query(f"SELECT * FROM clicks {where}"), ["clicks"], FILES) == size


def test_several_datasources_count_as_a_whole() -> None:
    query = "SELECT * FROM clicks JOIN payments USING (n) WHERE __time >= '2026-01-03'"
    assert read_size(checked_query(query), ["clicks", "payments"], FILES) == ALL + 1_000
    assert read_size(None, [], FILES) == 0


def test_a_query_that_reads_more_is_refused_with_the_remedy() -> None:
    check_read_size(None, [], FILES, 1)
    query = checked_query("SELECT * FROM payments")
    check_read_size(query, ["payments"], FILES, 1_000)
    check_read_size(query, ["payments"], FILES, None)
    with pytest.raises(
        TooLargeForQuota,
        match=r"would read files of 1000 bytes, and the quota query_bytes allows 999 bytes: select"
        r" a shorter time of one datasource, such as WHERE __time >= TIMESTAMP .*, or ask",
    ):
        check_read_size(query, ["payments"], FILES, 999)


def test_the_selected_times_are_those_of_all_conditions() -> None:
    query = checked_query(
        "SELECT n FROM t WHERE __time >= '1970-01-01' AND __time >= '1970-01-02'"
        " AND __time < '1970-01-04' AND __time <= '1970-01-03'"
    )
    first_ms, last_ms = selected_times(query.root, "t")
    assert (first_ms, last_ms) == (86_400_000, 2 * 86_400_000)
