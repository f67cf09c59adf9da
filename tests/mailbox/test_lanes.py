"""Lanes on threads: order within one, none holds up another, none outlives its work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from threading import Thread

import pytest

from penstock.core.errors import Closed, Unavailable
from penstock.mailbox.lanes import ThreadLanes


@pytest.fixture
def lanes() -> Iterator[ThreadLanes]:
    made = ThreadLanes("test")
    yield made
    made.close()


def test_the_work_of_a_lane_runs_in_order(lanes: ThreadLanes) -> None:
    seen: list[int] = []
    futures = [lanes.submit("a", partial(seen.append, n)) for n in range(200)]
    for future in futures:
        future.result(120)
    assert seen == list(range(200))


def test_a_lane_that_hangs_holds_up_no_other(lanes: ThreadLanes) -> None:
    let_go = threading.Event()
    hanging = lanes.submit("a", lambda: let_go.wait(120))
    behind = lanes.submit("a", lambda: "behind")
    assert lanes.submit("b", lambda: "b").result(120) == "b"
    assert not behind.done()
    let_go.set()
    assert hanging.result(120)
    assert behind.result(120) == "behind"


def test_an_error_reaches_the_one_who_asked_and_the_lane_goes_on(lanes: ThreadLanes) -> None:
    failing = lanes.submit("a", lambda: 1 // 0)
    assert isinstance(failing.exception(120), ZeroDivisionError)
    assert lanes.submit("a", lambda: "next").result(120) == "next"


def test_lanes_without_work_hold_no_threads(lanes: ThreadLanes) -> None:
    for n in range(100):
        lanes.submit(f"peon-{n}", lambda: None).result(120)
    mine = [one for one in threading.enumerate() if one.name.startswith("test lane")]
    assert len(mine) < 30  # about one; a thread may not have come back when the next is asked for


def test_closing_cancels_what_waits_and_takes_nothing_more(lanes: ThreadLanes) -> None:
    begun, let_go = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return let_go.wait(120)

    hanging, behind = lanes.submit("a", hang), lanes.submit("a", lambda: "never")
    assert begun.wait(120)
    lanes.close()
    assert behind.cancelled()
    with pytest.raises(Closed, match="the lanes of test are closed"):
        lanes.submit("b", lambda: None)
    let_go.set()
    assert hanging.result(120)


def test_without_a_thread_work_fails_and_later_no_lane_holds_up_another(
    lanes: ThreadLanes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a limit of processes (ulimit -u, or that of a container)."""
    seen = []

    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    begun, let_go = threading.Event(), threading.Event()

    def hang() -> bool:
        begun.set()
        return let_go.wait(120)

    running = lanes.submit("a", hang)
    assert begun.wait(120)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        failed = lanes.submit("b", lambda: seen.append("not done"))
        with pytest.raises(Unavailable, match="can't start new thread"):
            failed.result(0)
    behind = lanes.submit("a", lambda: seen.append("behind"))
    lanes.submit("b", lambda: seen.append("again")).result(120)
    let_go.set()
    assert running.result(120)
    behind.result(120)
    assert seen == ["again", "behind"]

    let_go.clear()
    hanging = [lanes.submit(f"c{number}", lambda: let_go.wait(120)) for number in range(3)]
    assert lanes.submit("d", lambda: "d").result(120) == "d"
    assert not any(one.done() for one in hanging)
    let_go.set()
    assert all(one.result(120) for one in hanging)
