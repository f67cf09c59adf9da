"""Counts of the work of sessions.

Owns the value that is summed over sessions. Invariant: FlowFiles that were rolled back or retried
do not count as in, out or removed. Their bytes read and written do count, because they were
processed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.flow.session.counters import sum_of


class SessionStatistics(msgspec.Struct, frozen=True):
    """Counts of FlowFiles, and bytes of content.

    A struct, because every session creates one: a frozen dataclass with this many fields takes ten
    times as long.

    Attributes:
        in_count: Taken from queues and processed.
        in_bytes: Content size of those, as taken.
        out_count: Put into queues, including those given back.
        out_bytes: Content size of those.
        created_count: Created or cloned, and put into queues.
        removed_count: Taken, and removed or transferred to an auto-terminated relationship.
        removed_bytes: Content size of those, as taken.
        expired_count: Found expired in a queue, and removed.
        expired_bytes: Content size of those.
        missing_count: Removed because their content was missing.
        retried_count: Given back for a retry.
        read_bytes: Content bytes read.
        written_bytes: Content bytes written.
        counters: Counters of the processor, by name.
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
        return SessionStatistics(
            **{name: getattr(self, name) + getattr(other, name) for name in _NUMBERS},
            counters=sum_of(self.counters, other.counters),
        )

    @property
    def is_idle(self) -> bool:
        """Return whether all counts are zero."""
        return self == IDLE


_NUMBERS = tuple(n for n in SessionStatistics.__struct_fields__ if n != "counters")
IDLE = SessionStatistics()
