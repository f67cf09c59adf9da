"""The table of a state machine: every pair is decided, and wrong tables are refused."""

from __future__ import annotations

import pytest

from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, Row, StateMachine, Symbol, go


class Door(Symbol):
    OPEN = "open"
    CLOSED = "closed"
    GONE = "gone"


class Event(Symbol):
    PUSH = "push"
    PULL = "pull"
    REMOVE = "remove"


class Effect(Symbol):
    CREAK = "creak"
    SLAM = "slam"


TABLE: dict[Event, Row[Door, Effect]] = {
    Event.PUSH: Row({Door.OPEN: go(Door.CLOSED, Effect.CREAK, Effect.SLAM)}, IGNORED),
    Event.PULL: Row(
        {Door.CLOSED: go(Door.OPEN), Door.OPEN: Refusal("it is open")}, otherwise=IMPOSSIBLE
    ),
    Event.REMOVE: Row({Door.OPEN: go(Door.GONE), Door.CLOSED: go(Door.GONE)}, otherwise=IMPOSSIBLE),
}


def test_a_pair_has_one_outcome() -> None:
    door = StateMachine(Door, TABLE, initial=[Door.CLOSED], final=[Door.GONE])
    assert door.transition(Door.OPEN, Event.PUSH) == go(Door.CLOSED, Effect.CREAK, Effect.SLAM)
    assert door.transition(Door.CLOSED, Event.PUSH) == go(Door.CLOSED)
    assert door.transition(Door.OPEN, Event.PULL) == Refusal("it is open")
    assert door.outcome(Door.CLOSED, Event.PUSH) is IGNORED
    assert door.outcome(Door.GONE, Event.PULL) is IMPOSSIBLE
    with pytest.raises(AssertionError, match=r"PULL cannot happen in Door\.GONE"):
        door.transition(Door.GONE, Event.PULL)


def test_an_event_without_a_row_is_refused() -> None:
    less = {event: row for event, row in TABLE.items() if event is not Event.PULL}
    with pytest.raises(ValueError, match=r"no row for Event\.PULL"):
        StateMachine(Door, less, initial=[Door.CLOSED])


def test_a_final_state_is_not_left() -> None:
    with pytest.raises(ValueError, match=r"Door\.OPEN is final"):
        StateMachine(Door, TABLE, initial=[Door.CLOSED], final=[Door.OPEN])
