"""Components that a start of the process leaves stopped, until somebody starts them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.core.errors import Conflict
from penstock.flow.controller.controller import FlowController
from penstock.storage.disk import OsFileSystem
from tests.flow.controller_kit import LINE, ControllerWorld, apply, settled, states, wait_counted


class Guard:
    """Holds the components, and counts notifications."""

    def __init__(self) -> None:
        self.starts = False
        self.releases = 0

    def may_start(self) -> bool:
        return self.starts

    def released(self) -> None:
        self.releases += 1


@pytest.fixture
def guard() -> Guard:
    return Guard()


@pytest.fixture
def world(tmp_path: Path, guard: Guard) -> Iterator[ControllerWorld]:
    made = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = made.open()
    apply(controller, LINE)
    controller.start("Pass")
    controller.start("End")
    controller.close()
    made.options = replace(made.options, guard=guard)
    yield made
    made.close()


def held(controller: FlowController) -> list[str]:
    return list(controller.status().held)


def test_a_start_leaves_them_stopped_and_keeps_what_should_run(
    world: ControllerWorld, guard: Guard
) -> None:
    controller = world.open()
    assert held(controller) == ["Pass", "End"]
    assert set(states(controller).values()) == {"stopped"}
    controller.close()
    guard.starts = True
    controller = world.open()
    assert held(controller) == []
    assert settled(controller) == {"Make": "stopped", "Pass": "running", "End": "running"}
    assert guard.releases == 0


def test_each_is_started_or_stopped_by_itself(world: ControllerWorld, guard: Guard) -> None:
    controller = world.open()
    controller.start("End")
    assert held(controller) == ["Pass"]
    assert settled(controller) == {"Make": "stopped", "Pass": "stopped", "End": "running"}
    assert guard.releases == 1
    controller.stop("Pass")
    assert held(controller) == []
    assert guard.releases == 1
    controller.start()
    wait_counted(controller, 10)
    assert guard.releases == 1


def test_a_start_after_a_stop_of_all_is_told(world: ControllerWorld, guard: Guard) -> None:
    controller = world.open()
    controller.stop()
    assert held(controller) == []
    assert guard.releases == 0
    controller.start("End")
    controller.start("Pass")
    assert guard.releases == 1


def test_a_changed_flow_starts_them(world: ControllerWorld, guard: Guard) -> None:
    controller = world.open()
    with pytest.raises(Conflict):
        apply(
            controller,
            LINE.replace("type: Pass}", "type: Pass, properties: {word: new}}"),
            revision=7,
        )
    apply(controller, LINE)
    assert held(controller) == ["Pass", "End"], "nothing was changed"
    apply(controller, LINE.replace("type: Pass}", "type: Pass, properties: {word: new}}"))
    assert held(controller) == []
    assert settled(controller) == {"Make": "stopped", "Pass": "running", "End": "running"}
    assert guard.releases == 1
