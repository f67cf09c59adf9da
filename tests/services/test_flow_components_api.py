"""Components and FlowFiles of a flow over HTTP: definition, state, content, groups, terminate."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Property,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.storage.disk import OsFileSystem
from tests.harness.access_kit import with_token
from tests.services.overlord_kit import Api

BODY = bytes(range(256)) * 40
STUCK, RELEASED = threading.Event(), threading.Event()


class Hangs(Processor):
    """Does not return until the test allows it."""

    input = InputRequirement.FORBIDDEN
    password = Property(str, default="", sensitive=True)

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context, session
        STUCK.set()
        RELEASED.wait(150)


class Binary(Processor):
    """Makes FlowFiles with every byte, and counts them in its state."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        made = int(session.state.get().get("made", "0"))
        for _ in range(3):
            flowfile = session.create(attributes={"large": "<b>" * 20_000})
            with session.write(flowfile) as out:
                out.write(BODY)
            session.transfer(flowfile, self.success)
        session.state.set({"made": str(made + 3)})


FLOW = """
name: parts
parameters: {count: '7'}
processors:
  Make: {type: Binary, schedule: cron 0 0 13 * * ?, comments: Every byte.}
  Log: {type: LogAttribute, auto_terminated: success, penalty_duration: 5 sec}
  Text: {type: GenerateFlowFile, auto_terminated: success, properties: {batch_size: '#{count}'}}
groups:
  Bad:
    processors:
      One: {type: Hangs}
      Two: {type: Hangs}
connections:
  - {from: Make.success, to: Log}
"""
WAY = {"connection": "Make.success -> Log"}


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlowController]:
    numbers = itertools.count()
    made = FlowController.open(
        str(tmp_path_factory.mktemp("flow")),
        fs=OsFileSystem(),
        clock=SystemClock(),
        registry=ProcessorRegistry({**BUILTIN, "Hangs": Hangs, "Binary": Binary}),
        new_uuid=lambda: f"u{next(numbers)}",
        environment={},
        options=ControllerOptions(stop_limit_s=0.1),
    )
    yield made
    RELEASED.set()
    made.close()


@pytest.fixture(scope="module")
def api(flow: FlowController) -> Iterator[Api]:
    routes = FlowRoutes(lambda: flow, SystemClock()).routes()
    made = Api(application(routes, access=with_token(None)))
    assert made("PUT", "/flow", content=FLOW).status_code == 200
    assert made.post("/flow/run-once", params={"target": "Make"}).status_code == 200
    yield made
    made.close()


