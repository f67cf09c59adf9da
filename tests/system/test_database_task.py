"""Tasks of a running Penstock that read a real PostgreSQL: by a variable, refused, and stopped."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import orjson
import pytest
from pydantic import JsonValue

from penstock.testing.server import LocalPenstock
from tests.storage.postgres_server_kit import require_binaries
from tests.storage.reading_database_kit import ReadDatabase, running_database
from tests.system.serving_kit import contents, files_in, until

pytestmark = [pytest.mark.system, pytest.mark.postgres]

VARIABLE: JsonValue = {"type": "environment", "variable": "PENSTOCK_INPUT_SHOP"}
SALES = (
    "SELECT timestamptz '2026-11-20 00:00:00Z' + n * interval '1 s' AS at,"
    " 'shop' || n % 100 AS shop, n AS cents FROM generate_series(1, 100000) AS g (n)"
)


class Api:
    """Asks the API of a Penstock, with the rows of a database."""

    def __init__(self, client: httpx.Client, database: ReadDatabase) -> None:
        self._client = client
        self.database = database

    def source(self, *sqls: str, **more: JsonValue) -> dict[str, JsonValue]:
        return self.database.source(*sqls, **{"password": VARIABLE, **more})

    def submit(self, name: str, source: JsonValue) -> str:
        schema = {
            "dataSource": "sales",
            "timestampSpec": {"column": "at", "format": "auto"},
            "dimensionsSpec": {"useSchemaDiscovery": True},
            "granularitySpec": {"segmentGranularity": "DAY", "rollup": False},
        }
        spec = {"dataSchema": schema, "ioConfig": {"inputSource": source}}
        body = {"type": "index_parallel", "id": name, "spec": spec}
        assert self.post("task", body).status_code == 200
        return name

    def post(self, path: str, body: object = None) -> httpx.Response:
        return self._client.post(f"/druid/indexer/v1/{path}", json=body)

    def ended(self, name: str) -> tuple[str, str]:
        """Return how a task ended, and why it failed."""
        until(f"the end of {name}", lambda: self.status(name)["statusCode"] != "RUNNING")
        status = self.status(name)
        return status["statusCode"], status["errorMsg"] or ""

    def status(self, name: str) -> dict[str, str]:
        found: dict[str, str] = self.get(f"task/{name}/status").json()["status"]
        return found

    def get(self, path: str) -> httpx.Response:
        return self._client.get(f"/druid/indexer/v1/{path}")

    def insert(self, sql: str) -> str:
        return str(self._client.post("/druid/v2/sql/task", json={"query": sql}).json()["taskId"])

    def query(self, sql: str) -> object:
        return self._client.post("/druid/v2/sql", json={"query": sql}).json()


@pytest.fixture
def api(shared_penstock: LocalPenstock) -> Iterator[Api]:
    with (
        running_database(require_binaries()) as database,
        httpx.Client(base_url=shared_penstock.api_url, timeout=60) as client,
    ):
        yield Api(client, database)


def test_tasks_read_a_database(api: Api, shared_penstock: LocalPenstock) -> None:
    wrong = api.submit("wrong", api.source(SALES, "DELETE FROM sales"))
    refused = api.submit("refused", api.source(SALES, password="hush"))
    slow = api.submit("slow", api.source("SELECT pg_sleep(600)"))
    until("the statement", lambda: bool(api.database.running()))
    assert api.status(slow)["statusCode"] == "RUNNING"
    assert api.post(f"task/{slow}/shutdown").status_code == 200
    until("the end of the statement", lambda: not api.database.running())
    assert api.ended(slow)[0] == "FAILED"
    state, why = api.ended(wrong)
    assert (state, "sqls[1] of the database" in why) == ("FAILED", True)
    state, why = api.ended(refused)
    assert (state, "password authentication failed" in why) == ("FAILED", True)

    assert api.ended(api.submit("sales", api.source(SALES))) == ("SUCCESS", "")
    counted = "SELECT count(*) AS n, sum(cents) AS cents, min(__time) AS first FROM sales"
    first = "2026-11-20T00:00:01.000Z"
    assert api.query(counted) == [{"n": 100_000, "cents": 5_000_050_000, "first": first}]

    shops = api.source(f"SELECT shop, count(*) AS n FROM ({SALES}) AS s GROUP BY shop")
    text = orjson.dumps(shops).decode().replace("'", "''")
    insert = api.insert(
        "INSERT INTO shops SELECT TIMESTAMP '2026-11-20' AS __time, * FROM"
        f" TABLE(EXTERN(inputSource => '{text}')) EXTEND (shop VARCHAR, n BIGINT)"
        " PARTITIONED BY DAY"
    )
    assert api.ended(insert) == ("SUCCESS", "")
    assert api.query("SELECT count(*) AS n, sum(n) AS of FROM shops") == [{"n": 100, "of": 100_000}]
    logs = [path for path in files_in(shared_penstock.folder) if path.suffix == ".log"]
    assert logs
    assert not [path for path, content in contents(logs) if b"hush" in content]
