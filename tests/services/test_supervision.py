"""When a child is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.services.host.restart_policy import (
    BACK_OFF,
    ENDS_BEFORE_READY_MAX,
    FLOW_ENDS_MAX,
    INVALID_OPTIONS,
    STEADY_S,
    ChildLife,
    next_wait_s,
)

FIRST_S = BACK_OFF.initial_ms / 1_000


def test_the_back_off_doubles_and_is_forgotten_after_a_steady_run() -> None:
    life = ChildLife("worker")
    assert life.due(0)
    life.on_started(0)
    assert not life.due(1_000)
    assert life.on_ended(1) == FIRST_S
    assert not life.due(1)
    assert life.due(1 + FIRST_S)
    life.on_started(2)
    assert life.restarts == 1
    assert life.on_ended(3) == 2 * FIRST_S
    life.on_started(4)
    assert life.on_ended(4 + STEADY_S) == FIRST_S


def test_starts_that_fail_after_a_steady_run_are_tried_less_and_less_often() -> None:
    life = ChildLife("worker")
    life.on_started(0.0)
    waits = [life.on_ended(100.0 + number) for number in range(4)]
    assert waits == [FIRST_S * 2**number for number in range(4)]


def test_it_is_given_up_only_before_everything_was_ready() -> None:
    life = ChildLife("spark")
    for turn in range(ENDS_BEFORE_READY_MAX):
        life.on_started(turn)
        life.on_ended(turn)
    assert life.is_unrecoverable(1, was_ready=False)
    assert not life.is_unrecoverable(1, was_ready=True)


def test_a_process_that_was_never_ready_is_given_up_however_long_it_ran() -> None:
    """A JVM that fails at its start may need more than a minute for that."""
    life = ChildLife("spark")
    for turn in range(ENDS_BEFORE_READY_MAX):
        life.on_started(turn * 100)
        life.on_ended(turn * 100 + 2 * STEADY_S, was_ready=False)
    assert life.is_unrecoverable(1, was_ready=False)


def test_a_flow_is_given_up_only_after_a_start_without_its_components() -> None:
    life = ChildLife("flow", ends_before_ready_max=FLOW_ENDS_MAX + 1)
    for turn in range(FLOW_ENDS_MAX):
        life.on_started(turn)
        life.on_ended(turn)
        assert not life.is_unrecoverable(70, was_ready=False)
    life.on_started(9)
    life.on_ended(9)
    assert life.is_unrecoverable(70, was_ready=False)


def test_a_wrong_option_is_given_up_at_once() -> None:
    life = ChildLife("overlord")
    life.on_started(0)
    life.on_ended(1)
    assert life.is_unrecoverable(INVALID_OPTIONS, was_ready=False)
    assert not life.is_unrecoverable(INVALID_OPTIONS, was_ready=True)
    assert not life.is_unrecoverable(1, was_ready=False)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_waits_are_bounded_and_each_start_but_the_first_is_counted(runs: list[float]) -> None:
    life = ChildLife("x")
    now_s = 0.0
    for ran_s in runs:
        life.on_started(now_s)
        now_s += ran_s
        wait_s = life.on_ended(now_s)
        assert 0 < wait_s <= BACK_OFF.max_ms / 1_000
        assert next_wait_s([life], now_s, 60) <= wait_s + 1e-6
        now_s += wait_s
        assert life.due(now_s + 1e-6)
    assert life.restarts == max(0, len(runs) - 1)
