"""Making commits durable: passes of fsyncs, snapshots, and deleting what a commit let go.

Owns when something is made durable and in which order on the disk, the journals' fsyncs and
snapshots. Does not own the commits themselves (`commits`), reading back (`recovery`).

Invariants:

- Content is fsynced before the journal that refers to it, and released content and swap files go
  when the journal that released them is durable.
- A poisoned journal (see `commits`) is replaced by a snapshot by the next pass.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.flow.repository.commits import Commits, described
from penstock.storage.syncing import Syncer
from penstock.storage.syncthreads import SyncThreads

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
    """Makes commits, one after the other, and makes them durable, many at once.

    One mutex keeps passes of fsyncs apart from the dropping of old journals, another one snapshots
    from each other; that of the commits is taken after them, and never held during an fsync.

    Args:
        state: As it was read, after the last commit of the journals.
        journals: Where commits go.
        content: What they refer to.
        swap: Where swap files are.
        clock: Tells the time.
        options: When to sync and to write a snapshot.

    Attributes:
        commits: What was committed.
        snapshots: Written since the start.
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
        self._snapshot_planned = threading.Lock()  # held from the decision to its end
        self._plan_next_snapshot()

    # -- the beginning

    def begin(self, *, anew: bool) -> None:
        """Make durable what was read, before anything is deleted or written.

        Args:
            anew: The journals hold something that does not count: let a snapshot stand for all.

        Raises:
            Unavailable: I/O error or full disk.
        """
        if anew:
            self.snapshot()
        else:
            self._journals.begin_sync()()

    def look_for_released(self) -> None:
        """Let a pass come within the interval: content was released without a commit."""
        self._syncer.wrote(0)

    def delete_leaving(self) -> None:
        """Delete swap files that were done with before the start."""
        self._delete((), self.commits.durable)

    def abandon(self) -> None:
        """Stop without writing anything."""
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
        """Journal and apply what a plan says.

        Args:
            plan: Given the state and the number up to which commits are durable, returns the
                record, or None if there is nothing to do.
            references: How many more (or fewer) refer to each resource afterwards.
            durable: Wait until it survives a power loss.

        Raises:
            Conflict: The plan is not possible.
            Unavailable: Nothing was changed.
            Closed: The repository is closed.
        """
        if self._threads is None and self.commits.is_poisoned:
            self.sync()  # nobody else would
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
                self.commits.stop(error)  # the caller takes it as not made, but it was
            raise

    def _wait_for(self, ticket: Ticket) -> None:
        try:
            failure = self._syncer.request().exception()
        except Closed as error:
            # Closing came in between, and makes durable what was appended before.
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
        """Make durable what was committed.

        Raises:
            Unavailable: It failed; commits that waited were undone.
            Closed: The repository is closed.
        """
        self._syncer.request().result()

    def _pass(self) -> int:
        """Make durable what was committed up to now; return its number."""
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
        """Replace the poisoned journal by a snapshot; return the number that is durable."""
        try:
            self.snapshot()
        except BaseException as error:
            # Those that were appended between the fsync that failed and its failure, too.
            self.commits.fail(error)
            raise
        return self.commits.durable

    def _delete(self, released: Sequence[ResourceClaim], number: int) -> None:
        """Delete what nobody refers to since a commit that is durable."""
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
        """Write a snapshot and begin a new journal; commits go on but for a moment.

        Raises:
            Unavailable: It failed; the journals go on without it.
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
            return  # closing writes one
        except Exception as error:  # noqa: BLE001  -- no thread can be started
            self._put_snapshot_off(error)
            self._snapshot_planned.release()

    def _snapshot_or_later(self) -> None:
        try:
            self.snapshot()
        except Exception as error:  # noqa: BLE001  -- the commit that it came with stands
            self._put_snapshot_off(error)
        finally:
            self._snapshot_planned.release()

    def _put_snapshot_off(self, error: Exception) -> None:
        self._snapshot_at = self._journals.size_bytes + self._options.snapshot_bytes // 4
        details = None if isinstance(error, PenstockError) else error
        _logger.warning(
            "no snapshot of the FlowFile repository could be written: %s", error, exc_info=details
        )

    def _plan_next_snapshot(self) -> None:
        self._snapshot_at = max(self._options.snapshot_bytes, 2 * self._journals.snapshot_bytes)

    # -- the end

    def close(self) -> None:
        """Make all durable and stop. Twice is fine.

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
            # The journal has it all, and the next start reads it.
            self._content.sync()
            self._journals.begin_sync()()
            return
        if commits.number == commits.durable == self._journals.snapshot_number:
            self._delete(self._content.references.released(), commits.durable)
            return
        try:
            self.snapshot()
        except Exception as error:  # noqa: BLE001  -- the journal does as well
            _logger.warning("closing without a snapshot: %s", error)
            self._pass()

    @property
    def unsynced_age_s(self) -> float:
        """Return the age of the oldest commit that is not synced; 0 without a background sync."""
        return 0.0 if self._threads is None else self._threads.unsynced.age_s()

    def unsynced_trouble(self) -> str | None:
        """Return what is wrong if a commit waits too long for its sync."""
        return None if self._threads is None else self._threads.unsynced.trouble()

    @property
    def syncs(self) -> tuple[int, int]:
        """Return how many passes of fsyncs there were, and how many failed."""
        return self._syncer.passes, self._syncer.failures

    @property
    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the journals and of the snapshot."""
        return self._journals.size_bytes, self._journals.snapshot_bytes
