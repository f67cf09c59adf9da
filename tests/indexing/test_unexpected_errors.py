"""What an exception that nobody expects does to mail, to calls on lanes, and to those who wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import cast

import pytest

from penstock.core.errors import Closed, Fenced, InvalidRequest, PenstockError, Unavailable
from penstock.core.waits import WaitTable
from penstock.indexing.overlord.task_service import TaskSink, TaskSubmissions
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.batch.batch_task_specs import NoopSpec
from penstock.indexing.task_spec import TaskSpec
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.background_calls import CALL_RETRY, BackgroundCall, CallDispatcher
from penstock.mailbox.lanes import ThreadLanes
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults
from tests.harness.mailbox_kit import StepLanes
from tests.indexing.queue_kit import TaskQueueWorld, noop

UNEXPECTED = [MemoryError, OSError, RuntimeError]


class Owner:
    """A mailbox with lanes, both stepped by the test."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.processor = MailboxProcessor(name="owner", clock=self.clock)
        self.lanes = StepLanes()
        self.faults = Faults()
        self.told: list[object] = []
        self.calls = CallDispatcher(self.faults.port(self.lanes), self.processor)

    def call(self, work: Callable[[], object]) -> None:
        self.calls.call("lane", work, self.told.append, self.told.append)

    def background_call(self) -> BackgroundCall:
        return BackgroundCall(
            *("asking", "lane", self.faults.port(self.lanes), self.processor),
            retry=CALL_RETRY,
            waits=WaitTable(self.clock),
        )

    def run(self) -> None:
        while self.lanes.run_waiting() or self.processor.run_mailbox_step():
            pass


def raising(error: BaseException) -> Callable[[], object]:
    def work() -> object:
        raise error

    return work


@pytest.mark.parametrize("error", UNEXPECTED)
def test_an_unexpected_error_of_a_call_is_a_failure_of_unknown_outcome(
    error: type[Exception],
) -> None:
    owner = Owner()
    owner.call(raising(error("broken")))
    owner.run()
    (failure,) = owner.told
    assert isinstance(failure, Unavailable)
    assert "broken" in str(failure)


def test_ctrl_c_in_a_call_ends_the_loop() -> None:
    owner = Owner()
    owner.call(raising(KeyboardInterrupt("stop")))
    with pytest.raises(KeyboardInterrupt):
        owner.run()


@pytest.mark.parametrize("error", [*UNEXPECTED, KeyboardInterrupt])
def test_an_error_while_an_outcome_is_handed_over_ends_the_loop(
    error: type[BaseException],
) -> None:
    owner = Owner()

    def done(_result: object) -> None:
        raise error("half done")

    owner.calls.call("lane", lambda: 1, done, owner.told.append)
    with pytest.raises(error, match="half done"):
        owner.run()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_lane_that_takes_no_work_fails_the_call(*, after: bool) -> None:
    owner = Owner()
    with owner.faults.armed(Unavailable, 0, after=after):
        owner.call(lambda: "done")
    owner.run()
    assert [type(one) for one in owner.told] == [Unavailable]


def test_an_outcome_without_mail_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was lost with a line in the log, and who waited for it waited for ever."""
    owner = Owner()
    owner.call(lambda: "done")
    with monkeypatch.context() as patch:
        patch.setattr(owner.processor.main_executor, "execute", raising_any(MemoryError("no mail")))
        owner.lanes.run_waiting()
    with pytest.raises(MemoryError, match="no mail"):
        owner.run()


def raising_any(error: BaseException) -> Callable[..., object]:
    def work(*_arguments: object, **_options: object) -> object:
        raise error

    return work


@pytest.mark.parametrize("error", UNEXPECTED)
def test_a_background_call_that_failed_unexpectedly_is_free_again(error: type[Exception]) -> None:
    owner = Owner()
    call = owner.background_call()
    call.start(raising(error("broken")), owner.told.append, owner.told.append)
    owner.run()
    assert [type(one) for one in owner.told] == [error]
    call.start(lambda: 42, owner.told.append, owner.told.append)
    owner.run()
    assert owner.told[1:] == [42]


def test_a_background_call_is_tried_again_when_a_lane_takes_no_work() -> None:
    owner = Owner()
    call = owner.background_call()
    with owner.faults.armed(Unavailable, 0):
        call.start(lambda: 42, owner.told.append, owner.told.append)
    owner.run()
    assert call.busy
    owner.clock.advance(ms=1_000)
    owner.run()
    assert owner.told == [42]
    assert not call.busy


class Nameless(Exception):
    """An exception that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("kind", ["call", "background call"])
def test_an_outcome_that_cannot_be_shown_is_delivered_or_ends_the_loop(kind: str) -> None:
    """A future logs what its callbacks raise and goes on: the owner would wait for ever."""
    owner = Owner()
    if kind == "call":
        owner.call(raising(Nameless()))
    else:
        owner.background_call().start(raising(Nameless()), owner.told.append, owner.told.append)
    has_ended = False
    try:
        owner.run()
    except RuntimeError:
        has_ended = True
    assert has_ended or owner.told


