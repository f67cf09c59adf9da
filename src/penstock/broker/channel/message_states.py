"""States of the messages of a channel, for display.

Owns the names of the states. Changes nothing.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from penstock.broker import message_id
from penstock.broker.time_slicing import TimeSlices

if TYPE_CHECKING:
    from penstock.broker.channel.channel_state import ChannelState

_WAITING_PER_TURN: Final = 5_000


class MessageState(StrEnum):
    """State of a message in a channel.

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
    held = state.in_flight.find(number)
    if held is not None:
        return MessageSight(MessageState.IN_FLIGHT, *held)
    waiting = state.retries.find(number)
    if waiting is not None:
        due_ms, attempts = waiting
        kind = MessageState.REQUEUED if attempts else MessageState.DEFERRED
        return MessageSight(kind, attempts, due_ms)
    if offset in state.progress[partition].done:
        return MessageSight(MessageState.FINISHED)
    return MessageSight(MessageState.DEFERRED if due_ms else MessageState.NEW, due_ms=due_ms)


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
