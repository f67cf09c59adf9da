"""The tools of analysts against a whole Penstock: their own code where it can be installed small.

The statements of the others were recorded from them (`record_superset.py`), or follow their public
sources: the plugin of Grafana and the two drivers of Metabase.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.core.sql.checked_query import checked_query
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.compiler import compile_query
from tests.conformance.analysts_kit import (
    CHARTS,
    MORNING,
    QUOTED,
    TABLE,
    World,
    superset,
)
from tests.conformance.clients_kit import INSTALLED, Client, Refused

pytestmark = [pytest.mark.conformance, pytest.mark.system]

COLUMNS = (
    ("__time", "timestamp"), ("country", "string"), ("city", "string"), ("added", "bigint"),
    ("share", "double"),
)  # fmt: skip
ALL = {"datasource": TABLE, "intervals": "2026-11-20/2026-12-02"}


@pytest.fixture(scope="module")
def pydruid(analysts: World) -> Iterator[Client]:
    with Client("pydruid") as running:
        running.ask("connect", "db", port=analysts.port)
        running.ask("client", "native", url=analysts.url)
        yield running


@pytest.fixture(scope="module", params=["2.", "1.4."])
def alchemy(request: pytest.FixtureRequest, analysts: World) -> Iterator[Client]:
    """pydruid with the SQLAlchemy of today, and with the one of Superset."""
    paths = [str(INSTALLED / "superset")] if request.param == "1.4." else []
    with Client("pydruid", *paths) as running:
        assert running.ask("version", "").startswith(request.param)
        running.ask("engine", "e", url=f"druid://127.0.0.1:{analysts.port}/druid/v2/sql/")
        yield running


@pytest.fixture(scope="module")
def airflow() -> Iterator[Client]:
    with Client("airflow") as running:
        yield running


# pydruid


def test_the_db_api_of_pydruid(pydruid: Client, analysts: World) -> None:
    found = pydruid.ask(
        "execute", "db",
        sql=f"SELECT __time, city, added, share, added > 6 AS large FROM {TABLE} WHERE"
        " country = %(country)s AND added > %(least)s AND city IN (%(cities)s) ORDER BY added",
        parameters={"country": "DE", "least": 6, "cities": ["Bonn", "Ulm", "It's"]},
    )  # fmt: skip
    assert found["rows"] == [[MORNING, "Bonn", 20, 0.5, True]]
    # Its codes: 1 text, 2 number, 3 boolean.
    kinds = [(one[0], one[1]) for one in found["description"]]
    assert kinds == [("__time", 1), ("city", 1), ("added", 2), ("share", 2), ("large", 3)]
    cities = ["Bonn", "Lyon", "Röma 10", "Röma 9", "Ulm"]
    sql = f"SELECT city FROM {TABLE} WHERE added <> -3 ORDER BY city"
    first, *rest = cities
    assert pydruid.ask("fetch", "db", sql=sql) == [
        5, {"city": first}, [[one] for one in rest[:2]], [[one] for one in rest[2:]], None,
    ]  # fmt: skip


def test_the_db_api_of_pydruid_with_a_header(pydruid: Client, analysts: World) -> None:
    pydruid.ask("connect", "header", port=analysts.port, header=True, context={"sqlOuterLimit": 2})
    found = pydruid.ask("execute", "header", sql=f"SELECT city FROM {TABLE} ORDER BY city")
    assert found["rows"] == [[QUOTED], ["Bonn"]]
    found = pydruid.ask("execute", "header", sql=f"SELECT city, added FROM {TABLE} WHERE added = 9")
    assert (found["rows"], [one[0] for one in found["description"]]) == ([], ["city", "added"])


def test_rows_of_many_chunks_reach_pydruid(pydruid: Client, analysts: World) -> None:
    sql = "SELECT id, concat('a{\"', id, '\"}') AS text FROM range(6000) ORDER BY id"
    rows = pydruid.ask("execute", "db", sql=sql)["rows"]
    assert rows == [[number, f'a{{"{number}"}}'] for number in range(6_000)]


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        (f"SELECT nope FROM {TABLE}", r"druidException \(INVALID_INPUT\): .*`nope`"),
        ("SELEC 1", r"druidException \(INVALID_INPUT\): "),
        (f"DROP TABLE {TABLE}", r"druidException \(INVALID_INPUT\): DROP is not allowed"),
    ],
)
def test_errors_reach_pydruid(pydruid: Client, analysts: World, sql: str, told: str) -> None:
    with pytest.raises(Refused, match=f"ProgrammingError: {told}"):
        pydruid.ask("execute", "db", sql=sql)


def test_an_unknown_path_is_an_error_of_pydruid(pydruid: Client, analysts: World) -> None:
    pydruid.ask("client", "lost", url=f"{analysts.url}/lost")
    with pytest.raises(Refused, match=r"OSError: HTTP Error 404"):
        pydruid.ask("native", "lost", scenario="time_boundary", **ALL)


def test_sqlalchemy_inspects(alchemy: Client, analysts: World) -> None:
    found = alchemy.ask("inspect", "e", table=TABLE)
    assert found["schemas"] == ["druid", "lookup", "sys"]
    assert (found["tables"], found["of druid"], found["views"]) == (True, True, [])
    assert found["columns"] == [
        ["__time", "TIMESTAMP()", False, None], ["country", "String()", True, None],
        ["city", "String()", True, None], ["added", "BigInteger()", True, None],
        ["share", "Float()", True, None],
    ]  # fmt: skip
    assert found["keys"] == [[], [], []]
    if alchemy.ask("version", "").startswith("2."):
        with pytest.raises(Refused, match="info_cache"):  # pydruid does not take its argument
            alchemy.ask("has_table", "e", table=TABLE)
    else:
        names = {name: alchemy.ask("has_table", "e", table=name) for name in (TABLE, "absent")}
        assert names == {TABLE: True, "absent": False}


def test_sqlalchemy_selects(alchemy: Client, analysts: World) -> None:
    assert alchemy.ask("select", "e", table=TABLE) == {
        "groups": [["DE", 2, 0.5], ["IT", 2, 3.75]],
        "values": [["Bonn"]],
        "time": [[MORNING, True]],
        "expression": [["big", 3], ["small", 3]],
    }


def bucket(result: object) -> list[dict[str, object]]:
    return [{"timestamp": "2026-11-20T00:00:00.000Z", "result": result}]


NATIVE: dict[str, object] = {
    "topn": bucket([{"country": "DE", "n": 2, "u": 2}, {"country": "IT", "n": 2, "u": 2}]),
    "topn of an extraction": bucket([{"first": "R", "n": 2}]),
    "sketches": bucket(
        {"h": 6, "t": 3, "first": "Bonn", "last": "Röma 9", "e": 3, "c": 6, "g": 2}
    ),
    **{name: bucket({"n": count}) for name, count in (
        ("bound", 3), ("not", 3), ("search", 3))},
    "time_boundary": [{"timestamp": MORNING, "result": {
        "minTime": MORNING, "maxTime": "2026-12-01T06:30:00.000Z"}}],
}  # fmt: skip


@pytest.mark.parametrize("scenario", NATIVE)
def test_native_queries_of_pydruid(pydruid: Client, analysts: World, scenario: str) -> None:
    assert pydruid.ask("native", "native", scenario=scenario, **ALL) == NATIVE[scenario]


def test_native_queries_of_pydruid_with_groups(pydruid: Client, analysts: World) -> None:
    def asked(scenario: str, kind: str) -> list[object]:
        return [one[kind] for one in pydruid.ask("native", "native", scenario=scenario, **ALL)]

    days = asked("timeseries", "result")
    assert days[0] == {"n": 3, "a": 32, "f": 0.5, "mean": 32 / 3, "twice": 6.0}
    assert [dict(one)["n"] for one in days] == [3, 2]
    assert asked("groupby", "event") == [
        {"country": "DE", "day": "Friday", "n": 2, "m": 20},
        {"country": "FR", "day": "Friday", "n": 1, "m": 7},
    ]
    assert asked("groupby of a lookup", "event") == [{"name": "Germany", "n": 2}]
    assert asked("groupby of a groupby", "event") == [{"m": 2}]
    assert asked("scan", "events") == [[{"__time": 1795162200000, "city": "Bonn"}]]
    columns = asked("segment_metadata", "columns")[0]
    assert {name: one["type"] for name, one in columns.items()} == {
        "__time": "LONG", "country": "STRING", "city": "STRING", "added": "LONG", "share": "DOUBLE",
    }  # fmt: skip
    assert pydruid.ask("export", "native", scenario="topn of an extraction", **ALL) == (
        "first\tn\ttimestamp\nR\t2\t2026-11-20T00:00:00.000Z\n"
    )


def test_the_asynchronous_client_of_pydruid(pydruid: Client, analysts: World) -> None:
    pydruid.ask("client", "async", url=analysts.url)
    assert pydruid.ask("native", "async", scenario="topn", **ALL) == NATIVE["topn"]


@pytest.mark.parametrize(
    ("scenario", "told"), [("select", "use scan"), ("javascript", "queries cannot run code")]
)
def test_pydruid_is_told_what_to_send_instead(
    pydruid: Client, analysts: World, scenario: str, told: str
) -> None:
    with pytest.raises(Refused, match=told):
        pydruid.ask("native", "native", scenario=scenario, **ALL)


# Superset


def test_every_statement_of_superset_is_translated_and_most_are_fast() -> None:
    slow = []
    for name, statements in superset().items():
        for sql in statements:
            found = checked_query(sql)
            assert found.tables == {TABLE}, name
            try:
                compile_query(found.root, TABLE, COLUMNS)
            except NotCompiled as error:
                slow.append(f"{name}: {error}")
    assert len(slow) <= 3, slow


def test_charts_of_superset(pydruid: Client, analysts: World) -> None:
    asked = superset()
    for name, rows in CHARTS.items():
        *_, found = pydruid.ask("execute_all", "db", statements=asked[name])
        assert sorted(map(repr, found)) == sorted(map(repr, rows)), name
