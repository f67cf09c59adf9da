"""The summary of a flow's status: closed groups as one entry, queues between what is drawn."""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import orjson
import pytest

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import FlowController
from penstock.flow.controller.flow_status import ComponentStatus, FlowStatus
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.scheduling.component_lifecycle import DesiredState
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.flow.flow_summary import (
    ALL_OPEN_MAX,
    NODES_MAX,
    REUSED_TIMES,
    STUCK_MAX,
    RecentStatus,
    SummaryRequest,
    summary_json,
)
from penstock.testing.clock import VirtualClock
from tests.harness.access_kit import AccessFolderKit, as_principal, with_token
from tests.services.large_flow_kit import large_flow, opened
from tests.services.overlord_kit import Api

FLOW = """
name: nested
processors:
  Make: {type: GenerateFlowFile, properties: {batch_size: 3}}
  End: {type: LogAttribute, auto_terminated: success}
groups:
  Clean:
    input_ports: [In]
    output_ports: [Out]
    processors:
      First: {type: LogAttribute}
    groups:
      Deep:
        input_ports: [In]
        processors:
          Last: {type: LogAttribute, auto_terminated: success}
        connections:
          - {from: In, to: Last}
    connections:
      - {from: In, to: First, back_pressure_count: 1}
      - {from: First.success, to: Out}
      - {from: First.success, to: Deep/In}
connections:
  - {from: Make.success, to: Clean/In}
  - {from: Clean/Out, to: End}
"""


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowController]:
    """A flow whose first processor has made three FlowFiles."""
    made = opened(tmp_path_factory.mktemp("flow"))
    made.apply(read_flow(FLOW.encode()).flow)
    made.run_once("Make")
    yield made
    made.close()


@pytest.fixture(scope="module")
def api(flow: FlowController) -> Iterator[Api]:
    routes = FlowRoutes(lambda: flow, SystemClock()).routes()
    made = Api(application(routes, access=with_token(None)))
    yield made
    made.close()


