"""Statements over lookups: joins, LOOKUP in every place of a statement, versions, and refusals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest
from penstock.services.api.lookups import SeenLookups
from penstock.spark.connect.spark_sessions import SparkSessions
from penstock.spark.sql import lookup_tables
from penstock.spark.sql.answer_files import AnswerFolder
from penstock.spark.sql.service import SqlQuery, SqlService
from penstock.storage.lookup_rows import LookupTables, written_rows
from tests.spark.data_folder_kit import DataFolder, table

if TYPE_CHECKING:
    from penstock.services.api.request_access import RequestAccess

pytestmark = pytest.mark.spark

NASTY = "'\"\\ ${spark.master} ? :x -- /* `\n\t\u2028é😀 $"
TYPES = {pa.string(): "string", pa.int64(): "long", pa.float64(): "double"}
COUNTRIES = {"de": "Deutschland", "fr": None, "": "empty", NASTY: NASTY, "5": "five"}


class Rig:
    """SQL over a datasource and lookups."""

    def __init__(self, data: DataFolder, service: SqlService) -> None:
        self.data, self.service = data, service
        self.tables = LookupTables(data.store.lookups)
        self.hidden: set[str] = set()
        may = SimpleNamespace(
            may=lambda _action, _kind, name: name not in self.hidden,
            record=lambda _action, _resource: None,
        )
        self.seen = SeenLookups(self.tables, cast("RequestAccess", may))

    def put(self, name: str, columns: Mapping[str, pa.Array]) -> None:
        key, *others = columns
        spec = {
            "name": name,
            "inputSource": {"type": "local", "files": ["/absent"]},
            "inputFormat": {"type": "json"},
            "key": key,
            "columns": [{"name": one, "type": TYPES[columns[one].type]} for one in others],
        }
        self.data.store.lookups.put(name, spec, written_rows(pa.table(dict(columns))), -1)

    def rows(self, sql: str, *parameters: str) -> list[Any]:
        result = self.service.query(SqlQuery(sql, parameters, lookups=self.seen))
        return [tuple(one.values()) for one in result.table.to_pylist()]


@pytest.fixture(scope="module")
def rig(sessions: SparkSessions, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    data = DataFolder(tmp_path_factory.mktemp("lookups"))
    codes = pa.array(["de", "fr", "xx", None, "", NASTY])
    times = [f"2013-01-0{n}" for n in range(1, 7)]
    data.publish("clicks", table(times, c=codes, n=pa.array([5, 5, 7, 8, 9, 10], pa.int64())))
    answers = AnswerFolder(tmp_path_factory.mktemp("answers"))
    made = Rig(data, SqlService(sessions, data.source, SystemClock(), answers=answers))
    texts = pa.array(list(COUNTRIES)), pa.array(COUNTRIES.values(), pa.string())
    made.put("Countries", {"k": texts[0], "v": texts[1]})
    made.put(
        "sizes",
        {
            "code": pa.array(["de", "fr", "xx"]),
            "size": pa.array([357, 1 << 62, None], pa.int64()),
            "share": pa.array([0.1, -1e300, 5e-324]),
            "name": pa.array(["D", "F", "X"]),
        },
    )
    yield made
    made.service.close()
    answers.close()
    data.close()


@pytest.mark.parametrize(
    ("sql", "wanted"),
    [
        # A missing key and NULL give NULL or the replacement, as in Druid.
        (
            "SELECT c, LOOKUP(c, 'countries'), LOOKUP(c, 'Countries', '?') FROM clicks",
            [
                ("de", "Deutschland", "Deutschland"),
                ("fr", None, "?"),
                ("xx", None, "?"),
                (None, None, "?"),
                ("", "empty", "empty"),
                (NASTY, NASTY, NASTY),
            ],
        ),
        ("SELECT LOOKUP('de', 'countries') AS a", [("Deutschland",)]),
        ("SELECT LOOKUP(n, 'countries') FROM clicks WHERE n < 7", [("five",), ("five",)]),
        (
            (
                "SELECT LOOKUP(c, 'countries', '?') AS l, count(*) FROM clicks GROUP BY 1"
                " HAVING LOOKUP(max(c), 'countries') IS NULL ORDER BY 1"
            ),
            [("?", 3)],
        ),
        ("SELECT sum(LOOKUP(c, 'sizes.SIZE')) FROM clicks WHERE c = 'de'", [(357,)]),
        (
            (
                "SELECT LOOKUP(c, 'sizes.share') FROM clicks WHERE LOOKUP(c, 'sizes') IS NOT NULL"
                " OR c = 'xx' ORDER BY LOOKUP(c, 'sizes.name') DESC"
            ),
            [(5e-324,), (-1e300,), (0.1,)],
        ),
        ("SELECT LOOKUP(LOOKUP('fr', 'sizes.name'), 'countries', 'none') AS a", [("none",)]),
        ("SELECT count(*) FROM clicks a JOIN clicks b ON LOOKUP(a.c, 'countries') = b.c", [(1,)]),
        # As a table
        (
            (
                "SELECT c, v, l.k FROM clicks LEFT JOIN lookup.countries AS l ON c = l.k"
                " WHERE n < 8 ORDER BY c"
            ),
            [("de", "Deutschland", "de"), ("fr", None, "fr"), ("xx", None, None)],
        ),
        (
            "SELECT lookup.sizes.name, sizes.size FROM lookup.sizes ORDER BY 1",
            [("D", 357), ("F", 1 << 62), ("X", None)],
        ),
        ("SELECT * FROM lookup.SIZES WHERE code = 'xx'", [("xx", None, 5e-324, "X")]),
        ("SELECT k FROM lookup.countries WHERE v = k", [(NASTY,)]),
        (
            "WITH a AS (SELECT * FROM lookup.countries) SELECT count(*), count(b.v) FROM a, a AS b",
            [(25, 20)],
        ),
        ("SELECT count(*) FROM lookup.countries WHERE k NOT IN (SELECT c FROM clicks)", [(0,)]),
    ],
)
def test_a_lookup_answers_as_a_table_and_as_a_function(
    rig: Rig, sql: str, wanted: list[Any]
) -> None:
    assert rig.rows(sql) == wanted


def test_the_type_of_a_column_is_that_of_its_values(rig: Rig) -> None:
    calls = "LOOKUP(c, 'sizes') a, LOOKUP(?, 'sizes.share') b, LOOKUP(c, 'countries')"
    sql = f"SELECT {calls} FROM clicks"
    result = rig.service.query(SqlQuery(sql, ("de",), lookups=rig.seen))
    assert result.column_types == ("bigint", "double", "string")
    assert result.engine == "spark"


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("SELECT * FROM lookup.countrie", "no lookup countrie .*line 1, column 15: did you mean"),
        ("SELECT * FROM lookup.secret", "no lookup secret that you may read"),
        ("SELECT LOOKUP('a', 'secret')", "no lookup secret that you may read"),
        ("SELECT LOOKUP('a', 'sizes.x')", "has no column x.* columns are size, share, name"),
        ("SELECT LOOKUP('a', c) FROM clicks", "LOOKUP has other arguments"),
        ("SELECT x FROM lookup.countries", "x"),
        ('SELECT * FROM "lookup/countries"', "lookup/countries"),
        ("SELECT transform(array(c), x -> LOOKUP(x, 'sizes')) FROM clicks", "SUBQUERY"),
    ],
)  # fmt: skip
def test_a_wrong_name_is_refused_with_its_place(rig: Rig, sql: str, text: str) -> None:
    rig.put("secret", {"k": pa.array(["a"]), "v": pa.array(["b"])})
    rig.hidden = {"secret"}
    with pytest.raises(InvalidRequest, match=text):
        rig.rows(sql)
    assert rig.data.store.lookups.delete("secret")
    rig.hidden = set()


@pytest.mark.parametrize(
    ("sql", "types"),
    [
        ("SELECT LOOKUP(c, 'sizes.SIZE', '?') FROM clicks", "sizes.size is bigint"),
        ("SELECT LOOKUP(c, 'sizes.size', array(1)) FROM clicks", "sizes.size is bigint"),
        ("SELECT LOOKUP(c, 'countries', 5) FROM clicks", "Countries.v is string"),
    ],
)
def test_a_replacement_of_another_type_is_explained(rig: Rig, sql: str, types: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rig.rows(sql)
    told = f"the third argument of LOOKUP must have the type of the column: {types}"
    assert str(refused.value).endswith(told)
    with pytest.raises(InvalidRequest) as other:
        rig.rows("SELECT LOOKUP(c, 'sizes.size', 0) + int('x') FROM clicks, lookup.countries")
    assert "sizes.size is bigint" in str(other.value)  # it may be why
    with pytest.raises(InvalidRequest) as another:
        rig.rows("SELECT LOOKUP(c, 'sizes.size') + int('x') FROM clicks")
    assert "third argument" not in str(another.value)


def test_a_new_version_counts_for_the_next_statement(rig: Rig) -> None:
    for value in ("one", "two"):
        rig.put("versions", {"k": pa.array(["a"]), "v": pa.array([value])})
        assert rig.rows("SELECT v, LOOKUP(k, 'versions') FROM lookup.versions") == [(value, value)]
    assert rig.data.store.lookups.delete("versions")
    with pytest.raises(InvalidRequest, match="no lookup versions"):
        rig.rows("TABLE lookup.versions")


def test_many_rows_go_through_a_file_and_large_maps_are_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_tables, "INLINE_BYTES_MAX", 10)
    sql = "SELECT count(*), max(v) FROM lookup.countries JOIN clicks ON c = k"
    assert rig.rows(sql) == [(4, "empty")]
    monkeypatch.setattr(lookup_tables, "MAP_BYTES_MAX", 10)
    with pytest.raises(InvalidRequest, match=r"join lookup\.Countries instead, on its column k"):
        rig.rows("SELECT LOOKUP(c, 'countries') FROM clicks")


def test_tools_see_the_columns_of_lookups(rig: Rig) -> None:
    rig.hidden = {"Countries"}
    tables = "SELECT TABLE_NAME, TABLE_TYPE, IS_BROADCAST FROM INFORMATION_SCHEMA.TABLES"
    assert rig.rows(f"{tables} WHERE TABLE_SCHEMA = 'lookup'") == [("sizes", "TABLE", "YES")]
    columns = "SELECT COLUMN_NAME, DATA_TYPE, IS_NULLABLE FROM INFORMATION_SCHEMA.COLUMNS"
    assert rig.rows(f"{columns} WHERE TABLE_NAME = 'sizes'") == [
        ("code", "VARCHAR", "NO"),
        ("size", "BIGINT", "YES"),
        ("share", "DOUBLE", "YES"),
        ("name", "VARCHAR", "YES"),
    ]
    rig.hidden = set()
    described = rig.rows("DESCRIBE QUERY SELECT * FROM lookup.sizes")
    assert [one[:2] for one in described][1] == ("size", "bigint")


def test_an_explanation_has_no_entries_of_a_map(rig: Rig) -> None:
    (text,) = rig.rows("EXPLAIN SELECT LOOKUP(c, 'countries') FROM clicks")[0]
    assert "Deutschland" not in text
    assert "element_at" in text
