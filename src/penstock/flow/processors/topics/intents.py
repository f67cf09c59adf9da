"""Intents of a publisher: batches that it records before it publishes them. Does no I/O.

Owns the batches, their sequence numbers and their text in the state. Does not own the publishing
(`publishing`).

    recorded (durable) → published with its sequence number → FlowFiles committed, intent removed

After a crash in between, the same batch is published with the same number, and the broker accepts a
number once. So each message is published once, whichever process was killed.

Invariant: a number is never used for two batches. A publisher whose state was lost gets another
name, so that its numbers may restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from penstock.core.errors import CorruptData

_PRODUCER: Final = "producer"
_SEQUENCE: Final = "sequence"
_OPEN: Final = "open"


class Batch(msgspec.Struct, frozen=True):
    """Batch of messages for one topic.

    Attributes:
        sequence: Sequence number.
        topic: The topic.
        key: Messages with the same key go to the same stream partition; empty: any.
        uuids: FlowFiles of the messages, in order.
        start: First byte, for one FlowFile that is published in parts.
        end: Byte after the last; equal to `start`: not decided yet; -1: not published in parts.
    """

    sequence: int
    topic: str
    key: str
    uuids: tuple[str, ...]
    start: int = 0
    end: int = -1

    @property
    def goes_in_parts(self) -> bool:
        """Return whether it is a part of one FlowFile."""
        return self.end >= 0

    def part(self, start: int, end: int) -> Batch:
        """Return the batch of a part of its FlowFile."""
        return msgspec.structs.replace(self, start=start, end=end)


_decoder: Final = msgspec.json.Decoder(tuple[Batch, ...])


@dataclass(frozen=True, slots=True)
class Intents:
    """Recorded intents.

    Attributes:
        producer: Name of the publisher at the broker.
        sequence: Last number used.
        batches: Batches that may have been published, and whose FlowFiles are not committed.
    """

    producer: str
    sequence: int = 0
    batches: tuple[Batch, ...] = ()

    def open(self, batches: Sequence[Batch]) -> Intents:
        """Return a copy with batches to publish, which get the next numbers."""
        numbered = tuple(
            msgspec.structs.replace(batch, sequence=number)
            for number, batch in enumerate(batches, self.sequence + 1)
        )
        return replace(self, sequence=self.sequence + len(numbered), batches=numbered)

    def closed(self) -> Intents:
        """Return a copy without batches."""
        return replace(self, batches=())

    def state(self) -> dict[str, str]:
        """Return the intents as state."""
        return {
            _PRODUCER: self.producer,
            _SEQUENCE: str(self.sequence),
            _OPEN: msgspec.json.encode(self.batches).decode(),
        }


def read_intents(state: Mapping[str, str], new_name: str) -> Intents:
    """Return the intents of a state.

    Args:
        state: Result of `Intents.state`, or empty.
        new_name: Name of the publisher, if the state has none.

    Raises:
        CorruptData: The state is invalid.
    """
    if _PRODUCER not in state:
        return Intents(new_name)
    try:
        batches = _decoder.decode(state[_OPEN])
        return Intents(state[_PRODUCER], int(state[_SEQUENCE]), batches)
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise CorruptData("the state of a publisher", 0, str(error)) from None
