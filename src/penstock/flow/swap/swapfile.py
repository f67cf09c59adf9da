"""Our own swap files: FlowFiles of one queue, sorted, in columnar pages that verify one by one.

Owns the container: its parts, writing it durably, finding and checking what is in it. Does not own
the columns in a page (`columnar`), NiFi's files (`nifi`), nor which files are valid (`repository`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import msgspec
import numpy as np
import numpy.typing as npt

from penstock.flow.flowfile import FlowFile
from penstock.storage.content.claims import ResourceClaim
from penstock.storage.filesystem import FileSystem


class SwapSummary(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a swap file without reading its rows.

    Attributes:
        queue: Id of the queue.
        count: FlowFiles in it.
        size_bytes: Sum of their content's sizes.
        max_id: The greatest id, -1 if there is none.
        order: By what the rows are sorted: names and arguments of the prioritizers.
        min_queued_ms: The earliest date of entry into a queue, epoch ms; 0 if there is none.
        total_queued_ms: Sum of these dates.
        min_entry_ms: The earliest date of entry into this system, epoch ms; 0 if there is none.
        resource_claims: How many rows refer to each resource claim.
    """

    queue: str
    count: int
    size_bytes: int
    max_id: int
    order: str
    min_queued_ms: int
    total_queued_ms: int
    min_entry_ms: int
    resource_claims: tuple[tuple[ResourceClaim, int], ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """FlowFiles that were read, with the numbers of their rows.

    Attributes:
        numbers: Row numbers, as many as FlowFiles.
        flowfiles: In the order asked for.
        lost: Row numbers that were asked for and lie in damaged pages.
    """

    numbers: npt.NDArray[np.int64]
    flowfiles: list[FlowFile]
    lost: npt.NDArray[np.int64]


def write_swap_file(
    fs: FileSystem, path: str, queue: str, order: str, flowfiles: Sequence[FlowFile]
) -> SwapSummary:
    """Write a swap file durably: `.part`, fsync, rename, fsync of the folder.

    Args:
        fs: The file system.
        path: Where it is to be.
        queue: Id of the queue.
        order: By what they are sorted.
        flowfiles: At least one, sorted.

    Raises:
        InvalidRequest: A FlowFile holds text that cannot be written.
        Unavailable: Disk full or I/O error; nothing is there then (but for what a `.part` leaves).
    """
    raise NotImplementedError


class SwapReader:
    """Reads a swap file by rows and by columns, page by page.

    Attributes:
        summary: What the head says; None if the head is damaged and its pages were searched for.
        count: Rows in it, damaged ones included as far as known.
    """

    summary: SwapSummary | None
    count: int

    @classmethod
    def open(cls, fs: FileSystem, path: str) -> Self:
        """Open a file and check its head.

        Raises:
            NotFound: It is not there.
            InvalidRequest: It is a swap file of another serializer or of a newer format.
            CorruptData: Neither head nor any page verifies.
            Unavailable: It cannot be read now.
        """
        raise NotImplementedError

    def read(self, start: int, end: int) -> Rows:
        """Return the rows [start, end)."""
        raise NotImplementedError

    def take(self, rows: npt.NDArray[np.int64]) -> Rows:
        """Return rows by their numbers, in the order given."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        raise NotImplementedError
