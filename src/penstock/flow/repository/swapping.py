"""What queues swap to: the `SwapHome` of a repository.

Owns the order of steps when FlowFiles move to a swap file, and what is recorded of rows. Does not
own which files count (`state`), the commits (`committing`), nor the bytes (`swap.swapfile`).

Invariants:

- Until the record of a new file is durable, the home of its FlowFiles is where it was; a file
  without a record is deleted, or set aside by the next start.
- One record per file, whatever it holds.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.core.errors import CorruptData, PenstockError, counted
from penstock.flow.queue.home import SwapFile
from penstock.flow.repository.changes import Changes
from penstock.flow.repository.counting import references_of
from penstock.flow.swap.swapfile import SwapReader, write_swap_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.committing import Committer
    from penstock.flow.repository.swapfolder import SwapFolder
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)


class SwapFiles:
    """The swap files of a repository; a `SwapHome`. Used from many threads, holds no mutex.

    Args:
        fs: The file system.
        folder: Where the files are.
        committer: Makes the records.

    Attributes:
        damaged_flowfiles: FlowFiles lost in damaged or missing files since the start.
    """

    def __init__(self, fs: FileSystem, folder: SwapFolder, committer: Committer) -> None:
        self._fs = fs
        self._folder = folder
        self._committer = committer
        self._commits = committer.commits
        self.damaged_flowfiles = 0

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFile:
        """Write FlowFiles to a swap file, which is their home from then on.

        Raises:
            Unavailable: Nothing was changed.
            Conflict: The repository does not know one of them.
        """
        name = self._commits.reserve(lambda sequences: sequences.take_file())
        path = self._folder.path(name)
        try:
            summary = write_swap_file(self._fs, path, queue, order, flowfiles)
            file = SwapFile(name, summary)  # nothing may raise behind the commit
            self._committer.commit(
                lambda state, durable: state.plan_swap_out(name, summary, flowfiles, durable),
                {},
                durable=True,
            )
        except BaseException:
            if not self._commits.may_be_recorded(name):
                with suppress(PenstockError):
                    self._fs.unlink(path)
            raise
        return file

    def open(self, file: SwapFile) -> SwapReader:
        """Open a swap file for reading; see `SwapHome.open`."""
        path = self._folder.path(file.name)
        reader = SwapReader.open(self._fs, path)
        if reader.summary not in (None, file.summary):
            # A copy or another file under this name: its FlowFiles would be there twice.
            reader.close()
            raise CorruptData(path, 0, "it is another swap file than the one that was written")
        return reader

    def loaded(self, file: SwapFile, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Learn that rows are FlowFiles in memory from now on."""
        homes = {one: (file.name, int(row)) for one, row in zip(ids, rows, strict=True)}
        self._commits.read(lambda state: state.loaded.update(homes))

    def drop_rows(
        self, file: SwapFile, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        """Record that rows that were never loaded are gone; see `SwapHome.drop_rows`."""
        gone = {resource: -count for resource, count in claims.items()}
        self._committer.commit(
            lambda state, durable: state.plan_rows(file.name, rows, claims, durable),
            gone,
            durable=False,
        )

    def discard(self, file: SwapFile) -> None:
        """Record that all rows that are not loaded are gone; see `SwapHome.discard`.

        What they refer to goes when the loaded ones are done with, too.
        """
        self._committer.commit(
            lambda state, durable: state.plan_rows(
                file.name, state.unloaded_rows(file.name), {}, durable
            ),
            {},
            durable=False,
        )

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        """Record that FlowFiles in memory are gone; see `SwapHome.remove`."""
        changes = Changes(removes=flowfiles)
        self._committer.commit(
            lambda state, durable: state.plan(changes, durable),
            references_of(changes),
            durable=False,
        )

    def damaged(self, file: SwapFile, rows: Sequence[int], reason: str) -> None:
        """Learn that rows are lost; see `SwapHome.damaged`."""
        path = self._folder.path(file.name)
        self._commits.read(lambda _: self._count_damaged(len(rows)))
        _logger.error("%s: %s lost: %s", path, counted(len(rows), "FlowFile"), reason)
        try:
            self._committer.commit(
                lambda state, durable: state.plan_rows(file.name, rows, {}, durable, damaged=True),
                {},
                durable=False,
            )
        except PenstockError as error:
            # The next start finds them damaged again.
            _logger.warning("%s: that could not be recorded: %s", path, error)

    def _count_damaged(self, count: int) -> None:
        self.damaged_flowfiles += count
