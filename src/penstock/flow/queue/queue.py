"""The queue of a connection: FlowFiles in the order of its prioritizers, at any depth.

Owns what is in the queue, in memory and in swap files, and the counts. Does not own where FlowFiles
are durable (`home.SwapHome`), what a session does with those it took, nor how users look into it
(`looking`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, counted
from penstock.core.steps import Steps
from penstock.flow.flowfile import FlowFile
from penstock.flow.prioritizers import Prioritizer, SortOrder
from penstock.flow.queue.budget import HeapBudget
from penstock.flow.queue.contents import Contents
from penstock.flow.queue.dropping import DropRequest
from penstock.flow.queue.expiring import Expiring
from penstock.flow.queue.home import RestoredSwapFile, SwapHome
from penstock.flow.queue.looking import AttributeIs, Looking, Predicate
from penstock.flow.queue.readahead import Background, ReadAhead
from penstock.flow.queue.size import Availability, QueueOptions, QueueSize
from penstock.flow.queue.swapping import Swapping
from penstock.flow.queue.sweeping import SweptRows
from penstock.flow.queue.taking import Polled, Taking, Verdict


@dataclass(frozen=True, slots=True)
class QueueStatistics:
    """What happened to a queue since it was made.

    Attributes:
        swap_files_written: How many.
        swap_failures: Swap files that could not be written.
        last_swap_failure: Why the last one could not, or nothing if it could.
        lost_count: FlowFiles in swap files that cannot be read any more.
    """

    swap_files_written: int
    swap_failures: int
    last_swap_failure: str
    lost_count: int


class QueueListener(Protocol):
    """Who wants to know of a queue; called without its mutex, quick, and never raises."""

    def on_work(self, queue: str) -> None:
        """Learn that something was put: `availability` or `next_due_ms` may say something new."""
        ...

    def on_space(self, queue: str) -> None:
        """Learn that the queue was full and is not any more."""
        ...


class FlowFileQueue:
    """A priority queue that swaps; used from many threads.

    One mutex is held around work in memory and around reading a window of rows, never around a
    write, a listener, a filter or a predicate. The keys of prioritizers are made while it is held.

    Args:
        queue_id: Id of the connection.
        home: Where FlowFiles are durable.
        clock: For penalties and expiration.
        options: Thresholds, expiration and back-pressure.
        budget: Shared by all queues; None: no bound but the threshold.
        background: Runs a job soon, on a thread of its own; None: nothing is read ahead, and a drop
            is done by who asks for it.

    Attributes:
        id: Id of the connection.
        listener: Who wants to know; set before the first put.
        looking: Lists, searches and counts what is there, taking nothing.
    """

    def __init__(
        self,
        queue_id: str,
        home: SwapHome,
        clock: Clock,
        options: QueueOptions | None = None,
        *,
        budget: HeapBudget | None = None,
        background: Background | None = None,
    ) -> None:
        self.id = queue_id
        self.listener: QueueListener | None = None
        self._contents = Contents(queue_id, home, clock, options or QueueOptions())
        self._mutex = self._contents.mutex
        self.looking: Final = Looking(self._contents)
        self._swapping = Swapping(self._contents, budget)
        self._expiring = Expiring(self._contents)
        self._taking = Taking(self._contents, self._expiring)
        self._background = background
        self._read_ahead = ReadAhead(self._contents, background)

    def restore(
        self, flowfiles: Sequence[FlowFile], swap_files: Sequence[RestoredSwapFile]
    ) -> None:
        """Take what the repository recovered; once, before anything else.

        Args:
            flowfiles: Those whose home is the journal, in any order.
            swap_files: Those that the journal knows; only summaries are looked at now, and sizes
                where rows are done with.
        """
        with self._mutex:
            for restored in swap_files:
                self._contents.restore_run(restored)
            self._contents.check_full()
        self.put_many(flowfiles)

    def put(self, flowfile: FlowFile) -> None:
        """Add a FlowFile whose home the repository knows."""
        self.put_many((flowfile,))

    def put_many(self, flowfiles: Sequence[FlowFile]) -> None:
        """Add FlowFiles; also those that a session gives back, before it acknowledges them.

        They are in the queue afterwards, whatever this raises. Swapping that fails for the disk is
        no failure of this: it is counted, and tried again later.
        """
        if not flowfiles:
            return
        steps = Steps()
        with self._mutex:
            self._contents.returned += flowfiles  # they are here now, whatever is raised
            steps.take(self._contents.sort_put)
        steps.take(self._swapping.after_put)
        if self.listener is not None:
            steps.take(self.listener.on_work, self._contents.queue_id)
        steps.finish()

    def poll(self) -> Polled:
        """Take the first FlowFile, if there is one that is not penalized."""
        return self.poll_many(1)

    def poll_many(self, limit: int) -> Polled:
        """Take up to so many, in order.

        Fewer may come than there are: when the next ones are just being written to a swap file.
        Whatever this raises, nothing was taken then.
        """
        polled = self._taking.take(limit)
        try:
            self._end_taking()
        except BaseException:
            self._taking.give_back(polled)  # the caller gets nothing
            raise
        return polled

    def poll_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
        """Take what a filter accepts; it is shown FlowFiles in order until it wants no more.

        At most as many are shown as may be in memory. Other polls wait meanwhile, so the filter
        must not poll this queue. What the filter raises passes through, and nothing is taken then.

        Raises:
            Conflict: The filter polls the queue that it is asked for.
        """
        polled = Polled([])
        try:
            polled = self._taking.take_where(accept)
        finally:
            try:
                self._end_taking()
            except BaseException:
                self._taking.give_back(polled)
                raise
        return polled

    def acknowledge(self, count: int, size_bytes: int) -> None:
        """Count what a session took as gone; what it gives back it puts first.

        Args:
            count: FlowFiles that were polled.
            size_bytes: The bytes of their content, as they were polled.

        Raises:
            InvalidRequest: So much was not polled; nothing was changed.
        """
        with self._mutex:
            taken = self._contents.unacknowledged
            if not (0 <= count <= taken.count and 0 <= size_bytes <= taken.size_bytes):
                raise InvalidRequest(
                    f"queue {self._contents.queue_id}: {counted(count, 'FlowFile')} of "
                    f"{counted(size_bytes, 'byte')} acknowledged, and {taken.count} of "
                    f"{counted(taken.size_bytes, 'byte')} polled; "
                    "acknowledge each once, with the size it had"
                )
            taken.add(-count, -size_bytes)
        self._tell_of_space()

    @property
    def size(self) -> QueueSize:
        """Return counts and bytes, consistent with each other."""
        with self._mutex:
            return self._contents.size()

    @property
    def is_full(self) -> bool:
        """Say whether back-pressure holds the source back. Never waits: schedulers ask often."""
        return self._contents.is_full

    def availability(self, now_ms: int) -> Availability:
        """Say, without walking, whether a poll would give something.

        Args:
            now_ms: The wall time.
        """
        # The scheduler asks, for all components on one thread, and must not wait while a poll reads
        # a swap file: a yes needs no mutex, and if the last one goes just now it costs one look.
        if self._contents.main.has_some:
            return Availability.AVAILABLE
        with self._mutex:
            return self._contents.availability(now_ms)

    def next_due_ms(self) -> int | None:
        """Return when the first penalty ends, epoch ms; None if nothing is penalized.

        A swap file that cannot be read now counts as penalized until it is tried again.
        """
        with self._mutex:
            return self._contents.due_ms()

    def expire(self) -> Polled:
        """Let go what is expired, in memory and in swap files; `flowfiles` is empty.

        Polls do so for what they meet, and for swap files now and then; this is for queues that
        nobody polls.
        """
        polled = Polled([])
        try:
            self._expiring.expire_in_memory(polled.expired)
            polled.expired_rows.extend(self._expiring.expire_rows(at_once=True))
            self._end_taking()
        except BaseException:
            self._taking.give_back(polled)
            raise
        return polled

    def set_prioritizers(self, prioritizers: Sequence[Prioritizer]) -> None:
        """Order everything anew, swapped FlowFiles too: their keys are read, no file is written."""
        order = SortOrder(prioritizers)
        with self._mutex:
            self._contents.wait_until_written()
            while any(run.is_busy or run.is_read_ahead for run in self._contents.main.runs):
                self._mutex.wait()
            self._contents.main.reorder(order.keys, order.text)
        # Run by run, so that puts come in between. A poll does it itself if it comes first.
        is_known = False
        while not is_known:
            with self._mutex:
                is_known = not self._contents.main.runs.resolve_one()
        self._contents.report_damages()

    def set_options(self, options: QueueOptions) -> None:
        """Use other thresholds, expiration and limits from now on."""
        with self._mutex:
            self._contents.options = options
            self._contents.main.threshold = options.swap_threshold
            self._contents.penalized.threshold = options.swap_threshold // 4
            self._contents.check_full()
        self._swapping.after_put()
        self._tell_of_space()

    def drop(self, predicate: Predicate | None = None) -> DropRequest:
        """Drop everything, or what a predicate likes; what sessions have stays with them.

        It is done in the background if there is one, or before this returns.
        """
        request = DropRequest(self._contents, predicate)

        def run() -> None:
            steps = Steps()
            steps.take(request.run)
            if self._contents.returned:
                steps.take(self._taking.sort_returned)
                if self.listener is not None:
                    # A poll that found the queue empty meanwhile does not come again by itself.
                    steps.take(self.listener.on_work, self._contents.queue_id)
            steps.take(self._swapping.report_use)
            steps.take(self._tell_of_space)
            steps.finish()

        if self._background is None:
            run()
        else:
            self._background(run)
        return request

    def statistics(self) -> QueueStatistics:
        """Return what happened so far."""
        swapping = self._swapping
        return QueueStatistics(
            swapping.written_files,
            swapping.failures,
            swapping.last_failure,
            self._contents.lost_count,
        )

    def _end_taking(self) -> None:
        """Do what follows a poll."""
        steps = Steps()
        steps.take(self._taking.sort_returned)
        steps.take(self._contents.report_damages)
        steps.take(self._swapping.report_use)
        steps.take(self._read_ahead.after_taking)
        steps.take(self._tell_of_space)
        steps.finish()

    def _tell_of_space(self) -> None:
        if not self._contents.is_full:
            return
        with self._mutex:
            has_space = self._contents.has_got_space()
        if has_space and self.listener is not None:
            self.listener.on_space(self._contents.queue_id)


__all__ = [
    "AttributeIs",
    "FlowFileQueue",
    "Polled",
    "QueueListener",
    "QueueStatistics",
    "SweptRows",
    "Verdict",
]
