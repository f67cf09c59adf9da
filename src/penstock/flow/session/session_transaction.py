"""Lifecycle of a process session: begin, checkpoint, commit, roll back, terminate.

`SessionTransaction` owns the session's records from one checkpoint to the next, the order of a
commit, and the handling of failures. `SessionCalls` owns the session's mutex and whether calls
are still accepted. `IdAllocator` takes ids from the repository's sequence in ranges. Does not own
the operations of the processor in between (`process_session`).

Commit order: finish content; write one batch to the journal; update counts; put FlowFiles into
their queues; acknowledge sources; run callbacks. A crash before the journal write leaves
everything as it was; a crash after it leaves everything committed.

Invariants:

- A FlowFile that was taken is in the session's records until it is in a queue again or the
  journal records its removal.
- After a failure before the journal write, everything that was taken is given back. After the
  journal write, and while FlowFiles are given back, every step is executed, and the first exception
  is raised at the end.
- The records are kept until it is known which FlowFiles go back, so a rollback that raises
  `MemoryError` is completed by the end of the session.
- After `terminate` or `end` every call raises, and everything that was taken is given back, at
  the latest when the last call returns.
- Later ids of a session are greater; ids left over at its end are never used.

Threading: used by the thread that runs the processor. Only `terminate` comes from another
thread; it needs the mutex because the processor's thread may hang and would not read mail.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.flow.errors import ProcessError, SessionMisuse, Terminated
from penstock.flow.processor_state import SessionState
from penstock.flow.repository.commit_note import CommitNote, EndReason
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.session.commit import PreparedCommit, prepare
from penstock.flow.session.session_content import SessionContent
from penstock.flow.session.session_inputs import SessionInputs
from penstock.flow.session.session_state import SessionFlowFiles, named, with_penalty
from penstock.flow.session.statistics import IDLE, Counters, SessionStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from penstock.flow.flowfile import FlowFile
    from penstock.flow.session.services import SessionContext, SessionRepository, SessionServices


Work = TypeVar("Work")


class RollBack(Protocol):
    """Function that gives back the FlowFiles that a session took."""

    def __call__(self, *, whole: bool = False, failed: bool = False) -> None:
        """Return FlowFiles taken since the last checkpoint to their queues.

        Args:
            whole: Also return those of earlier checkpoints.
            failed: The processor raised, or broke the rules: retry a batch in halves.
        """
        ...


class SessionCalls(Generic[Work]):
    """Context manager for each call; it provides the object that the call works on.

    A call that breaks the rules rolls the session back.

    Args:
        processor: Processor of the session.
        work: Object that the calls work on.
        roll_back: Rolls the session back; called with the mutex held.
    """

    __slots__ = ("_ended", "_mutex", "_processor", "_roll_back", "_terminated", "_work")

    def __init__(self, processor: str, work: Work, roll_back: RollBack) -> None:
        self._processor = processor
        self._work = work
        self._roll_back = roll_back
        self._mutex = threading.RLock()
        self._terminated = False
        self._ended = False

    def __enter__(self) -> Work:
        self._mutex.acquire()
        if self._terminated:
            self._mutex.release()
            raise self._terminated_error()
        return self._work

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is not None and issubclass(kind, SessionMisuse):
                self._roll_back(failed=True)
        finally:
            self._mutex.release()
            # Check after the release: a later `terminate` finds the mutex free, and an earlier one
            # could not acquire it.
            if self._terminated:
                self._roll_back_if_idle()

    def terminate(self) -> None:
        """Terminate the session, from another thread, without waiting."""
        self._terminated = True
        self._roll_back_if_idle()

    def end(self) -> None:
        """Refuse further calls: the runner of the processor has finished with this session.

        FlowFiles that a remaining thread of the processor took now would never be given back.
        """
        self._ended = True
        self.terminate()

    @property
    def is_terminated(self) -> bool:
        """Return whether the session was terminated."""
        return self._terminated

    def _roll_back_if_idle(self) -> None:
        """Roll back, unless a call is running: then the end of that call rolls back."""
        if self._mutex.acquire(blocking=False):
            try:
                self._roll_back(whole=True)
            finally:
                self._mutex.release()

    def _terminated_error(self) -> Terminated:
        if self._ended:
            return Terminated(
                f"processor {self._processor}: the session was used after its trigger returned "
                "or on another thread; use it only on the triggered thread, before the trigger "
                "returns"
            )
        return Terminated(
            f"processor {self._processor} was terminated during this trigger, and its session "
            "was rolled back; return from the trigger"
        )


_MOST_AHEAD: Final = 256


class IdAllocator:
    """Ids for one session; for the session's thread only."""

    __slots__ = ("_end", "_next", "_repository", "_taken")

    def __init__(self, repository: SessionRepository) -> None:
        self._repository = repository
        self._next = self._end = 0
        self._taken = 0

    def take(self, count: int = 1) -> int:
        """Return the first of `count` consecutive ids."""
        if self._end - self._next < count:
            # Take as many as before: a session that creates one FlowFile takes one id.
            ahead = max(count, min(self._taken, _MOST_AHEAD))
            self._next = self._repository.next_ids(ahead)
            self._end = self._next + ahead
        first = self._next
        self._next += count
        self._taken += count
        return first


