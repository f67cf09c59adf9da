"""Swap files of the queues, and their folder: written, read, set aside, deleted.

`SwapFiles` is the `SwapStore` of a repository: it owns the order of steps when FlowFiles move to a
swap file, and the records about rows. `SwapFolder` owns paths, the choice of a new file's name, the
check at start and the deletion of files. Does not own which files are valid (`repository_state`),
the commits (`commits`), nor the form of names and bytes (`swap.swap_file`).

Invariants:

- Until the record of a new file is durable, the FlowFiles keep their previous home. A file without
  a record is deleted, or set aside by the next start.
- One record per file, regardless of its content.
- A file that no record mentions is never read: it is set aside as `*.unknown`. It can hold
  otherwise lost FlowFiles only if the journal was damaged; after a crash they are still in the
  journal.
- A deleted file is forgotten only once its deletion is durable, because otherwise a crash could
  bring it back as an unknown file.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from penstock.core.errors import CorruptData, NotFound, PenstockError, counted
from penstock.flow.queue.swap_store import SwapFileInfo
from penstock.flow.repository.commit_note import CommitNote, EndReason, RemovedRows
from penstock.flow.repository.repository_changes import Changes, RecoveryEvent, RowsRemoved, SwapOut
from penstock.flow.swap.swap_file import SwapReader, swap_file_name, write_swap_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.repository.commits import Committer
    from penstock.flow.repository.repository_state import RepositoryState
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.filesystem import FileSystem

_logger = logging.getLogger(__name__)


_UNKNOWN: Final = ".unknown"
_BAD: Final = ".bad"
_TEMPORARY: Final = ".tmp"


class SwapFolder:
    """Folder `swap` of a repository. It has no state.

    Args:
        fs: The file system.
        folder: Folder of the repository.
    """

    def __init__(self, fs: FileSystem, folder: str) -> None:
        self._fs = fs
        self._folder = f"{folder}/swap"

    def path(self, name: str) -> str:
        """Return the path of a file."""
        return f"{self._folder}/{name}"

    def check_folder(self, state: RepositoryState) -> list[RecoveryEvent]:
        """Check the folder at start, when the state is durable, and return events to report.

        Creates the folder if it is missing, deletes temporary files, renames files that no record
        mentions to `*.unknown`, and raises the next file number of the state above those of all
        files. There is an event for each renamed file, and for each file that is missing.

        Raises:
            Unavailable: I/O error.
        """
        self._fs.mkdir(self._folder)
        names = self._fs.listdir(self._folder)
        events = []
        for name in names:
            state.sequences.observe_file(name)
            if name in state.files or name in state.obsolete or name.endswith((_UNKNOWN, _BAD)):
                continue
            if name.endswith(_TEMPORARY):
                self._fs.unlink(self.path(name))
                continue
            self._fs.rename(self.path(name), self.path(name + _UNKNOWN))
            message = (
                f"{self.path(name)}: no record mentions this swap file, so it is set aside as "
                f"*{_UNKNOWN}; its FlowFiles are in the journal: delete the file"
            )
            events.append(RecoveryEvent("swap-file-unknown", message, 1))
        self._fs.fsync_folder(self._folder)
        for name, file in state.files.items():
            if name not in names:
                held = counted(file.left, "FlowFile")
                message = f"{self.path(name)}: is missing with {held}: restore a copy"
                events.append(RecoveryEvent("swap-file-missing", message, file.left))
        return events

    def remove(self, obsolete: Mapping[str, bool]) -> bool:
        """Delete files, or keep them aside, durably; return whether no file is left.

        Args:
            obsolete: Files by name; True: keep the file aside as `*.bad`.
        """
        try:
            for name, kept_aside in obsolete.items():
                path = self.path(name)
                with suppress(NotFound):
                    if kept_aside:
                        self._fs.rename(path, path + _BAD)
                    else:
                        self._fs.unlink(path)
            self._fs.fsync_folder(self._folder)
        except PenstockError:
            return False
        return True


class SwapFiles:
    """Swap files of a repository; a `SwapStore`. May be used from many threads; holds no mutex.

    Args:
        fs: The file system.
        folder: Folder of the files.
        committer: Commits the records.
        clock: The current time.
    """

    def __init__(
        self, fs: FileSystem, folder: SwapFolder, committer: Committer, clock: Clock
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._folder = folder
        self._committer = committer
        self._commits = committer.commits

    def swap_out(self, queue: str, flowfiles: Sequence[FlowFile], order: str) -> SwapFileInfo:
        """Write FlowFiles to a swap file, which is their home from then on.

        Raises:
            Unavailable: Nothing was changed.
            Conflict: A FlowFile is unknown to the repository.
        """
        name = swap_file_name(self._commits.sequences.next_file_number())
        path = self._folder.path(name)
        try:
            summary = write_swap_file(self._fs, path, queue, order, flowfiles)
            file = SwapFileInfo(name, summary)  # after the commit nothing may raise
            self._committer.commit(SwapOut(name, summary, flowfiles), durable=True)
        except BaseException:
            if not self._commits.may_be_recorded(name):
                with suppress(PenstockError):
                    self._fs.unlink(path)
            raise
        return file

    def open(self, file: SwapFileInfo) -> SwapReader:
        """Open a swap file for reading; see `SwapStore.open`."""
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
        self._commits.mark_loaded(homes)

    def drop_rows(
        self, file: SwapFileInfo, rows: Sequence[int], claims: Mapping[ResourceClaim, int]
    ) -> None:
        """Record the removal of rows that were never loaded; see `SwapStore.drop_rows`."""
        notes = self._rows_notes(file, EndReason.SWEPT)
        self._committer.commit(RowsRemoved(file.name, rows, claims, notes=notes), durable=False)

    def discard(self, file: SwapFileInfo) -> None:
        """Record the removal of all rows that are not loaded; see `SwapStore.discard`.

        Their content is released only when the loaded rows are done, too.
        """
        notes = self._rows_notes(file, EndReason.DROPPED)
        self._committer.commit(RowsRemoved(file.name, None, notes=notes), durable=False)

    def remove(self, flowfiles: Sequence[FlowFile]) -> None:
        """Record the removal of FlowFiles in memory; see `SwapStore.remove`."""
        notes = []
        if self._commits.spool is not None:
            note = CommitNote(time_ms=self._clock.now_ms())
            note.add_ended(EndReason.DROPPED, [one.id for one in flowfiles])
            notes.append(note)
        self._committer.commit(Changes(removes=flowfiles, notes=notes), durable=False)

    def damaged(self, file: SwapFileInfo, rows: Sequence[int], reason: str) -> None:
        """Handle rows that are lost; see `SwapStore.damaged`."""
        path = self._folder.path(file.name)
        self._commits.count_damaged(len(rows))
        _logger.error("%s: %s lost: %s", path, counted(len(rows), "FlowFile"), reason)
        try:
            notes = self._rows_notes(file, EndReason.DAMAGED)
            removed = RowsRemoved(file.name, rows, damaged=True, notes=notes)
            self._committer.commit(removed, durable=False)
        except PenstockError as error:
            # The next start detects the damage again.
            _logger.warning("%s: the damage could not be recorded: %s", path, error)

    def _rows_notes(self, file: SwapFileInfo, reason: EndReason) -> list[CommitNote]:
        """Return the notes of a commit that removes rows of a swap file."""
        if self._commits.spool is None:
            return []
        rows = [RemovedRows(file.summary.queue, reason.value)]
        return [CommitNote(time_ms=self._clock.now_ms(), rows=rows)]
