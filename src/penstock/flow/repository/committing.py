"""Commits: their order, when they are durable, and taking one back that cannot be made durable.

Owns: the state, the journals' writing end, who waits for durability, and snapshots. Does not own:
what a commit says (`state` plans and applies it), reading back (`recovery`).

Invariants:

- Commits are journaled and applied in one order, under one mutex; so a start finds the state after
  one of them.
- Content is fsynced before the journal that refers to it, and released content and swap files go
  when the journal that released them is durable.
- A commit that somebody waits for and that cannot be made durable is undone, and the journal is
  poisoned: it holds what did not happen. Nothing more is committed until a snapshot stands for all
  that did.
- A full disk refuses a commit and changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.flow.repository.records import encode
from penstock.storage.syncing import Syncer
from penstock.storage.syncthreads import SyncThreads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.repository.journals import Journals
    from penstock.flow.repository.options import RepositoryOptions
    from penstock.flow.repository.records import Batch
    from penstock.flow.repository.state import State, Undo
    from penstock.flow.repository.swapfolder import SwapFolder
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.content.repository import ContentRepository

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)

_FSYNCS_MAX = 2  # a pass and a snapshot


class _Ticket:
    """A commit that somebody waits for."""

    __slots__ = ("batch", "error", "references", "undo")

    def __init__(self, batch: Batch, undo: Undo, references: Mapping[ResourceClaim, int]) -> None:
        self.batch = batch
        self.undo = undo
        self.references = references
        self.error: PenstockError | None = None


class Committer:
    """Makes commits, one after the other, and makes them durable, many at once.

    Its mutex is the owner of state and journal: sessions of all threads commit, each holds it for
    the append of one record, and mail to an owning thread would cost more than that. Never held
    during an fsync. The second mutex keeps passes of fsyncs apart from the dropping of old
    journals, the third one snapshots from each other; they are taken before the first. The fourth
    is for the sequences alone, so that who makes FlowFiles does not wait for somebody's commit.

    Args:
        state: As it was read, after the last commit of the journals.
        journals: Where commits go.
        content: What they refer to.
        swap: Where swap files are.
        clock: Tells the time.
        options: When to sync and to write a snapshot.
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
        self._state = state
        self._journals = journals
        self._content = content
        self._swap = swap
        self._clock = clock
        self._options = options
        self._mutex = threading.Lock()
        self._disk_mutex = threading.Lock()
        self._snapshot_mutex = threading.Lock()
        self._sequence_mutex = threading.Lock()
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
        self._durable = state.number
        self._tickets: list[_Ticket] = []
        self._poison: str | None = None
        self._closed = False
        self._stopped = threading.Event()
        self._snapshot_at = 0
        self._snapshot_planned = False
        self.commits = self.durable_commits = self.refused_commits = 0
        self.snapshots = self.snapshot_hold_us = 0
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
        self._delete((), self._durable)

    def abandon(self) -> None:
        """Stop without writing anything."""
        self._closed = True
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
        if self._poison is not None and self._threads is None:
            self.sync()  # nobody else would
        with self._mutex:
            number = self._state.number
            ticket = self._append(plan, references, durable=durable)
            if self._state.number == number:
                return
            due = self._journals.size_bytes >= self._snapshot_at and not self._snapshot_planned
            self._snapshot_planned |= due
        self._syncer.wrote(1)
        if ticket is not None:
            self._wait_for(ticket)
        if due:
            self._start_snapshot()

    def _append(
        self,
        plan: Callable[[State, int], Batch | None],
        references: Mapping[ResourceClaim, int],
        *,
        durable: bool,
    ) -> _Ticket | None:
        """Do it; the mutex is held."""
        self._check_open()
        batch = plan(self._state, self._durable)
        if batch is None:
            return None
        try:
            self._journals.append(encode(batch))
        except PenstockError:
            self.refused_commits += 1
            raise
        undo = self._state.undo_of(batch) if durable else None
        if rest := self._state.apply(batch):
            changed = Counter(references)
            changed.subtract(rest)
            references = changed
        self._content.adjust(references)
        self.commits += 1
        if undo is None:
            return None
        ticket = _Ticket(batch, undo, references)
        self._tickets.append(ticket)
        return ticket

    def _wait_for(self, ticket: _Ticket) -> None:
        try:
            failure = self._syncer.request().exception()
        except Closed as error:
            # Closing came in between, and makes durable what was appended before.
            self._stopped.wait()
            failure = error
        if ticket.error is not None:
            raise Unavailable(
                f"the commit could not be made durable and was undone: {ticket.error}"
            ) from ticket.error
        if failure is not None and ticket in self._tickets:
            raise failure

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the FlowFile repository is closed: open it again")
        if self._poison is not None:
            self.refused_commits += 1
            raise Unavailable(
                "the FlowFile repository writes its journal anew, because an fsync failed "
                f"({self._poison}): check the disk, and try again"
            )

    def read(self, look: Callable[[State], _T]) -> _T:
        """Return what a function takes from the state.

        It must be quick, and change nothing but what needs no journal.
        """
        with self._mutex:
            return look(self._state)

    def reserve(self, take: Callable[[State], int]) -> int:
        """Return what a function takes from a sequence of the state.

        Commits go on meanwhile. A snapshot may miss it, and needs not know: what a commit used was
        taken before it.
        """
        with self._sequence_mutex:
            return take(self._state)

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
        if self._poison is not None:
            return self._heal()
        with self._disk_mutex:
            target = self._durable
            try:
                with self._mutex:
                    target = self._state.number
                    released = self._content.released()
                    finish = self._journals.begin_sync()
                self._content.sync()
                finish()
            except PenstockError as error:
                with self._mutex:
                    self._fail(target, error)
                raise
            with self._mutex:
                self._settle(target)
        self._delete(released, target)
        return target

    def _heal(self) -> int:
        """Replace the poisoned journal by a snapshot; return the number that is durable."""
        try:
            self.snapshot()
        except PenstockError as error:
            with self._mutex:
                # Those that were appended between the fsync that failed and its failure.
                self._fail(self._state.number, error)
            raise
        return self._durable

    def _settle(self, number: int) -> None:
        """Note what is durable; the mutex is held."""
        self._durable = max(self._durable, number)
        waiting = [one for one in self._tickets if one.batch.number > number]
        self.durable_commits += len(self._tickets) - len(waiting)
        self._tickets = waiting

    def _fail(self, number: int, error: PenstockError) -> None:
        """Undo the commits that somebody waits for, up to a number; the mutex is held."""
        failed = [one for one in self._tickets if one.batch.number <= number]
        if not failed:
            return  # nobody was promised anything, and the journal can sync again
        self._tickets = [one for one in self._tickets if one.batch.number > number]
        self._poison = str(error)
        # A snapshot under way may hold what is undone here: only a later one counts.
        self._state.number += 1
        for ticket in reversed(failed):
            self._state.undo(ticket.batch, ticket.undo)
            back = {resource: -count for resource, count in ticket.references.items()}
            self._content.adjust(back)
            ticket.error = error
        _logger.error("%d commits were undone, because an fsync failed: %s", len(failed), error)

    def _delete(self, released: Sequence[ResourceClaim], number: int) -> None:
        """Delete what nobody refers to since a commit that is durable."""
        self._content.delete_released(released)
        leaving = self.read(
            lambda state: {
                name: one.kept_aside for name, one in state.leaving.items() if one.number <= number
            }
        )
        if leaving and self._swap.remove(leaving):
            with self._mutex:
                for name in leaving:
                    self._state.leaving.pop(name, None)

    # -- snapshots

    def snapshot(self) -> None:
        """Write a snapshot and begin a new journal; commits go on but for a moment.

        Raises:
            Unavailable: It failed; the journals go on without it.
        """
        with self._snapshot_mutex:
            self._journals.create_next()
            with self._mutex:
                began_s = self._clock.monotonic_s()
                poison = self._poison
                copy = self._state.copy()
                released = self._content.released()
                self._journals.switch()
                self.snapshot_hold_us = round((self._clock.monotonic_s() - began_s) * 1e6)
            self._journals.write_snapshot(copy, self._options.snapshot_slice, self._content.sync)
            with self._disk_mutex:
                with self._mutex:
                    self._settle(copy.number)
                    if poison is not None:
                        self._poison = None
                    self.snapshots += 1
                self._journals.drop_old()
            self._plan_next_snapshot()
        self._delete(released, copy.number)

    def _start_snapshot(self) -> None:
        if self._threads is None:
            self._snapshot_or_later()
            return
        try:
            self._threads.run(self._snapshot_or_later)
        except Closed:
            return  # closing writes one

    def _snapshot_or_later(self) -> None:
        try:
            self.snapshot()
        except PenstockError as error:
            _logger.warning("no snapshot of the FlowFile repository could be written: %s", error)
            self._snapshot_at = self._journals.size_bytes + self._options.snapshot_bytes // 4
        finally:
            self._snapshot_planned = False

    def _plan_next_snapshot(self) -> None:
        self._snapshot_at = max(self._options.snapshot_bytes, 2 * self._journals.snapshot_bytes)

    # -- the end

    def close(self) -> None:
        """Make all durable and stop. Twice is fine.

        Raises:
            Unavailable: The last commits could not be made durable.
        """
        with self._mutex:
            if self._closed:
                return
            self._closed = True
        self._syncer.close()
        if self._threads is not None:
            self._threads.close()
        self._content.seal()
        try:
            self._close_with_snapshot()
        finally:
            self._journals.close()
            self._stopped.set()

    def _close_with_snapshot(self) -> None:
        if self._state.number == self._durable == self._journals.snapshot_number:
            self._delete(self._content.released(), self._durable)
            return
        try:
            self.snapshot()
        except PenstockError as error:
            _logger.warning("closing without a snapshot: %s", error)
            self._pass()

    @property
    def syncs(self) -> tuple[int, int]:
        """Return how many passes of fsyncs there were, and how many failed."""
        return self._syncer.passes, self._syncer.failures

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Return the bytes of the journals, of the snapshot, and the commits not durable."""
        with self._mutex:
            unsynced = self._state.number - self._durable
            return self._journals.size_bytes, self._journals.snapshot_bytes, unsynced
