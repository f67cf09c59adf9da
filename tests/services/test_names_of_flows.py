"""Hostile names in every parameter of the flow's API, and in every name of a flow."""

from __future__ import annotations

import json
import re

import httpx
import pytest

from penstock.core.clock import SystemClock
from penstock.core.printable import HIDDEN
from penstock.services.api.flow import FlowRoutes
from tests.services import test_flow_api
from tests.services.test_flow_api import FLOW, ApiClient, put
from tests.services.test_names_of_apis import HOSTILE, NFC, NFD

flow = test_flow_api.flow  # the fixtures
client = test_flow_api.client
# Parameters that take a name of a component, a connection, an attribute or a file.
NAMES = ("target", "connection", "component", "attribute", "value", "file")


def hidden(answer: httpx.Response) -> bool:
    """Whether a text of the answer's error has signs that a terminal would obey."""
    told = answer.json()
    text = str(told.get("errorMessage") or told.get("error") or "")
    text += "".join(str(one.get("message")) for one in told.get("problems", ()))
    return re.search(f"(?!\n)[{HIDDEN}]", text) is not None


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_every_parameter_is_safe_with_hostile_names(client: ApiClient, name: str) -> None:
    put(client)
    client.post("/flow/run-once", params={"target": "Make"})
    before = client.get("/flow").json()
    endpoints = FlowRoutes(lambda: pytest.fail("not asked"), SystemClock()).endpoints
    found = 0
    for endpoint in endpoints:
        for parameter in endpoint.parameters:
            if parameter.name not in NAMES:
                continue
            found += 1
            others = {one.name: "1" for one in endpoint.parameters if one.required}
            if "connection" in others:
                others["connection"] = "Make.success -> Log"
            given = {**others, parameter.name: name}
            answer = client.request(endpoint.method, endpoint.path, params=given, content=b"")
            assert answer.status_code < 500, (endpoint.path, parameter.name, answer.text[:200])
            if parameter.name in {"target", "connection"}:
                # Nothing has such a name, except that no target is everything.
                assert answer.status_code in {400, 404} or not name
            assert answer.is_success or not hidden(answer), (endpoint.path, answer.text[:300])
            assert len(answer.content) < 50_000
    assert found >= 12
    assert client.get("/flow").json()["flow"] == before["flow"]


def flows(name: str) -> list[dict[str, object]]:
    """Return flows with a name in each of its places."""
    make = {"type": "GenerateFlowFile"}
    log = {"type": "LogAttribute", "auto_terminated": "success"}
    plain = {"name": "api", "processors": {"Make": make, "Log": log}}
    joined = {"from": "Make.success", "to": "Log"}
    group = {"processors": {"In": {**make, "auto_terminated": "success"}}}
    return [
        {**plain, "name": name, "connections": [joined]},
        {**plain, "processors": {name: make, "Log": log}},
        {**plain, "connections": [{**joined, "name": name}]},
        {**plain, "connections": [{**joined, "from": f"{name}.success"}]},
        {**plain, "connections": [{**joined, "from": f"Make.{name}"}]},
        {**plain, "connections": [{**joined, "to": name}]},
        {**plain, "connections": [joined], "groups": {name: group}},
        {**plain, "connections": [joined], "funnels": [name]},
        {**plain, "connections": [joined], "parameters": {name: "1"}},
        {**plain, "processors": {"Make": {"type": name}, "Log": log}, "connections": [joined]},
    ]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:20])
def test_every_name_of_a_flow_is_checked(client: ApiClient, name: str) -> None:
    put(client)
    before = client.get("/flow").json()
    for flow in flows(name):
        answer = client.post("/flow/validate", content=json.dumps(flow))
        assert answer.status_code in {200, 400}, answer.text[:300]
        if answer.status_code == 400:
            assert not hidden(answer), answer.text[:300]
        else:  # names of a flow become no paths
            assert name in {"..", ".", "a/b", "a\\b", "\ufffd", " a", ""}, (name, flow)
        applied = client.put("/flow", content=json.dumps(flow), params={"dryRun": "true"})
        assert applied.status_code == answer.status_code
    assert client.get("/flow").json() == before


def test_names_of_a_flow_are_compared_in_normal_form(client: ApiClient) -> None:
    put(client, FLOW.replace("Make", NFC))
    for name in (NFC, NFD):
        assert client.post("/flow/run-once", params={"target": name}).json()["refused"] == []
        listed = client.get("/flow/queue", params={"connection": f"{name}.success -> Log"})
        assert listed.status_code == 200, listed.text
    twice = FLOW.replace("  Log:", f"  {NFD}: {{type: GenerateFlowFile}}\n  Log:")
    answer = client.put("/flow", content=twice.replace("Make", NFC))
    assert answer.status_code == 400, answer.text
