"""A flow with a processor that ends the process, as the real service runs it again and again."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.core.errors import PenstockError
from penstock.services.host.restart_policy import FLOW_ENDS_MAX
from tests.system.test_flow_kills import Service

pytestmark = pytest.mark.system

FLOW = """
name: ends
processors:
  Bad: {type: "ending_processors:Ends"}
  Good: {type: "ending_processors:Works"}
"""


def states(status: dict[str, object]) -> dict[str, str]:
    components = status["components"]
    assert isinstance(components, list)
    return {one["name"]: one["state"] for one in components}


def until_good_runs(service: Service) -> None:
    """Wait for the end of the start; the test's time limit bounds it."""
    while (found := states(service.status()))["Good"] == "starting":
        time.sleep(0.05)
    assert found == {"Bad": "stopped", "Good": "running"}


def test_a_flow_that_keeps_ending_starts_with_its_components_stopped(tmp_path: Path) -> None:
    service = Service(tmp_path / "data", keeps_count=True)
    try:
        service.start()
        service.client.request("PUT", "/flow", FLOW.encode())
        service.client.post("/flow/start", query={"target": "Good"})
        with suppress(PenstockError):  # the process may end before it answers
            service.client.post("/flow/start", query={"target": "Bad"})
        assert service.process.wait(180) == 11
        for _ in range(FLOW_ENDS_MAX - 1):
            service.spawn()
            assert service.process.wait(180) == 11
        service.start()
        status = service.status()
        assert status["held"] == ["Bad", "Good"]
        assert set(states(status).values()) == {"stopped"}
        assert "penstock_flow_held_components 2" in str(service.client.get("/flow/metrics"))
        service.client.post("/flow/stop", query={"target": "Bad"})
        service.client.post("/flow/start", query={"target": "Good"})
        status = service.status()
        assert status["held"] == []
        until_good_runs(service)
        service.end()
        service.start()
        until_good_runs(service)
        service.end()
    finally:
        service.process.kill()
        service.process.wait()
        service.log.close()
    log = (tmp_path / "flow.log").read_text()
    assert "ended unexpectedly 5 times in a row: its components are not started" in log
