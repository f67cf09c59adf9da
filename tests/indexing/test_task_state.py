"""The table of a task in the overlord: every walk through it keeps what the module promises."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from penstock.core.state_machine import Refusal, Transition
from penstock.indexing.overlord.task_state import (
    TASK_MACHINE,
    ActiveTaskState,
    TaskEffect,
    TaskEvent,
)

S, E, F = ActiveTaskState, TaskEvent, TaskEffect
AT_WORKER = {S.RESTORED, S.SENDING, S.UNSURE, S.ACCEPTED, S.RUNNING}


@dataclass(frozen=True)
class Facts:
    """Results of the effects of a walk so far."""

    state: ActiveTaskState = S.NEW
    worker: bool = False
    acquiring: bool = False
    yields: bool = False
    returning: bool = False
    end_is_stored: bool = False
    end_is_due: bool = False
    released: bool = False
    notified: bool = False
    shown: ActiveTaskState | None = None


def possible(facts: Facts, event: TaskEvent) -> bool:
    """Whether the owner may report an event, beyond what the state allows."""
    if event is E.END_STORED:
        return facts.end_is_due or facts.end_is_stored
    if event in {E.LOCKS_GRANTED, E.LOCKS_DENIED}:
        return facts.acquiring or event is E.LOCKS_DENIED
    if event is E.NO_WORKER_STORED:
        return facts.returning
    return True


def step(
    facts: Facts, event: TaskEvent, transition: Transition[ActiveTaskState, TaskEffect]
) -> Facts:
    """Carry out a transition on facts; every effect checks what must be true then."""
    before = facts
    facts = replace(facts, state=transition.state)
    if event is E.LOCKS_GRANTED:
        facts = replace(facts, acquiring=False)
    if event is E.SHUT_DOWN:
        facts = replace(facts, end_is_stored=True)
    if event in {E.END_STORED, E.GONE}:
        facts = replace(facts, end_is_stored=True)
    if event is E.NO_WORKER_STORED:
        facts = replace(facts, returning=False)
    for effect in transition.effects:
        match effect:
            case F.ACQUIRE_LOCKS:
                assert not facts.worker
                facts = replace(facts, acquiring=True, yields=True)
            case F.STOP_ACQUIRING:
                assert facts.released or facts.state is S.RUNNING
                facts = replace(facts, acquiring=False)
            case F.LET_LOCKS_YIELD:
                assert not facts.worker
                facts = replace(facts, yields=True)
            case F.KEEP_LOCKS:
                facts = replace(facts, yields=False)
            case F.ASSIGN_WORKER:
                assert not facts.worker or event is E.WORKER_RENAMED
                facts = replace(facts, worker=True)
            case F.CLEAR_WORKER:
                assert facts.worker
                facts = replace(facts, worker=False)
            case F.STORE_NO_WORKER:
                facts = replace(facts, returning=True)
            case F.SEND:
                assert (event, facts.worker) == (E.WORKER_STORED, True)
                assert not facts.yields
            case F.STORE_END:
                assert not facts.end_is_due, "the first end stands"
                assert not facts.end_is_stored
                facts = replace(facts, end_is_due=True)
            case F.RELEASE_LOCKS:
                assert facts.end_is_stored
                assert not facts.released
                facts = replace(facts, released=True)
            case F.LEAVE_WORKER:
                assert facts.end_is_stored
                facts = replace(facts, worker=False)
            case F.NOTIFY:
                assert facts.released
                assert not facts.notified
                facts = replace(facts, notified=True)
            case F.PLACE_TASKS:
                assert facts.released or facts.state is not S.ENDED
            case F.PUBLISH:
                facts = replace(facts, shown=facts.state)
            case _:
                pass
    moved = before.state is not facts.state and facts.state not in {S.ENDING, S.ENDED}
    assert not moved or facts.shown is facts.state, "users see the state"
    return facts


def check(facts: Facts) -> None:
    """Check what is true between two events."""
    state = facts.state
    if state in AT_WORKER:
        assert facts.worker
        assert not facts.acquiring
        assert state is S.RESTORED or not facts.yields
    if state in {S.WAITING, S.PENDING}:
        assert not facts.worker
    if state is S.PENDING:
        assert not facts.acquiring
    assert facts.released == facts.notified == (state is S.ENDED)
    assert not facts.end_is_due or state in {S.ENDING, S.ENDED}


def test_every_walk_keeps_the_invariants() -> None:
    seen = {Facts()}
    left = [Facts()]
    while left:
        facts = left.pop()
        check(facts)
        for event in TaskEvent:
            outcome = TASK_MACHINE.outcome(facts.state, event)
            if isinstance(outcome, Transition) and possible(facts, event):
                after = step(facts, event, outcome)
                if after not in seen:
                    seen.add(after)
                    left.append(after)
    assert {facts.state for facts in seen} == set(S)


def test_a_task_that_is_ending_gets_no_other_end() -> None:
    for event in TaskEvent:
        outcome = TASK_MACHINE.outcome(S.ENDING, event)
        if isinstance(outcome, Transition):
            assert F.STORE_END not in outcome.effects
            assert outcome.state in {S.ENDING, S.ENDED}
    assert isinstance(TASK_MACHINE.transition(S.ENDING, E.SHUT_DOWN), Refusal)


@pytest.mark.parametrize("event", [E.ACCEPTED, E.REFUSED, E.WORKER_FULL, E.UNANSWERED])
def test_an_answer_to_a_task_that_went_on_meanwhile_does_nothing(event: TaskEvent) -> None:
    for state in (S.RUNNING, S.ENDING, S.ENDED):
        assert TASK_MACHINE.transition(state, event) == Transition(state)


@pytest.mark.parametrize("state", [s for s in S if s not in AT_WORKER])
def test_only_a_task_at_a_worker_can_be_absent_or_lost_there(state: ActiveTaskState) -> None:
    if state is S.ENDING:
        for event in (E.ABSENT, E.WORKER_LOST):
            assert TASK_MACHINE.transition(state, event) == Transition(state)
        return
    for event in (E.ABSENT, E.WORKER_LOST):
        with pytest.raises(AssertionError, match="cannot happen"):
            TASK_MACHINE.transition(state, event)
