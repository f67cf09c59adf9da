"""Swap files of the queues: the `SwapHome` of a repository.

Owns the order of steps when FlowFiles move to a swap file, and the records about rows. Does not own
which files are valid (`state`), the commits (`committing`), nor the bytes (`swap.swapfile`).

Invariants:

- Until the record of a new file is durable, the FlowFiles keep their previous home. A file without
  a record is deleted, or set aside by the next start.
- One record per file, regardless of its content.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.core.errors import CorruptData, PenstockError, counted
from penstock.flow.queue.swap_store import SwapFileInfo
from penstock.flow.repository.changes import Changes
from penstock.flow.repository.commits import references_of
from penstock.flow.swap.swap_file import SwapReader, write_swap_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.commits import Committer
    from penstock.flow.repository.swap_folder import SwapFolder
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)


class SwapFiles:
    """Swap files of a repository; a `SwapHome`. May be used from many threads; holds no mutex.

    Args:
        fs: The file system.
        folder: Folder of the files.
        committer: Commits the records.

    Attributes:
        damaged_flowfiles: FlowFiles lost in damaged or missing files since the start.
    """

    def __init__(self, fs: FileSystem, folder: SwapFolder, committer: Committer) -> None:
        self._fs = fs
        self._folder = folder
        self._committer = committer
        self._commits = committer.commits
        self.damaged_flowfiles = 0

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFileInfo:
        """Write FlowFiles to a swap file, which is their home from then on.

        Raises:
            Unavailable: Nothing was changed.
            Conflict: A FlowFile is unknown to the repository.
        """
        name = self._commits.reserve(lambda sequences: sequences.take_file())
        path = self._folder.path(name)
        try:
            summary = write_swap_file(self._fs, path, queue, order, flowfiles)
            file = SwapFileInfo(name, summary)  # after the commit nothing may raise
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

    def open(self, file: SwapFileInfo) -> SwapReader:
        """Open a swap file for reading; see `SwapHome.open`."""
        path = self._folder.path(file.name)
        reader = SwapReader.open(self._fs, path)
        if reader.summary not in (None, file.summary):
            # A copy or another file has this name: its FlowFiles would exist twice.
            reader.close()
            raise CorruptData(path, 0, "it is not the swap file that was written under this name")
        return reader

    def loaded(self, file: SwapFileInfo, rows: Sequence[int], ids: Sequence[int]) -> None:
        """Record in memory that the FlowFiles of rows are loaded."""
        homes = {one: (file.name, int(row)) for one, row in zip(ids, rows, strict=True)}
        self._commits.read(lambda state: state.loaded.update(homes))

    def drop_rows(
        self, file: SwapFileInfo, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        """Record the removal of rows that were never loaded; see `SwapHome.drop_rows`."""
        gone = {resource: -count for resource, count in claims.items()}
        self._committer.commit(
            lambda state, durable: state.plan_rows(file.name, rows, claims, durable),
            gone,
            durable=False,
        )

    def discard(self, file: SwapFileInfo) -> None:
        """Record the removal of all rows that are not loaded; see `SwapHome.discard`.

        Their content is released only when the loaded rows are done, too.
        """
        self._committer.commit(
            lambda state, durable: state.plan_rows(
                file.name, state.unloaded_rows(file.name), {}, durable
            ),
            {},
            durable=False,
        )

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        """Record the removal of FlowFiles in memory; see `SwapHome.remove`."""
        changes = Changes(removes=flowfiles)
        self._committer.commit(
            lambda state, durable: state.plan(changes, durable),
            references_of(changes),
            durable=False,
        )

    def damaged(self, file: SwapFileInfo, rows: Sequence[int], reason: str) -> None:
        """Handle rows that are lost; see `SwapHome.damaged`."""
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
            # The next start detects the damage again.
            _logger.warning("%s: the damage could not be recorded: %s", path, error)

    def _count_damaged(self, count: int) -> None:
        self.damaged_flowfiles += count
