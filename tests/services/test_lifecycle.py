"""The lifecycle: order, additions while it starts, failures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import Conflict
from penstock.services.lifecycle import Handler, Lifecycle, Stage, State


class Story:
    """What happened, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def handler(self, name: str, *, fails: bool = False, stop_fails: bool = False) -> Handler:
        def start() -> None:
            if fails:
                raise RuntimeError(name)
            self.events.append(f"+{name}")

        def stop() -> None:
            self.events.append(f"-{name}")
            if stop_fails:
                raise RuntimeError(name)

        return Handler(name, start, stop)


def test_a_failed_start_stops_what_had_started_and_nothing_else() -> None:
    story = Story()
    lifecycle = Lifecycle()
    lifecycle.add_handler(story.handler("log"), Stage.INIT)
    lifecycle.add_handler(story.handler("store"))
    lifecycle.add_handler(story.handler("bad", fails=True))
    lifecycle.add_handler(story.handler("server"), Stage.SERVER)
    with pytest.raises(RuntimeError, match="bad") as caught:
        lifecycle.start()
    assert caught.value.__notes__ == ["while starting bad"]
    assert story.events == ["+log", "+store", "-store", "-log"]
    assert lifecycle.state is State.STOPPED
    lifecycle.stop()
    assert story.events == ["+log", "+store", "-store", "-log"]


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
    stages=st.lists(st.sampled_from(list(Stage)), max_size=12),
    failing=st.none() | st.integers(0, 11),
)
def test_starts_go_by_stage_and_stops_undo_them_in_reverse(
    stages: list[Stage], failing: int | None
) -> None:
    story = Story()
    lifecycle = Lifecycle()
    for number, stage in enumerate(stages):
        lifecycle.add_handler(story.handler(str(number), fails=number == failing), stage)
    order = [str(number) for stage in Stage for number, one in enumerate(stages) if one is stage]
    if failing is not None and failing < len(stages):
        with pytest.raises(RuntimeError):
            lifecycle.start()
        order = order[: order.index(str(failing))]
    else:
        lifecycle.start()
        lifecycle.stop()
    assert story.events == [f"+{name}" for name in order] + [f"-{name}" for name in order[::-1]]
