"""Size of a queue, availability of FlowFiles, and back-pressure thresholds.

Owns the values and the text forms of sizes. Invariant: counts and bytes change together, and are
never negative.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from penstock.core.errors import InvalidRequest
from penstock.core.printable import quoted
from penstock.core.whole_numbers import INT64_MAX


class Availability(enum.Enum):
    """Whether a poll would return a FlowFile."""

    AVAILABLE = "available"
    PENALIZED = "penalized"
    EMPTY = "empty"


@dataclass(frozen=True, slots=True)
class QueueSize:
    """Consistent snapshot of a queue's counts and content bytes.

    Attributes:
        active_count: FlowFiles in memory, including penalized ones.
        active_bytes: Their content.
        swapped_count: FlowFiles in swap files, including rows that were read ahead.
        swapped_bytes: Their content.
        unacknowledged_count: FlowFiles taken by sessions that have not ended.
        unacknowledged_bytes: Their content.
        swap_files: Swap files with FlowFiles of this queue.
        penalized_count: FlowFiles, in memory and in swap files, that have a penalty, or had one at
            the last poll.
    """

    active_count: int = 0
    active_bytes: int = 0
    swapped_count: int = 0
    swapped_bytes: int = 0
    unacknowledged_count: int = 0
    unacknowledged_bytes: int = 0
    swap_files: int = 0
    penalized_count: int = 0

    @property
    def count(self) -> int:
        """Return the number of all FlowFiles, including those that sessions took."""
        return self.active_count + self.swapped_count + self.unacknowledged_count

    @property
    def size_bytes(self) -> int:
        """Return the content bytes of all FlowFiles."""
        return self.active_bytes + self.swapped_bytes + self.unacknowledged_bytes

    @property
    def is_empty(self) -> bool:
        """Return whether the queue is empty and no session has FlowFiles of it."""
        return not self.count


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """Options of a connection's queue.

    Attributes:
        swap_threshold: Maximum number of FlowFiles in memory before the queue swaps.
        swap_batch: Number of FlowFiles in one swap file.
        expiration_ms: Age, by the entry date, at which FlowFiles expire; 0: never.
        backpressure_count: Number of FlowFiles at which the queue is full; 0: no limit.
        backpressure_bytes: Content bytes at which the queue is full; 0: no limit.
    """

    swap_threshold: int = 20_000
    swap_batch: int = 10_000
    expiration_ms: int = 0
    backpressure_count: int = 10_000
    backpressure_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for name in ("swap_threshold", "swap_batch"):
            if getattr(self, name) < 1:
                raise InvalidRequest(f"must be at least 1, not {getattr(self, name)}", place=name)
        for name in ("expiration_ms", "backpressure_count", "backpressure_bytes"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"must be 0 or more, not {getattr(self, name)}", place=name)

    def is_full_with(self, count: int, size_bytes: int) -> bool:
        """Return whether a queue of this size is full."""
        return (0 < self.backpressure_count <= count) or (0 < self.backpressure_bytes <= size_bytes)


_SIZE: Final = re.compile(
    r"\s*([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})\s*(B|KB|MB|GB|TB)\s*", re.IGNORECASE
)
_UNITS: Final = {"B": 0, "KB": 10, "MB": 20, "GB": 30, "TB": 40}


def parse_size(text: str) -> int:
    """Return the bytes of a size such as ``1 GB``; units are powers of 1024.

    Raises:
        InvalidRequest: The text is not a size.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{text!r} is not a size: write a number and B, KB, MB, GB or TB, such as '1 GB'"
        )
    number, unit = found.groups()
    size = int(Fraction(number.rstrip(".")) * (1 << _UNITS[unit.upper()]))
    if size > INT64_MAX:
        raise InvalidRequest(f"{quoted(text)} is more than 8 EiB: write a smaller size")
    return size
