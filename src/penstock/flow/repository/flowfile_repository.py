"""FlowFile repository: records which FlowFile is in which queue, durably.

Owns its folder, the order of steps at start, and the sequences of ids. Does not own commits
(`commits`), the state (`repository_state`), recovery (`recovery`), swap files (`swap_files`), the
content (`storage.content`), nor the queues.

Invariants:

- A change that `commit` accepted survives a kill of the process, and a power loss if durability was
  requested. After either, the state is the one after some commit.
- Nothing is deleted at start before the recovered state is durable.
- Committed FlowFiles never share an id or a queue index.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from penstock.core.errors import Dependency, Unavailable, counted
from penstock.flow.queue.swap_store import RestoredSwapFile, SwapFileInfo
from penstock.flow.repository.commit_spool import CommitSpool
from penstock.flow.repository.commits import Committer
from penstock.flow.repository.options import RepositoryOptions, RepositoryStatistics
from penstock.flow.repository.recovery import JournalReader, apply_tail, references_of
from penstock.flow.repository.repository_changes import (
    Changes,
    RecoveredQueue,
    RecoveryEvent,
    RecoveryResult,
)
from penstock.flow.repository.swap_files import SwapFiles, SwapFolder

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.disk_space import DiskSpace
    from penstock.flow.queue.swap_store import SwapStore
    from penstock.flow.repository.recovery import ReadBack
    from penstock.flow.repository.repository_state import RepositoryState
    from penstock.storage.content.content_repository import ContentRepository
    from penstock.storage.filesystem import FileSystem, FolderLock

__all__ = ["FlowFileRepository"]


class FlowFileRepository:
    """Repository of FlowFiles. Created by `open`; may be used from many threads.

    Attributes:
        swap_store: Swap files of the queues.
        recovered: Result of recovery; its reader may clear it.
    """

    def __init__(
        self,
        committer: Committer,
        swap_files: SwapFiles,
        recovered: RecoveryResult,
        lock: FolderLock,
        disk_space: DiskSpace,
    ) -> None:
        self.swap_store: SwapStore = swap_files
        self.recovered = recovered
        self._committer = committer
        self._commits = committer.commits
        self._lock = lock
        self._disk_space = disk_space
        # Sessions of all threads count, a few lines each; mail would cost more.
        self._missing_mutex = threading.Lock()
        self._missing = 0
        self._unknown = sum(one.kind == "swap-file-unknown" for one in recovered.events)

    @classmethod
    def open(
        cls,
        folder: str,
        *,
        fs: FileSystem,
        clock: Clock,
        content: ContentRepository,
        options: RepositoryOptions | None = None,
        spool_folder: str | None = None,
    ) -> Self:
        """Open or create the repository of a folder. It also determines which content is kept.

        Args:
            folder: The folder; created if it is missing.
            fs: The file system.
            clock: The current time.
            content: Newly opened content repository; close it after this repository.
            options: How to sync, and whether to repair.
            spool_folder: Folder for commits with notes, for provenance; None: there is no record.

        Raises:
            Conflict: Another process has the folder open.
            CorruptData: Durable data is damaged; the message contains the remedy.
            InvalidRequest: A newer Penstock wrote the folder.
            Unavailable: I/O error.
        """
        options = options or RepositoryOptions()
        fs.mkdir(folder)
        lock = fs.lock_folder(folder)
        try:
            spool = None
            if spool_folder is not None:
                spool = CommitSpool(spool_folder, fs, clock, options.spool)
            return cls._start(folder, fs, clock, content, options, lock, spool)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _start(
        cls,
        folder: str,
        fs: FileSystem,
        clock: Clock,
        content: ContentRepository,
        options: RepositoryOptions,
        lock: FolderLock,
        spool: CommitSpool | None,
    ) -> Self:
        back = JournalReader(folder, fs=fs, clock=clock, repair=options.repair).read()
        apply_tail(back, folder, content.check)
        # A killed process may have left writes that only the operating system has.
        content.make_durable({claim.resource for claim in references_of(back.tail)})
        swap = SwapFolder(fs, folder)
        try:
            committer = Committer(back.state, back.journals, content, swap, clock, options, spool)
        except BaseException:
            back.journals.close()
            raise
        try:
            if spool is not None:
                if not back.needs_snapshot:
                    committer.begin(write_snapshot=False)  # they are durable first
                spool.recover(back.paths, back.state.number, back.journals.snapshot_number)
            if not back.needs_snapshot:
                back.journals.delete_before(back.base)
            committer.begin(write_snapshot=back.needs_snapshot)
            if spool is not None:
                spool.show_recovered(back.state.number)
            events = [
                *back.events,
                *swap.check_folder(back.state),
                *_recover_content(back, content),
            ]
            committer.delete_obsolete()
        except BaseException:
            committer.abandon()
            raise
        content.on_release = committer.schedule_pass
        recovered = RecoveryResult(_queues_of(back.state), events)
        swap_files = SwapFiles(fs, swap, committer, clock)
        if spool is not None and options.sync_in_background:
            spool.start()
        return cls(committer, swap_files, recovered, lock, content.disk_space)

    def next_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids that no FlowFile has or had."""
        return self._commits.sequences.next_ids(count)

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of `count` consecutive indexes, for FlowFiles of one millisecond."""
        return self._commits.sequences.next_queue_indexes(count)

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Commit changes, completely or not at all.

        When this returns, they survive the end of the process, and with `durable` also a power
        loss. While the disk is nearly full, changes that create FlowFiles are refused, so that the
        remaining space is available for changes that move or remove FlowFiles.

        Raises:
            Conflict: A replaced or removed FlowFile is unknown, or a new one is already known.
            Unavailable: Full disk or I/O error; nothing was changed. Try again later.
            Closed: The repository is closed.
        """
        if changes.creates:
            self._disk_space.require(0)
        self._committer.commit(changes, durable=durable)
        if changes.missing:
            with self._missing_mutex:
                self._missing += len(changes.missing)

    @property
    def spool(self) -> CommitSpool | None:
        """Return the spool of commits with notes; None: provenance is not recorded."""
        return self._commits.spool

    def state(self, key: str) -> bytes | None:
        """Return the state that a processor committed under a key (see `Changes.states`)."""
        return self._commits.processor_state(key)

    def sync(self) -> None:
        """Make all commits durable.

        Raises:
            Unavailable: The sync failed; commits with waiting callers were undone.
            Closed: The repository is closed.
        """
        self._committer.sync()

    def call_when_stopped(self, callback: Callable[[], None]) -> None:
        """Register a callback for the time when the repository stops until a restart.

        Args:
            callback: Restarts the process; called once, by any thread. It must not block.
        """
        self._commits.call_when_stopped(callback)

    def compact(self) -> None:
        """Write a snapshot, so that recovery need not read the journal.

        Commits wait only while the tables are copied, about 0.1 s for a million FlowFiles whose
        home is the journal; see `RepositoryStatistics.snapshot_hold_us`.

        Raises:
            Unavailable: The snapshot failed; the journal is used without it.
        """
        self._committer.snapshot()

    def close(self) -> None:
        """Make everything durable with a snapshot, and close the files. A second call does nothing.

        Raises:
            Unavailable: The last commits could not be made durable.
        """
        try:
            self._committer.close()
        finally:
            if self.spool is not None:
                self.spool.close()
            self._lock.release()

    def check_synced(self) -> None:
        """Check that commits are synced in time.

        Raises:
            Unavailable: They are not; the message contains their age.
        """
        failure = self._committer.sync_failure()
        if failure is not None:
            raise Unavailable(failure, dependency=Dependency.DISK)

    def statistics(self) -> RepositoryStatistics:
        """Return the current statistics."""
        committer, commits = self._committer, self._commits
        counts = commits.counts()
        journal_bytes, snapshot_bytes = committer.sizes
        syncs, failures = committer.syncs
        return RepositoryStatistics(
            flowfiles=counts.flowfiles,
            swapped_flowfiles=counts.swapped,
            swap_files=counts.files,
            commits=commits.count,
            durable_commits=commits.durable_count,
            refused_commits=commits.refused_count,
            missing_flowfiles=self._missing,
            damaged_flowfiles=commits.damaged_count,
            journal_bytes=journal_bytes,
            snapshot_bytes=snapshot_bytes,
            snapshots=committer.snapshots,
            snapshot_hold_us=commits.snapshot_hold_us,
            syncs=syncs,
            sync_failures=failures,
            unsynced_commits=counts.unsynced,
            unsynced_age_s=committer.unsynced_age_s,
            unknown_swap_files=self._unknown,
        )


def _queues_of(state: RepositoryState) -> dict[str, RecoveredQueue]:
    queues: dict[str, RecoveredQueue] = {}
    for one, flowfile in state.flowfiles.items():
        queue = state.queues[one]
        if queue not in queues:
            queues[queue] = RecoveredQueue()
        queues[queue].flowfiles.append(flowfile)
    for name, file in sorted(state.files.items()):
        restored = RestoredSwapFile(SwapFileInfo(name, file.summary), file.rows_done())
        queues.setdefault(file.summary.queue, RecoveredQueue()).swap_files.append(restored)
    return queues


def _recover_content(back: ReadBack, content: ContentRepository) -> list[RecoveryEvent]:
    # Content referenced by the lost part of a damaged journal is kept until the next start, for a
    # manual repair.
    damaged = any(event.kind == "journal-damaged" for event in back.events)
    orphans = content.recover(back.state.claims(), keep_orphans=damaged)
    if not orphans:
        return []
    done = "kept until the next start" if damaged else "deleted"
    files = counted(len(orphans), "file")
    message = f"{done}: {files} of content that no FlowFile refers to, such as {orphans[0]}"
    return [RecoveryEvent("content-orphaned", message, len(orphans))]
