"""The queue of a connection: FlowFiles in the order of its prioritizers, at any depth.

Owns what is in the queue, in memory and in swap files, and the counts. Does not own where FlowFiles
are durable (`home.SwapHome`), nor what a session does with those it took.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.clock import Clock
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Prioritizer
from penstock.flow.queue.budget import HeapBudget
from penstock.flow.queue.home import RestoredSwapFile, SwapFile, SwapHome
from penstock.flow.queue.size import Availability, QueueOptions, QueueSize
from penstock.storage.content.claims import ResourceClaim


class Verdict(enum.Enum):
    """What a filter says of a FlowFile, and whether it wants to see more."""

    ACCEPT = "accept"
    REJECT = "reject"
    ACCEPT_AND_STOP = "accept and stop"
    REJECT_AND_STOP = "reject and stop"


@dataclass(frozen=True, slots=True)
class ExpiredRows:
    """FlowFiles that expired in a swap file without being loaded; the journal knows already."""

    file: SwapFile
    count: int
    size_bytes: int
    claims: Mapping[ResourceClaim, int]


@dataclass(frozen=True, slots=True)
class Polled:
    """What a poll gave.

    Attributes:
        flowfiles: In order; they count as unacknowledged until `acknowledge`.
        expired: Were in memory and left the queue; the caller has the journal remove them.
        expired_rows: Were swapped and left the queue; removed from the journal by `SwapHome`.
    """

    flowfiles: list[FlowFile]
    expired: list[FlowFile] = field(default_factory=list)
    expired_rows: list[ExpiredRows] = field(default_factory=list)


class QueueListener(Protocol):
    """Who wants to know of a queue; called without its mutex, quick, and never raises."""

    def on_work(self, queue: str) -> None:
        """Learn that something was put that can be polled at once."""
        ...

    def on_space(self, queue: str) -> None:
        """Learn that the queue was full and is not any more."""
        ...


class FlowFileQueue:
    """A priority queue that swaps; used from many threads.

    One mutex is held around work in memory and around reading a window of rows, never around a
    callback or a write.

    Args:
        queue_id: Id of the connection.
        home: Where FlowFiles are durable.
        clock: For penalties and expiration.
        options: Thresholds, expiration and back-pressure.
        budget: Shared by all queues; None: no bound but the threshold.
        background: Runs a job soon, on a thread of its own; None: nothing is read ahead.
    """

    listener: QueueListener | None

    def __init__(
        self,
        queue_id: str,
        home: SwapHome,
        clock: Clock,
        options: QueueOptions | None = None,
        *,
        budget: HeapBudget | None = None,
        background: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        raise NotImplementedError

    def restore(
        self, flowfiles: Sequence[FlowFile], swap_files: Sequence[RestoredSwapFile]
    ) -> None:
        """Take what the repository recovered; once, before anything else."""
        raise NotImplementedError

    def put(self, flowfile: FlowFile) -> None:
        """Add a FlowFile whose home the repository knows."""
        raise NotImplementedError

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles; also those that a session gives back."""
        raise NotImplementedError

    def poll(self) -> Polled:
        """Take the first FlowFile, if there is one that is not penalized."""
        raise NotImplementedError

    def poll_many(self, limit: int) -> Polled:
        """Take up to so many, in order."""
        raise NotImplementedError

    def poll_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
        """Take what a filter accepts; it is shown FlowFiles in order until it wants no more."""
        raise NotImplementedError

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Count what a session took as gone; what it gives back it puts first.

        Args:
            count: FlowFiles that were polled.
            size_bytes: The bytes of their content, as they were polled.
        """
        raise NotImplementedError

    @property
    def size(self) -> QueueSize:
        """Return counts and bytes, consistent with each other."""
        raise NotImplementedError

    @property
    def is_full(self) -> bool:
        """Say whether back-pressure holds the source back."""
        raise NotImplementedError

    def availability(self, now_ms: int) -> Availability:
        """Say, without walking, whether a poll would give something."""
        raise NotImplementedError

    def next_due_ms(self) -> int | None:
        """Return when the first penalty ends, epoch ms; None if nothing is penalized."""
        raise NotImplementedError

    def expire(self) -> Polled:
        """Let go what is expired, in memory and in swap files; `flowfiles` is empty."""
        raise NotImplementedError

    def set_prioritizers(self, prioritizers: Sequence[Prioritizer]) -> None:
        """Order everything anew, swapped FlowFiles too."""
        raise NotImplementedError

    def set_options(self, options: QueueOptions) -> None:
        """Use other thresholds, expiration and limits from now on."""
        raise NotImplementedError

    def list(self, limit: int = 100) -> Sequence[FlowFile]:
        """Return the first ones in the order of polling, penalized ones last."""
        raise NotImplementedError

    def get(self, uuid: str) -> FlowFile | None:
        """Return the FlowFile with this `uuid` attribute, or None."""
        raise NotImplementedError

    def search(
        self, predicate: Callable[[Mapping[str, str]], bool], limit: int = 100
    ) -> Sequence[FlowFile]:
        """Return FlowFiles whose attributes the predicate likes."""
        raise NotImplementedError

    def count_by(self, attribute: str) -> Mapping[str | None, int]:
        """Return how many FlowFiles there are of each value of an attribute; None: without it."""
        raise NotImplementedError


__all__ = [
    "ExpiredRows",
    "FlowFileQueue",
    "Polled",
    "QueueListener",
    "Verdict",
]
