"""Durability of commits: passes of fsyncs, snapshots, and deletion of released files.

Owns when commits are made durable, the order of writes to the disk, the fsyncs of journals, and
snapshots. Does not own the commits themselves (`commits`), nor recovery (`recovery`).

Invariants:

- Content is fsynced before the journal that refers to it. Released content and swap files are
  deleted once the journal that released them is durable.
- The next pass replaces a poisoned journal (see `commits`) by a snapshot.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.flow.repository.commits import Commits, described
from penstock.storage.queue.group_commit import Syncer, SyncThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.repository.commits import Ticket
    from penstock.flow.repository.journals import Journals
    from penstock.flow.repository.options import RepositoryOptions
    from penstock.flow.repository.records import Batch
    from penstock.flow.repository.state import State
    from penstock.flow.repository.swapfolder import SwapFolder
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.content.repository import ContentRepository

_logger = logging.getLogger(__name__)

_FSYNCS_MAX: Final = 2  # a pass and a snapshot


class Committer:
    """Makes commits one after the other, and makes many of them durable at once.

    One mutex separates passes of fsyncs from the deletion of old journals, and another one
    separates snapshots. The mutex of the commits is acquired after them, and never held during an
    fsync.

    Args:
        state: State after the last commit of the journals.
        journals: Journals for the commits.
        content: Content to which commits refer.
        swap: Folder of swap files.
        clock: The current time.
        options: When to sync and to write a snapshot.

    Attributes:
        commits: Commits made.
        snapshots: Snapshots written since the start.
    """

    def __init__(
        self,
        state: State,
        journals: Journals,
        content: ContentRepository,
        swap: SwapFolder,
        clock: Clock,
        options: RepositoryOptions,
    ) -> None:
        self.commits = Commits(state, journals, content, clock)
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

    def begin(self, *, anew: bool) -> None:
        """Make the recovered state durable, before anything is deleted or written.

        Args:
            anew: Whether the journals contain records that do not count, so that a snapshot must
                replace them.

        Raises:
            Unavailable: I/O error or full disk.
        """
        if anew:
            self.snapshot()
        else:
            self._journals.begin_sync()()

    def look_for_released(self) -> None:
        """Schedule a pass within the interval, because content was released without a commit."""
        self._syncer.wrote(0)

    def delete_leaving(self) -> None:
        """Delete swap files whose rows were all done before the start."""
        self._delete((), self.commits.durable)

    def abandon(self) -> None:
        """Stop without writing."""
        self.commits.close()
        if self._threads is not None:
            self._threads.close()
        self._journals.close()

    # -- commits

    def commit(
        self,
        plan: Callable[[State, int], Batch | None],
        references: Mapping[ResourceClaim, int],
        *,
        durable: bool,
    ) -> None:
        """Journal and apply a plan.

        Args:
            plan: Function of the state and of the number of the last durable commit. It returns the
                record, or None if there is nothing to do.
            references: Change of the reference count of each resource.
            durable: Whether to wait until the commit survives a power loss.

        Raises:
            Conflict: The plan is not possible.
            Unavailable: Nothing was changed.
            Closed: The repository is closed.
        """
        if self._threads is None and self.commits.is_poisoned:
            self.sync()  # no other thread syncs
        ticket = self.commits.append(plan, references, durable=durable)
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

    def _wait_for(self, ticket: Ticket) -> None:
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
                self.commits.settle(begun.number)
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
            # Also those that were appended between the failed fsync and its handling.
            self.commits.fail(error)
            raise
        return self.commits.durable

    def _delete(self, released: Sequence[ResourceClaim], number: int) -> None:
        """Delete content that has no references since a durable commit."""
        self._content.delete_released(released)
        leaving = self.commits.read(
            lambda state: {
                name: one.kept_aside for name, one in state.leaving.items() if one.number <= number
            }
        )
        if leaving and self._swap.remove(leaving):
            self.commits.read(lambda state: [state.leaving.pop(name, None) for name in leaving])

    # -- snapshots

    def snapshot(self) -> None:
        """Write a snapshot and begin a new journal; commits are delayed only for a moment.

        Raises:
            Unavailable: The snapshot failed; the journals are used without it.
        """
        with self._snapshot_mutex:
            self._journals.create_next()
            cut = self.commits.begin_snapshot()
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
            self._journals.close()
            self._stopped.set()

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

    def unsynced_trouble(self) -> str | None:
        """Return an error text if a commit waits too long for its sync."""
        return None if self._threads is None else self._threads.unsynced.trouble()

    @property
    def syncs(self) -> tuple[int, int]:
        """Return the number of passes of fsyncs, and the number of failed ones."""
        return self._syncer.passes, self._syncer.failures

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the journals and of the snapshot."""
        return self._journals.size_bytes, self._journals.snapshot_bytes
