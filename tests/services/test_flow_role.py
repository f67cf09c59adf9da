"""The process of the flow: it restarts when its repository stops, and is ready while it syncs."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from penstock.core.access.access_control import AccessControl
from penstock.core.clock import SystemClock
from penstock.core.errors import Dependency, Unavailable
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.repository.repository_state import RepositoryState
from penstock.flow.write_guard import WRITE_GUARD
from penstock.services.host.folder_permissions import private_data_folder
from penstock.services.membership.membership import BrokerFinder
from penstock.services.options.table import PenstockOptions
from penstock.services.roles import flow
from penstock.services.roles.runtime import RoleContext
from reference.metrics import differences
from tests.harness.event_kit import KeptEvents
from tests.kits.this_host_kit import this_host_listed
from tests.services.places_kit import FixedPlaces

LIMIT_S = 120.0


class Process:
    """The process of a flow, as far as its parts see it."""

    def __init__(self, folder: Path) -> None:
        self.stop_asked, self.is_ready = threading.Event(), threading.Event()
        self.waits: list[str] = []
        self.is_waiting = threading.Event()
        self.alerts = KeptEvents()
        self.listener = socket.create_server(("127.0.0.1", 0))
        options = PenstockOptions(data_dir=folder)
        private_data_folder(options)
        self.context = RoleContext(
            name="flow",
            options=options,
            clock=SystemClock(),
            listener=self.listener,
            start_listener=self,
            request_stop=self.stop_asked.set,
            emitter=self.alerts,
            access=AccessControl(options.data_dir / "access", SystemClock()),
        )

    def host(self) -> flow.FlowHost:
        return flow.FlowHost(self.context, BrokerFinder(self.context.options, FixedPlaces()))

    def ready(self) -> None:
        self.is_ready.set()

    def waiting(self, reason: str) -> None:
        self.waits.append(reason)
        self.is_waiting.set()


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(flow, "collect_for_flows", lambda: None)
    made = Process(tmp_path / "data")
    with this_host_listed():
        yield made
    made.listener.close()
    WRITE_GUARD.set([])


def fail(*_given: object, **_more: object) -> None:
    raise MemoryError("no room")


def stop_repository(host: flow.FlowHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a commit fail behind its record in the journal."""

    repository = host.controller()._repository
    with monkeypatch.context() as broken:
        broken.setattr(RepositoryState, "apply", fail)
        with pytest.raises(MemoryError):
            repository.commit(Changes(states={"component": b"x"}))


@pytest.mark.parametrize("emitter_fails", [False, True])
def test_a_repository_that_stops_ends_the_process_which_recovers(
    process: Process, monkeypatch: pytest.MonkeyPatch, emitter_fails: bool
) -> None:
    host = process.host()
    host.start()
    assert not process.stop_asked.is_set()
    if emitter_fails:
        monkeypatch.setattr(process.alerts, "emit", fail)
    stop_repository(host, monkeypatch)
    assert process.stop_asked.wait(LIMIT_S)
    if not emitter_fails:
        (alert,) = process.alerts.events
        assert "the FlowFile repository stopped; the flow's process restarts" in str(alert)
    host.stop()
    # It is an unexpected end: after five of them in a row, the components are held.
    assert (process.context.folder.run / "flow-ends").read_text() == "1"
    again = process.host()
    again.start()
    again.check_synced()
    again.stop()
    assert not (process.context.folder.run / "flow-ends").exists()


def test_commits_that_are_not_synced_in_time_are_reported(process: Process) -> None:
    host = process.host()
    with pytest.raises(Unavailable, match="still being opened"):
        host.check_synced()
    host.start()
    host.check_synced()
    assert unsynced_s(host) == 0.0
    threads = host.controller()._repository._committer._threads
    assert threads is not None
    threads.unsynced.appended("a journal", process.context.clock.monotonic_s() - 1_000)
    with pytest.raises(Unavailable, match=r"not been synced for 1000 s.*disk responds") as found:
        host.check_synced()
    assert found.value.dependency is Dependency.DISK
    assert 1_000 <= unsynced_s(host) < 1_100
    threads.unsynced.synced("a journal", None)
    host.check_synced()
    assert unsynced_s(host) == 0.0
    host.stop()


def unsynced_s(host: flow.FlowHost) -> float:
    (sample,) = (one for one in host.metrics() if one.name == "penstock_flow_unsynced_seconds")
    return sample.value


def test_a_flow_whose_commits_are_not_synced_is_not_ready(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = [Unavailable("data has not been synced", dependency=Dependency.DISK)]

    def check(_host: flow.FlowHost) -> None:
        if trouble:
            raise trouble[0]

    monkeypatch.setattr(flow.FlowHost, "check_synced", check)
    lifecycle = flow.compose(process.context)
    lifecycle.start()
    try:
        while not any("data has not been synced" in one for one in process.waits):
            assert process.is_waiting.wait(LIMIT_S)
            process.is_waiting.clear()
        assert not process.is_ready.is_set()
        trouble.clear()
        assert process.is_ready.wait(LIMIT_S)
    finally:
        lifecycle.stop()


PUBLISHING = """
name: publishing
processors:
  Make: {type: GenerateFlowFile, properties: {file_size: 9 B}, schedule: every 3600 sec}
  Publish:
    type: PublishTopic
    properties: {topic: t, broker_url: "http://127.0.0.1:1"}
    auto_terminated: [success, failure]
connections:
  - {from: Make.success, to: Publish}
"""


def test_a_broker_that_a_processor_cannot_reach_is_in_the_answer_and_the_metrics(
    process: Process,
) -> None:
    lifecycle = flow.compose(process.context)
    lifecycle.start()
    try:
        assert process.is_ready.wait(LIMIT_S)
        url = f"http://127.0.0.1:{process.listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=LIMIT_S, trust_env=False) as client:
            assert client.get("/status/ready").json()["waits"] == []
            assert client.put("/flow", content=PUBLISHING).is_success
            assert client.post("/flow/start").is_success
            end_s = time.monotonic() + LIMIT_S
            while not (answer := client.get("/status/ready").json())["waits"]:
                assert time.monotonic() < end_s
            assert answer["ready"], "the process can work"
            [wait] = answer["waits"]
            assert (wait["dependency"], wait["work"]) == ("broker", "processor Publish")
            assert wait["tries"] >= 1
            text = client.get("/metrics").text
            assert list(differences(text)) == []
            lines = text.splitlines()
            series = [one for one in lines if one.startswith("penstock_waiting_tries{")]
            [tries] = [one for one in series if 'dependency="broker"' in one]
            assert float(tries.rpartition(" ")[2]) >= 1
            assert client.post("/flow/stop").is_success
            assert client.get("/status/ready").json()["waits"] == []
    finally:
        lifecycle.stop()
