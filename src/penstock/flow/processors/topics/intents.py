"""What a publisher is about to publish, written down before it does: pure.

Owns the batches, their sequence numbers and their text in the state. Does not own the publishing
(`publishing`).

    written down (durable) → published with its sequence number → FlowFiles committed, forgotten

After a crash in between the same batch is published with the same number, which the broker takes
once. So each message is there once, whatever was killed.

Invariant: a number is never used for two batches. A publisher whose state is lost has another name,
so that its numbers may begin anew.
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
    """Messages that are published in one go, to one topic.

    Attributes:
        sequence: Its number.
        topic: Where to.
        key: Messages of one key go to one stream partition; empty: any.
        uuids: The FlowFiles whose messages these are, in order.
        start: Of one FlowFile that goes in parts: the first byte.
        end: The byte after the last; as `start`: not decided yet; -1: it does not go in parts.
    """

    sequence: int
    topic: str
    key: str
    uuids: tuple[str, ...]
    start: int = 0
    end: int = -1

    @property
    def goes_in_parts(self) -> bool:
        """Say whether it is a part of one FlowFile."""
        return self.end >= 0

    def part(self, start: int, end: int) -> Batch:
        """Return the batch of a part of its FlowFile."""
        return msgspec.structs.replace(self, start=start, end=end)


_decoder: Final = msgspec.json.Decoder(tuple[Batch, ...])


@dataclass(frozen=True, slots=True)
class Intents:
    """What is written down.

    Attributes:
        producer: The publisher's name at the broker.
        sequence: The last number that was used.
        batches: What may have been published, and whose FlowFiles are not committed.
    """

    producer: str
    sequence: int = 0
    batches: tuple[Batch, ...] = ()

    def open(self, batches: Sequence[Batch]) -> Intents:
        """Return it with batches to publish, which get the next numbers."""
        numbered = tuple(
            msgspec.structs.replace(batch, sequence=number)
            for number, batch in enumerate(batches, self.sequence + 1)
        )
        return replace(self, sequence=self.sequence + len(numbered), batches=numbered)

    def closed(self) -> Intents:
        """Return it with nothing to publish."""
        return replace(self, batches=())

    def state(self) -> dict[str, str]:
        """Return it as text."""
        return {
            _PRODUCER: self.producer,
            _SEQUENCE: str(self.sequence),
            _OPEN: msgspec.json.encode(self.batches).decode(),
        }


def read_intents(state: Mapping[str, str], new_name: str) -> Intents:
    """Return what a state has.

    Args:
        state: As `Intents.state` gave it, or empty.
        new_name: The publisher's name, if it has none.

    Raises:
        CorruptData: It is nothing of the kind.
    """
    if _PRODUCER not in state:
        return Intents(new_name)
    try:
        batches = _decoder.decode(state[_OPEN])
        return Intents(state[_PRODUCER], int(state[_SEQUENCE]), batches)
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise CorruptData("the state of a publisher", 0, str(error)) from None
