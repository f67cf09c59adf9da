"""The lifecycle of a component: every sequence of events that its table and its owner allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from penstock.core.state_machine import Refusal, Transition
from penstock.flow.scheduling.component_lifecycle import (
    COMPONENT_MACHINE,
    ComponentEvent,
    DesiredState,
    Effect,
    LifecycleState,
)

S, E = LifecycleState, ComponentEvent

REQUESTS = (E.START, E.RUN_ONCE, E.STOP, E.TERMINATE, E.ENABLE, E.DISABLE)
# Events that the owner reports once an effect was carried out.
ANSWERS = {
    Effect.BEGIN: (E.READY, E.FAILED),
    Effect.WAIT: (E.RETRY_DUE,),
    Effect.UNSCHEDULE: (E.DRAINED,),
    Effect.FINISH: (E.FINISHED,),
}


@dataclass(frozen=True)
class Story:
    """State of the machine, and what its owner does at that moment.

    Attributes:
        state: State of the machine.
        under_way: Effect that was begun and has not been answered.
        acquired: The component has resources, since `READY`.
        waiters: Callers wait for its end.
    """

    state: LifecycleState = S.STOPPED
    under_way: Effect | None = None
    acquired: bool = False
    waiters: bool = False

    def events(self) -> Iterator[ComponentEvent]:
        """Return the events that its owner may report now."""
        yield from REQUESTS
        if self.under_way is not None:
            yield from ANSWERS[self.under_way]
        if self.state.is_once:
            yield E.SINGLE_RUN_ENDED

    def after(self, event: ComponentEvent) -> Story:
        """Return what an event makes of it, and check the order of the effects."""
        outcome = COMPONENT_MACHINE.transition(self.state, event)
        if isinstance(outcome, Refusal):
            assert event in REQUESTS
            return self
        now = replace(self, state=outcome.state)
        if event not in REQUESTS and event is not E.SINGLE_RUN_ENDED:
            now = replace(now, under_way=None)
        if event is E.READY:
            now = replace(now, acquired=True)
        if event is E.FINISHED:
            now = replace(now, acquired=False)
        if event in (E.STOP, E.RUN_ONCE):
            now = replace(now, waiters=True)
        for effect in outcome.effects:
            now = now.carried_out(effect)
        return now.checked()

    def carried_out(self, effect: Effect) -> Story:
        """Return it after its owner began an effect."""
        if effect is Effect.NOTIFY_WAITING:
            return replace(self, waiters=False)
        if effect is Effect.ABANDON:
            return replace(self, under_way=None, acquired=False)
        if effect is Effect.CANCEL_WAIT:
            assert self.under_way is Effect.WAIT
            return replace(self, under_way=None)
        assert self.under_way is None, f"{effect} while {self.under_way} is under way"
        if effect is Effect.SCHEDULE:
            assert self.acquired
            return self
        assert self.acquired == (effect in (Effect.UNSCHEDULE, Effect.FINISH))
        return replace(self, under_way=effect)

    def checked(self) -> Story:
        """Check the invariants."""
        state = self.state
        if state.is_at_rest:
            assert self.under_way is None
            assert not self.acquired
            assert not state.runs
            assert state.desired in (DesiredState.STOPPED, DesiredState.DISABLED)
            return replace(self, waiters=False)  # a request in this state is answered at once
        if state.runs:
            assert self.under_way is None
            assert self.acquired
        else:
            assert self.under_way is not None, "nothing would ever happen"
        assert state.is_stopping <= self.acquired
        assert (self.under_way is Effect.WAIT) == (state is S.RETRYING)
        return self


def test_every_sequence_of_events_keeps_the_invariants_and_reaches_every_cell() -> None:
    """All stories of any length: there are few, as each is only its state and what is under way."""
    known, left, asked = {Story()}, [Story()], set()
    while left:
        story = left.pop()
        for event in story.events():
            asked.add((story.state, event))
            after = story.after(event)
            if after not in known:
                known.add(after)
                left.append(after)
    decided = {
        (state, event)
        for event in E
        for state in S
        if isinstance(COMPONENT_MACHINE.outcome(state, event), Transition)
    }
    assert decided <= asked, "a cell that can never happen"


@pytest.mark.parametrize("state", S)
def test_a_start_or_a_stop_decides_what_the_component_ends_as(state: LifecycleState) -> None:
    for event, desired in [(E.START, DesiredState.RUNNING), (E.STOP, DesiredState.STOPPED)]:
        outcome = COMPONENT_MACHINE.transition(state, event)
        if state is S.DISABLED:
            assert isinstance(outcome, Refusal) == (event is E.START)
        else:
            assert isinstance(outcome, Transition)
            assert outcome.state.desired is desired
