"""The FlowFile repository: which FlowFile is in which queue, and where it is durable.

Owns its folder, the order of steps at start, and the sequences of ids. Does not own: commits
(`committing`), the state (`state`), reading it back (`recovery`), swap files (`swapping`), the
content (`storage.content`), nor the queues.

Invariants:

- What `commit` said yes to is there after a kill of the process, and after a power loss if it was
  asked to be durable; what is there after either is the state after some commit.
- Nothing is deleted at start before what was read is durable.
- Ids and queue indexes are never used twice by FlowFiles that were committed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from penstock.core.errors import Dependency, Unavailable, counted
from penstock.flow.queue.home import RestoredSwapFile, SwapFile
from penstock.flow.repository.changes import Changes, Recovered, RecoveredQueue, RecoveryEvent
from penstock.flow.repository.committing import Committer
from penstock.flow.repository.counting import references_of
from penstock.flow.repository.options import RepositoryOptions, RepositoryStatistics
from penstock.flow.repository.recovery import JournalReader, believe
from penstock.flow.repository.recovery import references_of as content_of
from penstock.flow.repository.swapfolder import SwapFolder
from penstock.flow.repository.swapping import SwapFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.core.headroom import Headroom
    from penstock.flow.queue.home import SwapHome
    from penstock.flow.repository.recovery import ReadBack
    from penstock.flow.repository.state import State
    from penstock.storage.content.repository import ContentRepository
    from penstock.storage.filesystem import FileSystem, FolderLock

__all__ = ["FlowFileRepository"]


class FlowFileRepository:
    """Where FlowFiles are durable. Used from many threads. Made by `open`.

    Attributes:
        swap_home: What queues swap to.
        recovered: What the start found; whoever has read it may clear it.
    """

    def __init__(
        self,
        committer: Committer,
        swap_files: SwapFiles,
        recovered: Recovered,
        lock: FolderLock,
        headroom: Headroom,
    ) -> None:
        self.swap_home: SwapHome = swap_files
        self.recovered = recovered
        self._committer = committer
        self._commits = committer.commits
        self._swap_files = swap_files
        self._lock = lock
        self._headroom = headroom
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
    ) -> Self:
        """Open the repository of a folder, or begin one. The content goes with it from then on.

        Args:
            folder: The folder; made when it is missing.
            fs: The file system.
            clock: Tells the time.
            content: Newly opened; close it after the repository.
            options: How to sync, and whether to repair.

        Raises:
            Conflict: Somebody else has it open.
            CorruptData: What was durable is damaged; the message says the mend.
            InvalidRequest: It was written by a newer Penstock.
            Unavailable: I/O error.
        """
        options = options or RepositoryOptions()
        fs.mkdir(folder)
        lock = fs.lock_folder(folder)
        try:
            return cls._start(folder, fs, clock, content, options, lock)
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
    ) -> Self:
        back = JournalReader(folder, fs=fs, clock=clock, repair=options.repair).read()
        believe(back, folder, content.check)
        # A process that was killed may have left what only the system has.
        content.make_durable({claim.resource for claim in content_of(back.tail)})
        swap = SwapFolder(fs, folder)
        try:
            committer = Committer(back.state, back.journals, content, swap, clock, options)
        except BaseException:
            back.journals.close()
            raise
        try:
            committer.begin(anew=back.begin_anew)
            events = [*back.events, *swap.tidy(back.state), *_recover_content(back, content)]
            committer.delete_leaving()
        except BaseException:
            committer.abandon()
            raise
        content.on_release = committer.look_for_released
        recovered = Recovered(_queues_of(back.state), events)
        swap_files = SwapFiles(fs, swap, committer)
        return cls(committer, swap_files, recovered, lock, content.headroom)

    def next_ids(self, count: int) -> int:
        """Return the first of so many ids that no FlowFile has or had."""
        return self._commits.reserve(lambda sequences: sequences.take_ids(count))

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of so many indexes that order FlowFiles put in the same millisecond."""
        return self._commits.reserve(lambda sequences: sequences.take_queue_indexes(count))

    def commit(self, changes: Changes, *, durable: bool = False) -> None:
        """Make changes, whole or not at all.

        They survive the process when this returns, and a power loss if `durable`. While the disk
        is nearly full, those that make FlowFiles are refused: what is left of it is for those that
        move them and let them go.

        Raises:
            Conflict: A FlowFile that is replaced or removed is not known, or a new one is.
            Unavailable: Full disk or I/O error; nothing was changed. Try again later.
            Closed: The repository is closed.
        """
        if changes.creates:
            self._headroom.require(0)
        references = references_of(changes)
        self._committer.commit(
            lambda state, number: state.plan(changes, number), references, durable=durable
        )
        if changes.missing:
            with self._missing_mutex:
                self._missing += len(changes.missing)

    def state(self, key: str) -> bytes | None:
        """Return the state that a processor committed under a key (see `Changes.states`)."""
        return self._commits.read(lambda state: state.states.get(key))

    def sync(self) -> None:
        """Make durable what was committed.

        Raises:
            Unavailable: It failed; commits that waited for it were undone.
            Closed: The repository is closed.
        """
        self._committer.sync()

    def call_when_stopped(self, callback: Callable[[], None]) -> None:
        """Call back once the repository refuses everything until a restart.

        Args:
            callback: Has the process restart; called once, by any thread, and must not block.
        """
        self._commits.call_when_stopped(callback)

    def compact(self) -> None:
        """Write a snapshot, so that a start need not read the journal.

        Commits wait only while the tables are copied, about 0.1 s for a million FlowFiles whose
        home is the journal; see `RepositoryStatistics.snapshot_hold_us`.

        Raises:
            Unavailable: It failed; the journal goes on.
        """
        self._committer.snapshot()

    def close(self) -> None:
        """Make all durable with a snapshot, and let go of the files. Twice is fine.

        Raises:
            Unavailable: The last commits could not be made durable.
        """
        try:
            self._committer.close()
        finally:
            self._lock.release()

    def check_synced(self) -> None:
        """Return if commits reach the disk in time.

        Raises:
            Unavailable: They do not; the message gives their age.
        """
        trouble = self._committer.unsynced_trouble()
        if trouble is not None:
            raise Unavailable(trouble, dependency=Dependency.DISK)

    def statistics(self) -> RepositoryStatistics:
        """Return counts as of now."""
        committer, commits = self._committer, self._commits
        flowfiles, swapped, files, unsynced = commits.read(
            lambda state: (
                len(state.flowfiles),
                sum(file.left for file in state.files.values()),
                len(state.files),
                state.number - commits.durable,
            )
        )
        journal_bytes, snapshot_bytes = committer.sizes
        syncs, failures = committer.syncs
        return RepositoryStatistics(
            flowfiles=flowfiles,
            swapped_flowfiles=swapped,
            swap_files=files,
            commits=commits.count,
            durable_commits=commits.durable_count,
            refused_commits=commits.refused_count,
            missing_flowfiles=self._missing,
            damaged_flowfiles=self._swap_files.damaged_flowfiles,
            journal_bytes=journal_bytes,
            snapshot_bytes=snapshot_bytes,
            snapshots=committer.snapshots,
            snapshot_hold_us=commits.snapshot_hold_us,
            syncs=syncs,
            sync_failures=failures,
            unsynced_commits=unsynced,
            unsynced_age_s=committer.unsynced_age_s,
            unknown_swap_files=self._unknown,
        )


def _queues_of(state: State) -> dict[str, RecoveredQueue]:
    queues: dict[str, RecoveredQueue] = {}
    for one, flowfile in state.flowfiles.items():
        queue = state.queues[one]
        if queue not in queues:
            queues[queue] = RecoveredQueue()
        queues[queue].flowfiles.append(flowfile)
    for name, file in sorted(state.files.items()):
        restored = RestoredSwapFile(SwapFile(name, file.summary), file.rows_done())
        queues.setdefault(file.summary.queue, RecoveredQueue()).swap_files.append(restored)
    return queues


def _recover_content(back: ReadBack, content: ContentRepository) -> list[RecoveryEvent]:
    # What the lost part of a damaged journal referred to stays until the next start, for whoever
    # repairs by hand.
    damaged = any(event.kind == "journal-damaged" for event in back.events)
    orphans = content.recover(back.state.claims(), keep_orphans=damaged)
    if not orphans:
        return []
    done = "kept until the next start" if damaged else "deleted"
    files = counted(len(orphans), "file")
    message = f"{done}: {files} of content that no FlowFile refers to, such as {orphans[0]}"
    return [RecoveryEvent("content-orphaned", message, len(orphans))]
