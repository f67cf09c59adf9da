"""Takes FlowFiles from the inputs of a processor into a session.

Owns the choice of inputs, and the handling of expired FlowFiles. Does not own the queues, nor the
rotation of inputs (`services`).

Invariants: FlowFiles that were taken are in the session state before anything else can fail.
Expired FlowFiles are removed by a separate commit, whether the session commits or not. If that
commit fails, they are put back into their queue, and the processor yields before it takes them
again.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import PenstockError, counted
from penstock.flow.queue.queue import FilterVerdict
from penstock.flow.repository.commit_note import expired_note
from penstock.flow.repository.repository_changes import Changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.queue.queue import PollResult
    from penstock.flow.session.services import SessionContext, SessionQueue, SessionRepository
    from penstock.flow.session.session_state import SessionFlowFiles

_logger = logging.getLogger(__name__)


class SessionInputs:
    """Intake of one session: takes FlowFiles; for the session's thread only.

    Attributes:
        expired_count: Expired FlowFiles found since the last `counts`.
        expired_bytes: Content size of those.
    """

    def __init__(
        self,
        context: SessionContext,
        repository: SessionRepository,
        clock: Clock,
        *,
        records: bool = False,
    ) -> None:
        self._session_context = context
        self._repository = repository
        self._clock = clock
        self._records = records
        self.expired_count = 0
        self.expired_bytes = 0
        self._alone: int | None = None  # id of a FlowFile with which no other is taken

    def one(self, session_state: SessionFlowFiles) -> FlowFile | None:
        """Take the first FlowFile of the input whose turn it is, or of the next that has one."""
        if self._room(session_state) == 0:
            return None
        for queue in self._session_context.pollable():
            taken = self._enter(session_state, queue, queue.poll)
            if taken:
                return taken[0]
        return None

    def many(self, session_state: SessionFlowFiles, limit: int) -> list[FlowFile]:
        """Take up to `limit` FlowFiles of the first input that has any."""
        room = self._room(session_state)
        if room is not None:
            limit = min(limit, room)
            if not limit:
                return []
        for queue in self._session_context.pollable():
            taken = self._enter(session_state, queue, partial(queue.poll_many, limit))
            if taken:
                return taken
        return []

    def where(
        self, session_state: SessionFlowFiles, accept: Callable[[FlowFile], FilterVerdict]
    ) -> list[FlowFile]:
        """Take the FlowFiles of all inputs that a filter accepts, until it stops."""
        taken: list[FlowFile] = []
        room = self._room(session_state)
        stopped = room == 0

        def decide(flowfile: FlowFile) -> FilterVerdict:
            nonlocal stopped, room
            verdict = accept(flowfile)
            if room is not None and verdict.is_accepted:
                room -= 1
                if room == 0:
                    verdict = FilterVerdict.ACCEPT_AND_STOP
            stopped = verdict.is_last
            return verdict

        for queue in self._session_context.pollable():
            if stopped or self._is_closed(session_state):
                break
            taken += self._enter(session_state, queue, partial(queue.poll_where, decide))
        return taken

    def counts(self) -> tuple[int, int]:
        """Return number and bytes of FlowFiles that expired since the last call."""
        counts = self.expired_count, self.expired_bytes
        self.expired_count = self.expired_bytes = 0
        return counts

    def _room(self, session_state: SessionFlowFiles) -> int | None:
        """Return how many more FlowFiles the session may take; None: no limit."""
        if self._is_closed(session_state):
            return 0
        limit = self._session_context.batch_limit.count
        return None if limit is None else max(0, limit - session_state.taken_count())

    def _is_closed(self, session_state: SessionFlowFiles) -> bool:
        """Return whether the session took a FlowFile that must be processed alone."""
        return self._alone is not None and self._alone in session_state.originals

    def _enter(
        self, session_state: SessionFlowFiles, queue: SessionQueue, poll: Callable[[], PollResult]
    ) -> list[FlowFile]:
        steps = CleanupSteps()
        polled = poll()
        flowfiles, expired = polled.flowfiles, polled.expired
        back: list[FlowFile] = []
        limit = self._session_context.batch_limit
        try:
            if flowfiles and limit.suspects:
                now_s = self._clock.monotonic_s()
                taken, rest, is_alone = limit.separate(
                    flowfiles, is_first=not session_state.originals, now_s=now_s
                )
                self._alone = taken[0].id if is_alone else None
                flowfiles, back = taken, rest
            if flowfiles:
                session_state.take(queue, flowfiles)
                self._session_context.rotate_after(queue)
        except BaseException:
            # A rollback gives back the others.
            if flowfiles and flowfiles[0].id not in session_state.newest:
                self._give_back(queue, flowfiles, steps)
            raise
        finally:
            if back:
                self._give_back(queue, back, steps)
            for rows in polled.expired_rows:
                self.expired_count += rows.count
                self.expired_bytes += rows.size_bytes
            if expired:
                try:
                    notes = [expired_note(expired, self._clock)] if self._records else []
                    self._repository.commit(Changes(removes=expired, notes=notes))
                except BaseException as error:  # noqa: BLE001 - raised again below
                    steps.take(queue.put_many, expired)
                    self._expired_stay(queue, expired, error)
                else:
                    self.expired_count += len(expired)
                    self.expired_bytes += sum([flowfile.size for flowfile in expired])
            steps.finish()
        return flowfiles

    def _give_back(
        self, queue: SessionQueue, flowfiles: list[FlowFile], steps: CleanupSteps
    ) -> None:
        steps.take(queue.put_many, flowfiles)
        size_bytes = sum([flowfile.size for flowfile in flowfiles])
        steps.take(queue.acknowledge, len(flowfiles), size_bytes)

    def _expired_stay(
        self, queue: SessionQueue, expired: list[FlowFile], error: BaseException
    ) -> None:
        if not isinstance(error, PenstockError):
            raise error
        self._session_context.yield_for(self._session_context.yield_ms)
        _logger.warning(
            "queue %s: %s could not be removed from the journal (%s); they "
            "stay in the queue until a retry",
            queue.id,
            counted(len(expired), "expired FlowFile"),
            error,
        )
