"""Swap store: the part of the FlowFile repository that a queue uses.

Owns the protocol and the value that names a swap file. Does not own the files (`repository`) nor
their bytes (`swap.swap_file`).

Invariants on both sides:

- A FlowFile has one home: the journal, or one row of one swap file. `swap_out` moves the home of
  all given FlowFiles; reading a row does not move it.
- A row of a swap file is in one of three states: only in the file; loaded (reported by `loaded`),
  which means that a session or the queue has it as a FlowFile in memory; or done. A loaded row is
  done after the commit that removes or changes its FlowFile, any other row after a call of
  `drop_rows`, `discard` or `damaged`. When all rows are done, the repository deletes the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.swap_file import SwapReader, SwapSummary
from penstock.storage.content.claims import ResourceClaim


@dataclass(frozen=True, slots=True)
class SwapFileInfo:
    """Swap file that the journal knows.

    Attributes:
        name: Its name, unique in the repository for all time.
        summary: Summary from its head.
    """

    name: str
    summary: SwapSummary


@dataclass(frozen=True, slots=True)
class RestoredSwapFile:
    """Swap file that recovery found.

    Attributes:
        file: The swap file.
        done: Numbers of the rows that are done, or whose home is elsewhere now.
    """

    file: SwapFileInfo
    done: Sequence[int] = ()


class SwapStore(Protocol):
    """Repository as a queue uses it.

    All methods may be called from many threads. `loaded` and `open` are called with the queue's
    mutex held, so they must not call a queue; `loaded` works only in memory. The others are called
    without that mutex.
    """

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFileInfo:
        """Write FlowFiles to a swap file and make it their home: file, fsync, one journal record.

        Args:
            queue: Id of their queue.
            flowfiles: FlowFiles in the order of the queue.
            order: Name of that order, see `SwapSummary.order`.

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def open(self, file: SwapFileInfo) -> SwapReader:
        """Open a swap file for reading; the caller closes it.

        Raises:
            NotFound: The file does not exist.
            CorruptData: The file is not a swap file; no page can be read.
            Unavailable: The file cannot be read now.
        """
        ...

    def loaded(self, file: SwapFileInfo, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Record that these rows are FlowFiles in memory from now on; they keep their home.

        Args:
            file: Their swap file.
            rows: Numbers of the rows.
            ids: Ids of the FlowFiles, in the same order.
        """
        ...

    def drop_rows(
        self, file: SwapFileInfo, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        """Record that rows that were never loaded are removed (expired or dropped).

        Args:
            file: Their swap file.
            rows: Numbers of the rows, ascending.
            claims: Number of these rows that refer to each resource claim.

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def discard(self, file: SwapFileInfo) -> None:
        """Record that all rows of a file that are not loaded are removed (dropped).

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        """Record that FlowFiles in memory are removed (dropped), wherever their home is.

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def damaged(self, file: SwapFileInfo, rows: Sequence[int], reason: str) -> None:
        """Record that rows that were never loaded cannot be read and are lost.

        They are counted, an event is reported, and the rest of the file is kept as `*.bad`. Never
        raises if the disk fails.
        """
        ...
