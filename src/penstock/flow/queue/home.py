"""What a queue needs of the FlowFile repository: where FlowFiles are durable.

Owns the protocol and the value that names a swap file. Does not own the files (`repository`) nor
their bytes (`swap.swapfile`).

Invariants that both sides keep:

- A FlowFile has one home: the journal, or one row of one swap file. `swap_out` moves the home of
  all that it is given, wherever it was; reading a row moves nothing.
- A row of a swap file is in one of three states: in the file alone (the queue may hand it out),
  loaded (told by `loaded`: it is handed out, or held by the queue as a FlowFile like any other), or
  done with. The repository learns of the end of a loaded one by the commit that removes or changes
  it, and of the others by `drop_rows`, `discard` and `damaged`. When all rows are done with, the
  repository deletes the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.flow.flowfile import FlowFile
from penstock.flow.swap.swapfile import SwapReader, SwapSummary
from penstock.storage.content.claims import ResourceClaim


@dataclass(frozen=True, slots=True)
class SwapFile:
    """A swap file that the journal knows.

    Attributes:
        name: Its name, which no other swap file of the repository ever has.
        summary: What its head says.
    """

    name: str
    summary: SwapSummary


@dataclass(frozen=True, slots=True)
class RestoredSwapFile:
    """A swap file as it is found at start.

    Attributes:
        file: Which.
        done: Numbers of the rows that are done with, or whose home is elsewhere by now.
    """

    file: SwapFile
    done: Sequence[int] = ()


class SwapHome(Protocol):
    """The repository as a queue sees it.

    All may be called from many threads. `loaded` and `open` are called while the queue's mutex is
    held, so they never call a queue; `loaded` is work in memory only. The others are called without
    that mutex.
    """

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFile:
        """Write FlowFiles to one swap file and make it their home: file, fsync, one journal record.

        Args:
            queue: Id of the queue they are in.
            flowfiles: In the order in which they are to be handed out.
            order: By what they are sorted, see `SwapSummary.order`.

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def open(self, file: SwapFile) -> SwapReader:
        """Open a swap file for reading; the caller closes it.

        Raises:
            NotFound: It is not there.
            CorruptData: It is no swap file any more, not a single page of it.
            Unavailable: It cannot be read now.
        """
        ...

    def loaded(self, file: SwapFile, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Learn that these rows are FlowFiles in memory from now on; they keep their home.

        Args:
            file: Where they are.
            rows: Numbers of the rows.
            ids: The FlowFiles' ids, in the same order.
        """
        ...

    def drop_rows(
        self, file: SwapFile, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        """Record that rows that were never loaded are gone (expired or dropped).

        Args:
            file: Where they are.
            rows: Numbers of the rows, ascending.
            claims: How many of these rows refer to each resource claim.

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def discard(self, file: SwapFile) -> None:
        """Record that all rows of a file that are not loaded are gone (dropped).

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        """Record that FlowFiles in memory are gone (dropped), wherever their home is.

        Raises:
            Unavailable: Nothing was changed.
        """
        ...

    def damaged(self, file: SwapFile, rows: Sequence[int], reason: str) -> None:
        """Learn that rows that were never loaded cannot be read and are lost.

        Counted, an event, and what is left of the file is kept beside as `*.bad`. Never raises for
        a disk that does not work.
        """
        ...