def summary(api: Api, opened_groups: list[str] | None = None, **more: object) -> dict[str, Any]:
    params = {"summary": "true", **more}
    if opened_groups is not None:
        params["open"] = json.dumps(opened_groups)
    answer = api.get("/flow/status", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def names(found: dict[str, Any]) -> set[str]:
    return {one["name"] for one in found["components"]} | {one["id"] for one in found["groups"]}


def edges(found: dict[str, Any]) -> set[tuple[str, str, int]]:
    title = {one["id"]: one["name"] for one in found["components"]}
    return {
        (title.get(one["from"], one["from"]), title.get(one["to"], one["to"]), one["queued"])
        for one in found["edges"]
    }


def test_a_small_flow_has_all_groups_open(api: Api, flow: FlowController) -> None:
    found = summary(api)
    whole = api.get("/flow/status").json()
    assert [one["id"] for one in found["components"]] == [one["id"] for one in whole["components"]]
    assert not found["groups"]
    assert set(found["openGroups"]) == {"Clean", "Clean/Deep"}
    assert len(found["edges"]) == len(whole["connections"])
    assert found["revision"] == flow.applied.revision
    assert found["repository"]["flowfiles"] == 3
    assert found["totals"] == {
        "components": 7,
        "connections": 6,
        "groups": 2,
        "states": {"stopped": 7},
        "queued": 3,
        "queuedBytes": sum(one["queuedBytes"] for one in whole["connections"]),
        "penalized": 0,
        "full": 0,
        "causes": 0,
        "in": sum(one["in"] for one in whole["components"]),
        "created": 3,
    }


def test_a_closed_group_is_one_entry_with_sums(api: Api) -> None:
    found = summary(api, [])
    assert names(found) == {"Make", "End", "group Clean"}
    (group,) = found["groups"]
    assert group["components"] == 5
    assert group["path"] == "Clean"
    assert edges(found) == {("Make", "group Clean", 3), ("group Clean", "End", 0)}
    inner = summary(api, ["Clean"])
    assert names(inner) >= {"Clean/In", "Clean/First", "Clean/Out", "group Clean/Deep"}
    assert ("Clean/First", "group Clean/Deep", 0) in edges(inner)
    # An open group in a closed one is not seen.
    assert names(summary(api, ["Clean/Deep"])) == names(found)


def test_open_groups_are_named_in_few_characters(api: Api) -> None:
    # CRC-32 of the paths, as in the description of the parameter.
    clean, deep = (f"{zlib.crc32(path):x}." for path in (b"Clean", b"Clean/Deep"))
    assert names(summary(api, openKeys=clean)) == names(summary(api, ["Clean"]))
    assert names(summary(api, openKeys=clean + deep)) == names(summary(api))
    assert names(summary(api, openKeys=".")) == names(summary(api, []))


def test_no_more_is_drawn_than_is_asked_for(api: Api) -> None:
    found = summary(api, ["Clean", "Clean/Deep"], max=2)
    assert len(found["components"]) == 2
    assert found["omitted"] == 5
    none = summary(api, [], max=0)
    assert not none["components"]
    assert not none["groups"]
    assert not none["edges"]
    assert none["totals"]["components"] == 7


def test_parts_are_found_in_closed_groups(api: Api) -> None:
    found = summary(api, [], search="LAST")
    (last,) = found["found"]
    assert last["name"] == "Clean/Deep/Last"
    part = summary(api, [], part=last["id"])["part"]
    assert part["component"]["type"] == "LogAttribute"
    assert part["isCause"] is False
    queue = next(
        one
        for one in api.get("/flow/status").json()["connections"]
        if one["destination"] == last["id"]
    )
    shown = summary(api, [], part=queue["id"])["part"]
    assert shown["connection"] == queue
    assert (shown["source"], shown["destination"]) == ("Clean/Deep/In", "Clean/Deep/Last")
    assert summary(api, [], part="nothing")["part"] is None


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"open": "[]"}, "summary=true"),
        ({"max": "1"}, "summary=true"),
        ({"summary": "yes"}, "neither true nor false"),
        ({"summary": "true", "open": "Clean"}, "JSON list"),
        ({"summary": "true", "open": "[1]"}, "JSON list"),
        ({"openKeys": "."}, "summary=true"),
        ({"summary": "true", "openKeys": "Clean"}, "keys of groups"),
        ({"summary": "true", "openKeys": "1." * 1_001}, "keys of groups"),
        ({"summary": "true", "max": str(NODES_MAX + 1)}, "0 to 300"),
        ({"summary": "true", "group": "Clean"}, "unknown parameter"),
    ],
)
def test_wrong_parameters_are_refused(api: Api, params: dict[str, str], text: str) -> None:
    answer = api.get("/flow/status", params=params)
    assert answer.status_code == 400
    assert text in answer.json()["error"]


def test_a_summary_needs_the_right_to_read_the_flow(flow: FlowController, tmp_path: Path) -> None:
    kit = AccessFolderKit(tmp_path / "access")
    routes = FlowRoutes(lambda: flow, SystemClock()).routes()
    api = Api(application(routes, access=kit.control))
    statuses = [
        api.get(
            "/flow/status",
            params={"summary": "true"},
            headers=as_principal(kit.control, "user:u", role),
        ).status_code
        for role in ("consumer", "viewer")
    ]
    api.close()
    assert statuses == [403, 200]


def test_the_summary_of_a_large_flow_is_small(tmp_path: Path) -> None:
    flow = opened(tmp_path)
    flow.apply(read_flow(large_flow(300).encode()).flow)
    status = flow.status()
    flow.close()
    assert len(status.components) > ALL_OPEN_MAX
    found = summary_json(status, SummaryRequest())
    assert [one["path"] for one in found["groups"]] == ["G0", "G1", "G2"]  # type: ignore[attr-defined]
    assert not found["edges"]
    many = repeated(status, 40)
    assert len(many.components) == 12_000
    every = frozenset(f"{n}-G{group}" for n in range(40) for group in range(3))
    whole = summary_json(many, SummaryRequest(every))
    assert len(whole["components"]) == NODES_MAX  # type: ignore[arg-type]
    assert whole["omitted"] == 12_000 - NODES_MAX
    assert len(orjson.dumps(whole)) < 500_000
    assert len(orjson.dumps(summary_json(many, SummaryRequest()))) < 100_000


