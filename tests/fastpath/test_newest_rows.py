"""Queries for the newest rows: the same rows as without tries, and few rows read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.intervals import Interval
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath import newest_rows
from penstock.fastpath.compiled_query import NewestRows
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.engine_process import Engine
from penstock.fastpath.engine_protocol import EngineQuery, EngineSettings
from penstock.fastpath.newest_rows import NewestTries, RowGroupTimes, time_of_newest
from penstock.spark.tables.table_files import TableFile
from tests.fastpath.engine_kit import DAY_MS, RELATIONS, N, compiled

COLUMNS = (("__time", "timestamp"), ("amount", "bigint"))
SQL = 'SELECT "amount" AS a FROM rows WHERE "amount" % $1 = 0 ORDER BY "__time" DESC NULLS LAST, 1'


@pytest.fixture(autouse=True)
def few_first_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_rows, "FIRST_ROWS", 8)


# Of each file the times of its rows in milliseconds; None: NULL.
FILES = st.lists(
    st.lists(st.none() | st.integers(0, 60), min_size=1, max_size=40), min_size=1, max_size=4
)


LIMITS = st.builds(NewestRows, st.integers(1, 12), st.integers(0, 5))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Path]:
    folder = tmp_path_factory.mktemp("newest")
    return Engine(EngineSettings((str(folder),), 256 << 20, 1 << 30, 1)), folder


@settings(max_examples=40, deadline=None)
@given(FILES, LIMITS, st.integers(1, 9), st.none() | st.integers(0, 60))
def test_the_rows_are_those_of_the_query_without_tries(
    engine: tuple[Engine, Path],
    files: list[list[int | None]],
    newest: NewestRows,
    modulus: int,
    end_ms: int | None,
) -> None:
    with tempfile.TemporaryDirectory(dir=engine[1]) as folder:
        tables, number = [], 0
        for at, of_file in enumerate(files):
            ordered = sorted(of_file, key=lambda one: (one is None, one or 0))
            amounts = pa.array(range(number, number + len(ordered)), pa.int64())
            number += len(ordered)
            column = pa.array([one if one is None else one * 1_000 for one in ordered])
            rows = pa.table({"__time": column.cast(pa.timestamp("us", "UTC")), "amount": amounts})
            path = Path(folder) / f"{at}.parquet"
            pq.write_table(rows, path, row_group_size=10, store_schema=False)
            tables.append(TableFile(str(path), COLUMNS, Interval(0, DAY_MS)))
        before = "" if end_ms is None else f'"__time" < make_timestamptz({end_ms * 1_000}) AND '
        sql = SQL.replace("WHERE ", f"WHERE {before}") + newest.tail
        _, relation = RELATIONS.of(compiled(sql, N, COLUMNS), tables)
        answers = [
            engine[0].answer(
                EngineQuery(1, f"{name} in {folder}", sql, (modulus,), 50, relation, one, end_ms)
            )
            for name, one in (("plain", None), ("newest", newest), ("newest", newest))
        ]
    assert [one.reason for one in answers] == ["", "", ""]
    found = [pa.ipc.open_stream(one.content).read_all() for one in answers]
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])  # it may be known that many rows have to be read


def tries(
    wanted: int, found: list[int], groups: list[RowGroupTimes], *, is_selective: bool = False
) -> list[bool]:
    """Return for each try whether it reads all rows."""
    sql, newest = "SELECT 1 LIMIT 9", NewestRows(9)
    made = NewestTries(sql, newest, wanted, groups, is_selective=is_selective)
    kinds = []
    for one, came in zip(made, found, strict=False):
        kinds.append(one.is_last)
        made.found = came
        if came >= one.rows:
            break
    return kinds


def test_rows_are_read_again_only_if_too_few_were_found() -> None:
    groups = [RowGroupTimes(at * 1_000, at * 1_000 + 999, 1_000) for at in range(3)]
    assert tries(5, [5], groups) == [False]
    assert tries(5, [2, 5], groups) == [False, False]
    assert tries(5, [2, 4, 5], groups) == [False, False, True]
    assert tries(5, [0, 5], groups) == [False, True]
    assert tries(5, [5], groups, is_selective=True) == [True]
    assert tries(5, [5], groups[:0]) == [True]
    assert tries(5, [5], [RowGroupTimes(0, 9, 8)]) == [True]


def test_the_time_of_the_newest_rows_is_estimated_from_row_groups() -> None:
    groups = [RowGroupTimes(0, 999, 1_000), RowGroupTimes(5_000, 5_099, 100)]
    assert time_of_newest(groups, 10) == 5_090
    assert time_of_newest(groups, 100) == 5_000
    assert time_of_newest(groups, 101) == 999
    assert time_of_newest(groups, 1_100) == 0
    assert time_of_newest([RowGroupTimes(7, 7, 50)] * 2, 60) == 7


@pytest.mark.parametrize(
    ("rest", "newest"),
    [
        ("ORDER BY __time DESC LIMIT 5", NewestRows(5)),
        ("ORDER BY t DESC NULLS LAST, amount LIMIT 5 OFFSET 2", NewestRows(5, 2)),
        ("WHERE city = 'Oslo' ORDER BY 2 DESC LIMIT 5", NewestRows(5)),
        ("ORDER BY __time LIMIT 5", None),
        ("ORDER BY __time DESC NULLS FIRST LIMIT 5", None),
        ("ORDER BY amount DESC, __time DESC LIMIT 5", None),
        ("ORDER BY date_trunc('HOUR', __time) DESC LIMIT 5", None),
        ("ORDER BY __time DESC LIMIT 0", None),
        ("ORDER BY __time DESC LIMIT 9999 OFFSET 2", None),
        ("ORDER BY __time DESC", None),
        ("LIMIT 5", None),
    ],
)
def test_queries_for_the_newest_rows_are_known(rest: str, newest: NewestRows | None) -> None:
    columns = (("__time", "timestamp"), ("city", "string"), ("amount", "bigint"))
    for items in ("amount, __time AS t", "amount, __time AS t, city AS c"):
        query = checked_query(f"SELECT {items} FROM clicks {rest}").root
        assert compile_query(query, "clicks", columns, []).newest == newest


def test_a_result_with_the_name_of_the_time_is_not_the_time() -> None:
    columns = (("__time", "timestamp"), ("other", "timestamp"))
    sql = "SELECT other AS __time FROM clicks ORDER BY __time DESC LIMIT 5"
    assert compile_query(checked_query(sql).root, "clicks", columns, []).newest is None
