"""What sessions did, in numbers.

Owns the value that is summed over sessions. Invariant: what was rolled back or tried again is not
among what came in, went out or was removed; bytes that were read and written are, since they cost.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class SessionStatistics(msgspec.Struct, frozen=True):
    """Counts of FlowFiles, and bytes of content.

    A struct, as every session makes one: a frozen dataclass of so many fields takes ten times as
    long.

    Attributes:
        in_count: Taken from queues, and done with.
        in_bytes: Their content as it was taken.
        out_count: Put into queues, those given back too.
        out_bytes: Their content.
        created_count: Made, cloned ones too, that went out.
        removed_count: Taken, and removed or sent to where they end.
        removed_bytes: Their content as it was taken.
        expired_count: Found expired in a queue, and removed.
        expired_bytes: Their content.
        missing_count: Taken out because their content was gone.
        retried_count: Given back to be tried again.
        read_bytes: Read of content.
        written_bytes: Written of content.
        counters: What the processor counted itself, by name.
    """

    in_count: int = 0
    in_bytes: int = 0
    out_count: int = 0
    out_bytes: int = 0
    created_count: int = 0
    removed_count: int = 0
    removed_bytes: int = 0
    expired_count: int = 0
    expired_bytes: int = 0
    missing_count: int = 0
    retried_count: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    counters: Mapping[str, int] = msgspec.field(default_factory=dict)

    def __add__(self, other: SessionStatistics) -> SessionStatistics:
        """Return the sum."""
        counters = dict(self.counters)
        for name, count in other.counters.items():
            counters[name] = counters.get(name, 0) + count
        return SessionStatistics(
            **{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS},
            counters=counters,
        )

    @property
    def is_idle(self) -> bool:
        """Say whether nothing was done at all."""
        return self == IDLE


_NUMBERS = tuple(n for n in SessionStatistics.__struct_fields__ if n != "counters")
IDLE = SessionStatistics()
