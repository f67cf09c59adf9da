"""Counts that the metadata has, and answers that are kept."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pytest

from penstock.core.intervals import Interval
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.quick_answers import KeptAnswers, count_from_metadata, count_table
from penstock.fastpath.snapshot_relations import answer_schema
from penstock.spark.tables.table_files import TableFile
from tests.fastpath.engine_kit import COLUMNS, DAY_MS, N

SINCE = "SELECT count(*) FROM clicks WHERE __time >= TIMESTAMP '1970-01-02'"


def file(
    day: int, rows: int, clip: Interval | None = None, *, announced: bool = False
) -> TableFile:
    interval = Interval(day * DAY_MS, (day + 1) * DAY_MS)
    return TableFile(f"/{day}.parquet", COLUMNS, interval, clip, announced, 9, "", rows)


FILES = (file(0, 5), file(1, 7), file(2, 11))


def counted(sql: str, *files: TableFile) -> int | None:
    query = checked_query(sql).root
    compiled = compile_query(query, "clicks", COLUMNS, [])
    return count_from_metadata(query, compiled, files or FILES)


@pytest.mark.parametrize(
    ("sql", "number"),
    [
        ("SELECT count(*) FROM clicks", 23),
        ("SELECT COUNT(*) AS n FROM clicks", 23),
        (SINCE, 18),
        ("SELECT count(*) FROM clicks WHERE __time < TIMESTAMP '1970-01-02 00:00:00'", 5),
        (f"{SINCE} AND __time < TIMESTAMP '1970-01-03'", 7),
        ("SELECT count(*) FROM clicks WHERE __time >= TIMESTAMP '1980-01-01'", 0),
        ("SELECT count(*) FROM clicks WHERE __time > TIMESTAMP '1970-01-02'", None),
        ("SELECT count(*) FROM clicks WHERE __time >= TIMESTAMP '1970-01-02 00:00:01'", None),
        ("SELECT count(*) FROM clicks WHERE __time < TIMESTAMP '1970-01-02 00:00:00.0001'", None),
        ("SELECT count(*) FROM clicks WHERE city = 'Oslo'", None),
        (f"{SINCE} OR amount > 3", None),
        ("SELECT count(city) FROM clicks", None),
        ("SELECT count(DISTINCT city) FROM clicks", None),
        ("SELECT count(*) FROM clicks GROUP BY city", None),
        ("SELECT count(*) FROM clicks LIMIT 0", None),
        ("SELECT count(*) FROM clicks HAVING count(*) > 99", None),
        ("SELECT count(*) + 1 AS n FROM clicks", None),
        ("SELECT count(*) AS a, count(*) AS b FROM clicks", None),
    ],
)
def test_counts_of_whole_files_are_in_the_metadata(sql: str, number: int | None) -> None:
    assert counted(sql) == number


@pytest.mark.parametrize(
    "other",
    [file(0, 0), file(0, 5, announced=True), file(0, 5, clip=Interval(0, DAY_MS // 2))],
)
def test_a_file_without_a_known_number_of_visible_rows_is_read(other: TableFile) -> None:
    assert counted("SELECT count(*) FROM clicks", *FILES, other) is None
    assert counted(SINCE, *FILES, other) == 18


def test_a_count_is_a_table_of_one_number() -> None:
    assert count_table(7, answer_schema(N)).to_pylist() == [{"n": 7}]


def table(rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(rows), pa.int64())})


def key_of(number: int, text: str = "") -> bytes:
    return KeptAnswers.key("1", "SELECT $1", (number, text), answer_schema(N), 9)


def test_kept_answers_have_a_bound() -> None:
    kept = KeptAnswers(bytes_max=13_000)
    keys = [key_of(number) for number in range(9)]
    for key in keys:
        kept.keep(key, table(10))
        assert kept.get(keys[0]) is not None  # used last
    assert [number for number, key in enumerate(keys) if kept.get(key)] == [0, 6, 7, 8]
    large = key_of(99)
    kept.keep(large, table(100_000))
    assert kept.get(large) is None
    kept.keep(keys[8], table(20))
    assert (found := kept.get(keys[8])) is not None
    assert found.num_rows == 20


def test_the_bound_of_kept_answers_holds_for_their_texts_and_names() -> None:
    kept, text = KeptAnswers(bytes_max=2_000_000), "a" * 100_000
    tracemalloc.start()
    try:
        for number in range(100):
            kept.keep(key_of(number, f"{number}{text}"), table(1))
            kept.keep(key_of(-number - 1), table(1).rename_columns([f"{number}{text}"]))
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < 1_000_000  # names are Arrow's memory
    assert [n for n in range(100) if kept.get(key_of(-n - 1))] == [96, 97, 98, 99]


def test_values_of_other_types_are_other_queries() -> None:
    schema = answer_schema(N)
    keys = {
        KeptAnswers.key("1", "SELECT $1", (value,), schema, 9)
        for value in (1, 1.0, True, "1", -0.0, 0.0)
    }
    assert len(keys) == 6
    other = answer_schema((("n", "int"),))
    assert KeptAnswers.key("1", "SELECT $1", (1,), other, 9) not in keys
