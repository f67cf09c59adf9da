"""The trace of a message has the steps in flows that their process shows to the principal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import ControllerOptions, FlowController
from penstock.flow.graph.yaml_reader import read_flow
from penstock.flow.processor import (
    InputRequirement,
    ProcessContext,
    Processor,
    ProcessSession,
    Relationship,
)
from penstock.flow.processor.processor_registry import ProcessorRegistry
from penstock.flow.processors.builtin import BUILTIN
from penstock.flow.provenance.provenance_reader import ProvenanceReader
from penstock.flow.repository.commit_spool import SpoolOptions
from penstock.services.api.asgi import application
from penstock.services.api.flow import FlowRoutes
from penstock.services.api.traces.flow_history import RecordedFlowHistory
from penstock.services.host.process import listen
from penstock.services.host.provenance_service import ProvenanceLookups
from penstock.services.http_server import HttpServer
from penstock.services.membership.leases import LeaseDirectory
from penstock.services.options.option_values import HostPort
from penstock.storage.disk import OsFileSystem
from tests.harness.access_kit import AccessFolderKit, as_principal
from tests.services.places_kit import FixedPlaces
from tests.services.trace_kit import TOPIC, TraceWorld

RULES = """
[roles.traces]
allow = ["read topic:*", "read datasource:*"]

[roles.flows]
allow = ["read topic:*", "read datasource:*", "read flow:*"]
"""
FLOW = """
name: traced
processors:
  Receive: {type: Receive}
  Log: {type: LogAttribute, auto_terminated: success}
connections:
  - {from: Receive.success, to: Log}
"""


class Receive(Processor):
    """Makes a FlowFile, as if it came from the first message of the topic."""

    input = InputRequirement.FORBIDDEN
    success = Relationship("All.")

    def on_trigger(self, context: ProcessContext, session: ProcessSession) -> None:
        del context
        one = session.write(session.create(), b"hello")
        session.topics.received([one], TOPIC, 0, 0)
        session.transfer(one, self.success)


class Rig:
    """A process of flows, and traces of the same installation."""

    def __init__(self, folder: Path) -> None:
        self.kit = AccessFolderKit(folder / "access", RULES)
        numbers = itertools.count()
        self.flow = FlowController.open(
            str(folder / "flow"),
            fs=OsFileSystem(),
            clock=SystemClock(),
            registry=ProcessorRegistry({**BUILTIN, "Receive": Receive}),
            new_uuid=lambda: f"u{next(numbers)}",
            environment={},
            options=ControllerOptions(provenance=SpoolOptions()),
        )
        self.flow.apply(read_flow(FLOW).flow)
        for name in ("Receive", "Log"):
            self.flow.run_once(name)
        self.flow._repository.sync()
        assert self.flow.spool is not None
        self.flow.spool.flush()
        self.is_recorded = True
        routes = FlowRoutes(lambda: self.flow, SystemClock(), self._lookups, "_provenance").routes()
        self.server = HttpServer(
            application(routes, access=self.kit.control),
            listen(HostPort("127.0.0.1", 0), "--http"),
        )
        self.server.start()
        self.places = FixedPlaces()
        self.places.places["flow"] = HostPort("127.0.0.1", self.server.port)
        bearer = self.kit.control.key.process_bearer()
        history = RecordedFlowHistory(cast("LeaseDirectory", self.places), bearer)
        (folder / "traces").mkdir()
        self.world = TraceWorld(folder / "traces", self.kit.control, history)
        self.world.topics.all[TOPIC].bodies.append(b"{}")
        self.world.topics.all[TOPIC].times_ms.append(self.world.clock.now_ms())

    def _lookups(self) -> ProvenanceLookups | None:
        if not self.is_recorded:
            return None
        assert self.flow.spool is not None
        return ProvenanceLookups(ProvenanceReader(OsFileSystem(), self.flow.spool.folder))

    def steps(self, role: str) -> list[dict[str, object]]:
        headers = as_principal(self.kit.control, "user:alice", role)
        path = f"/penstock/v1/trace/message?topic={TOPIC}&partition=0&offset=0"
        answer = self.world.api.get(path, headers=headers)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, object]] = answer.json()["flow"]
        return found

    def close(self) -> None:
        self.world.close()
        self.server.stop()
        self.flow.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_trace_has_the_steps_in_flows_for_those_who_may_see_them(rig: Rig) -> None:
    received, dropped = rig.steps("flows")
    number = cast("dict[str, object]", received["details"])["flowfile"]
    assert received["text"] == (
        f"RECEIVE FlowFile {number} by Receive, to success, into Receive.success → Log"
    )
    assert dropped["text"] == f"DROP FlowFile {number} by Log, to success: terminated"
    assert rig.steps("traces") == [], "no right for the flow"
    rig.is_recorded = False
    assert rig.steps("flows") == [], "provenance is off"
    rig.places.places["flow"] = HostPort("127.0.0.1", 1)
    assert rig.steps("flows") == [], "no process of flows answers"