def test_an_outcome_that_a_full_disk_refuses_is_delivered_again_without_the_work() -> None:
    owner, done = Owner(), list[int]()
    call, full = owner.background_call(), [True]

    def work() -> int:
        done.append(42)
        return 42

    def take(result: int) -> None:
        assert call.busy
        if full.pop():
            full.append(False)
            raise Unavailable("the disk is full")
        owner.told.append(result)

    call.start(work, take, owner.told.append)
    owner.run()
    assert call.busy
    assert "the disk is full" in call.last_error
    owner.clock.advance(ms=1_000)
    owner.run()
    assert owner.told == [42]
    assert done == [42]
    assert (call.busy, call.last_error) == (False, "")


def test_an_outcome_that_arrives_after_the_term_is_dropped() -> None:
    owner = Owner()
    call = owner.background_call()

    def take(_result: int) -> None:
        raise Fenced("another overlord leads")

    call.start(lambda: 42, take, owner.told.append)
    owner.run()
    assert not call.busy
    assert "another overlord leads" in call.last_error


def test_a_lane_goes_on_after_an_outcome_that_could_not_be_told() -> None:
    """Its later work was never done."""
    lanes, let_go = ThreadLanes("test"), threading.Event()
    blocked = lanes.submit("a", lambda: let_go.wait(120))

    def interrupt(_done: Future[bool]) -> None:
        raise KeyboardInterrupt

    blocked.add_done_callback(interrupt)
    behind = lanes.submit("a", lambda: "behind")
    let_go.set()
    assert behind.result(120) == "behind"
    assert lanes.submit("a", lambda: "later").result(120) == "later"
    lanes.close()


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_submit_that_raises_leaves_its_lane_usable(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    lanes = ThreadLanes("test")
    with monkeypatch.context() as patch:
        patch.setattr("threading.Thread.start", raising_any(error("no thread")))
        with pytest.raises(error):
            lanes.submit("a", lambda: 1)
    assert lanes.submit("a", lambda: 2).result(120) == 2
    lanes.close()


class Queue:
    """Keeps tasks unless told to fail."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.failures: list[BaseException] = []

    def add_all(self, tasks: Sequence[TaskSpec]) -> Sequence[PenstockError | None]:
        if self.failures:
            raise self.failures.pop(0)
        self.kept += [task.id for task in tasks]
        return [None for _ in tasks]


@pytest.mark.parametrize("error", [*UNEXPECTED, KeyboardInterrupt])
def test_an_unexpected_error_of_submitted_tasks_answers_all_and_ends_the_loop(
    error: type[BaseException],
) -> None:
    """The loop went on with a queue that may have kept half of a task."""
    owner, queue = Owner(), Queue()
    intake = TaskSubmissions(lambda: cast("TaskSink", queue), owner.processor)
    futures = [intake.submit(noop(name)) for name in ("a", "b", "c")]
    # The first is refused for one of them; then each is tried alone, and the second fails.
    queue.failures = [InvalidRequest("one is wrong"), error("half done")]
    with pytest.raises(error):
        owner.run()
    assert all(isinstance(one.exception(0), error) for one in futures)


def test_tasks_are_taken_after_a_submit_without_mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who submitted later waited for ever."""
    owner, queue = Owner(), Queue()
    intake = TaskSubmissions(lambda: cast("TaskSink", queue), owner.processor)
    with monkeypatch.context() as patch:
        patch.setattr(
            owner.processor.main_executor, "submit_change", raising_any(MemoryError("no mail"))
        )
        with pytest.raises(MemoryError):
            intake.submit(noop("lost"))
    future = intake.submit(noop("kept"))
    owner.run()
    assert future.result(0) == "kept"
    owner.processor.close()
    with pytest.raises(Closed):
        intake.submit(noop("late")).result(0)
    assert issubclass(Closed, PenstockError)


@pytest.mark.parametrize("error", [RuntimeError, OverflowError, Unavailable])
def test_a_spec_that_raises_is_refused_and_ends_a_task_that_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """It would end each overlord that takes the task over, at its start."""
    world = TaskQueueWorld(tmp_path)
    world.queue.add(noop("stored"))
    world.queue.add(noop("at_worker"))
    world.metadata.tasks.set_statuses([("at_worker", TaskState.RUNNING, {"worker": "w"})])

    def broken(_spec: NoopSpec) -> tuple[()]:
        raise error("no such time chunk")

    monkeypatch.setattr(NoopSpec, "lock_intents", broken)
    with pytest.raises(InvalidRequest, match=r"locks of task 'new'.*no such time chunk"):
        world.queue.add(noop("new"))
    assert world.metadata.tasks.get("new") is None

    world.start()
    assert world.queue.index.all() == {}
    for task_id in ("stored", "at_worker"):
        state, text = world.status(task_id)
        assert state == TaskState.FAILED
        assert str(text).startswith(
            f"the locks of task '{task_id}' cannot be derived from its spec"
        )
    world.metadata.close()
