"""A running flow under exceptions that nobody expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.core.threads import DEATHS, Deaths, OwnedThread
from penstock.flow.controller import components
from penstock.flow.controller.connection_queues import ConnectionQueues
from penstock.flow.controller.controller import FlowController
from penstock.flow.graph.source_locations import InvalidFlow
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.scheduling.component import ScheduledComponent
from penstock.storage.disk import OsFileSystem
from tests.flow.controller_kit import LINE, ControllerWorld, apply, queued, states, wait_counted
from tests.harness.call_faults_kit import FAULTS

# All go to whoever gave the command. Others than these end the control thread, too.
ANSWERS = tuple(one for one in FAULTS if issubclass(one, PenstockError))
CHANGED = LINE.replace("{type: Pass}", "{type: Pass, properties: {word: x}}")
LONGER = """
name: line
processors:
  Make: {type: Numbers}
  Pass: {type: Pass}
  Again: {type: Pass}
  End: {type: Tally}
connections:
  - {from: Make.success, to: Pass}
  - {from: Pass.success, to: Again}
  - {from: Again.success, to: End}
"""

pytestmark = pytest.mark.usefixtures("deaths")


class Faulty(OsFileSystem):
    """Raises when the applied flow is written, before or after."""

    error: type[BaseException] | None = None
    after = False

    def write_atomically(self, path: str, data: bytes) -> None:
        error = self.error if path.endswith("/flow.json") else None
        if error is not None:
            self.error = None
            if self.after:
                super().write_atomically(path, data)
            raise error("once")
        super().write_atomically(path, data)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_a_change_that_could_not_be_kept_changes_nothing(
    tmp_path: Path, error: type[BaseException], after: bool
) -> None:
    fs = Faulty()
    world = ControllerWorld(fs, str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    controller.start()
    before = controller.applied
    fs.error, fs.after = error, after
    with pytest.raises(error):
        apply(controller, CHANGED)
    assert controller.applied == before
    check_runs(controller)
    check_ended(controller, error)
    controller.close()
    again = world.open()
    assert again.applied == before
    wait_counted(again, 10)
    world.close()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_a_start_that_could_not_be_kept_starts_nothing(
    tmp_path: Path, error: type[BaseException], after: bool
) -> None:
    fs = Faulty()
    world = ControllerWorld(fs, str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    fs.error, fs.after = error, after
    with pytest.raises(error):
        controller.start()
    assert set(states(controller).values()) == {"stopped"}
    check_ended(controller, error)
    controller.close()
    assert set(states(world.open()).values()) == {"stopped"}
    world.close()


@pytest.mark.parametrize("error", [one for one in FAULTS if issubclass(one, Exception)])
def test_a_stop_that_could_not_be_kept_stops(tmp_path: Path, error: type[BaseException]) -> None:
    fs = Faulty()
    world = ControllerWorld(fs, str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    controller.start()
    fs.error = error
    with pytest.raises(Unavailable, match="stopped, but this could not be stored"):
        controller.stop()
    assert set(states(controller).values()) == {"stopped"}
    world.close()


@pytest.mark.parametrize("method", ["add", "change", "remove"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("error", FAULTS)
def test_a_change_that_was_made_in_part_ends_the_process_and_is_completed_by_a_restart(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    after: bool,
    method: str,
) -> None:
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    controller.start()
    wait_counted(controller, 10)
    with monkeypatch.context() as patched:
        patched.setattr(
            ConnectionQueues, method, once(getattr(ConnectionQueues, method), error, after=after)
        )
        raised = in_part(error)
        with pytest.raises(raised):
            apply(controller, LONGER)
    assert check_ended(controller, raised)
    controller.close()
    controller = world.open()
    check_longer(controller)
    controller.close()
    check_longer(world.open())
    world.close()


def in_part(error: type[BaseException]) -> type[BaseException]:
    """Return what a change raises that is stored, and of which a part fails with an exception."""
    return RuntimeError if error in ANSWERS else error


def test_a_scheduler_that_does_not_answer_a_change_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change was half made, and the control thread went on with it."""
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = world.open()
    apply(controller, LINE)

    def late(future: object) -> None:
        raise Unavailable("the flow did not answer in time")

    with monkeypatch.context() as patched:
        patched.setattr(components, "answer", late)
        with pytest.raises(RuntimeError, match=r"part of the change was made \(the flow did not"):
            apply(controller, LONGER)
    assert check_ended(controller, RuntimeError)
    controller.close()
    controller = world.open()
    assert states(controller).keys() == {"Make", "Pass", "Again", "End"}
    world.close()


