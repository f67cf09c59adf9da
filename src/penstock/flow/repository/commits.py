"""Commits of the FlowFile repository: journaled and applied in order, made durable, or undone.

`CommitLog` owns the state, its mutex, and the callers that wait for durability; every method takes
the mutex itself. `Committer` owns when and in which order something is made durable: fsyncs,
snapshots, and the deletion of content and files that a commit released. Does not own the content of
a commit (`repository_changes`; `repository_state` plans and applies it), reference counts
(`storage.content`) or reading back (`recovery`).

Invariants:

- Commits are journaled and applied in one order, under one mutex, so a start restores the state
  after one of them. No fsync happens under the mutex.
- Content is fsynced before the journal that refers to it. Released content and swap files are
  deleted when the journal that released them is durable.
- A commit that a caller waits for and that cannot be made durable is undone, and the journal is
  poisoned because it contains a commit that did not happen. The next pass replaces it by a
  snapshot; until then nothing more is committed.
- A full disk refuses a commit and changes nothing.
- If it is unknown after an exception whether a commit was made, the repository stops: it
  refuses all calls, writes and deletes nothing, and requests a restart of its process, which
  reads the journal.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.core.errors import Closed, PenstockError, Unavailable, counted
from penstock.core.msgpack_encoding import pack
from penstock.storage.queue.group_commit import Syncer, SyncThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.repository.commit_records import CommitRecord
    from penstock.flow.repository.commit_spool import CommitSpool
    from penstock.flow.repository.journals import FlowJournals
    from penstock.flow.repository.options import RepositoryOptions
    from penstock.flow.repository.repository_changes import RepositoryChange
    from penstock.flow.repository.repository_state import RepositoryState, Undo
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.content.content_repository import ContentRepository


_logger = logging.getLogger(__name__)


class CommitTicket:
    """Commit that was made.

    Attributes:
        error: Why it was undone; None if it was not.
    """

    __slots__ = ("batch", "error", "references", "undo")

    def __init__(
        self, batch: CommitRecord, undo: Undo | None, references: Mapping[ResourceClaim, int]
    ) -> None:
        self.batch = batch
        self.undo = undo
        self.references = references
        self.error: BaseException | None = None


class SyncPass(NamedTuple):
    """Pass that makes all commits up to now durable.

    Attributes:
        number: Number of the last commit of the pass.
        released: Content without references after that commit.
        finish: Fsyncs the journal; called after the fsync of the content.
    """

    number: int
    released: Sequence[ResourceClaim]
    finish: Callable[[], None]


class JournalCut(NamedTuple):
    """State for a snapshot.

    Attributes:
        state: Copy of the state.
        released: Content without references in that state.
        heals: Whether the journal was poisoned, so that this snapshot replaces it.
        finish: Fsyncs the old journal before the snapshot replaces it: the spool keeps its file.
            None: there is no spool, or the snapshot heals.
    """

    state: RepositoryState
    released: Sequence[ResourceClaim]
    heals: bool
    finish: Callable[[], None] | None = None


class StateCounts(NamedTuple):
    """Counts of the state.

    Attributes:
        flowfiles: FlowFiles whose home is the journal.
        swapped: FlowFiles in swap files.
        files: Swap files.
        unsynced: Commits that are not durable.
    """

    flowfiles: int
    swapped: int
    files: int
    unsynced: int


class SharedSequences:
    """Thread-safe access to the sequences of the state, for new FlowFiles and files.

    Its mutex is not that of commits, so threads that create FlowFiles do not wait for commits. A
    concurrent snapshot may miss a number, which is harmless: a commit uses only numbers that were
    taken before it.
    """

    def __init__(self, state: RepositoryState) -> None:
        self._state = state
        self._mutex = threading.Lock()

    def next_ids(self, count: int) -> int:
        """Return the first of `count` consecutive ids of FlowFiles."""
        with self._mutex:
            return self._state.sequences.next_ids(count)

    def next_queue_indexes(self, count: int) -> int:
        """Return the first of `count` consecutive queue indexes."""
        with self._mutex:
            return self._state.sequences.next_queue_indexes(count)

    def next_file_number(self) -> int:
        """Return the number of a new swap file."""
        with self._mutex:
            return self._state.sequences.next_file_number()


class CommitLog:
    """Commits of a repository. Every method acquires the mutex itself.

    The mutex protects state and journal. Sessions of all threads commit, and each holds it while
    one record is appended. Mail to an owning thread would cost more.

    Args:
        state: State after the last commit of the journals.
        journals: Journals for the commits.
        content: Content to which commits refer.
        clock: Measures how long a snapshot delays commits.
        spool: Keeps the commits with notes; None: provenance is not recorded.

    Attributes:
        sequences: The numbers for new objects, assigned without waiting for commits.
        durable: Number of the last durable commit.
        count: Number of commits made.
        durable_count: Number of commits that a caller waited for until they were durable.
        refused_count: Number of commits refused.
        damaged_count: FlowFiles lost in damaged or missing swap files since the start.
        snapshot_hold_us: How long the last snapshot delayed commits, in microseconds.
        spool: Keeps the commits with notes; None: provenance is not recorded.
    """

    def __init__(
        self,
        state: RepositoryState,
        journals: FlowJournals,
        content: ContentRepository,
        clock: Clock,
        spool: CommitSpool | None = None,
    ) -> None:
        self._state = state
        self._journals = journals
        self._content = content
        self._clock = clock
        self.spool = spool
        self._mutex = threading.Lock()
        self.sequences = SharedSequences(state)
        self._waiting: list[CommitTicket] = []
        self._poison: str | None = None
        self._stopped: str | None = None
        self._on_stop: Callable[[], None] | None = None
        self._closed = False
        self.durable = state.number
        self.count = self.durable_count = self.refused_count = self.damaged_count = 0
        self.snapshot_hold_us = 0

    @property
    def number(self) -> int:
        """Return the number of the last commit."""
        return self._state.number

    @property
    def is_poisoned(self) -> bool:
        """Return whether commits wait for a snapshot that replaces the journal."""
        return self._poison is not None

    @property
    def is_stopped(self) -> bool:
        """Return whether every call is refused until a restart."""
        return self._stopped is not None

    def append(
        self,
        change: RepositoryChange,
        references: Mapping[ResourceClaim, int],
        *,
        durable: bool,
    ) -> CommitTicket | None:
        """Journal and apply a change; return None if there is nothing to do.

        Args:
            change: The change.
            references: Change of the reference count of each resource.
            durable: Whether the caller waits for durability: then the commit is undone if it cannot
                be made durable.

        Raises:
            Conflict: The change is not possible.
            Unavailable: Nothing was changed.
            Closed: The repository is closed.
        """
        with self._mutex:
            self._check_open()
            batch = self._state.plan(change, self.durable)
            if batch is None:
                return None
            undo = self._state.undo_of(batch) if durable else None
            ticket = CommitTicket(batch, undo, references)
            try:
                packed = pack(batch)
                self._journals.append(packed)
            except BaseException:
                self.refused_count += 1
                raise
            try:
                if rest := self._state.apply(batch):
                    changed = Counter(references)
                    changed.subtract(rest)
                    ticket.references = changed
                self._content.references.adjust(ticket.references)
                self.count += 1
                if self.spool is not None and batch.notes:
                    self.spool.record(batch.number)
                if durable:
                    self._waiting.append(ticket)
            except BaseException as error:
                self._stop(error)
                raise
            return ticket

    # -- the state

    def counts(self) -> StateCounts:
        """Return the current counts of the state."""
        with self._mutex:
            state = self._state
            return StateCounts(
                len(state.flowfiles),
                sum(file.left for file in state.files.values()),
                len(state.files),
                state.number - self.durable,
            )

    def mark_loaded(self, homes: Mapping[int, tuple[str, int]]) -> None:
        """Record in memory that swapped FlowFiles are loaded: file and row by id."""
        with self._mutex:
            self._state.loaded.update(homes)

    def count_damaged(self, count: int) -> None:
        """Count FlowFiles that are lost in damaged or missing swap files."""
        with self._mutex:
            self.damaged_count += count

    def obsolete_until(self, number: int) -> dict[str, bool]:
        """Return the swap files that the commits up to a number left without rows.

        Returns:
            By name, whether the file is kept aside.
        """
        with self._mutex:
            obsolete = self._state.obsolete.items()
            return {name: one.kept_aside for name, one in obsolete if one.number <= number}

    def forget_obsolete(self, names: Iterable[str]) -> None:
        """Forget swap files whose deletion is durable."""
        with self._mutex:
            for name in names:
                self._state.obsolete.pop(name, None)

    def processor_state(self, key: str) -> bytes | None:
        """Return the state that a processor committed under a key."""
        with self._mutex:
            return self._state.states.get(key)

    def may_be_recorded(self, name: str) -> bool:
        """Return whether recovery may find a record of a swap file."""
        with self._mutex:
            known = name in self._state.files or name in self._state.obsolete
            return known or self._stopped is not None

    # -- durability

    def is_waiting(self, ticket: CommitTicket) -> bool:
        """Return whether a commit is neither durable nor undone."""
        return ticket in self._waiting

    def begin_pass(self) -> SyncPass:
        """Begin a pass that makes all commits up to now durable; `mark_durable` or `fail` ends it.

        Raises:
            Unavailable: The pass could not begin, and must not be ended.
        """
        with self._mutex:
            self._check_not_stopped()
            number = self._state.number
            try:
                return SyncPass(
                    number, self._content.references.released(), self._journals.begin_sync()
                )
            except BaseException as error:
                self._undo(number, error)
                raise

    def mark_durable(self, number: int) -> None:
        """Mark commits up to a number as durable."""
        with self._mutex:
            self._mark_durable(number)

    def fail(self, error: BaseException, number: int | None = None) -> None:
        """Undo commits that callers wait for, up to a number; None: all of them."""
        with self._mutex:
            self._undo(self._state.number if number is None else number, error)

    def call_when_stopped(self, callback: Callable[[], None]) -> None:
        """Register a callback for the time when the repository stops; it must not block."""
        with self._mutex:
            self._on_stop = callback
            if self._stopped is not None:
                callback()

    def stop(self, error: BaseException) -> None:
        """Stop until a restart, because an exception followed a commit that was made."""
        with self._mutex:
            self._stop(error)

    def begin_snapshot(self) -> JournalCut:
        """Switch to the next journal, and return the state for a snapshot.

        Raises:
            Unavailable: The repository is stopped.
        """
        with self._mutex:
            self._check_not_stopped()
            began_s = self._clock.monotonic_s()
            cut = JournalCut(
                self._state.copy(), self._content.references.released(), self.is_poisoned
            )
            self._journals.switch()
            if self.spool is not None:
                # Before the first commit of that file: a reader looks for it elsewhere otherwise.
                self.spool.begin_file(self._journals.current_path, cut.state.number + 1)
                if not cut.heals:
                    cut = cut._replace(finish=self._journals.begin_sync())
            self.snapshot_hold_us = round((self._clock.monotonic_s() - began_s) * 1e6)
            return cut

    def snapshot_stands(self, cut: JournalCut) -> None:
        """Record that a snapshot is durable."""
        with self._mutex:
            if cut.heals:
                self._poison = None
            self._mark_durable(cut.state.number)

    def close(self) -> bool:
        """Refuse further calls; return False if the repository was already closed."""
        with self._mutex:
            was_open, self._closed = not self._closed, True
            return was_open

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the FlowFile repository is closed: open it again")
        self._check_not_stopped()
        if self._poison is not None:
            self.refused_count += 1
            raise Unavailable(
                "the FlowFile repository replaces its journal because an fsync failed "
                f"({self._poison}): check the disk, and try again"
            )

    def _check_not_stopped(self) -> None:
        if self._stopped is not None:
            self.refused_count += 1
            raise Unavailable(
                f"the FlowFile repository has stopped, because an exception ({self._stopped}) "
                "left the outcome of a commit unknown: restart the flow, which reads the journal"
            )

    def _stop(self, error: BaseException) -> None:
        if self._stopped is None:
            self._stopped = "an exception"  # set first, because `described` may raise
            try:
                self._stopped = described(error)
                _logger.error(
                    "the FlowFile repository has stopped: restart the flow", exc_info=error
                )
            finally:
                if self._on_stop is not None:
                    self._on_stop()

    def _mark_durable(self, number: int) -> None:
        waiting = [one for one in self._waiting if one.batch.number > number]
        count = len(self._waiting) - len(waiting)
        self._waiting = waiting
        self.durable = max(self.durable, number)
        if self.spool is not None and self._poison is None:
            # A snapshot that began before commits were undone contains them, and the spool does not
            # have their numbers before the snapshot that heals.
            self.spool.made_durable(self.durable)
        self.durable_count += count

    def _undo(self, number: int, error: BaseException) -> None:
        failed = [one for one in self._waiting if one.batch.number <= number]
        if not failed:
            return  # no caller waits, and the journal can be synced again
        try:
            self._poison = described(error)
            # A running snapshot may contain commits undone here: only a later one counts.
            self._state.number += 1
            for ticket in reversed(failed):
                assert ticket.undo is not None
                self._state.undo(ticket.batch, ticket.undo)
                back = {resource: -count for resource, count in ticket.references.items()}
                self._content.references.adjust(back)
                ticket.error = error
            self._waiting = [one for one in self._waiting if one.batch.number > number]
            if self.spool is not None:
                numbers = {ticket.batch.number for ticket in failed}
                self.spool.withdraw(numbers, self._state.number)
        except BaseException as second:
            self._stop(second)
            raise
        _logger.error(
            "undone because an fsync failed: %s: %s",
            counted(len(failed), "commit"),
            described(error),
        )


def described(error: BaseException) -> str:
    """Return the message of an exception, with its type unless it is a Penstock error."""
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"


_FSYNCS_MAX: Final = 2  # a pass and a snapshot


class SwapFileRemover(Protocol):
    """Deletes swap files whose rows are all done."""

    def remove(self, obsolete: Mapping[str, bool]) -> bool:
        """Delete files, or keep them aside, durably; return whether no file is left.

        Args:
            obsolete: Files by name; True: keep the file aside.
        """
        ...


class Committer:
    """Makes commits one after the other, and makes many of them durable at once.

    One mutex separates passes of fsyncs from the deletion of old journals, and another one
    separates snapshots. The mutex of the commits is acquired after them, and never held during an
    fsync.

    Args:
        state: State after the last commit of the journals.
        journals: Journals for the commits.
        content: Content to which commits refer.
        swap: Deletes swap files.
        clock: The current time.
        options: When to sync and to write a snapshot.
        spool: Keeps the commits with notes; None: provenance is not recorded.

    Attributes:
        commits: Commits made.
        snapshots: Snapshots written since the start.
    """

    def __init__(
        self,
        state: RepositoryState,
        journals: FlowJournals,
        content: ContentRepository,
        swap: SwapFileRemover,
        clock: Clock,
        options: RepositoryOptions,
        spool: CommitSpool | None = None,
    ) -> None:
        self.commits = CommitLog(state, journals, content, clock, spool)
        self.snapshots = 0
        self._journals = journals
        self._content = content
        self._swap = swap
        self._options = options
        self._disk_mutex = threading.Lock()
        self._snapshot_mutex = threading.Lock()
        self._threads: SyncThreads | None = None
        if options.sync_in_background:
            self._threads = SyncThreads(clock=clock, most=_FSYNCS_MAX, name="flow repository")
        self._syncer = Syncer(
            self._pass,
            every_messages=options.sync_every_commits,
            interval_ms=options.sync_interval_ms,
            pause_ms=options.sync_pause_ms,
            clock=clock,
            threads=self._threads,
            name="the FlowFile repository",
        )
        self._stopped = threading.Event()
        self._snapshot_at = 0
        self._snapshot_planned = (
            threading.Lock()
        )  # held from the decision until the snapshot is finished
        self._plan_next_snapshot()

    # -- start

    def begin(self, *, write_snapshot: bool) -> None:
        """Make the recovered state durable, before anything is deleted or written.

        Args:
            write_snapshot: Whether the journals contain invalid records, so that a snapshot must
                replace them.

        Raises:
            Unavailable: I/O error or full disk.
        """
        if write_snapshot:
            self.snapshot()
        else:
            self._journals.begin_sync()()

    def schedule_pass(self) -> None:
        """Schedule a pass within the interval, because content was released without a commit."""
        self._syncer.wrote(0)

    def delete_obsolete(self) -> None:
        """Delete swap files whose rows were all done before the start."""
        self._delete((), self.commits.durable)

    def abandon(self) -> None:
        """Stop without writing."""
        self.commits.close()
        if self._threads is not None:
            self._threads.close()
        self._journals.close()

    # -- commits

    def commit(self, change: RepositoryChange, *, durable: bool) -> None:
        """Journal and apply a change.

        Args:
            change: The change.
            durable: Whether to wait until the commit survives a power loss.

        Raises:
            Conflict: The change is not possible.
            Unavailable: Nothing was changed.
            Closed: The repository is closed.
        """
        references = change.claim_references()
        if self._threads is None and self.commits.is_poisoned:
            self.sync()  # no other thread syncs
        ticket = self.commits.append(change, references, durable=durable)
        if ticket is None:
            return
        try:
            self._syncer.wrote(1)
            if durable:
                self._wait_for(ticket)
            is_due = self._journals.size_bytes >= self._snapshot_at
            if is_due and self._snapshot_planned.acquire(blocking=False):
                self._start_snapshot()
        except BaseException as error:
            if ticket.error is None:
                self.commits.stop(error)  # the caller assumes that it was not made, but it was
            raise

    def _wait_for(self, ticket: CommitTicket) -> None:
        try:
            failure = self._syncer.request().exception()
        except Closed as error:
            # `close` came in between; it makes earlier commits durable.
            self._stopped.wait()
            failure = error
        if ticket.error is not None:
            raise Unavailable(
                f"the commit could not be made durable and was undone: {described(ticket.error)}"
            ) from ticket.error
        if failure is not None and self.commits.is_waiting(ticket):
            raise failure

    # -- durability

    def sync(self) -> None:
        """Make all commits durable.

        Raises:
            Unavailable: The sync failed; commits with waiting callers were undone.
            Closed: The repository is closed.
        """
        self._syncer.request().result()

    def _pass(self) -> int:
        """Make all commits up to now durable; return the number of the last one."""
        if self.commits.is_poisoned:
            return self._heal()
        with self._disk_mutex:
            begun = self.commits.begin_pass()
            try:
                self._content.sync()
                begun.finish()
                self.commits.mark_durable(begun.number)
            except BaseException as error:
                self.commits.fail(error, begun.number)
                raise
        self._delete(begun.released, begun.number)
        return begun.number

    def _heal(self) -> int:
        """Replace the poisoned journal by a snapshot; return the last durable commit's number."""
        try:
            self.snapshot()
        except BaseException as error:
            # Including those that were appended between the failed fsync and its handling.
            self.commits.fail(error)
            raise
        return self.commits.durable

    def _delete(self, released: Sequence[ResourceClaim], number: int) -> None:
        """Delete content that has no references since a durable commit."""
        self._content.delete_released(released)
        obsolete = self.commits.obsolete_until(number)
        if obsolete and self._swap.remove(obsolete):
            self.commits.forget_obsolete(obsolete)

    # -- snapshots

    def snapshot(self) -> None:
        """Write a snapshot and begin a new journal; commits are delayed only for a moment.

        Raises:
            Unavailable: The snapshot failed; the journals are used without it.
        """
        with self._snapshot_mutex:
            self._journals.create_next()
            cut = self.commits.begin_snapshot()
            if self.commits.spool is not None:
                self.commits.spool.keep_files()
                if cut.heals:
                    self.commits.spool.store_withdrawn()
            if cut.finish is not None:
                with self._disk_mutex:
                    cut.finish()
            self._journals.write_snapshot(
                cut.state, self._options.snapshot_slice, self._content.sync
            )
            with self._disk_mutex:
                self.commits.snapshot_stands(cut)
                self.snapshots += 1
                self._journals.drop_old()
            self._plan_next_snapshot()
        self._delete(cut.released, cut.state.number)

    def _start_snapshot(self) -> None:
        if self._threads is None:
            self._snapshot_or_later()
            return
        try:
            self._threads.run(self._snapshot_or_later)
        except Closed:
            return  # `close` writes one
        except Exception as error:  # noqa: BLE001  -- thread start failed
            self._put_snapshot_off(error)
            self._snapshot_planned.release()

    def _snapshot_or_later(self) -> None:
        try:
            self.snapshot()
        except Exception as error:  # noqa: BLE001  -- the commit that triggered it is valid
            self._put_snapshot_off(error)
        finally:
            self._snapshot_planned.release()

    def _put_snapshot_off(self, error: Exception) -> None:
        self._snapshot_at = self._journals.size_bytes + self._options.snapshot_bytes // 4
        details = None if isinstance(error, PenstockError) else error
        _logger.warning(
            "the snapshot of the FlowFile repository could not be written: %s",
            error,
            exc_info=details,
        )

    def _plan_next_snapshot(self) -> None:
        self._snapshot_at = max(self._options.snapshot_bytes, 2 * self._journals.snapshot_bytes)

    # -- end

    def close(self) -> None:
        """Make everything durable and stop. A second call does nothing.

        Raises:
            Unavailable: The last commits could not be made durable.
        """
        if not self.commits.close():
            return
        try:
            self._syncer.close()
            if self._threads is not None:
                self._threads.close()
            self._content.seal()
            self._close_with_snapshot()
        finally:
            try:
                self._journals.close()
            finally:
                self._stopped.set()  # commits that wait for a sync wait for this

    def _close_with_snapshot(self) -> None:
        commits = self.commits
        if commits.is_stopped:
            # The journal is complete without the snapshot, and the next start reads it.
            self._content.sync()
            self._journals.begin_sync()()
            return
        if commits.number == commits.durable == self._journals.snapshot_number:
            self._delete(self._content.references.released(), commits.durable)
            return
        try:
            self.snapshot()
        except Exception as error:  # noqa: BLE001  -- the journal is sufficient
            _logger.warning("the FlowFile repository closes without a snapshot: %s", error)
            self._pass()

    @property
    def unsynced_age_s(self) -> float:
        """Return the age of the oldest commit that is not synced; 0 without background syncs."""
        return 0.0 if self._threads is None else self._threads.unsynced.age_s()

    def sync_failure(self) -> str | None:
        """Return an error text if a commit waits too long for its sync."""
        return None if self._threads is None else self._threads.unsynced.sync_failure()

    @property
    def syncs(self) -> tuple[int, int]:
        """Return the number of passes of fsyncs, and the number of failed ones."""
        return self._syncer.passes, self._syncer.failures

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the journals and of the snapshot."""
        return self._journals.size_bytes, self._journals.snapshot_bytes
