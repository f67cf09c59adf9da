"""Threads whose end is noticed: what ends the process, what restarts, what is only counted."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future

import pytest

from penstock.core import threads
from penstock.core.errors import Closed, Unavailable
from penstock.core.threads import (
    DEATHS,
    Death,
    Deaths,
    JobTimer,
    OnDeath,
    OwnedThread,
    SerialExecutor,
    pause_s,
    start_job,
)
from tests.harness.call_faults_kit import Faults

LIMIT_S = 120.0


class Ends:
    """Takes the place of the end of the process."""

    def __init__(self) -> None:
        self.deaths: list[Death] = []
        self.has_ended = threading.Event()

    def __call__(self, death: Death) -> None:
        self.deaths.append(death)
        self.has_ended.set()


@pytest.fixture
def ends(deaths: Deaths) -> Iterator[Ends]:
    made, hook = Ends(), threading.excepthook
    deaths.end_process_by(made)
    yield made
    deaths._end, deaths._process_stops = None, False
    threading.excepthook = hook


def fail() -> None:
    raise MemoryError("no room")


def ended(thread: threading.Thread) -> bool:
    thread.join(LIMIT_S)
    return not thread.is_alive()


@pytest.mark.parametrize("error", [MemoryError, OSError, KeyboardInterrupt, SystemExit])
def test_a_body_that_raises_is_logged_counted_and_ends_the_process(
    ends: Ends, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def body() -> None:
        raise error("no room")

    thread = OwnedThread("election", body)
    thread.start()
    assert ended(thread)
    (death,) = ends.deaths
    assert isinstance(death.error, error)
    assert DEATHS.counts() == {"election": 1}
    (down,) = DEATHS.down()
    assert down.startswith(f"election ended unexpectedly ({error.__name__}")
    (line,) = [one for one in caplog.records if one.name == threads.__name__]
    assert line.levelno == logging.CRITICAL
    assert "election" in line.message
    assert line.exc_info
    assert line.exc_info[1] is death.error
    (sample,) = DEATHS.samples("overlord")
    assert sample.labels == (("role", "overlord"), ("thread", "election"))
    assert (sample.name, sample.value) == ("penstock_thread_deaths_total", 1.0)


def test_a_return_that_nobody_asked_for_is_a_death(ends: Ends) -> None:
    thread = OwnedThread("loop", lambda: None)
    thread.start()
    assert ended(thread)
    (death,) = ends.deaths
    assert death.error is None
    assert "it returned" in DEATHS.down()[0]


def test_ends_that_were_asked_for_are_none(ends: Ends) -> None:
    told = threading.Event()
    asked = OwnedThread("asked", lambda: told.wait(LIMIT_S))
    asked.start()
    asked.expect_end()
    told.set()
    by_itself = OwnedThread("by itself", lambda: None, may_return=True)
    by_itself.start()
    assert ended(asked)
    assert ended(by_itself)
    assert (ends.deaths, DEATHS.counts(), DEATHS.down()) == ([], {}, [])


def test_without_an_entry_that_says_so_no_process_ends(deaths: Deaths) -> None:
    thread = OwnedThread("election", fail)
    thread.start()
    assert ended(thread)
    assert deaths.counts() == {"election": 1}
    assert len(deaths.down()) == 1


def test_a_process_that_stops_is_ended_by_nobody(ends: Ends) -> None:
    DEATHS.process_stops()
    thread = OwnedThread("election", fail)
    thread.start()
    assert ended(thread)
    assert ends.deaths == []
    assert DEATHS.counts() == {"election": 1}


def test_a_body_is_restarted_and_its_part_is_down_meanwhile(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "pause_s", lambda _in_a_row: LIMIT_S)
    runs: list[int] = []
    died = threading.Event()

    def body() -> None:
        runs.append(1)
        fail()

    forget = DEATHS.listen(lambda _death: died.set())
    thread = OwnedThread("emitter", body, on_death=OnDeath.RESTART)
    thread.start()
    assert died.wait(LIMIT_S)
    assert DEATHS.down() == ["emitter ended unexpectedly (MemoryError('no room')); it starts again"]
    thread.expect_end()  # in the pause
    assert ended(thread)
    forget()
    assert (len(runs), DEATHS.down(), ends.deaths) == (1, [], [])


def test_a_body_that_recovers_goes_on(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[int] = []

    def no_pause(in_a_row: int) -> float:
        pauses.append(in_a_row)
        return 0.0

    monkeypatch.setattr(threads, "pause_s", no_pause)
    works, stop = threading.Event(), threading.Event()

    def body() -> None:
        if len(pauses) < 3:
            fail()
        works.set()
        stop.wait(LIMIT_S)

    thread = OwnedThread("emitter", body, on_death=OnDeath.RESTART)
    thread.start()
    assert works.wait(LIMIT_S)
    assert (pauses, DEATHS.counts(), DEATHS.down()) == ([1, 2, 3], {"emitter": 3}, [])
    thread.expect_end()
    stop.set()
    assert ended(thread)
    assert ends.deaths == []


def test_pauses_double_up_to_a_bound() -> None:
    assert [pause_s(one) for one in (1, 2, 3, 4)] == [0.1, 0.2, 0.4, 0.8]
    assert pause_s(10) == pause_s(10**9) == threads.RESTARTS.max_ms / 1_000


def test_a_job_that_fails_is_logged_and_counted_and_no_more(
    ends: Ends, caplog: pytest.LogCaptureFixture
) -> None:
    assert ended(start_job("warm", fail))
    timer = JobTimer("time limit", 0.0, fail)
    timer.start()
    assert ended(timer._thread)
    assert DEATHS.counts() == {"warm": 1, "time limit": 1}
    assert (ends.deaths, DEATHS.down()) == ([], [])
    assert "warm failed" in caplog.text


def test_a_timer_that_is_cancelled_makes_no_call(ends: Ends) -> None:
    timer = JobTimer("time limit", LIMIT_S, fail)
    timer.start()
    timer.cancel()
    assert ended(timer._thread)
    assert DEATHS.counts() == {}


def test_threads_of_others_end_the_process_too(ends: Ends) -> None:
    thread = threading.Thread(target=fail, name="of a library")
    thread.start()
    assert ended(thread)
    (death,) = ends.deaths
    assert "of a library" in death.name
    assert DEATHS.counts() == {"uncaught": 1}

    leaving = threading.Thread(target=lambda: (_ for _ in ()).throw(SystemExit))
    leaving.start()
    assert ended(leaving)
    assert len(ends.deaths) == 1


def test_numbers_in_names_are_no_labels(deaths: Deaths) -> None:
    for number in range(3):
        thread = OwnedThread(f"flow {number}", fail, part="flow")
        thread.start()
        assert ended(thread)
    assert deaths.counts() == {"flow": 3}


def _raise(_death: Death) -> None:
    raise OSError("the listener cannot")


def _hang(_death: Death) -> None:
    threading.Event().wait(LIMIT_S)


@pytest.mark.parametrize("listener", [_raise, _hang])
def test_no_listener_keeps_the_process_from_its_end(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, listener: Callable[[Death], None]
) -> None:
    monkeypatch.setattr(threads, "_REPORT_LIMIT_S", 0.2)
    forget = DEATHS.listen(listener)
    OwnedThread("election", fail).start()
    assert ends.has_ended.wait(120)
    forget()


def test_the_process_ends_where_no_thread_can_be_started(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    thread = OwnedThread("election", fail)

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def body() -> None:
        monkeypatch.setattr(threading.Thread, "start", no_thread)
        fail()

    thread._body = body
    thread.start()
    assert ends.has_ended.wait(120)
    assert "election ended unexpectedly" in caplog.text


def test_calls_of_a_serial_executor_run_in_order_until_it_is_shut_down() -> None:
    executor, seen = SerialExecutor("serial"), list[int]()
    futures = [executor.submit(seen.append, number) for number in range(100)]
    failing = executor.submit(fail)
    assert isinstance(failing.exception(LIMIT_S), MemoryError)
    last = executor.submit(lambda: "the last")
    executor.shutdown()
    assert last.result(0) == "the last"
    assert all(one.done() for one in futures)
    assert seen == list(range(100))
    with pytest.raises(Closed, match="'serial' has ended"):
        executor.submit(fail)
    executor.shutdown()


def test_a_job_of_a_serial_executor_that_fails_is_counted_and_the_next_one_runs(
    deaths: Deaths,
) -> None:
    executor = SerialExecutor("serial")
    executor.start_job(fail)
    assert executor.submit(lambda: "next").result(LIMIT_S) == "next"
    executor.shutdown()
    assert deaths.counts() == {"serial": 1}


def test_an_executor_whose_thread_dies_ends_the_process_and_leaves_no_call_waiting(
    ends: Ends,
) -> None:
    executor, let_go = SerialExecutor("serial"), threading.Event()
    dying: Future[object] = executor.submit(lambda: let_go.wait(LIMIT_S))
    dying.add_done_callback(raise_exit)
    behind = executor.submit(fail)
    let_go.set()
    assert ends.has_ended.wait(LIMIT_S)
    with pytest.raises(CancelledError):
        behind.result(LIMIT_S)
    with pytest.raises(Closed):
        executor.submit(fail)


def raise_exit(_done: Future[object]) -> None:
    raise SystemExit


def test_an_executor_without_a_thread_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(Unavailable, match=r"'serial'.*can't start new thread.*ulimit -u"):
        SerialExecutor("serial")


def test_an_executor_whose_shutdown_raised_is_shut_down_by_the_next_call() -> None:
    """The second call waited without a limit for a thread that nothing told to end."""
    executor, faults = SerialExecutor("serial"), Faults()
    calls = executor._calls
    executor._calls = faults.port(calls)
    with faults.armed(MemoryError, 0):
        executor.shutdown()
    assert faults.raised
    executor._calls = calls
    end = threading.Thread(target=executor.shutdown, daemon=True)
    end.start()
    end.join(120)
    assert not executor._thread.is_alive()


def test_a_thread_that_never_started_is_joined_at_once() -> None:
    OwnedThread("never started", threading.Event().wait).join()


def test_a_body_that_waits_for_a_condition_is_ended_and_joined(ends: Ends) -> None:
    changed, rounds = threading.Condition(), list[bool]()

    def body() -> None:
        while not thread.is_end_expected:
            rounds.append(True)
            with changed:
                if not thread.is_end_expected:
                    changed.wait()

    thread = OwnedThread("waits", body)
    thread.start()
    thread.end(changed)
    assert not thread.is_alive()
    assert len(rounds) <= 1
    assert not ends.deaths
