"""State machine of a client's connection: which command is allowed when, as in NSQ.

Owns the states of a connection, and the refusal of a command that its state does not allow. The
effects of commands are carried out by `penstock.broker.tcp.command_handler`, those of events that
end the connection by `penstock.broker.tcp.output_buffer`, and those of all other events by
`penstock.broker.tcp.tcp_connection`.

Difference from NSQ: a second IDENTIFY is refused, because the connection was already upgraded.
"""

from __future__ import annotations

from typing import Final

from penstock.broker.protocol import commands as c
from penstock.core.state_machine import (
    IGNORED,
    IMPOSSIBLE,
    Refusal,
    Row,
    StateMachine,
    Symbol,
    Transition,
    Unchanged,
    go,
)


class ClientState(Symbol):
    """State of a connection."""

    NEW = "new"
    IDENTIFIED = "identified"
    UPGRADING = "upgrading"
    """It changes to TLS: no command runs, and nothing else is read or sent."""
    SUBSCRIBED = "subscribed"
    CLOSING = "closing"
    """The client sent CLS: it receives no further messages."""
    TLS_REQUIRED = "TLS required"
    """New, and the server requires TLS: only IDENTIFY is allowed."""
    TLS_MISSED = "TLS missed"
    """Identified without TLS, which the server requires: no command is allowed."""
    CLOSED = "closed"
    """No command runs, and no further output is accepted."""


class ClientEvent(Symbol):
    """A command of the client, by its name in the protocol, or another event."""

    IDENTIFY = "IDENTIFY"
    AUTH = "AUTH"
    SUB = "SUB"
    RDY = "RDY"
    FIN = "FIN"
    REQ = "REQ"
    TOUCH = "TOUCH"
    CLS = "CLS"
    PUB = "PUB"
    MPUB = "MPUB"
    DPUB = "DPUB"
    NOP = "NOP"
    SETTINGS_AGREED = "settings agreed, without TLS or compression"
    COMPRESSION_AGREED = "settings agreed, with compression"
    TLS_AGREED = "settings agreed, with TLS"
    TLS_STARTED = "TLS started"
    TLS_STARTED_FIRST = "TLS started, compression was agreed"
    SUBSCRIBED = "subscribed"
    HEARTBEAT_DUE = "heartbeat due"
    CLOSE = "error sent, peer silent, evicted, or server stopped"
    ABORT = "peer does not read, output lost, or a close takes too long"
    LOST = "the transport is closed, or a TLS handshake failed"


class ClientEffect(Symbol):
    """A step that follows from an event."""

    # Steps that follow from commands. A step that fails ends the connection, or reports an event.
    NEGOTIATE = "agree on settings; reports the outcome as an event"
    AUTHENTICATE = "query the auth server, and answer"
    SUBSCRIBE = "check permissions and join the channel; reports SUBSCRIBED"
    SET_READY = "set the number of messages the client accepts"
    FINISH = "finish the message"
    REQUEUE = "requeue the message"
    TOUCH = "extend the message's time-out"
    STOP_DELIVERY = "deliver no further messages"
    SEND_CLOSE_WAIT = "send CLOSE_WAIT"
    PUBLISH = "append the message, and answer"
    MULTI_PUBLISH = "append the messages, and answer"
    DEFERRED_PUBLISH = "append the message with a delay, and answer"
    # Steps that follow from other events.
    RESTART_HEARTBEAT = "schedule the next heartbeat"
    SEND_SETTINGS = "send the answer to IDENTIFY"
    START_TLS = "do the TLS handshake; reports the outcome as an event"
    START_COMPRESSION = "compress output and decompress input from here on"
    SEND_OK = "send OK"
    SEND_HEARTBEAT = "send a heartbeat"
    CLOSE_AFTER_OUTPUT = "send the pending output, then close the transport"
    ABORT_TRANSPORT = "close the transport without the pending output"
    DROP_OUTPUT = "drop the pending output, and forget the transport"


_State = ClientState
_Event = ClientEvent
_Effect = ClientEffect
_Cell = Transition[ClientState, ClientEffect] | Refusal | Unchanged
_ClientRow = Row[ClientState, ClientEffect]

_NO_CONSUMER: Final = (_State.NEW, _State.IDENTIFIED)
_CONSUMER: Final = (_State.SUBSCRIBED, _State.CLOSING)


def _allowed(event: ClientEvent, *effects: ClientEffect, states: tuple[_State, ...]) -> _ClientRow:
    """Return the row of a command that changes no state and is allowed in some states."""
    return _command(event, {state: go(state, *effects) for state in states})


def _command(event: ClientEvent, cells: dict[ClientState, _Cell]) -> _ClientRow:
    """Return the row of a command: refused in other states, which never run it before TLS."""
    wrong = f"cannot {event.value} in current state"
    without_tls = Refusal(f"{wrong} (TLS required)")
    never: dict[ClientState, _Cell] = {
        _State.UPGRADING: IMPOSSIBLE,
        _State.CLOSED: IMPOSSIBLE,
        _State.TLS_REQUIRED: without_tls,
        _State.TLS_MISSED: without_tls,
    }
    return Row(never | cells, Refusal(wrong))


def _answered(*effects: ClientEffect) -> _ClientRow:
    """Return the row of an IDENTIFY that is answered, without TLS."""
    first = (_Effect.RESTART_HEARTBEAT, _Effect.SEND_SETTINGS)
    return Row(
        {
            _State.NEW: go(_State.IDENTIFIED, *first, *effects),
            _State.TLS_REQUIRED: go(_State.TLS_MISSED, *first, *effects),
        },
        otherwise=IMPOSSIBLE,
    )


