"""The state machine of a client's connection: every walk over its table against NSQ's rules."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from penstock.broker.protocol.commands import CommandRefused
from penstock.broker.protocol.connection_state import (
    COMMANDS_BY_NAME,
    CONNECTION_MACHINE,
    ClientEffect,
    ClientEvent,
    ClientState,
)
from penstock.broker.tcp.client_session import ClientSession
from penstock.core.state_machine import IMPOSSIBLE, Refusal, Transition

E = ClientEvent
OF_CONSUMERS = {E.RDY, E.FIN, E.REQ, E.TOUCH, E.CLS}
OF_NO_CONSUMER = {E.SUB, E.IDENTIFY, E.AUTH}
PUBLISHES = {E.PUB, E.MPUB, E.DPUB}
ENDS = {E.CLOSE, E.ABORT, E.LOST}
SETTINGS = {E.SETTINGS_AGREED, E.COMPRESSION_AGREED, E.TLS_AGREED}


@dataclass(frozen=True)
class Facts:
    """A connection as a server without a table would keep it."""

    needs_tls: bool
    identified: bool = False
    tls: bool = False
    upgrading: bool = False
    subscribed: bool = False
    closing: bool = False
    ended: bool = False

    def refusal(self, command: ClientEvent) -> str | None:
        wrong = f"cannot {command.value} in current state"
        if self.needs_tls and not self.tls and command is not E.IDENTIFY:
            return f"{wrong} (TLS required)"
        if command in (OF_NO_CONSUMER if self.subscribed else OF_CONSUMERS):
            return wrong
        if command is E.IDENTIFY and self.identified:
            return wrong
        return wrong if command is E.CLS and self.closing else None

    def after(self, event: ClientEvent) -> Facts:
        if event in SETTINGS:
            return replace(self, identified=True, upgrading=event is E.TLS_AGREED)
        if event in {E.TLS_STARTED, E.TLS_STARTED_FIRST}:
            return replace(self, upgrading=False, tls=True)
        if event is E.CLS:
            return replace(self, closing=True)
        if event is E.SUBSCRIBED:
            return replace(self, subscribed=True)
        return replace(self, ended=True) if event in ENDS else self


Place = tuple[ClientState, Facts]
Walk = tuple[ClientEvent, ...]


def walks() -> Iterator[tuple[ClientState, Facts, Walk]]:
    """Yield every place that walks of any length reach, each with a shortest walk."""
    found: dict[Place, Walk] = {
        (state, Facts(state is ClientState.TLS_REQUIRED)): ()
        for state in CONNECTION_MACHINE.initial
    }
    left = deque(found)
    while left:
        state, facts = left.popleft()
        for event in ClientEvent:
            outcome = CONNECTION_MACHINE.outcome(state, event)
            if isinstance(outcome, Transition):
                place = (outcome.state, facts.after(event))
                if place not in found:
                    found[place] = (*found[state, facts], event)
                    left.append(place)
    assert {state for state, _ in found} == set(ClientState)
    for (state, facts), walk in found.items():
        yield state, facts, walk


def test_each_command_is_refused_exactly_where_nsq_refuses_it() -> None:
    for state, facts, walk in walks():
        for command in COMMANDS_BY_NAME.values():
            outcome = CONNECTION_MACHINE.outcome(state, command)
            if facts.ended or facts.upgrading:
                assert outcome is IMPOSSIBLE, (walk, command)
                continue
            reason = outcome.reason if isinstance(outcome, Refusal) else None
            assert reason == facts.refusal(command), (walk, command)


def test_effects_and_facts_agree_on_every_walk() -> None:
    for state, facts, walk in walks():
        assert (
            facts.subscribed == (state in {ClientState.SUBSCRIBED, ClientState.CLOSING})
            or facts.ended
        ), walk
        assert facts.upgrading == (state is ClientState.UPGRADING) or facts.ended, walk
        for event in ClientEvent:
            outcome = CONNECTION_MACHINE.outcome(state, event)
            if not isinstance(outcome, Transition):
                continue
            effects = set(outcome.effects)
            if event in ENDS:
                assert outcome.state is ClientState.CLOSED
                assert len(effects) == 1, "each end does one thing to the transport"
                continue
            if effects & {ClientEffect.FINISH, ClientEffect.REQUEUE, ClientEffect.TOUCH}:
                assert facts.subscribed
            if effects & {ClientEffect.SET_READY, ClientEffect.STOP_DELIVERY}:
                assert facts.subscribed
                assert not facts.closing
            if facts.ended:
                assert effects <= {ClientEffect.RESTART_HEARTBEAT}, "nothing is sent after the end"
            if facts.upgrading and event not in {E.TLS_STARTED, E.TLS_STARTED_FIRST}:
                assert effects <= {ClientEffect.RESTART_HEARTBEAT}, "nothing is sent beside TLS"
            if ClientEffect.START_TLS in effects:
                assert outcome.effects[-1] is ClientEffect.START_TLS, "its outcome comes later"


@pytest.mark.parametrize("event", [E.SUBSCRIBED, E.TLS_STARTED, E.TLS_STARTED_FIRST])
def test_the_outcome_of_a_step_that_outlives_its_connection_is_ignored(event: ClientEvent) -> None:
    session = ClientSession(0, ClientState.CLOSED)
    assert session.apply(event) == ()
    assert session.closed


def test_a_refused_command_changes_nothing() -> None:
    session = ClientSession(0)
    with pytest.raises(CommandRefused, match="E_INVALID cannot RDY in current state"):
        session.apply(E.RDY)
    assert session.state is ClientState.NEW
