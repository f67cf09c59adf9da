"""What state each message of a channel is in, for people who look.

Owns the names of the states. Takes nothing and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.broker import messageid

if TYPE_CHECKING:
    from penstock.broker.channel.state import ChannelState


class MessageState(StrEnum):
    """Where a message stands in a channel.

    ``deferred`` was never delivered, ``requeued`` was; both wait until they are due, and then for a
    consumer.
    """

    NEW = "new"
    IN_FLIGHT = "in_flight"
    DEFERRED = "deferred"
    REQUEUED = "requeued"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Sight:
    """One message as a channel knows it.

    Attributes:
        state: Where it stands.
        attempts: How often it was delivered; of finished ones that is not kept.
        due_ms: When it may be delivered, or when the time of its consumer is over, epoch ms; 0:
            there is no such time.
    """

    state: MessageState
    attempts: int = 0
    due_ms: int = 0


def look(state: ChannelState, partition: int, offset: int, due_ms: int) -> Sight:
    """Return how a message stands that is there.

    Args:
        state: What the channel knows.
        partition: The message's stream partition.
        offset: Its offset.
        due_ms: When it was to be due when it was published; 0: at once.
    """
    number = messageid.of(partition, offset)
    held = state.in_flight.find(number)
    if held is not None:
        return Sight(MessageState.IN_FLIGHT, *held)
    waiting = state.retries.find(number)
    if waiting is not None:
        due_ms, attempts = waiting
        kind = MessageState.REQUEUED if attempts else MessageState.DEFERRED
        return Sight(kind, attempts, due_ms)
    if offset in state.done[partition]:
        return Sight(MessageState.FINISHED)
    return Sight(MessageState.DEFERRED if due_ms else MessageState.NEW, due_ms=due_ms)


def offsets_in(state: ChannelState, kind: MessageState, partition: int, start: int) -> list[int]:
    """Return the offsets from `start` on of messages that were given out and are not done."""
    if kind is MessageState.IN_FLIGHT:
        ids = state.in_flight.all().ids.tolist()
    else:
        wants_tried = kind is MessageState.REQUEUED
        ids = [number for number, _, tries in state.retries if bool(tries) == wants_tried]
    first, last = messageid.of(partition, start), messageid.of(partition + 1, 0)
    return sorted(messageid.split(number)[1] for number in ids if first <= number < last)
