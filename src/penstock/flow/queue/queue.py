"""Queue of a connection: a priority queue of FlowFiles that swaps to disk.

`FlowFileQueue` owns the FlowFiles in memory and in swap files, the counts, and polling in order
or with a filter. A poll waits for FlowFiles that are being written or swept, sets expired ones
apart, and shows FlowFiles to a filter without the mutex. Does not own where FlowFiles are durable
(`swap_store.SwapStore`), the sessions that take them, or the listing for users (`listing`).

Threading: used from many threads under one mutex. A `QueueListener` is called without the
mutex; it must be fast and must not raise.

Invariant: a FlowFile that was taken is returned to the caller or put back, even after any
exception.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.core.cleanup import CleanupSteps
from penstock.core.clock import Clock
from penstock.core.errors import Conflict, InvalidRequest, counted
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Prioritizer, SortOrder
from penstock.flow.queue.drop_requests import DropRequest
from penstock.flow.queue.expiration import Expiration, SweptRows
from penstock.flow.queue.heap_budget import HeapBudget
from penstock.flow.queue.listing import AttributeIs, Predicate, QueueListing
from penstock.flow.queue.queue_size import Availability, QueueOptions, QueueSize
from penstock.flow.queue.queue_state import QueueState
from penstock.flow.queue.swap_cursors import SwapTally
from penstock.flow.queue.swap_policy import Background, ReadAhead, SwapPolicy
from penstock.flow.queue.swap_store import RestoredSwapFile, SwapStore

__all__ = [
    "AttributeIs",
    "FilterVerdict",
    "FlowFileQueue",
    "PollResult",
    "QueueListener",
    "QueueStatistics",
    "SweptRows",
]


_SHOWN_AT_ONCE = 256


class FilterVerdict(enum.Enum):
    """Verdict of a filter on a FlowFile, and whether it continues."""

    ACCEPT = "accept"
    REJECT = "reject"
    ACCEPT_AND_STOP = "accept and stop"
    REJECT_AND_STOP = "reject and stop"

    @property
    def is_accepted(self) -> bool:
        """Return whether the FlowFile is taken."""
        return self in {FilterVerdict.ACCEPT, FilterVerdict.ACCEPT_AND_STOP}

    @property
    def is_last(self) -> bool:
        """Return whether the filter stops."""
        return self in {FilterVerdict.ACCEPT_AND_STOP, FilterVerdict.REJECT_AND_STOP}


@dataclass(frozen=True, slots=True)
class PollResult:
    """Result of a poll.

    Attributes:
        flowfiles: FlowFiles in order; they count as unacknowledged until `acknowledge`.
        expired: Expired FlowFiles that were in memory and left the queue; the caller removes them
            from the journal.
        expired_rows: Expired rows of swap files that left the queue; already in the journal
            (`SwapStore`).
    """

    flowfiles: list[FlowFile]
    expired: list[FlowFile] = field(default_factory=list)
    expired_rows: list[SweptRows] = field(default_factory=list)


class QueuePoll:
    """Takes FlowFiles out of a queue, for polls.

    Args:
        queue_state: State of the queue.
        expiring: Separates expired FlowFiles.
    """

    def __init__(self, queue_state: QueueState, expiring: Expiration) -> None:
        self._queue_state = queue_state
        self._mutex = queue_state.mutex
        self._expiring = expiring
        self._filtering_thread: int | None = None

    def take(self, limit: int) -> PollResult:
        """Take up to `limit` FlowFiles, in order. Acquires the mutex itself."""
        polled = PollResult([], [], self._expiring.expire_rows())
        with self._mutex:
            self._wait_for_filter()
            self._take(limit, polled.flowfiles, polled.expired, self._queue_state.unacknowledged)
        return polled

    def give_back(self, polled: PollResult) -> None:
        """Put polled FlowFiles back, because the caller did not receive them.

        Acquires the mutex itself.
        """
        with self._mutex:
            self._queue_state.returned += polled.flowfiles
            self._queue_state.returned += polled.expired
            count, size_bytes = _count(polled.flowfiles)
            self._queue_state.unacknowledged.add(-count, -size_bytes)

    def sort_returned(self) -> None:
        """Put back FlowFiles that a filter rejected. Acquires the mutex itself."""
        if self._queue_state.returned:
            with self._mutex:
                self._queue_state.sort_returned()

    def take_where(self, accept: Callable[[FlowFile], FilterVerdict]) -> PollResult:
        """Take the FlowFiles that a filter accepts.

        Acquires the mutex itself, but not during the filter.

        Raises:
            Conflict: The filter polled this queue.
        """
        queue_state = self._queue_state
        polled = PollResult([], [], self._expiring.expire_rows())
        kept: list[FlowFile] = []
        is_whole = False
        with self._mutex:
            self._wait_for_filter()
            self._filtering_thread = threading.get_ident()
        try:
            self._show(accept, polled.flowfiles, kept, polled.expired)
            count = _count(polled.flowfiles)
            with self._mutex:
                queue_state.unacknowledged.add(*count)
                is_whole = True
        finally:
            with self._mutex:
                self._filtering_thread = None
                queue_state.shown.count = queue_state.shown.size_bytes = 0
                self._mutex.notify_all()
                queue_state.returned += kept
                if not is_whole:
                    queue_state.returned += polled.flowfiles
                    queue_state.returned += polled.expired
        return polled

    def _take(
        self, limit: int, kept: list[FlowFile], expired: list[FlowFile], tally: SwapTally
    ) -> None:
        """Take up to `limit` FlowFiles that are not expired; nothing if it raises.

        The mutex is held.

        Args:
            limit: Maximum number.
            kept: Empty list; receives those that are not expired.
            expired: Receives the others.
            tally: Counts those that are not expired.
        """
        found: list[FlowFile] = []
        there = len(expired)
        try:
            self._take_into(kept, expired, found, limit)
            tally.add(*_count(kept))
        except BaseException:
            # A FlowFile that was being moved between two lists may be in both.
            taken = {one.id: one for one in (*kept, *expired[there:], *found)}
            self._queue_state.returned += taken.values()
            kept.clear()
            del expired[there:]
            raise

    def _take_into(
        self,
        kept: list[FlowFile],
        expired: list[FlowFile],
        found: list[FlowFile],
        limit: int,
    ) -> None:
        """Take FlowFiles; even after any exception, each one taken is in one of the lists."""
        queue_state = self._queue_state
        while len(kept) < limit:
            queue_state.admit_due()
            while queue_state.main.cursors.resolve_one():
                pass
            if queue_state.main.cursors.is_unread:  # the first one may be in a cursor being swept
                self._mutex.wait()
                continue
            queue_state.main.take(found, limit - len(kept))
            fresh, old = self._expiring.split(found)
            is_blocked = not found and queue_state.main.is_blocked
            kept += fresh
            expired += old
            found.clear()
            if is_blocked and not kept:
                self._mutex.wait()
            elif not old:
                break

    def _show(
        self,
        accept: Callable[[FlowFile], FilterVerdict],
        accepted: list[FlowFile],
        kept: list[FlowFile],
        expired: list[FlowFile],
    ) -> None:
        """Pass FlowFiles to a filter; each one taken is in one of the lists, even if it raises."""
        while len(kept) < self._queue_state.options.swap_threshold:
            batch: list[FlowFile] = []
            with self._mutex:
                self._take(_SHOWN_AT_ONCE, batch, expired, self._queue_state.shown)
            if not batch:
                return
            seen = 0
            verdict = FilterVerdict.ACCEPT
            try:
                for flowfile in batch:
                    verdict = accept(flowfile)
                    (accepted if verdict.is_accepted else kept).append(flowfile)
                    seen += 1
                    if verdict.is_last:
                        return
            finally:
                kept += batch[seen:]

    def _wait_for_filter(self) -> None:
        while self._filtering_thread is not None:
            if self._filtering_thread == threading.get_ident():
                raise Conflict(
                    f"queue {self._queue_state.queue_id}: a filter must not poll the queue that "
                    "called it; decide only by the FlowFile"
                )
            self._mutex.wait()


def _count(flowfiles: Sequence[FlowFile]) -> tuple[int, int]:
    return len(flowfiles), sum([one.size for one in flowfiles])


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """Statistics of a queue since it was created.

    Attributes:
        swap_files_written: Swap files written.
        swap_failures: Swap files that could not be written.
        last_swap_failure: Reason of the last failure; empty if the last write succeeded.
        lost_count: FlowFiles in swap files that can no longer be read.
    """

    swap_files_written: int
    swap_failures: int
    last_swap_failure: str
    lost_count: int


class QueueListener(Protocol):
    """Listener of a queue; called without its mutex. Must be fast, and must not raise."""

    def on_work(self, queue: str) -> None:
        """Handle a put: `availability` or `next_due_ms` may have changed."""
        ...

    def on_space(self, queue: str) -> None:
        """Handle the end of back-pressure: the queue was full and has space again."""
        ...


class FlowFileQueue:
    """Priority queue that swaps; may be used from many threads.

    One mutex is held during work in memory and while a window of rows is read, never during a
    write, a listener, a filter or a predicate. Prioritizer keys are computed while it is held.

    Args:
        queue_id: Id of the connection.
        swap_store: Swap store.
        clock: For penalties and expiration.
        options: Thresholds, expiration and back-pressure.
        budget: Memory budget of all queues; None: only the threshold limits memory.
        background: Runs a job soon, on another thread; None: nothing is read ahead, and the calling
            thread executes a drop request.

    Attributes:
        id: Id of the connection.
        listener: Listener, set before the first put.
        listing: Lists, searches and counts FlowFiles without taking them.
    """

    def __init__(
        self,
        queue_id: str,
        swap_store: SwapStore,
        clock: Clock,
        options: QueueOptions | None = None,
        *,
        budget: HeapBudget | None = None,
        background: Background | None = None,
    ) -> None:
        self.id = queue_id
        self.listener: QueueListener | None = None
        self._queue_state = QueueState(queue_id, swap_store, clock, options or QueueOptions())
        self._mutex = self._queue_state.mutex
        self.listing: Final = QueueListing(self._queue_state)
        self._swapping = SwapPolicy(self._queue_state, budget)
        self._expiring = Expiration(self._queue_state)
        self._poll = QueuePoll(self._queue_state, self._expiring)
        self._background = background
        self._read_ahead = ReadAhead(self._queue_state, background)

    def restore(
        self, flowfiles: Sequence[FlowFile], swap_files: Sequence[RestoredSwapFile]
    ) -> None:
        """Add the recovered FlowFiles and swap files; called once, before all other methods.

        Args:
            flowfiles: FlowFiles whose home is the journal, in any order.
            swap_files: Swap files that the journal knows. Now only their summaries are read, and
                sizes if some rows are done.
        """
        with self._mutex:
            for restored in swap_files:
                self._queue_state.restore_cursor(restored)
            self._queue_state.check_full()
        self.put_many(flowfiles)

    def put(self, flowfile: FlowFile) -> None:
        """Add a FlowFile that the repository knows."""
        self.put_many((flowfile,))

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles, including those that a session gives back before it acknowledges them.

        They are in the queue afterwards, even if this raises. A failed write of a swap file does
        not raise: it is counted, and retried later.
        """
        if not flowfiles:
            return
        steps = CleanupSteps()
        with self._mutex:
            self._queue_state.returned += (
                flowfiles  # they are in the queue from here on, even if this raises
            )
            steps.take(self._queue_state.sort_put)
        steps.take(self._swapping.after_put)
        if self.listener is not None:
            steps.take(self.listener.on_work, self._queue_state.queue_id)
        steps.finish()

    def poll(self) -> PollResult:
        """Take the first FlowFile that is not penalized, if there is one."""
        return self.poll_many(1)

    def poll_many(self, limit: int) -> PollResult:
        """Take up to `limit` FlowFiles, in order.

        The result may be shorter than the queue while the next FlowFiles are being written to a
        swap file. If this raises, nothing was taken.
        """
        polled = self._poll.take(limit)
        try:
            self._end_poll()
        except BaseException:
            self._poll.give_back(polled)  # the caller receives nothing
            raise
        return polled

    def poll_where(self, accept: Callable[[FlowFile], FilterVerdict]) -> PollResult:
        """Take the FlowFiles that a filter accepts; it receives FlowFiles in order until it stops.

        The filter receives at most as many as may be in memory. Other polls wait meanwhile, so the
        filter must not poll this queue. If the filter raises, the exception is passed on, and
        nothing is taken.

        Raises:
            Conflict: The filter polled this queue.
        """
        polled = PollResult([])
        try:
            polled = self._poll.take_where(accept)
        finally:
            try:
                self._end_poll()
            except BaseException:
                self._poll.give_back(polled)
                raise
        return polled

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Record that FlowFiles which a session took left the queue.

        A session first puts those that it gives back.

        Args:
            count: Number of polled FlowFiles.
            size_bytes: Their content bytes, as polled.

        Raises:
            InvalidRequest: Fewer were polled; nothing was changed.
        """
        with self._mutex:
            taken = self._queue_state.unacknowledged
            if not (0 <= count <= taken.count and 0 <= size_bytes <= taken.size_bytes):
                raise InvalidRequest(
                    f"queue {self._queue_state.queue_id}: {counted(count, 'FlowFile')} of "
                    f"{counted(size_bytes, 'byte')} acknowledged, but only {taken.count} of "
                    f"{counted(taken.size_bytes, 'byte')} polled; acknowledge each FlowFile "
                    "once, with its size when polled"
                )
            taken.add(-count, -size_bytes)
        self._notify_of_space()

    @property
    def size(self) -> QueueSize:
        """Return the counts and bytes, consistent with each other."""
        with self._mutex:
            return self._queue_state.size()

    @property
    def is_full(self) -> bool:
        """Return whether back-pressure stops the source.

        Never blocks: schedulers call this often.
        """
        return self._queue_state.is_full

    def availability(self, now_ms: int) -> Availability:
        """Return whether a poll would return a FlowFile, without iterating.

        Args:
            now_ms: The wall time.
        """
        # The scheduler checks all components on one thread, and must not wait while a poll reads a
        # swap file. A positive result needs no mutex. If the last FlowFile is taken at this moment,
        # one readiness check is wasted.
        if self._queue_state.main.has_some:
            return Availability.AVAILABLE
        with self._mutex:
            return self._queue_state.availability(now_ms)

    def next_due_ms(self) -> int | None:
        """Return when the first penalty ends, epoch ms; None if nothing is penalized.

        A swap file that cannot be read now counts as penalized until it is retried.
        """
        with self._mutex:
            return self._queue_state.due_ms()

    def expire(self) -> PollResult:
        """Remove expired FlowFiles, in memory and in swap files; `flowfiles` is empty.

        Polls remove the expired FlowFiles that they find, and those of swap files at intervals.
        This method is for queues that no component polls.
        """
        polled = PollResult([])
        try:
            self._expiring.expire_in_memory(polled.expired)
            polled.expired_rows.extend(self._expiring.expire_rows(at_once=True))
            self._end_poll()
        except BaseException:
            self._poll.give_back(polled)
            raise
        return polled

    def set_prioritizers(self, prioritizers: Sequence[Prioritizer]) -> None:
        """Change the order of all FlowFiles. Keys of swapped ones are read; no file is written."""
        order = SortOrder(prioritizers)
        with self._mutex:
            self._queue_state.wait_until_written()
            while any(
                cursor.is_busy or cursor.is_read_ahead for cursor in self._queue_state.main.cursors
            ):
                self._mutex.wait()
            self._queue_state.main.reorder(order.keys, order.text)
        # One swap file at a time, so that puts run in between. A poll sorts the first one itself.
        is_known = False
        while not is_known:
            with self._mutex:
                is_known = not self._queue_state.main.cursors.resolve_one()
        self._queue_state.report_damages()

    def set_options(self, options: QueueOptions) -> None:
        """Use other thresholds, expiration and limits from now on."""
        with self._mutex:
            self._queue_state.options = options
            self._queue_state.main.threshold = options.swap_threshold
            self._queue_state.penalized.threshold = options.swap_threshold // 4
            self._queue_state.check_full()
        self._swapping.after_put()
        self._notify_of_space()

    def drop(self, predicate: Predicate | None = None) -> DropRequest:
        """Drop everything, or FlowFiles that match; those that sessions took are not dropped.

        Runs in the background if possible, otherwise before this returns.
        """
        request = DropRequest(self._queue_state, predicate)

        def run() -> None:
            steps = CleanupSteps()
            steps.take(request.run)
            if self._queue_state.returned:
                steps.take(self._poll.sort_returned)
                if self.listener is not None:
                    # A component that found the queue empty meanwhile does not poll again by
                    # itself.
                    steps.take(self.listener.on_work, self._queue_state.queue_id)
            steps.take(self._swapping.report_use)
            steps.take(self._notify_of_space)
            steps.finish()

        if self._background is None:
            run()
        else:
            self._background(run)
        return request

    def statistics(self) -> QueueStatistics:
        """Return the statistics."""
        swapping = self._swapping
        return QueueStatistics(
            swapping.written_files,
            swapping.failures,
            swapping.last_failure,
            self._queue_state.lost_count,
        )

    def _end_poll(self) -> None:
        """Do the work that follows a poll."""
        steps = CleanupSteps()
        steps.take(self._poll.sort_returned)
        steps.take(self._queue_state.report_damages)
        steps.take(self._swapping.report_use)
        steps.take(self._read_ahead.after_taking)
        steps.take(self._notify_of_space)
        steps.finish()

    def _notify_of_space(self) -> None:
        if not self._queue_state.is_full:
            return
        with self._mutex:
            has_space = self._queue_state.has_got_space()
        if has_space and self.listener is not None:
            self.listener.on_space(self._queue_state.queue_id)
