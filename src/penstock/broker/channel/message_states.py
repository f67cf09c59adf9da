"""State machine of a message in a channel, and its states as users see them.

`MESSAGE_MACHINE` is the specification of the code that works on ranges of messages: `ChannelState`
has the containers of the states, and `delivery` and `drop_policy` report the events. No object
exists for a message: a test compares that code with the table, message by message. Changes
nothing.

A message has one owner while it is in flight. Only its owner finishes, requeues or touches it; an
answer by another client is refused as in the states without an owner. A seek lets each message
begin again, and an answer to a delivery from before the seek is ignored.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.broker import message_id
from penstock.broker.channel.in_flight import DEAD_LETTERS
from penstock.broker.time_slices import TimeSlices
from penstock.core.state_machine import IGNORED, IMPOSSIBLE, Refusal, Row, StateMachine, Symbol, go

if TYPE_CHECKING:
    from penstock.broker.channel.channel_state import ChannelState

_WAITING_PER_TURN: Final = 5_000


class DeliveryState(Symbol):
    """State of a message in a channel."""

    FRESH = "fresh"
    """Not delivered, and not deferred: at or after `PartitionProgress.next`."""
    IN_FLIGHT = "in flight"
    """A consumer has it: in `ChannelState.in_flight`."""
    DEFERRED = "deferred"
    """It waits for its due time: in `ChannelState.retries`."""
    READY = "ready"
    """It is due, and waits for a consumer; like `DEFERRED` in `ChannelState.retries`."""
    DEAD_LETTERING = "dead-lettering"
    """It is being appended to the dead-letter topic: in flight without a connection."""
    DONE = "done"
    """Finished or dropped: in `PartitionProgress.done`."""


class MessageEvent(Symbol):
    """An event for a message."""

    DELIVERED = "delivered to a consumer"
    DEFERRED = "found to be published with a delay"
    FINISHED = "FIN by its consumer; from any other client it is refused"
    REQUEUED = "REQ by its consumer; from any other client it is refused"
    TOUCHED = "TOUCH by its consumer; from any other client it is refused"
    TIMED_OUT = "time-out passed"
    OWNER_LEFT = "its consumer disconnected, and `requeue_on_disconnect` is set"
    DUE = "due time passed"
    OUT_OF_ATTEMPTS = "over `max_attempts`, without a dead-letter topic"
    DEAD_LETTERED = "over `max_attempts`, with a dead-letter topic"
    DEAD_LETTER_STORED = "dead letter is durable"
    DEAD_LETTER_FAILED = "dead letter could not be appended"
    EXPIRED = "found to be older than the TTL"
    MISSING = "found to be lost or deleted"
    TRIMMED = "over the backlog limit of an ephemeral channel"
    PASSED_OVER = "undelivered, and passed over by a command"
    DELETED = "its log file was deleted by a size limit"
    SOUGHT_BEFORE = "seek to it or to an earlier message"
    SOUGHT_PAST = "seek to a later message, or channel emptied"


class MessageEffect(Symbol):
    """A step that follows from an event; ranges of messages share one."""

    SEND = "send it to the consumer"
    RECORD_NEXT = "advance the first undelivered offset"
    """The journal will contain that earlier messages were delivered."""
    RECORD_WAIT = "store its due time and attempts"
    """The journal will contain its attempts, and when it is due after a crash."""
    RECORD_DONE = "add it to the finished ranges"
    RECORD_SEEK = "store the new position of the channel"
    JOURNAL_SOON = "write the channel's journal soon"
    """The journal is written at once: after a crash it must not be delivered too early."""
    EXTEND_DEADLINE = "extend its time-out"
    PUT_DEAD_LETTER = "append it to the dead-letter topic"
    REMEMBER_DELIVERY = "remember that a consumer has it, so that a late FIN is recognized"
    """The next answer of its owner belongs to this delivery, and is ignored."""
    COUNT_REQUEUED = "count it as requeued"
    COUNT_TIMED_OUT = "count it as timed out"
    COUNT_DROPPED = "count it as dropped, by reason"
    """By reason: too many attempts, dead-lettered, expired, trimmed or lost."""


_State = DeliveryState
_Event = MessageEvent
_Effect = MessageEffect
_MessageRow = Row[DeliveryState, MessageEffect]

_NOT_IN_FLIGHT: Final = Refusal("ID not in flight")
_WAIT_SOON: Final = (_Effect.RECORD_WAIT, _Effect.JOURNAL_SOON)
_DROP: Final = (_Effect.RECORD_DONE, _Effect.COUNT_DROPPED)


def _found(*effects: MessageEffect, fresh: bool = True) -> _MessageRow:
    """Return the row of messages that delivery drops: due ones, and fresh ones."""
    cells = {_State.READY: go(_State.DONE, *effects)}
    if fresh:
        cells[_State.FRESH] = go(_State.DONE, *effects, _Effect.RECORD_NEXT)
    return Row(cells, otherwise=IMPOSSIBLE)


def _sought(state: DeliveryState, *of_owned: MessageEffect) -> _MessageRow:
    """Return the row of a seek; messages that have an owner have further effects."""
    owned = (_State.IN_FLIGHT, _State.DEAD_LETTERING)
    soon = (_Effect.RECORD_SEEK, _Effect.JOURNAL_SOON)
    return Row(
        {one: go(state, *soon, *(of_owned if one in owned else ())) for one in _State},
        otherwise=IMPOSSIBLE,
    )


MESSAGE_MACHINE: Final = StateMachine[DeliveryState, MessageEvent, MessageEffect](
    DeliveryState,
    {
        _Event.DELIVERED: Row(
            {
                _State.FRESH: go(_State.IN_FLIGHT, _Effect.RECORD_NEXT, _Effect.SEND),
                _State.READY: go(_State.IN_FLIGHT, _Effect.RECORD_WAIT, _Effect.SEND),
            },
            otherwise=IMPOSSIBLE,
        ),
        _Event.DEFERRED: Row(
            {_State.FRESH: go(_State.DEFERRED, *_WAIT_SOON, _Effect.RECORD_NEXT)},
            otherwise=IMPOSSIBLE,
        ),
        _Event.FINISHED: Row(
            {_State.IN_FLIGHT: go(_State.DONE, _Effect.RECORD_DONE)}, _NOT_IN_FLIGHT
        ),
        _Event.REQUEUED: Row(
            {_State.IN_FLIGHT: go(_State.DEFERRED, *_WAIT_SOON, _Effect.COUNT_REQUEUED)},
            _NOT_IN_FLIGHT,
        ),
        _Event.TOUCHED: Row(
            {_State.IN_FLIGHT: go(_State.IN_FLIGHT, _Effect.EXTEND_DEADLINE)}, _NOT_IN_FLIGHT
        ),
        _Event.TIMED_OUT: Row(
            {
                state: go(_State.READY, _Effect.COUNT_TIMED_OUT)
                for state in (_State.IN_FLIGHT, _State.DEAD_LETTERING)
            },
            otherwise=IMPOSSIBLE,
        ),
        _Event.OWNER_LEFT: Row({_State.IN_FLIGHT: go(_State.DEFERRED)}, otherwise=IMPOSSIBLE),
        _Event.DUE: Row({_State.DEFERRED: go(_State.READY)}, otherwise=IMPOSSIBLE),
        _Event.OUT_OF_ATTEMPTS: _found(*_DROP, fresh=False),
        _Event.DEAD_LETTERED: Row(
            {_State.READY: go(_State.DEAD_LETTERING, _Effect.RECORD_WAIT, _Effect.PUT_DEAD_LETTER)},
            otherwise=IMPOSSIBLE,
        ),
        # After its time-out or a seek, the message is delivered again, for either outcome.
        _Event.DEAD_LETTER_STORED: Row({_State.DEAD_LETTERING: go(_State.DONE, *_DROP)}, IGNORED),
        _Event.DEAD_LETTER_FAILED: Row(
            {_State.DEAD_LETTERING: go(_State.DEFERRED, *_WAIT_SOON, _Effect.COUNT_REQUEUED)},
            IGNORED,
        ),
        _Event.EXPIRED: _found(*_DROP),
        _Event.MISSING: _found(*_DROP),
        _Event.TRIMMED: Row(
            {_State.FRESH: go(_State.DONE, *_DROP, _Effect.RECORD_NEXT)}, otherwise=IMPOSSIBLE
        ),
        _Event.PASSED_OVER: Row(
            {_State.FRESH: go(_State.DONE, _Effect.RECORD_DONE, _Effect.RECORD_NEXT)}, IGNORED
        ),
        # Consumers may still answer the messages that they have.
        _Event.DELETED: Row(
            {
                _State.FRESH: go(_State.DONE, *_DROP, _Effect.RECORD_NEXT),
                _State.DEFERRED: go(_State.DONE, *_DROP),
                _State.READY: go(_State.DONE, *_DROP),
            },
            IGNORED,
        ),
        _Event.SOUGHT_BEFORE: _sought(_State.FRESH, _Effect.REMEMBER_DELIVERY),
        _Event.SOUGHT_PAST: _sought(_State.DONE),
    },
    initial=(DeliveryState.FRESH,),
)


def delivery_state(state: ChannelState, partition: int, offset: int) -> DeliveryState:
    """Return the state of an existing message."""
    number = message_id.of(partition, offset)
    owner = state.in_flight.owner_of(number)
    if owner:
        return DeliveryState.DEAD_LETTERING if owner == DEAD_LETTERS else DeliveryState.IN_FLIGHT
    if number in state.retries:
        is_ready = state.retries.is_ready(number)
        return DeliveryState.READY if is_ready else DeliveryState.DEFERRED
    is_done = offset in state.progress[partition].done
    return DeliveryState.DONE if is_done else DeliveryState.FRESH


class MessageState(StrEnum):
    """State of a message in a channel, as users see it.

    ``deferred`` messages were never delivered, ``requeued`` ones were; both wait until they are
    due, and then for a consumer.
    """

    NEW = "new"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"
    REQUEUED = "requeued"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class MessageSight:
    """State of one message in a channel.

    Attributes:
        state: Its state.
        attempts: Number of deliveries; not kept for finished messages.
        due_ms: Earliest delivery, or the time-out of its delivery, epoch ms; 0: neither
            applies.
    """

    state: MessageState
    attempts: int = 0
    due_ms: int = 0


def message_states(state: ChannelState, partition: int, offset: int, due_ms: int) -> MessageSight:
    """Return the state of an existing message.

    Args:
        state: State of the channel.
        partition: The message's stream partition.
        offset: Its offset.
        due_ms: Due time with which it was published; 0: at once.
    """
    number = message_id.of(partition, offset)
    match delivery_state(state, partition, offset):
        case DeliveryState.FRESH:
            return MessageSight(MessageState.DEFERRED if due_ms else MessageState.NEW, 0, due_ms)
        case DeliveryState.DONE:
            return MessageSight(MessageState.FINISHED)
        case DeliveryState.IN_FLIGHT | DeliveryState.DEAD_LETTERING:
            held = state.in_flight.find(number)
            assert held is not None
            return MessageSight(MessageState.IN_FLIGHT, *held)
        case DeliveryState.DEFERRED | DeliveryState.READY:
            waiting = state.retries.find(number)
            assert waiting is not None
            due_ms, attempts = waiting
            kind = MessageState.REQUEUED if attempts else MessageState.DEFERRED
            return MessageSight(kind, attempts, due_ms)


async def offsets_in(
    state: ChannelState, kind: MessageState, partition: int, start: int, count: int
) -> list[int]:
    """Return the first offsets from `start` on of messages that are in flight or waiting.

    Very many may wait: they are examined in slices, each in its current state.
    """
    first, last = message_id.of(partition, start), message_id.of(partition + 1, 0)
    if kind is MessageState.IN_FLIGHT:
        ids = state.in_flight.all().ids
        found = ids[(ids >= first) & (ids < last)][:count].tolist()
    else:
        wants_tried = kind is MessageState.REQUEUED
        find, turns = state.retries.find, TimeSlices(_WAITING_PER_TURN)
        waiting_ids = state.retries.ids()
        found = []
        for at in range(0, len(waiting_ids), _WAITING_PER_TURN):
            found += [
                number
                for number in waiting_ids[at : at + _WAITING_PER_TURN]
                if first <= number < last
                and (waiting := find(number)) is not None
                and bool(waiting[1]) == wants_tried
            ]
            found = heapq.nsmallest(count, found)
            await turns.step(_WAITING_PER_TURN)
    return [message_id.split(number)[1] for number in found]
