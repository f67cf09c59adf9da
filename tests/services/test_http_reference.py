"""The OpenAPI document: it is valid, and describes each route and parameter that is served."""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import cast
from unittest.mock import MagicMock

import pytest
from openapi_spec_validator import validate

import penstock.services.api
from penstock.broker.broker import Broker
from penstock.broker.http.app import BrokerHttpApp
from penstock.core.http_errors import _TABLE
from reference.answer_schemas import schema_of, schemas
from reference.openapi import HttpRoute, document, groups, servers
from reference.pages import ROOT
from tests.kits.answers_kit import UndescribedAnswer, check_answer
from tests.services.routes_kit import running_routes, without_names

SERVED = ROOT / "src/penstock/services/api/openapi.json"
# A parameter of a route, as the servers read it.
READ = re.compile(
    r"(?:integer|query_flag|query_count|query_interval)\(\s*request, \"(\w+)\"(?:, \"(\w+)\")?"
    r"|request\.(?:required|integer|flag|query\.get)\(\"(\w+)\"|_unless_off\(request, \"(\w+)\""
    r"|(?:query_params|query)\.get\(\"(\w+)\"|_name\(request, \"(\w+)\""
)


def routes(*names: str) -> list[HttpRoute]:
    return [one for group in groups() if group.server in names for one in group.routes]


def test_the_document_is_valid() -> None:
    validate(json.loads(SERVED.read_text()))


def test_operations_have_names_of_their_own() -> None:
    paths = document()["paths"]
    assert isinstance(paths, dict)
    names = [
        operation["operationId"]
        for item in paths.values()
        for method, operation in item.items()
        if method != "servers"
    ]
    assert len(names) == len(set(names))


def test_every_route_is_described(tmp_path: Path) -> None:
    described = {
        (one.method, without_names(one.path)) for one in routes("router", "every", "worker", "task")
    }
    # Those of flows are described in the code.
    of_flows = ("/flow", "/penstock/v1/flow/")
    running = {key for key in running_routes(tmp_path) if not key[1].startswith(of_flows)}
    assert {key for key in described if not key[1].startswith(of_flows)} ^ running == set()


def test_every_route_of_the_broker_is_described() -> None:
    app = BrokerHttpApp(cast("Broker", MagicMock()))
    served = {
        (method, path.replace("<option>", "{option}"))
        for path, methods in app.routes.items()
        for method in methods
    }
    assert {(one.method, one.path) for one in routes("broker")} == served


@pytest.mark.parametrize(
    ("folder", "names"),
    [
        ("src/penstock/broker/http", ("broker",)),
        ("src/penstock/services/api", ("router", "every", "worker", "task")),
    ],
)
def test_every_parameter_is_described(folder: str, names: tuple[str, ...]) -> None:
    read = {
        name
        for path in (ROOT / folder).rglob("*.py")
        for found in READ.findall(path.read_text())
        for name in found
        if name
    }
    described = {one.name for route in routes(*names) for one in route.parameters}
    assert len(read) > 10
    assert read - described - {"kill"} == set()


def test_every_code_is_one_of_the_server() -> None:
    codes = {row.code for row in _TABLE}
    told = {
        code
        for route in routes("router", "every", "worker", "task")
        for found in route.errors.values()
        for code in found
    }
    assert told - codes == set()
    sources = "".join(path.read_text() for path in (ROOT / "src/penstock/broker").rglob("*.py"))
    of_broker = {
        code for route in routes("broker") for found in route.errors.values() for code in found
    }
    made = ("MISSING_ARG_", "INVALID_")  # the name of a parameter follows
    assert not {code for code in of_broker if code not in sources and not code.startswith(made)}


def test_every_json_answer_has_a_schema_and_every_schema_is_used() -> None:
    every = [one for group in groups() for one in group.routes]
    assert [one.path for one in every if "JSON" in one.answer and not one.schema] == []
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document())))
    assert schemas().keys() - named == set()
    with pytest.raises(KeyError, match="has no schema 'Tasks'"):
        schema_of("[Tasks]")


def test_servers_that_share_a_path_share_its_operation() -> None:
    """Both the broker and the other processes have /stats, each with answers of its own."""
    operation = document()["paths"]["/stats"]["get"]
    assert [one["description"] for one in operation["servers"]] == ["Broker", "Router"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    assert [one["$ref"].rpartition("/")[2] for one in schema["anyOf"]] == [
        "BrokerStatistics",
        "LoopStalls",
    ]


ANSWERS = {
    ("GET", "/status/selfDiscovered/status", 200, '{"selfDiscovered": true}'): "",
    ("GET", "/status/selfDiscovered/status/", 200, '{"selfDiscovered": 1}'): "not of type",
    ("GET", "/status/selfDiscovered/status?a=b", 200, "{}"): "is a required property",
    ("GET", "/topics", 200, '{"topics": [], "more": 1}'): "'more' was unexpected",
    ("POST", "/druid/indexer/v1/task/a/shutdown", 200, '{"task": "a"}'): "",
    (
        "POST",
        "/druid/indexer/v1/task/a/shutdown",
        404,
        '{"error": "a"}',
    ): "'errorCode' is",
    ("GET", "/druid/indexer/v1/isLeader", 404, '{"leader": false}'): "",
    ("GET", "/druid/indexer/v1/nowhere", 404, "[]"): "",
}


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda one: f"{one[1]}-{one[2]}")
def test_an_answer_is_compared_with_its_schema(answer: tuple[str, str, int, str]) -> None:
    method, path, status, body = answer
    told = ANSWERS[answer]
    with pytest.raises(UndescribedAnswer, match=told) if told else nullcontext():
        check_answer(method, path, status, "application/json", body.encode())


def test_every_server_has_routes() -> None:
    assert {group.server for group in groups()} == servers().keys()
    assert Path(penstock.services.api.__file__).with_name("openapi.json") == SERVED
