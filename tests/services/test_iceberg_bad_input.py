"""Nonsense to every route of the Iceberg catalog: errors in its form, and nothing that grows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.routing import Route

from penstock.core.errors import PenstockError
from penstock.services.api.access_rules import ROUTE_RULES
from penstock.services.api.asgi import application
from penstock.services.api.error_forms import ICEBERG
from penstock.services.api.iceberg import catalog_tables
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import with_token
from tests.harness.metadata_kit import open_metadata
from tests.services.test_iceberg_catalog import CLICKS, World

TYPES = {
    400: {"BadRequestException"},
    401: {"NotAuthorizedException"},
    404: {
        "NoSuchTableException",
        "NoSuchNamespaceException",
        "NoSuchPlanTaskException",
        "UnsupportedOperationException",
    },
    405: {"UnsupportedOperationException"},
    413: {"BadRequestException"},
    500: {"InternalServerError"},
}
TABLES = f"{ICEBERG}/namespaces/penstock/tables"
ROUTES = (
    f"{ICEBERG}/config",
    f"{ICEBERG}/namespaces",
    f"{ICEBERG}/namespaces/{{}}",
    f"{ICEBERG}/namespaces/{{}}/tables",
    f"{TABLES}/{{}}",
    f"{TABLES}/{{}}/plan",
    f"{TABLES}/{{}}/tasks",
    f"{ICEBERG}/other/{{}}",
)
NAMES = (
    *("penstock", "clicks", "none", "%FF", "%00", "%ED%A0%80", "..", "%2e%2e%2f%2e%2e", "a%2Fb"),
    *("a%1Fb", "%", "%zz", "x" * 3000, "%22", "clicks%20", "CLICKS", "%F0%9F%91%8D", "${x}", "{}"),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, clock = tmp_path_factory.mktemp("catalog"), VirtualClock()
    with open_metadata(folder, clock) as store, closing(World(folder, store, clock)) as made:
        for day in range(1, 4):
            made.publish(f"2024-10-0{day}/2024-10-0{day + 1}", day * 100)
        # One day is visible in part.
        made.publish("2024-10-02T06/2024-10-02T07", 500, version="v2")
        yield made


class Asking:
    """Asks the application of a router, without a socket."""

    def __init__(self, world: World, token: str | None = None) -> None:
        routes = [*world.routes, Route(f"{ICEBERG}/bug", _bug)]
        rules = {("GET", f"{ICEBERG}/bug"): ROUTE_RULES["GET", f"{ICEBERG}/config"]}
        app = application(routes, access=with_token(token), rules={**ROUTE_RULES, **rules})
        self._transport = httpx.ASGITransport(app, raise_app_exceptions=False)

    def __call__(
        self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        return asyncio.run(self._send(method, path, content, headers))

    async def _send(
        self, method: str, path: str, content: bytes, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        async with httpx.AsyncClient(transport=self._transport, base_url="http://h") as client:
            return await client.request(method, path, content=content, headers=headers)


def _bug(_request: object) -> None:
    raise ZeroDivisionError


@pytest.fixture(scope="module")
def ask(world: World) -> Asking:
    return Asking(world)


def check(answer: httpx.Response) -> None:
    """Check that an answer is one of the catalog."""
    if answer.status_code < 300:
        return
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code"}
    assert error["code"] == answer.status_code
    assert error["type"] in TYPES[answer.status_code], error
    assert len(error["message"]) < 5_000


@pytest.mark.parametrize("route", ROUTES)
def test_names_that_are_nonsense(ask: Asking, route: str) -> None:
    for name in NAMES:
        for method in ("GET", "POST", "PUT", "DELETE"):
            answer = ask(method, route.replace("{}", name), b"{}")
            check(answer)
            assert answer.status_code != 500, (method, name, answer.text)


def test_errors_of_other_parts_of_the_process(world: World, ask: Asking) -> None:
    for answer, status in (
        (Asking(world, "secret")("GET", CLICKS), 401),
        (Asking(world, "secret")("POST", f"{CLICKS}/plan", b"{}", {"Authorization": "x"}), 401),
        (ask("POST", f"{CLICKS}/plan", b" " * (5 << 20)), 413),
        (ask("GET", f"{ICEBERG}/none"), 404),
        (ask("PUT", f"{ICEBERG}/config"), 405),
        (ask("GET", f"{ICEBERG}/bug"), 500),
    ):
        assert answer.status_code == status
        check(answer)
    assert "Bearer" in Asking(world, "secret")("GET", CLICKS).headers["WWW-Authenticate"]


DEEP = 900
BODIES: Sequence[bytes] = (
    *(b"", b"{", b"[]", b"null", b"1", b'"x"', b"\xff", b"\x00", b"{}{}", b'{"a": NaN}'),
    b'{"filter": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"filter": ' + b'{"type":"not","child":' * DEEP + b"true" + b"}" * DEEP + b"}",
    b'{"filter": ' + b'{"type":"and","left":' * DEEP + b"true" + b"}" * DEEP + b"}",
    b'{"snapshot-id": 1e999}',
    b'{"snapshot-id": ' + b"9" * 1000 + b"}",
    b'{"snapshot-id": -1}',
    b'{"snapshot-id": {"a": 1}}',
    b'{"start-snapshot-id": "x"}',
    b'{"end-snapshot-id": 1}',
    b'{"plan-task": {"a": []}}',
    b'{"plan-task": "' + b"x" * 1_000_000 + b'"}',
    b'{"plan-task": "\\ud800"}',
    b'{"select": ' + b"9" * 100 + b"}",
    b'{"select": [' + b'"__time",' * 100_000 + b'"x"]}',
    b'{"filter": {"type": "in", "term": "__time", "values": [' + b"1," * 100_000 + b'"x"]}}',
    b'{"filter": {"type": "eq", "term": "__time", "value": "0001-01-01T00:00:00+23:59"}}',
    b'{"filter": {"type": "lt", "term": "__time", "value": "9999-12-31T23:59:59-23:59"}}',
    b'{"filter": {"type": "gt", "term": "__time", "value": 1e300}}',
    b'{"filter": {"type": "gt", "term": ["__time"], "value": {}}}',
    b'{"filter": {"type": "lt", "term": {"type": "transform"}, "value": 5}}',
    b'{"case-sensitive": "maybe", "min-rows-requested": -1, "stats-fields": 5}',
)


@pytest.mark.parametrize("number", range(len(BODIES)))
def test_bodies_that_are_nonsense(ask: Asking, number: int) -> None:
    for path in (f"{CLICKS}/plan", f"{CLICKS}/tasks", CLICKS, f"{ICEBERG}/config"):
        answer = ask("POST", path, BODIES[number])
        check(answer)
        assert answer.status_code != 500, answer.text


NONSENSE = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "left", "right", "child", "term", "value", "values"]),
            inner | st.sampled_from(["and", "or", "not", "eq", "lt", "in", "__time"]),
            max_size=4,
        )
    ),
    max_leaves=8,
)
FIELDS = ("filter", "snapshot-id", "select", "start-snapshot-id", "end-snapshot-id", "plan-task")


@settings(max_examples=60)
@given(body=st.dictionaries(st.sampled_from(FIELDS), NONSENSE, max_size=3), tasks=st.booleans())
def test_no_request_is_a_bug(ask: Asking, body: dict[str, object], *, tasks: bool) -> None:
    try:
        content = orjson.dumps(body)
    except TypeError:  # half of a surrogate pair
        content = json.dumps(body).encode()
    answer = ask("POST", f"{CLICKS}/{'tasks' if tasks else 'plan'}", content)
    check(answer)
    assert answer.status_code in {200, 400, 404}


@settings(max_examples=60)
@given(condition=NONSENSE)
def test_a_filter_that_is_nonsense_hides_no_rows_of_another_time(
    ask: Asking, condition: object
) -> None:
    """A condition that is always true, in any company, leaves all files."""
    try:
        content = orjson.dumps({"filter": {"type": "or", "left": condition, "right": True}})
    except TypeError:
        return
    answer = ask("POST", f"{CLICKS}/plan", content)
    assert len(answer.json()["file-scan-tasks"]) == 4


def test_query_parameters_that_are_nonsense(ask: Asking) -> None:
    for query in (
        "pageToken=" + "x" * 2000,
        *("pageToken=%00&pageSize=-1", "pageSize=99999999999999999999", "pageSize=x"),
        *("snapshots=nothing", "parent=%FF", "parent=a%1Fb", "warehouse=../..", "=&=&==", "%"),
    ):
        for path in (f"{ICEBERG}/config", f"{ICEBERG}/namespaces", TABLES, CLICKS):
            answer = ask("GET", f"{path}?{query}")
            check(answer)
            assert answer.status_code in {200, 404}, answer.text


def test_plans_that_nobody_reads_do_not_grow(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_tables, "PLAN_TASKS_MAX", 1)
    monkeypatch.setattr(catalog_tables, "PLANNED_FILES_MAX", 30)

    def plan(_number: int) -> list[str]:
        return list(world.tables.plan("clicks", {}).rest)

    files = len(list((world.folder / "deep" / "~iceberg").rglob("*")))
    with ThreadPoolExecutor(8) as pool:
        tokens = [token for rest in pool.map(plan, range(200)) for token in rest]
    assert len(set(tokens)) == 600
    kept = [token for token in tokens if _is_kept(world, token)]
    assert 27 <= len(kept) <= 30
    # Each plan of the day that is visible in part uses the same file with positions.
    assert len(list((world.folder / "deep" / "~iceberg").rglob("*"))) <= files + 8


def _is_kept(world: World, token: str) -> bool:
    try:
        world.tables.rest("clicks", token)
    except PenstockError:
        return False
    return True


def test_names_that_do_not_exist_leave_nothing_behind(world: World, ask: Asking) -> None:
    world.tables.version("clicks")
    for number in range(200):
        for path in (f"{TABLES}/none{number}", f"{TABLES}/none{number}/plan"):
            method = "POST" if path.endswith("plan") else "GET"
            assert ask(method, path, b"{}").status_code == 404
            assert world.store.config.get(f"iceberg/none{number}") is None
    folders = [path.name for path in (world.folder / "deep" / "~iceberg").iterdir()]
    assert folders == ["clicks"]
