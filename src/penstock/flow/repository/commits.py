"""Commits in their order: journaled and applied, settled when they are durable, or undone.

Owns the state, its mutex, and who waits for durability. Does not own when something is made durable
(`committing`), what a commit says (`state` plans and applies it), reading back (`recovery`).

Invariants:

- Commits are journaled and applied in one order, under one mutex; so a start finds the state after
  one of them. No fsync happens under it.
- A commit that somebody waits for and that cannot be made durable is undone, and the journal is
  poisoned: it holds what did not happen. Nothing more is committed until a snapshot stands for all
  that did.
- A full disk refuses a commit and changes nothing.
- If it is not known after an exception whether a commit was made, the repository stops: it refuses
  everything, and deletes and writes nothing, until a restart reads the journal. Its process is told
  to restart.
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
    """A commit that was made.

    Attributes:
        error: Why it was undone, if it was.
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
    """What makes durable what was committed up to now.

    Attributes:
        number: Of the last commit that it makes durable.
        released: Content that nobody refers to after that commit.
        finish: Fsyncs the journal; after the content.
    """

    number: int
    released: Sequence[ResourceClaim]
    finish: Callable[[], None]


class Cut(NamedTuple):
    """What a snapshot holds.

    Attributes:
        state: A copy of the state.
        released: Content that nobody refers to in it.
        heals: The journal before was poisoned, and a snapshot of this replaces it.
    """

    state: State
    released: Sequence[ResourceClaim]
    heals: bool


class Commits:
    """What was committed. Every method takes the mutex itself.

    The mutex is the owner of state and journal: sessions of all threads commit, each holds it for
    the append of one record, and mail to an owning thread would cost more than that. A second one
    is for the sequences alone, so that who makes FlowFiles does not wait for somebody's commit.

    Args:
        state: As it was read, after the last commit of the journals.
        journals: Where commits go.
        content: What they refer to.
        clock: Tells how long a snapshot holds commits up.

    Attributes:
        durable: The number up to which commits are durable.
        count: Commits that were made.
        durable_count: Those of them that somebody waited for, until they were durable.
        refused_count: Commits that were refused.
        snapshot_hold_us: How long commits were held up by the last snapshot.
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
        """Say whether commits wait for a snapshot that replaces the journal."""
        return self._poison is not None

    @property
    def is_stopped(self) -> bool:
        """Say whether everything is refused until a restart."""
        return self._stopped is not None

    def append(
        self,
        plan: Callable[[State, int], Batch | None],
        references: Mapping[ResourceClaim, int],
        *,
        durable: bool,
    ) -> Ticket | None:
        """Journal and apply what a plan says; None: there was nothing to do.

        Args:
            plan: As in `Committer.commit`.
            references: How many more (or fewer) refer to each resource afterwards.
            durable: Somebody waits until it is durable: it is undone if that cannot be.

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
        """Return what a function takes from the state.

        It must be quick, and change nothing but what needs no journal.
        """
        with self._mutex:
            return look(self._state)

    def may_be_recorded(self, name: str) -> bool:
        """Say whether a start may find a record of a swap file."""
        with self._mutex:
            known = name in self._state.files or name in self._state.leaving
            return known or self._stopped is not None

    def reserve(self, take: Callable[[Sequences], _T]) -> _T:
        """Return what a function takes from a sequence.

        Commits go on meanwhile. A snapshot may miss it, and needs not know: what a commit used was
        taken before it.
        """
        with self._sequence_mutex:
            return take(self._state.sequences)

    # -- becoming durable

    def is_waiting(self, ticket: Ticket) -> bool:
        """Say whether a commit is neither durable nor undone."""
        return ticket in self._waiting

    def begin_pass(self) -> Pass:
        """Begin to make durable what was committed up to now; `settle` or `fail` ends it.

        Raises:
            Unavailable: It failed already, and nothing is to be ended.
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
        """Note that commits up to a number are durable."""
        with self._mutex:
            self._settle(number)

    def fail(self, error: BaseException, number: int | None = None) -> None:
        """Undo the commits that somebody waits for, up to a number; None: all."""
        with self._mutex:
            self._undo(self._state.number if number is None else number, error)

    def call_when_stopped(self, callback: Callable[[], None]) -> None:
        """Call back once everything is refused until a restart; the callback must not block."""
        with self._mutex:
            self._on_stop = callback
            if self._stopped is not None:
                callback()

    def stop(self, error: BaseException) -> None:
        """Refuse everything until a restart: an exception came after a commit was made."""
        with self._mutex:
            self._stop(error)

    def begin_snapshot(self) -> Cut:
        """Go on in the next journal, and return what a snapshot has to hold.

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
        """Note that a snapshot is durable."""
        with self._mutex:
            self._settle(cut.state.number)
            if cut.heals:
                self._poison = None

    def close(self) -> bool:
        """Refuse what comes from now on; False: it was so already."""
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
                "the FlowFile repository writes its journal anew, because an fsync failed "
                f"({self._poison}): check the disk, and try again"
            )

    def _check_not_stopped(self) -> None:
        if self._stopped is not None:
            self.refused_count += 1
            raise Unavailable(
                "the FlowFile repository has stopped, because after an exception it is not known "
                f"whether a commit was made ({self._stopped}): restart the flow, which reads the "
                "journal"
            )

    def _stop(self, error: BaseException) -> None:
        if self._stopped is None:
            self._stopped = "an exception"  # first, as describing it may raise, too
            try:
                self._stopped = described(error)
                _logger.error("the FlowFile repository stops: restart it", exc_info=error)
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
            return  # nobody was promised anything, and the journal can sync again
        try:
            self._poison = described(error)
            # A snapshot under way may hold what is undone here: only a later one counts.
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
            "undone, as an fsync failed: %s: %s", counted(len(failed), "commit"), described(error)
        )


def described(error: BaseException) -> str:
    """Return the message of an exception, with its type if it is not one of Penstock's."""
    return str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
