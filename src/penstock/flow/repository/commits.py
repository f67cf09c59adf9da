"""Commits in order: each is journaled and applied, then becomes durable or is undone.

Owns the state, its mutex, and the threads that wait for durability. Does not own when commits are
made durable (`committing`), the content of a commit (`state` plans and applies it), nor recovery
(`recovery`).

Invariants:

- Commits are journaled and applied in one order, under one mutex, so that recovery finds the state
  after one of them. No fsync is made under the mutex.
- If a thread waits for a commit that cannot be made durable, the commit is undone. The journal then
  contains a commit that does not count: it is poisoned. No further commit is accepted until a
  snapshot replaces the journal.
- If the disk is full, the commit is refused and nothing changes.
- If an exception leaves open whether a commit was made, the repository stops: it refuses every
  call, and deletes and writes nothing, until a restart reads the journal. The process is asked to
  restart.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.core.errors import Closed, PenstockError, Unavailable, counted
from penstock.core.packing import pack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.flow.repository.journals import Journals
    from penstock.flow.repository.records import Batch
    from penstock.flow.repository.sequences import Sequences
    from penstock.flow.repository.state import State, Undo
    from penstock.storage.content.claims import ResourceClaim
    from penstock.storage.content.repository import ContentRepository

_T = TypeVar("_T")

_logger = logging.getLogger(__name__)


class Ticket:
    """Commit that was made.

    Attributes:
        error: Why it was undone; None if it was not.
    """

    __slots__ = ("batch", "error", "references", "undo")

    def __init__(
        self, batch: Batch, undo: Undo | None, references: Mapping[ResourceClaim, int]
    ) -> None:
        self.batch = batch
        self.undo = undo
        self.references = references
        self.error: BaseException | None = None


class Pass(NamedTuple):
    """Pass that makes all commits up to now durable.

    Attributes:
        number: Number of the last commit of the pass.
        released: Content without references after that commit.
        finish: Fsyncs the journal; called after the fsync of the content.
    """

    number: int
    released: Sequence[ResourceClaim]
    finish: Callable[[], None]


class Cut(NamedTuple):
    """State for a snapshot.

    Attributes:
        state: Copy of the state.
        released: Content without references in that state.
        heals: Whether the journal was poisoned, so that this snapshot replaces it.
    """

    state: State
    released: Sequence[ResourceClaim]
    heals: bool


class Commits:
    """Commits of a repository. Every method acquires the mutex itself.

    The mutex protects state and journal. Sessions of all threads commit, and each holds it while
    one record is appended. Mail to an owning thread would cost more. A second mutex protects the
    sequences, so that threads that create FlowFiles do not wait for commits.

    Args:
        state: State after the last commit of the journals.
        journals: Journals for the commits.
        content: Content to which commits refer.
        clock: Measures how long a snapshot delays commits.

    Attributes:
        durable: Number of the last durable commit.
        count: Number of commits made.
        durable_count: Number of commits that a caller waited for until they were durable.
        refused_count: Number of commits refused.
        snapshot_hold_us: How long the last snapshot delayed commits, in microseconds.
    """

    def __init__(
        self, state: State, journals: Journals, content: ContentRepository, clock: Clock
    ) -> None:
        self._state = state
        self._journals = journals
        self._content = content
        self._clock = clock
        self._mutex = threading.Lock()
        self._sequence_mutex = threading.Lock()
        self._waiting: list[Ticket] = []
        self._poison: str | None = None
        self._stopped: str | None = None
        self._on_stop: Callable[[], None] | None = None
        self._closed = False
        self.durable = state.number
        self.count = self.durable_count = self.refused_count = 0
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
        plan: Callable[[State, int], Batch | None],
        references: Mapping[ResourceClaim, int],
        *,
        durable: bool,
    ) -> Ticket | None:
        """Journal and apply a plan; return None if there is nothing to do.

        Args:
            plan: As in `Committer.commit`.
            references: Change of the reference count of each resource.
            durable: Whether the caller waits for durability: then the commit is undone if it cannot
                be made durable.

        Raises:
            Conflict: The plan is not possible.
            Unavailable: Nothing was changed.
            Closed: The repository is closed.
        """
        with self._mutex:
            self._check_open()
            batch = plan(self._state, self.durable)
            if batch is None:
                return None
            undo = self._state.undo_of(batch) if durable else None
            ticket = Ticket(batch, undo, references)
            try:
                self._journals.append(pack(batch))
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
                if durable:
                    self._waiting.append(ticket)
            except BaseException as error:
                self._stop(error)
                raise
            return ticket

    def read(self, look: Callable[[State], _T]) -> _T:
        """Return the result of a function of the state.

        The function must be fast, and must change only what is not journaled.
        """
        with self._mutex:
            return look(self._state)

    def may_be_recorded(self, name: str) -> bool:
        """Return whether recovery may find a record of a swap file."""
        with self._mutex:
            known = name in self._state.files or name in self._state.leaving
            return known or self._stopped is not None

    def reserve(self, take: Callable[[Sequences], _T]) -> _T:
        """Return the result of a function that takes values from a sequence.

        Commits continue meanwhile. A snapshot may miss the taken values, which does no harm: values
        used by a commit were taken before it.
        """
        with self._sequence_mutex:
            return take(self._state.sequences)

    # -- durability

    def is_waiting(self, ticket: Ticket) -> bool:
        """Return whether a commit is neither durable nor undone."""
        return ticket in self._waiting

    def begin_pass(self) -> Pass:
        """Begin a pass that makes all commits up to now durable; `settle` or `fail` ends it.

        Raises:
            Unavailable: The pass could not begin, and must not be ended.
        """
        with self._mutex:
            self._check_not_stopped()
            number = self._state.number
            try:
                return Pass(
                    number, self._content.references.released(), self._journals.begin_sync()
                )
            except BaseException as error:
                self._undo(number, error)
                raise

    def settle(self, number: int) -> None:
        """Mark commits up to a number as durable."""
        with self._mutex:
            self._settle(number)

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

    def begin_snapshot(self) -> Cut:
        """Switch to the next journal, and return the state for a snapshot.

        Raises:
            Unavailable: The repository is stopped.
        """
        with self._mutex:
            self._check_not_stopped()
            began_s = self._clock.monotonic_s()
            cut = Cut(self._state.copy(), self._content.references.released(), self.is_poisoned)
            self._journals.switch()
            self.snapshot_hold_us = round((self._clock.monotonic_s() - began_s) * 1e6)
            return cut

    def snapshot_stands(self, cut: Cut) -> None:
        """Record that a snapshot is durable."""
        with self._mutex:
            self._settle(cut.state.number)
            if cut.heals:
                self._poison = None

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
                "left open whether a commit was made: restart the flow, which reads the journal"
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

    def _settle(self, number: int) -> None:
        waiting = [one for one in self._waiting if one.batch.number > number]
        settled = len(self._waiting) - len(waiting)
        self._waiting = waiting
        self.durable = max(self.durable, number)
        self.durable_count += settled

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
