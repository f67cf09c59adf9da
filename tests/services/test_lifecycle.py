"""The lifecycle: order, additions while it starts, failures."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Conflict
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, ProcessState, StartStage


class Story:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def handler(
        self, name: str, *, fails: bool = False, stop_fails: bool = False
    ) -> LifecycleHandler:
        def start() -> None:
            if fails:
                raise RuntimeError(name)
            self.events.append(f"+{name}")

        def stop() -> None:
            self.events.append(f"-{name}")
            if stop_fails:
                raise RuntimeError(name)

        return LifecycleHandler(name, start, stop)


def test_a_failed_start_leaves_what_runs_until_the_stop() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_handler(story.handler("log"), StartStage.INIT)
    lifecycle.add_handler(story.handler("store"))
    lifecycle.add_handler(story.handler("bad", fails=True))
    lifecycle.add_handler(story.handler("server"), StartStage.SERVER)
    with pytest.raises(RuntimeError, match="bad") as caught:
        lifecycle.start()
    assert caught.value.__notes__ == ["while starting bad"]
    assert story.events == ["+log", "+store"]
    assert lifecycle.state is ProcessState.RUNNING
    with pytest.raises(Conflict):
        lifecycle.start()
    lifecycle.stop()
    # Also what never started: it may hold what was opened before the start.
    assert story.events[2:] == ["-server", "-bad", "-store", "-log"]


def test_the_order_when_handlers_add_handlers() -> None:
    story = Story()
    lifecycle = Lifecycle()

    def start_x() -> None:
        story.events.append("+X")
        lifecycle.add_maybe_start(story.handler("B"), StartStage.INIT)
        lifecycle.add_maybe_start(story.handler("C"), StartStage.SERVER)
        lifecycle.add_maybe_start(story.handler("D"))

    lifecycle.add_handler(story.handler("A"))
    lifecycle.add_handler(LifecycleHandler("X", start_x, lambda: story.events.append("-X")))
    lifecycle.start()
    lifecycle.stop()
    assert story.events == ["+A", "+X", "+B", "+D", "+C", "-C", "-D", "-X", "-A", "-B"]


@pytest.mark.parametrize("stage", list(StartStage))
def test_a_running_lifecycle_starts_what_is_added_at_once(stage: StartStage) -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_maybe_start(story.handler("early"), stage)
    assert story.events == []
    lifecycle.start()
    lifecycle.add_maybe_start(story.handler("late"), stage)
    assert story.events == ["+early", "+late"]
    with pytest.raises(RuntimeError):
        lifecycle.add_maybe_start(story.handler("bad", fails=True), stage)
    lifecycle.stop()
    # One whose start failed was not added.
    assert story.events == ["+early", "+late", "-late", "-early"]
    with pytest.raises(Conflict, match="stopped"):
        lifecycle.add_maybe_start(story.handler("too late"), stage)


class Busy:
    """A lifecycle that another thread starts or stops, and holds there."""

    def __init__(self, during: str) -> None:
        self.lifecycle = Lifecycle()
        self.entered = threading.Event()
        self.go_on = threading.Event()
        hold = LifecycleHandler(
            "hold", *((self._hold, _pass) if during == "start" else (_pass, self._hold))
        )
        self.lifecycle.add_handler(hold)
        if during == "start":
            self.thread = threading.Thread(target=self.lifecycle.start)
        else:
            self.lifecycle.start()
            self.thread = threading.Thread(target=self.lifecycle.stop)
        self.thread.start()
        assert self.entered.wait(120)

    def _hold(self) -> None:
        self.entered.set()
        assert self.go_on.wait(120)

    def end(self) -> None:
        self.go_on.set()
        self.thread.join()


def _pass() -> None: ...


@pytest.mark.parametrize("during", ["start", "stop"])
def test_nothing_is_added_while_another_thread_is_at_it(during: str) -> None:
    busy = Busy(during)
    with pytest.raises(Conflict, match="in the process of starting or stopping"):
        busy.lifecycle.add_handler(LifecycleHandler("x"))
    busy.end()


def test_add_maybe_start_does_not_wait_for_a_stop_which_may_wait_for_it() -> None:
    busy = Busy("stop")
    with pytest.raises(Conflict, match="stopped"):
        busy.lifecycle.add_maybe_start(LifecycleHandler("x"))
    assert not busy.go_on.is_set()
    busy.end()


def test_add_maybe_start_waits_for_its_turn_while_another_thread_starts() -> None:
    busy = Busy("start")
    story = Story()
    adding = threading.Thread(
        target=lambda: busy.lifecycle.add_maybe_start(story.handler("x"), StartStage.SERVER)
    )
    adding.start()
    assert story.events == []
    busy.end()
    adding.join()
    assert story.events == ["+x"]


def test_stop_before_the_start_does_nothing() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_handler(story.handler("a"))
    lifecycle.stop()
    assert lifecycle.state is ProcessState.NOT_STARTED
    lifecycle.start()
    assert story.events == ["+a"]


def test_a_handler_may_stop_the_lifecycle_that_starts_it() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("a", lifecycle.stop, lambda: story.events.append("-a")))
    lifecycle.add_handler(story.handler("b"))
    lifecycle.start()
    assert lifecycle.state is ProcessState.STOPPED


def test_a_failed_stop_does_not_keep_the_others_running() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_handler(story.handler("a"))
    lifecycle.add_handler(story.handler("b", stop_fails=True))
    lifecycle.add_handler(story.handler("c", stop_fails=True))
    lifecycle.start()
    with pytest.raises(ExceptionGroup) as caught:
        lifecycle.stop()
    assert [str(error) for error in caught.value.exceptions] == ["c", "b"]
    assert story.events == ["+a", "+b", "+c", "-c", "-b", "-a"]


def test_it_starts_once_and_takes_nothing_afterwards() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.start()
    with pytest.raises(Conflict):
        lifecycle.start()
    with pytest.raises(Conflict):
        lifecycle.add_handler(story.handler("late"))
    lifecycle.stop()
    lifecycle.stop()
    with pytest.raises(Conflict):
        lifecycle.add_handler(story.handler("too late"))
    assert story.events == []


def test_join_waits_and_stops() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_handler(story.handler("a"))
    lifecycle.start()
    lifecycle.join(lambda: story.events.append("asked"))
    assert story.events == ["+a", "asked", "-a"]


@given(
    stages=st.lists(st.sampled_from(list(StartStage)), max_size=12),
    failing=st.none() | st.integers(0, 11),
)
def test_starts_go_by_stage_and_stops_undo_them_in_reverse(
    stages: list[StartStage], failing: int | None
) -> None:
    story = Story()
    lifecycle = Lifecycle()
    for number, stage in enumerate(stages):
        lifecycle.add_handler(story.handler(str(number), fails=number == failing), stage)
    order = [
        str(number) for stage in StartStage for number, one in enumerate(stages) if one is stage
    ]
    backwards = order[::-1]
    if failing is not None and failing < len(stages):
        with pytest.raises(RuntimeError):
            lifecycle.start()
        order = order[: order.index(str(failing))]
    else:
        lifecycle.start()
    lifecycle.stop()
    assert story.events == [f"+{name}" for name in order] + [f"-{name}" for name in backwards]
