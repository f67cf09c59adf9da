"""Summary of a NiFi swap file of any format.

Owns the two values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.errors import CorruptData
from penstock.flow.flowfile import FlowFile
from penstock.storage.content.claims import ResourceClaim


@dataclass(frozen=True, slots=True)
class NifiSwapSummary:
    """Summary in the file, which is not checked against its content.

    Attributes:
        queue: Id of the connection.
        count: Number of FlowFiles.
        size_bytes: Sum of their content sizes.
        max_id: Highest id; -1 if there is none, None if the format does not contain it.
        min_queued_ms: When the first was queued; None if the format does not contain it.
        total_queued_ms: Sum of these times; None if the format does not contain it.
        resource_claims: Number of FlowFiles that refer to each content file; empty in formats
            before 1.1.
    """

    queue: str
    count: int
    size_bytes: int
    max_id: int | None = None
    min_queued_ms: int | None = None
    total_queued_ms: int | None = None
    resource_claims: dict[ResourceClaim, int] = field(default_factory=dict)


class NifiSwapFile(Protocol):
    """Open NiFi swap file.

    Attributes:
        format: Its format, such as `schema V3` or `legacy 9`.
        summary: Its summary.
        damage: Position of the damage; known when `batches` has ended.
        read_count: FlowFiles read so far.
        absent: Fields of FlowFiles that the file does not contain; they were filled in.
    """

    absent: frozenset[str]
    format: str
    summary: NifiSwapSummary
    damage: CorruptData | None
    read_count: int

    @property
    def missing_count(self) -> int:
        """Return the number of FlowFiles that are missing in the file, after all were read."""
        ...

    def batches(self, size: int) -> Iterator[list[FlowFile]]:
        """Read the FlowFiles, in the order of the file: NiFi writes the first of the queue last."""
        ...