def check_ended(controller: FlowController, error: type[BaseException]) -> bool:
    """Insist that an exception ended the control thread, or was only an answer; say which."""
    ends = not issubclass(error, ANSWERS)
    assert controller._control.join(30 if ends else 0) == ends
    assert DEATHS.counts() == ({"flow-control": 1} if ends else {})
    if ends:
        with pytest.raises(Closed):
            controller.start()
    return ends


def check_runs(controller: FlowController) -> None:
    assert set(states(controller).values()) <= {"starting", "running"}


def check_longer(controller: FlowController) -> None:
    assert states(controller).keys() == {"Make", "Pass", "Again", "End"}
    check_runs(controller)
    assert len(controller.status().connections) == 3


@pytest.mark.parametrize("method", ["restore", "put_many", "set_prioritizers"])
@pytest.mark.parametrize("error", FAULTS)
def test_flowfiles_of_a_queue_that_could_not_be_made_come_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], method: str
) -> None:
    """The start found FlowFiles of a connection that no flow had, and it is applied again."""
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    controller.run_once("Make")
    assert len(queued(controller)) == 10
    controller.close()
    (tmp_path / "flow.json").unlink()
    controller = world.open()
    real = getattr(FlowFileQueue, method)
    with monkeypatch.context() as patched:
        patched.setattr(FlowFileQueue, method, once(real, error, after=method == "put_many"))
        raised = in_part(error)
        with pytest.raises(raised):
            apply(controller, LINE)
    assert check_ended(controller, raised)
    controller.close()
    controller = world.open()
    assert len(queued(controller)) == 10
    controller.start()
    wait_counted(controller, 10)
    world.close()


def test_an_error_of_the_scheduler_ends_it_and_answers_those_who_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = world.open()
    apply(controller, LINE)
    real = ScheduledComponent.clear_timers
    with monkeypatch.context() as patched:
        patched.setattr(ScheduledComponent, "clear_timers", once(real, MemoryError, after=False))
        controller.start()
        with pytest.raises((MemoryError, Closed)):
            controller.stop()
    assert controller._scheduling.join(120)
    assert DEATHS.counts()["flow-scheduler"] == 1
    with pytest.raises(Closed):
        controller.status()
    controller.close()
    controller = world.open()  # it was to stop
    assert set(states(controller).values()) == {"stopped"}
    world.close()


def once(
    real: Callable[..., object], error: type[BaseException], *, after: bool
) -> Callable[..., object]:
    """Return a method that raises at its first call, before or after it took effect."""
    raised: list[bool] = []

    def call(*arguments: object) -> object:
        if raised:
            return real(*arguments)
        raised.append(True)
        if after:
            real(*arguments)
        raise error("once")

    return call


def test_a_parameter_of_a_file_that_cannot_exist_is_refused(tmp_path: Path) -> None:
    """The path of one flow file ended the process of all flows."""
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = world.open()
    with pytest.raises(InvalidFlow, match="no file can have this name"):
        apply(controller, LINE + 'parameters: {p: {file: "a\\0b"}}\n')
    assert not check_ended(controller, InvalidFlow)
    world.close()


def test_a_flow_without_a_thread_for_swap_files_does_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ran, and a read ahead of which the thread could not start ran twice later."""
    start = OwnedThread.start

    def refuse(thread: OwnedThread) -> None:
        if thread.name == "flow-swap":
            raise RuntimeError("can't start new thread")
        start(thread)

    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(OwnedThread, "start", refuse)
        with pytest.raises(Unavailable, match=r"'flow-swap' \(can't start new thread\)"):
            world.open()
    controller = world.open()
    apply(controller, LINE)
    controller.start()
    check_runs(controller)
    world.close()


def test_work_on_swap_files_that_fails_is_counted(tmp_path: Path, deaths: Deaths) -> None:
    """Its exception ended in a future that nobody read."""
    world = ControllerWorld(OsFileSystem(), str(tmp_path))
    controller = world.open()
    controller._queues._background(lambda: 1 // 0)
    world.close()
    assert deaths.counts() == {"flow-swap": 1}
