"""Interface of a channel to its consumers: deliveries, and which consumers may take more now.

Owns the set of those that may take more (`Takers`). Does not own their connections, nor their
messages in flight (`inflight`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.message_bodies import arrow_mask

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from penstock.broker.channel.in_flight import InFlight

_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for one consumer; arrays are as long as `messages`, scalars apply to all."""

    messages: pa.BinaryArray
    ids: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.uint16] | int
    times_ns: npt.NDArray[np.int64] | int

    def masked(self, wanted: npt.NDArray[np.bool_]) -> Delivery:
        """Return the messages where `wanted` is true."""
        attempts, times_ns = self.attempts, self.times_ns
        return Delivery(
            self.messages.filter(arrow_mask(wanted)),
            self.ids[wanted],
            attempts if isinstance(attempts, int) else attempts[wanted],
            times_ns if isinstance(times_ns, int) else times_ns[wanted],
        )


class Subscriber(Protocol):
    """A consumer's connection, as seen by its channel.

    Code that lets it take more than before must call `Channel.wake`.

    Attributes:
        number: A positive number, unique since the broker started.
        ready: Maximum number of messages in flight (RDY); 0 while it closes.
        message_timeout_ms: Time-out of its messages.
        sample_rate: Percentage of the messages that it receives; 0: all.
    """

    number: int
    ready: int
    message_timeout_ms: int
    sample_rate: int

    @property
    def writable(self) -> bool:
        """Whether most of the earlier output has been sent."""
        ...

    def deliver(self, batch: Delivery) -> None:
        """Send messages."""
        ...

    def evict(self) -> None:
        """Close the connection: the channel was deleted."""
        ...


class Takers:
    """The consumers of one channel that may take more messages, found without checking all.

    Invariant: every consumer that may take more is in the set. A consumer that no longer may is
    detected and removed when it is checked; so a delivery needs only a few checks, regardless of
    the number of consumers.

    Args:
        in_flight: Messages in flight of the consumers.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._open: OrderedDict[int, Subscriber] = OrderedDict()

    def look(self, subscriber: Subscriber) -> None:
        """Check whether a consumer may take more: a new RDY, a message answered, or output sent."""
        if self._room(subscriber) > 0:
            self._open.setdefault(subscriber.number, subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Remove a consumer that leaves."""
        self._open.pop(subscriber.number, None)

    def served(self, subscriber: Subscriber) -> None:
        """Move a consumer behind those that were served less recently."""
        if subscriber.number in self._open:
            self._open.move_to_end(subscriber.number)

    def first(self) -> list[tuple[Subscriber, int]]:
        """Return up to 64 consumers to serve next, and how many messages each may take.

        Consumers with the most free capacity come first, so that few messages go to the least busy.
        """
        found: list[tuple[Subscriber, int]] = []
        while self._open and not found:
            for subscriber in tuple(islice(self._open.values(), _AT_ONCE)):
                room = self._room(subscriber)
                if room > 0:
                    found.append((subscriber, room))
                else:
                    del self._open[subscriber.number]
        if len(found) > 1:
            found.sort(key=lambda taker: -taker[1])
        return found

    def _room(self, subscriber: Subscriber) -> int:
        if not subscriber.ready or not subscriber.writable:
            return 0
        return subscriber.ready - self._in_flight.of(subscriber.number)
