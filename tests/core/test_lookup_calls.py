"""Lookups in the tree of a statement: their names for Spark, and calls that are refused."""

from __future__ import annotations

import pytest

from penstock.core.errors import InvalidRequest
from penstock.core.sql.checked_query import checked_query

MAP = "element_at((SELECT `map` FROM `lookup/{}/map/{}`), CAST({} AS STRING))"


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT * FROM lookup.Names", "SELECT * FROM `lookup/names` AS `Names`"),
        ("TABLE LOOKUP.a", "TABLE `lookup/a`"),
        ("SELECT lookup.a.k, l.v FROM lookup.a, lookup.b l",
         "SELECT a.k, l.v FROM `lookup/a` AS `a`, `lookup/b` l"),
        ("SELECT Lookup(x, 'N')", f"SELECT {MAP.format('n', '', 'x')}"),
        ("SELECT LOOKUP(x || y, 'n.Col', 'z')",
         f"SELECT coalesce({MAP.format('n', 'col', '(x || y)')}, 'z')"),
        ("SELECT LOOKUP(LOOKUP(x, 'a'), 'b')",
         f"SELECT {MAP.format('b', '', MAP.format('a', '', 'x'))}"),
        ("SELECT LOOKUP(?, 'a', ?)", f"SELECT coalesce({MAP.format('a', '', '?')}, ?)"),
        ("SELECT LOOKUP(TIME_FLOOR(t, 'P1D'), 'a')",
         f"SELECT {MAP.format('a', '', '(date_trunc(' + repr('DAY') + ', t))')}"),
        ("SELECT a.lookup(x, 'n') FROM a", None),
    ],
)  # fmt: skip
def test_spark_gets_names_and_functions_that_it_knows(sql: str, text: str | None) -> None:
    if text is None:
        with pytest.raises(InvalidRequest):
            checked_query(sql, has_metadata=True)
    else:
        assert checked_query(sql, has_metadata=True).text == text


def test_each_lookup_and_column_is_read_once() -> None:
    sql = (
        "SELECT LOOKUP(x, 'a'), LOOKUP(y, 'A'), LOOKUP(y, 'a.b') FROM lookup.a JOIN t JOIN lookup.A"
    )
    found = checked_query(sql, has_metadata=True)
    assert {(one.name, one.column, one.is_map) for one in found.lookups} == {
        ("a", "", False),
        ("a", "", True),
        ("a", "b", True),
    }
    assert len(found.lookups) == 3
    assert found.tables == {"t"}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT LOOKUP(x)",
        "SELECT LOOKUP(x, y)",
        "SELECT LOOKUP(x, 'a', 'b', 'c')",
        "SELECT LOOKUP(DISTINCT x, 'a')",
        "SELECT LOOKUP(x, 'a') OVER ()",
        "SELECT LOOKUP(x, '')",
    ],
)
def test_other_arguments_are_refused_with_the_place(sql: str) -> None:
    with pytest.raises(InvalidRequest, match="LOOKUP has other arguments, line 1, column 8"):
        checked_query(sql, has_metadata=True)


@pytest.mark.parametrize("sql", ["SELECT * FROM lookup.a", "SELECT LOOKUP(x, 'a') FROM t"])
def test_tasks_and_flows_read_no_lookups_in_sql(sql: str) -> None:
    with pytest.raises(InvalidRequest, match="use the processor LookupRecord"):
        checked_query(sql)


def test_a_definition_does_not_take_the_place_of_a_lookup() -> None:
    sql = 'WITH "lookup/a" AS (SELECT 1) SELECT * FROM lookup.a'
    with pytest.raises(InvalidRequest, match="is hidden by a definition of WITH"):
        checked_query(sql, has_metadata=True)


def test_calls_within_each_other_do_not_grow_without_a_bound() -> None:
    call = "x"
    for _ in range(70):
        call = f"LOOKUP({call}, 'a', {call if len(call) < 20_000 else 1})"
    with pytest.raises(InvalidRequest):
        checked_query(f"SELECT {call}", has_metadata=True)
