"""Each state machine of the product: its table."""

from __future__ import annotations

import pytest

from penstock.core.state_machine import Transition
from reference.transitions import MACHINES


@pytest.mark.parametrize("title", MACHINES)
def test_each_state_is_reached(title: str) -> None:
    machine = MACHINES[title].table
    reached, left = set(machine.initial), list(machine.initial)
    while left:
        state = left.pop()
        for event in machine.table:
            outcome = machine.outcome(state, event)
            if isinstance(outcome, Transition) and outcome.state not in reached:
                reached.add(outcome.state)
                left.append(outcome.state)
    assert reached == set(machine.states)


@pytest.mark.parametrize("title", MACHINES)
def test_each_event_does_something_and_each_effect_is_used(title: str) -> None:
    machine = MACHINES[title].table
    cells = {
        event: [machine.outcome(state, event) for state in machine.states]
        for event in machine.table
    }
    idle = [
        event for event, row in cells.items() if not any(isinstance(c, Transition) for c in row)
    ]
    assert idle == []
    used = {
        e for row in cells.values() for c in row if isinstance(c, Transition) for e in c.effects
    }
    kinds = {type(effect) for effect in used}
    assert {effect for kind in kinds for effect in kind} == used


@pytest.mark.parametrize("title", MACHINES)
def test_a_state_that_is_not_final_can_be_left(title: str) -> None:
    machine = MACHINES[title].table
    for state in set(machine.states) - machine.final:
        outcomes = [machine.outcome(state, event) for event in machine.table]
        assert any(isinstance(c, Transition) and c.state != state for c in outcomes), state
