"""The first use of SQL: each form of a query, each way to fail, and queries that are ended."""

from __future__ import annotations

import http.client
import json
from select import select
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

SQL = "/druid/v2/sql"
TASK = "/druid/v2/sql/task"
FORMATS = ("object", "array", "objectLines", "arrayLines", "csv")
# A parameter of each of Druid's types.
PARAMETERS = (
    *({"type": "VARCHAR", "value": "a"}, {"type": "BIGINT", "value": 1}),
    *({"type": "DOUBLE", "value": 1.5}, {"type": "DECIMAL", "value": 2.5}),
    *({"type": "BOOLEAN", "value": True}, {"type": "TIMESTAMP", "value": 1_700_000_000_000}),
    *({"type": "DATE", "value": "2023-11-14"}, "plain", 7, None),
)
# Every type of a column, of which a result format may need help to write some.
TYPES = """
SELECT CAST(1.5 AS DECIMAL(10, 2)) AS a, CAST('x' AS BINARY) AS b, DATE '2024-01-01' AS c,
  TIMESTAMP '2024-01-01 00:00:00' AS d, ARRAY(1, 2) AS e, MAP('k', 1) AS f,
  NAMED_STRUCT('n', 1.5D) AS g, INTERVAL '1' DAY AS h, NULL AS i, TRUE AS j
"""
BY_DAY = """
SELECT day, count(*) AS n FROM (SELECT date_trunc('DAY', __time) AS day FROM {table}) GROUP BY day
"""
GOOD = (
    *("SELECT * FROM {table}", "SELECT count(*) AS n FROM {table} WHERE page = 'a'", TYPES, BY_DAY),
    *("SHOW TABLES", "DESCRIBE {table}", "EXPLAIN SELECT * FROM {table}"),
)
# What is refused, by Penstock before Spark is asked, or by Spark.
REFUSED: tuple[object, ...] = (
    *(b"{", [], {}, {"query": "SELECT FROM WHERE"}, {"query": "SELECT * FROM nothing"}),
    *({"query": "SELECT 1", "resultFormat": "x"}, {"query": "SELECT ?"}),
    {"query": "SELECT ?", "parameters": [{"type": "X", "value": 1}]},
    *({"query": "SELECT 1 AS a, 2 AS a"}, {"query": "INSERT INTO t SELECT 1"}),
    {"query": "SELECT 1", "context": {"sqlTimeZone": "Europe/Berlin"}},
    {"query": "SELECT 1", "context": {"sqlQueryId": "ü"}},
    {"query": f"SELECT '{'x' * 2_000_000}'"},
)
SLOW = "SELECT count(*) AS n FROM range(1000000000000) WHERE sqrt(id) = 1.5"


class SqlApi:
    """Requests to a router, each on a connection of its own.

    Args:
        url: The router's.
    """

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url).netloc

    def send(
        self, method: str, path: str, body: object = b"", kind: str = "application/json"
    ) -> int:
        """Return the status of the answer, which is read to its end."""
        connection = self._sent(method, path, body, kind)
        try:
            answer = connection.getresponse()
            answer.read()
        finally:
            connection.close()
        return answer.status

    def ask(self, statement: str, **more: object) -> int:
        """Return the status of the answer to a query."""
        return self.send("POST", SQL, {"query": statement, **more})

    def begin(self, statement: str, query_id: str) -> http.client.HTTPConnection:
        """Send a query and leave its answer; closing the connection ends the query."""
        body = {"query": statement, "context": {"sqlQueryId": query_id}}
        return self._sent("POST", SQL, body, "application/json")

    def _sent(self, method: str, path: str, body: object, kind: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._place, timeout=120)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, path, data, {"Content-Type": kind})
        return connection


def use_sql(url: str, table: str, until: Callable[..., object]) -> None:
    """Ask for everything once.

    Args:
        url: The router's.
        table: A datasource that a stream fills, with a column `page`.
        until: Waits until a function returns something.
    """
    api = SqlApi(url)
    until("Spark", lambda: api.ask("SELECT 1") == 200)
    until("rows", lambda: api.ask(f"SELECT 1 / count(*) AS n FROM {table}") == 200)
    for statement in GOOD:
        assert api.ask(statement.format(table=table)) == 200, statement
    for form in FORMATS:
        heads = {"header": True, "typesHeader": True, "sqlTypesHeader": True}
        for statement in (f"SELECT * FROM {table}", TYPES):
            assert api.ask(statement, resultFormat=form, **heads) == 200, (form, statement)
    several = ", ".join(f"? AS c{number}" for number in range(len(PARAMETERS)))
    context = {"sqlOuterLimit": 1, "timeout": 60_000, "useProjections": True}
    assert api.ask(f"SELECT {several}", parameters=PARAMETERS, context=context) == 200
    assert api.send("POST", SQL + "/", b"SELECT 1", "text/plain") == 200
    for body in REFUSED:
        assert api.send("POST", SQL, body) == 400, str(body)[:100]
    assert api.ask("SELECT ARRAY(1)[7] AS x") == 400
    assert api.ask(SLOW, context={"timeout": 300}) == 500
    _end_queries(api, until)
    _write(api, table)


def _end_queries(api: SqlApi, until: Callable[..., object]) -> None:
    """Cancel a query, and leave another one."""
    assert api.send("DELETE", f"{SQL}/unknown") == 404
    slow = _begun(api, "cancelled", until)
    assert api.send("DELETE", f"{SQL}/cancelled") == 202
    assert slow.getresponse().status == 500
    slow.close()
    _begun(api, "left", until).close()
    until("its end", lambda: _again(api, "left") == 200)


def _begun(api: SqlApi, query_id: str, until: Callable[..., object]) -> http.client.HTTPConnection:
    """Return the connection of a slow query that runs: another one of its id is refused."""
    slow = api.begin(SLOW, query_id)

    def is_registered() -> bool:
        nonlocal slow
        if select([slow.sock], [], [], 0)[0]:  # the other one was first
            slow.close()
            slow = api.begin(SLOW, query_id)
        return _again(api, query_id) != 200

    until("a conflict", is_registered)
    return slow


def _again(api: SqlApi, query_id: str) -> int:
    return api.ask("SELECT 1", context={"sqlQueryId": query_id})


def _write(api: SqlApi, table: str) -> None:
    """Start a task that writes, and have others refused."""
    for body in (b"{", {}, {"query": "SELECT 1"}, {"query": "INSERT", "parameters": [1]}):
        assert api.send("POST", TASK, body) == 400, body
    statement = f"REPLACE INTO copies OVERWRITE ALL SELECT * FROM {table} PARTITIONED BY DAY"
    assert api.send("POST", TASK, {"query": statement, "context": {"a": 1}}) == 202