def shown(api: Api, path: str, **params: object) -> dict[str, Any]:
    answer = api.get(path, params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def states(api: Api) -> dict[str, str]:
    return {one["name"]: one["state"] for one in shown(api, "/flow/status")["components"]}


def test_a_component_has_its_definition_and_its_firings(api: Api) -> None:
    made = shown(api, "/flow/component", target="Make")
    assert made["definition"]["schedule"] == "cron 0 0 13 * * ?"
    assert made["definition"]["comments"] == "Every byte."
    assert [one[10:] for one in made["nextFirings"]] == ["T13:00:00.000Z"] * 5
    assert made["stateEntries"] == 1
    assert [one["queued"] for one in made["outputs"]] == [3]
    assert made["inputs"] == []
    text = shown(api, "/flow/component", target="Text")["definition"]["properties"]
    (size,) = [one for one in text if one["name"] == "batch_size"]
    # The name of the parameter, not its value.
    assert (size["value"], size["isSensitive"]) == ("#{count}", False)
    assert size["default"] is not None


def test_secrets_of_a_component_are_masked(api: Api, flow: FlowController) -> None:
    applied = flow.applied
    bad = applied.flow.groups["Bad"]
    one = bad.processors["One"]
    clear = one.model_copy(update={"properties": {"password": "hunter2"}})
    named = one.model_copy(update={"properties": {"password": "#{count}"}})
    from penstock.services.api.flow.components import _properties

    facts = flow.types.facts("Hangs")
    assert [each["value"] for each in _properties(facts, clear)] == ["********"]
    assert [each["value"] for each in _properties(facts, named)] == ["#{count}"]
    # Of an unknown type, any property may be a secret.
    assert [each["value"] for each in _properties(None, clear)] == ["********"]


def test_state_is_shown_and_cleared_only_while_the_processor_is_stopped(api: Api) -> None:
    assert shown(api, "/flow/state", target="Make") == {"entries": {"made": "3"}}
    api.post("/flow/start", params={"target": "Make"})
    refused = api.delete("/flow/state", params={"target": "Make"})
    assert refused.status_code == 400
    assert "not stopped" in refused.json()["error"]
    api.post("/flow/stop", params={"target": "Make"})
    until_s = time.monotonic() + 120
    while states(api)["Make"] != "stopped":  # which may take longer than the limit of the route
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert shown(api, "/flow/state", target="Make") == {"entries": {"made": "3"}}
    cleared = api.delete("/flow/state", params={"target": "Make"})
    assert cleared.json() == {"cleared": 1}
    assert shown(api, "/flow/state", target="Make") == {"entries": {}}
    assert api.delete("/flow/state", params={"target": "Make"}).json() == {"cleared": 0}


def test_flowfiles_have_positions_and_content(api: Api) -> None:
    status = shown(api, "/flow/queue/status", **WAY)
    assert (status["queued"], status["active"], status["swapped"]) == (3, 3, 0)
    assert (status["penalized"], status["sourceName"]) == (0, "processor Make")
    listed = shown(api, "/flow/queue", **WAY, skip=1, limit=1)["flowFiles"]
    assert [one["position"] for one in listed] == [2]
    assert listed[0]["penalizedUntil"] is None
    assert len(listed[0]["attributes"]["large"]) == 60_000
    chosen = {**WAY, "flowFile": listed[0]["id"]}
    whole = api.get("/flow/queue/content", params={**chosen, "limit": 1 << 20})
    assert whole.content == BODY
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"] == "attachment"
    part = api.get("/flow/queue/content", params={**chosen, "offset": 250, "limit": 10})
    assert part.content == BODY[250:260]
    at_end = api.get("/flow/queue/content", params={**chosen, "offset": len(BODY)})
    assert (at_end.status_code, at_end.content) == (200, b"")
    behind = api.get("/flow/queue/content", params={**chosen, "offset": len(BODY) + 1})
    assert "behind the end" in behind.json()["error"]


def test_a_dry_run_names_what_waits_in_removed_queues(api: Api) -> None:
    without = FLOW.replace(
        "cron 0 0 13 * * ?, comments", "event, auto_terminated: success, comments"
    )
    without = "\n".join(line for line in without.splitlines() if "Log" not in line)
    without = without.replace("connections:", "")
    before = shown(api, "/flow")["revision"]
    dry = api("PUT", "/flow", content=without, params={"dryRun": "true"}).json()
    (gone,) = [one for one in dry["changes"] if one["component"] == "connection"]
    assert gone["kind"] == "removed"
    assert (gone["queued"], gone["queuedBytes"]) == (3, 3 * len(BODY))
    refused = api("PUT", "/flow", content=without)
    assert refused.status_code == 400
    assert "contains 3 FlowFiles" in refused.json()["error"]
    assert shown(api, "/flow")["revision"] == before


def test_a_group_that_hangs_is_stopped_by_terminate(api: Api) -> None:
    api.post("/flow/start", params={"target": "Bad"})
    assert STUCK.wait(120)
    late = api.post("/flow/stop", params={"target": "Bad"})
    assert "did not stop" in late.json()["error"]
    ended = api.post("/flow/terminate", params={"target": "Bad"})
    assert ended.status_code == 200, ended.text
    assert len(ended.json()["terminated"]) >= 1
    assert (states(api)["Bad/One"], states(api)["Bad/Two"]) == ("stopped", "stopped")
    RELEASED.set()


def test_run_once_triggers_each_stopped_component_of_a_group(api: Api) -> None:
    RELEASED.set()
    ran = api.post("/flow/run-once", params={"target": "Bad"}).json()
    assert (len(ran["ran"]), ran["refused"]) == (2, [])


def test_the_newest_bulletins_are_enough(api: Api) -> None:
    for number in range(3):
        logging.getLogger("penstock.flow").error("bulletin %d", number)
    (newest,) = shown(api, "/flow/bulletins", limit=1)["bulletins"]
    assert newest["message"] == "bulletin 2"
    assert len(shown(api, "/flow/bulletins")["bulletins"]) >= 3
    assert api.get("/flow/bulletins", params={"limit": 0}).status_code == 400