def repeated(status: FlowStatus, times: int) -> FlowStatus:
    """A status with the same components many times, each time in groups of other names."""
    return replace(
        status,
        components=[
            replace(one, id=f"{n}-{one.id}", name=f"{n}-{one.name}")
            for n in range(times)
            for one in status.components
        ],
        connections=[
            replace(
                one,
                id=f"{n}-{one.id}",
                source=f"{n}-{one.source}",
                destination=f"{n}-{one.destination}",
            )
            for n in range(times)
            for one in status.connections
        ],
    )


def test_a_costly_status_is_used_again_until_it_is_old_or_forgotten() -> None:
    clock, made = VirtualClock(), itertools.count(1)

    class Slow:
        """A flow whose status takes 0.1 s, and has a number."""

        applied = SimpleNamespace(revision=1)
        meanwhile: Callable[[], object] = staticmethod(lambda: None)

        def status(self) -> SimpleNamespace:
            found = SimpleNamespace(number=next(made), revision=self.applied.revision)
            self.meanwhile()
            clock.advance(cost_s)
            return found

    flow, cost_s = Slow(), 0.1
    recent = RecentStatus(clock)

    def status() -> int:
        return cast("SimpleNamespace", recent.of(cast("FlowController", flow))).number  # type: ignore[no-any-return]

    assert [status(), status()] == [1, 1]
    clock.advance(REUSED_TIMES * cost_s)
    assert status() == 1
    clock.advance(0.001)
    assert [status(), status()] == [2, 2]
    recent.forget()
    assert status() == 3
    cost_s = 0.01
    recent.forget()
    assert [status(), status()] == [4, 5]
    # A command that ends while a status is made is not in it, perhaps.
    cost_s = 0.1
    flow.meanwhile = recent.forget
    assert [status(), status()] == [6, 7]
    flow.meanwhile = lambda: None
    assert [status(), status()] == [8, 8]
    flow.applied.revision = 2
    assert [status(), status()] == [9, 9]


def test_components_that_were_left_stopped_are_named(flow: FlowController) -> None:
    status = replace(flow.status(), held=["Clean/First"])
    assert summary_json(status, SummaryRequest())["held"] == ["Clean/First"]


def test_components_that_cannot_run_although_they_should_are_listed(flow: FlowController) -> None:
    status = flow.status()

    def with_problem(one: ComponentStatus, desired: DesiredState) -> ComponentStatus:
        scheduling = msgspec.structs.replace(one.scheduling, desired=desired)
        return replace(one, problems=["it lost write topic:t"], scheduling=scheduling)

    first, second, *others = status.components
    changed = [
        with_problem(first, DesiredState.RUNNING),
        with_problem(second, DesiredState.STOPPED),
        *(replace(one, problems=[]) for one in others),
    ]
    found = summary_json(replace(status, components=changed), SummaryRequest())
    problem = {"id": first.id, "name": first.name, "type": first.type}
    assert found["stuck"] == [{**problem, "problem": "it lost write topic:t"}]
    many = [with_problem(first, DesiredState.RUNNING)] * (STUCK_MAX + 5)
    found = summary_json(replace(status, components=many, connections=[]), SummaryRequest())
    assert found["stuck"] == [{**problem, "problem": "it lost write topic:t"}] * STUCK_MAX


def test_what_holds_others_up_is_listed_with_its_full_queues(flow: FlowController) -> None:
    status = flow.status()
    one, *others = status.connections
    quiet = [replace(other, is_full=False) for other in others]
    found = summary_json(
        replace(status, connections=[replace(one, is_full=True), *quiet]),
        SummaryRequest(nodes_max=0),
    )
    name = next(each.name for each in status.components if each.id == one.destination)
    assert found["holdups"] == [{"id": one.destination, "name": name, "full": 1, "queue": one.name}]
