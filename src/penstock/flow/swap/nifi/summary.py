"""What is known of one of NiFi's swap files, of whatever format. Owns the two values alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.storage.content.claims import ResourceClaim


@dataclass(frozen=True, slots=True)
class NifiSwapSummary:
    """What a file says of itself, which is not checked against what it holds.

    Attributes:
        queue: Id of the connection.
        count: FlowFiles in it.
        size_bytes: Of their contents together.
        max_id: The greatest id; -1 if there is none, None if the format does not say.
        min_queued_ms: When the first was queued; None if the format does not say.
        total_queued_ms: Sum of these times; None if the format does not say.
        resource_claims: How many of them refer to each file of content; empty in formats before
            1.1.
    """

    queue: str
    count: int
    size_bytes: int
    max_id: int | None = None
    min_queued_ms: int | None = None
    total_queued_ms: int | None = None
    resource_claims: dict[ResourceClaim, int] = field(default_factory=dict)


class NifiSwapFile(Protocol):
    """A file that is read.

    Attributes:
        format: Which one it is, such as `schema V3` or `legacy 9`.
        summary: What it says of itself.
        damage: Where it is damaged; known when `batches` has come to its end.
        read_count: FlowFiles read so far.
        absent: Fields of FlowFiles that the file does not hold; they were filled in.
    """

    absent: frozenset[str]
    format: str
    summary: NifiSwapSummary
    damage: CorruptData | None
    read_count: int

    @property
    def missing_count(self) -> int:
        """Return how many FlowFiles the file should hold and does not, when all was read."""
        ...

    def batches(self, size: int) -> Iterator[list[FlowFile]]:
        """Read the FlowFiles, in the order of the file: NiFi writes the first to go last."""
        ...
