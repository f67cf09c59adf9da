"""Metrics of a flow: what they count, and whose names they bear."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.metrics import Sample
from penstock.flow.controller.controller import FlowController
from penstock.flow.controller.flow_metrics import flow_samples
from penstock.flow.controller.flow_status import FlowStatus
from penstock.flow.queue.queue import QueueStatistics
from penstock.services.api.flow.flow_json import connection_json
from penstock.storage.disk import OsFileSystem
from tests.flow.controller_kit import LINE, ControllerWorld, apply, wait_counted


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[FlowController]:
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    yield world.open()
    world.close()


def values(controller: FlowController) -> dict[tuple[str, ...], float]:
    return values_of(controller.status(), controller.bulletins.count)


def values_of(status: FlowStatus, bulletins: int) -> dict[tuple[str, ...], float]:
    """All metrics by name and values of labels; no series comes twice."""
    samples: list[Sample] = list(flow_samples(status, bulletins))
    found = {
        (one.name.removeprefix("penstock_flow_"), *(value for _, value in one.labels)): one.value
        for one in samples
    }
    assert len(found) == len(samples)
    assert {one.kind for one in samples if one.name.endswith("_total")} == {"counter"}
    assert {one.kind for one in samples if not one.name.endswith("_total")} == {"gauge"}
    return {name: value for name, value in found.items() if isinstance(value, float)}


def test_processors_and_connections_are_counted(controller: FlowController) -> None:
    flow = LINE.replace("to: Pass}", "to: Pass, back_pressure_count: 4}")
    apply(controller, flow)
    controller.run_once("Make")
    found = values(controller)
    assert found["processor_flowfiles_total", "Make", "out"] == 10
    assert found["processor_runs_total", "Make"] == 1
    assert found["processor_running", "Make"] == 0
    assert found["connection_flowfiles", "Make.success → Pass", "memory"] == 10
    assert found["connection_full", "Make.success → Pass"] == 1
    assert ("processor_next_firing_seconds", "End") not in found
    controller.start()
    wait_counted(controller, 10)
    controller.stop()  # a run is counted when it has ended, and the last one may end just now
    found = values(controller)
    assert found["processor_flowfiles_total", "End", "removed"] == 10
    assert found["connection_full", "Make.success → Pass"] == 0
    assert found["commits_total",] >= 3
    assert found["lost_flowfiles_total", "content"] == 0


def test_what_became_of_swap_files_is_counted_and_told(controller: FlowController) -> None:
    apply(controller, LINE)
    status = controller.status()
    assert {one.swapping for one in status.connections} == {QueueStatistics(0, 0, "", 0)}
    swapping = QueueStatistics(3, 2, "the disk is full", 7)
    status = replace(
        status, connections=[replace(one, swapping=swapping) for one in status.connections]
    )
    found = values_of(status, 0)
    name = "Make.success → Pass"
    assert found["connection_swap_files_written_total", name] == 3
    assert found["connection_swap_failures_total", name] == 2
    assert found["connection_lost_total", name] == 7
    told = connection_json(status.connections[0])
    assert (told["swapFilesWritten"], told["swapFailures"], told["lost"]) == (3, 2, 7)
    assert told["lastSwapFailure"] == "the disk is full"


def test_names_are_those_of_the_flow_and_each_its_own(controller: FlowController) -> None:
    flow = """
name: line
processors:
  Make: {type: Numbers}
funnels: [both]
groups:
  Inner:
    input_ports: [in]
    processors: {End: {type: Tally}}
    connections: [{from: in, to: End}]
connections:
  - {from: Make.success, to: both, id: 8f14e45f-ceea-467f-9b1d-5f0d3a1c2b10}
  - {from: Make.success, to: both, id: 8f14e45f-ceea-467f-9b1d-5f0d3a1c2b12}
  - {from: both, to: Inner/in}
"""
    apply(controller, flow)
    found = values(controller)
    assert {name[1] for name in found if name[0] == "processor_runs_total"} == {"Make", "Inner/End"}
    connections = {name[1] for name in found if name[0] == "connection_full"}
    assert len(connections) == len(controller.status().connections) == 4
    apply(controller, LINE)
    assert not any("Inner" in label for name in values(controller) for label in name)