def _tls_started(*effects: ClientEffect) -> _ClientRow:
    return Row(
        {_State.UPGRADING: go(_State.IDENTIFIED, *effects), _State.CLOSED: IGNORED},
        otherwise=IMPOSSIBLE,
    )


def _ended(effect: ClientEffect) -> _ClientRow:
    return Row({state: go(_State.CLOSED, effect) for state in ClientState}, otherwise=IMPOSSIBLE)


_COMPRESS: Final = (_Effect.START_COMPRESSION, _Effect.SEND_OK)
_NO_HEARTBEAT: Final = (_State.UPGRADING, _State.CLOSED)

CONNECTION_MACHINE: Final = StateMachine[ClientState, ClientEvent, ClientEffect](
    ClientState,
    {
        _Event.IDENTIFY: _command(
            _Event.IDENTIFY,
            {
                _State.NEW: go(_State.NEW, _Effect.NEGOTIATE),
                _State.TLS_REQUIRED: go(_State.TLS_REQUIRED, _Effect.NEGOTIATE),
                _State.TLS_MISSED: Refusal("cannot IDENTIFY in current state"),
            },
        ),
        _Event.AUTH: _allowed(_Event.AUTH, _Effect.AUTHENTICATE, states=_NO_CONSUMER),
        _Event.SUB: _allowed(_Event.SUB, _Effect.SUBSCRIBE, states=_NO_CONSUMER),
        _Event.RDY: _command(
            _Event.RDY,
            {
                _State.SUBSCRIBED: go(_State.SUBSCRIBED, _Effect.SET_READY),
                _State.CLOSING: IGNORED,
            },
        ),
        _Event.FIN: _allowed(_Event.FIN, _Effect.FINISH, states=_CONSUMER),
        _Event.REQ: _allowed(_Event.REQ, _Effect.REQUEUE, states=_CONSUMER),
        _Event.TOUCH: _allowed(_Event.TOUCH, _Effect.TOUCH, states=_CONSUMER),
        _Event.CLS: _command(
            _Event.CLS,
            {_State.SUBSCRIBED: go(_State.CLOSING, _Effect.STOP_DELIVERY, _Effect.SEND_CLOSE_WAIT)},
        ),
        _Event.PUB: _allowed(_Event.PUB, _Effect.PUBLISH, states=_NO_CONSUMER + _CONSUMER),
        _Event.MPUB: _allowed(_Event.MPUB, _Effect.MULTI_PUBLISH, states=_NO_CONSUMER + _CONSUMER),
        _Event.DPUB: _allowed(
            _Event.DPUB, _Effect.DEFERRED_PUBLISH, states=_NO_CONSUMER + _CONSUMER
        ),
        _Event.NOP: _allowed(_Event.NOP, states=_NO_CONSUMER + _CONSUMER),
        _Event.SETTINGS_AGREED: _answered(),
        _Event.COMPRESSION_AGREED: _answered(*_COMPRESS),
        _Event.TLS_AGREED: Row(
            {
                state: go(
                    _State.UPGRADING,
                    _Effect.RESTART_HEARTBEAT,
                    _Effect.SEND_SETTINGS,
                    _Effect.START_TLS,
                )
                for state in (_State.NEW, _State.TLS_REQUIRED)
            },
            otherwise=IMPOSSIBLE,
        ),
        _Event.TLS_STARTED: _tls_started(_Effect.SEND_OK),
        _Event.TLS_STARTED_FIRST: _tls_started(_Effect.SEND_OK, *_COMPRESS),
        _Event.SUBSCRIBED: Row(
            {state: go(_State.SUBSCRIBED, _Effect.SEND_OK) for state in _NO_CONSUMER}
            | {_State.CLOSED: IGNORED},
            otherwise=IMPOSSIBLE,
        ),
        # A connection that is closed still has heartbeats, which end it if it does not read.
        _Event.HEARTBEAT_DUE: Row(
            {
                state: go(state, _Effect.RESTART_HEARTBEAT)
                if state in _NO_HEARTBEAT
                else go(state, _Effect.SEND_HEARTBEAT, _Effect.RESTART_HEARTBEAT)
                for state in ClientState
            },
            otherwise=IMPOSSIBLE,
        ),
        # In CLOSED as in all other states: an exception may have interrupted an earlier end.
        _Event.CLOSE: _ended(_Effect.CLOSE_AFTER_OUTPUT),
        _Event.ABORT: _ended(_Effect.ABORT_TRANSPORT),
        _Event.LOST: _ended(_Effect.DROP_OUTPUT),
    },
    initial=(ClientState.NEW, ClientState.TLS_REQUIRED),
    final=(ClientState.CLOSED,),
)

EVENTS: Final[dict[type, ClientEvent]] = {
    c.Identify: ClientEvent.IDENTIFY,
    c.Authenticate: ClientEvent.AUTH,
    c.Subscribe: ClientEvent.SUB,
    c.Ready: ClientEvent.RDY,
    c.Finish: ClientEvent.FIN,
    c.Requeue: ClientEvent.REQ,
    c.Touch: ClientEvent.TOUCH,
    c.StartClose: ClientEvent.CLS,
    c.Publish: ClientEvent.PUB,
    c.MultiPublish: ClientEvent.MPUB,
    c.DeferredPublish: ClientEvent.DPUB,
    c.Nop: ClientEvent.NOP,
}
"""The events of commands; those of `MalformedIdCommand` and `Malformed` depend on their names."""

COMMANDS_BY_NAME: Final[dict[str, ClientEvent]] = {event.value: event for event in EVENTS.values()}
