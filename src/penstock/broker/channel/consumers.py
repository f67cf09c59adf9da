"""A channel's consumers as it sees them: what they are sent, and which of them may take more now.

Owns the set of those that may take (`Takers`). Does not own their connections, nor what is in
flight for them (`inflight`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from penstock.broker.messages import arrow_mask

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from penstock.broker.channel.state.inflight import InFlight

_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Delivery:
    """Messages for one consumer; the arrays are as long as `messages`, or stand for all."""

    messages: pa.BinaryArray
    ids: npt.NDArray[np.int64]
    attempts: npt.NDArray[np.uint16] | int
    times_ns: npt.NDArray[np.int64] | int

    def masked(self, wanted: npt.NDArray[np.bool_]) -> Delivery:
        """Return those that are wanted."""
        attempts, times_ns = self.attempts, self.times_ns
        return Delivery(
            self.messages.filter(arrow_mask(wanted)),
            self.ids[wanted],
            attempts if isinstance(attempts, int) else attempts[wanted],
            times_ns if isinstance(times_ns, int) else times_ns[wanted],
        )


class Subscriber(Protocol):
    """A consumer's connection, as its channel sees it.

    Whoever lets it take more than before tells the channel (`Channel.wake`).

    Attributes:
        number: Its number, positive, of no other connection since the broker started.
        ready: How many messages it wants in flight at most (RDY); 0 while it closes.
        message_timeout_ms: How long it may take over a message.
        sample_rate: Percent of the messages that it wants; 0: all.
    """

    number: int
    ready: int
    message_timeout_ms: int
    sample_rate: int

    @property
    def writable(self) -> bool:
        """Say whether what was sent before has left, more or less."""
        ...

    def deliver(self, batch: Delivery) -> None:
        """Send messages."""
        ...

    def evict(self) -> None:
        """Close the connection: the channel is gone."""
        ...


class Takers:
    """The consumers of one channel that may take more, found without asking all of them.

    Invariant: whoever may take is in the set. Who cannot any more is found out when it is asked,
    and goes; so to see whom to give something costs a few looks, however many consumers wait.

    Args:
        in_flight: What they have.
    """

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._open: OrderedDict[int, Subscriber] = OrderedDict()

    def look(self, subscriber: Subscriber) -> None:
        """Look whether a consumer may take more: it says so, has less in flight, or takes bytes."""
        if self._room(subscriber) > 0:
            self._open.setdefault(subscriber.number, subscriber)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a consumer that leaves."""
        self._open.pop(subscriber.number, None)

    def served(self, subscriber: Subscriber) -> None:
        """Let others come first that were not served for longer."""
        if subscriber.number in self._open:
            self._open.move_to_end(subscriber.number)

    def first(self) -> list[tuple[Subscriber, int]]:
        """Return those whose turn it is, at most 64, and how many messages each may take.

        Those that have most room come first, so that few messages go to the least busy.
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