_logger = logging.getLogger(__name__)


class SessionTransaction:
    """One session, called by the thread that runs the processor.

    The runner of a processor creates one for each trigger or batch of triggers, and ends it:
    ``commit`` after a trigger, ``fail`` after one that raised, and ``flush`` at the end of a
    batch in all cases.

    Attributes:
        context: Connections of the processor.
        services: Repositories and other objects that all sessions share.
        calls: Held during each call; terminates the session.
        session_state: Session state since the last checkpoint.
        content: Content of the FlowFiles.
        intake: Takes FlowFiles from the inputs.
        numbers: Ids for new FlowFiles.
        state: State of the processor, as of this session.
        counters: Counters of the processor.
        statistics: Counts of the work so far, over all commits.

    Args:
        context: Connections of the processor.
        services: Repositories and other objects that all sessions share.
        batching: Whether a commit of the processor is only a checkpoint; `flush` commits all of
            them together.
    """

    def __init__(
        self, context: SessionContext, services: SessionServices, *, batching: bool = False
    ) -> None:
        self.context = context
        self.services = services
        self.session_state = SessionFlowFiles()
        self.calls = SessionCalls(context.processor, self, self._roll_back)
        self.content = SessionContent(services.content, self.session_state, self.calls)
        self.intake = SessionInputs(
            context, services.repository, services.clock, records=services.records
        )
        self.numbers = IdAllocator(services.repository)
        self.state = SessionState(context.state)
        self.counters = Counters()
        self.statistics: SessionStatistics = IDLE
        self._batching = batching
        self._prepared = PreparedCommit()
        self._durable = False
        self._callbacks: list[Callable[[], None]] = []

    def on_committed(self, callback: Callable[[], None]) -> None:
        """Register a function to call once the work so far is committed, and only then.

        Callbacks run on the session's thread, in order. An exception of a callback is logged; the
        commit remains valid.
        """
        with self.calls:
            self._callbacks.append(callback)

    def checkpoint(self) -> None:
        """Complete the work so far; it is committed with later work.

        Raises:
            SessionMisuse: A FlowFile was not transferred or removed, or its relationship is not
                connected; the session is rolled back.
            Unavailable: Content could not be written; the session is rolled back.
        """
        with self.calls:
            try:
                self.content.finish()
            except BaseException:
                self._roll_back()
                raise
            self._close_books()

    def commit(self, *, durable: bool = False) -> None:
        """Commit the work since the last commit; with batching, only make a checkpoint.

        Raises:
            SessionMisuse: A FlowFile was not transferred or removed, or its relationship is not
                connected; the session is rolled back.
            Unavailable: Full disk or I/O error; the session is rolled back.
        """
        with self.calls:
            self.checkpoint()
            self._durable = self._durable or durable
            if not self._batching:
                try:
                    self.flush()
                except BaseException:
                    self._roll_back(whole=True)  # nothing committed is left in it
                    raise

    def flush(self) -> None:
        """Commit all checkpoints, at the end of a batch.

        Raises:
            Unavailable: Full disk or I/O error; everything was rolled back.
        """
        with self.calls:
            callbacks = self._flush()
            for callback in callbacks:
                try:
                    callback()
                except Exception:
                    # Callbacks are the only user code that runs after the commit, which cannot be
                    # undone.
                    _logger.exception(
                        "%s: a callback after a commit failed", self.context.processor
                    )

    def rollback(self, *, penalize: bool = False, whole: bool = False) -> None:
        """Return FlowFiles taken since the last checkpoint to their queues, and discard new ones.

        Args:
            penalize: FlowFiles that are given back cannot be taken during the penalty period.
            whole: Also roll back earlier checkpoints.
        """
        with self.calls:
            self._roll_back(penalize=penalize, whole=whole)

    def fail(self, error: BaseException) -> None:
        """Roll back after a trigger that raised.

        After a `ProcessError` all FlowFiles that were taken are penalized. After any other
        exception, a FlowFile that was taken alone is penalized; if several were taken, it is
        unknown which one failed: they are retried in halves (`batch_limit`).

        Raises:
            Terminated: The session was terminated and rolled back before.
        """
        with self.calls:
            if isinstance(error, ProcessError):
                self._roll_back(penalize=True)
            else:
                self._roll_back(failed=True)

    def migrate(self, target: SessionTransaction, flowfiles: Iterable[FlowFile]) -> None:
        """Move FlowFiles to another session of the same processor.

        Raises:
            SessionMisuse: One is not open, or would be separated from its parent or child.
            InvalidRequest: The target is this session, or one of another processor.
        """
        with self.calls:
            if target is self or target.context.processor != self.context.processor:
                raise InvalidRequest(
                    "FlowFiles can only migrate to another session of the same processor: pass "
                    "such a session"
                )
            given = list(flowfiles)
            ids = self.session_state.open_ids(given, "migrate")
            self.session_state.check_relatives(ids)
            self.content.finish_appends([self.session_state.newest[number] for number in ids])
            with target.calls:  # not earlier: an error above does not concern that session
                self.session_state.move(ids, target.session_state)

    def _close_books(self) -> None:
        try:
            self.state.checkpoint()
            if self.session_state.newest:
                counts = prepare(self.session_state, self.context, self.services, self._prepared)
                self._count(counts, prepared=True)
                if self.context.batch_limit.count is not None:
                    self.context.batch_limit.passed(self.session_state.taken_count())
                self._begin()
            counters = self.counters.take()
            if counters:
                self._count(SessionStatistics(counters=counters), prepared=True)
            self._count_bytes()
            self._prepared.callbacks += self._callbacks
            self._callbacks = []
        except SessionMisuse:
            raise  # nothing was added to the prepared commit
        except BaseException:
            self._roll_back(whole=True)
            raise

    def _flush(self) -> list[Callable[[], None]]:
        prepared, following, steps = self._prepared, PreparedCommit(), CleanupSteps()
        committed = False
        try:
            states = self.state.pending()
            taken_of_queues = prepared.taken()
            if prepared.session_states or states:
                self.services.repository.commit(prepared.changes(states), durable=self._durable)
            committed = True
        finally:
            if not committed:
                self._roll_back(whole=True)
        self._prepared = following
        self._durable = False
        steps.take(self.state.committed)
        steps.take(self._count, prepared.statistics)
        for queue_id, flowfiles in prepared.puts.items():
            steps.take(prepared.queues[queue_id].put_many, flowfiles)
        for taken in taken_of_queues:
            steps.take(taken.queue.acknowledge, taken.count, taken.size_bytes)
        if prepared.yield_ms:
            steps.take(self.context.yield_for, prepared.yield_ms)
        steps.finish()
        return prepared.callbacks

    def _roll_back(
        self, *, penalize: bool = False, whole: bool = False, failed: bool = False
    ) -> None:
        if failed:
            taken = self.session_state.taken_count()
            inputs = len(self.context.inputs)
            penalty_end_s = self.services.clock.monotonic_s() + self.context.penalty_ms / 1_000
            self.context.batch_limit.failed(
                taken, inputs, self.session_state.originals, penalty_end_s
            )
            penalize = taken == 1
        try:
            self.content.abort()
        finally:  # every FlowFile that was taken must be given back, even if the disk fails
            self._forget(penalize=penalize, whole=whole)

    def _forget(self, *, penalize: bool, whole: bool) -> None:
        session_states = [self.session_state]
        if whole:
            # The prepared commit may already contain the current session state.
            before = [one for one in self._prepared.session_states if one is not self.session_state]
            session_states = [*before, self.session_state]
        going_back = [(one, _by_source(one)) for one in session_states]
        following, prepared, steps = SessionFlowFiles(), PreparedCommit(), CleanupSteps()
        callbacks: list[Callable[[], None]] = []
        self.session_state, self._callbacks = following, callbacks
        if whole:
            self._prepared, self._durable = prepared, False
        for session_state, by_source in going_back:
            steps.take(self._give_back, session_state, by_source, penalize=penalize)
        steps.take(self.counters.take)
        steps.take(self.state.rolled_back, whole=whole)
        steps.take(self._count_bytes)
        steps.take(self.content.use, following)
        steps.finish()

    def _give_back(
        self,
        session_state: SessionFlowFiles,
        by_source: Mapping[str, list[FlowFile]],
        *,
        penalize: bool,
    ) -> None:
        steps = CleanupSteps()
        for _, claim in session_state.written:
            steps.take(self.services.content.release, claim.resource)
        gone = steps.take(self._let_go_missing, session_state) or set()
        now_ms = steps.take(self.services.clock.now_ms) if penalize else None
        for name, taken in session_state.taken.items():
            back = by_source[name]
            if gone:
                back = [one for one in back if one.id not in gone]
            if back and now_ms is not None:
                penalized = steps.take(with_penalty, back, now_ms + self.context.penalty_ms)
                back = penalized or back
            if back:
                steps.take(taken.queue.put_many, back)
            steps.take(taken.queue.acknowledge, taken.count, taken.size_bytes)
        steps.finish()

    def _let_go_missing(self, session_state: SessionFlowFiles) -> set[int]:
        """Remove FlowFiles from the flow whose content is missing: they would always fail."""
        missing = [session_state.originals[number] for number in session_state.missing]
        if not missing:
            return set()
        try:
            notes = []
            if self.services.records:
                note = CommitNote(
                    self.context.processor,
                    self.services.clock.now_ms(),
                    revision=self.services.revision(),
                )
                note.add_ended(EndReason.MISSING, [one.id for one in missing])
                notes.append(note)
            self.services.repository.commit(Changes(missing=missing, notes=notes))
        except PenstockError as error:
            _logger.warning(
                "%s has no content, and its removal could not be recorded (%s): it is given back",
                named(missing[0]),
                error,
            )
            return set()
        self._count(SessionStatistics(missing_count=len(missing)))
        for flowfile in missing:
            _logger.error(
                "%s is removed from the flow, because its content is missing (%s); attributes: %s",
                named(flowfile),
                flowfile.claim,
                dict(flowfile.attributes),
            )
        return set(session_state.missing)

    def _begin(self) -> None:
        self.session_state = SessionFlowFiles()
        self.content.use(self.session_state)

    def _count(self, counts: SessionStatistics, *, prepared: bool = False) -> None:
        # Most sessions commit once, so that their sum is their only count.
        if prepared:
            known = self._prepared.statistics
            self._prepared.statistics = counts if known is IDLE else known + counts
        elif counts is not IDLE:
            known = self.statistics
            self.statistics = counts if known is IDLE else known + counts

    def _count_bytes(self) -> None:
        read_bytes, written_bytes = self.content.counts()
        expired_count, expired_bytes = self.intake.counts()
        if read_bytes or written_bytes or expired_count:
            self._count(
                SessionStatistics(
                    read_bytes=read_bytes,
                    written_bytes=written_bytes,
                    expired_count=expired_count,
                    expired_bytes=expired_bytes,
                )
            )


def _by_source(session_state: SessionFlowFiles) -> dict[str, list[FlowFile]]:
    """Return the FlowFiles that were taken, in their original version, by the queue's id."""
    by_source: dict[str, list[FlowFile]] = {name: [] for name in session_state.taken}
    for number, original in session_state.originals.items():
        by_source[session_state.sources[number].id].append(original)
    return by_source
