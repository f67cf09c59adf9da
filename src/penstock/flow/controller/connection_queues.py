"""Queues of a flow, one for each connection.

Owns the set of queues, the components that each one wakes, and the recovered FlowFiles without a
queue. Does not own the content of queues.

Invariants: when a connection is removed, its queue is empty. FlowFiles of connections that are not
in the flow are kept until the connection exists again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound, PenstockError, counted
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.repository.commit_note import expired_note
from penstock.flow.repository.repository_changes import Changes

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.flow.flowfile import FlowFile
    from penstock.flow.prioritizers import Prioritizer
    from penstock.flow.queue.heap_budget import HeapBudget
    from penstock.flow.queue.queue_size import QueueOptions
    from penstock.flow.repository.flowfile_repository import FlowFileRepository
    from penstock.flow.scheduling.component_protocol import SchedulerSignals

_logger = logging.getLogger(__name__)


class ConnectionListener:
    """`QueueListener` that wakes the components at both ends of a connection.

    Args:
        signals: The scheduler.
        source: Component that puts FlowFiles into the queue.
        destination: Component that takes FlowFiles from it.
    """

    def __init__(self, signals: SchedulerSignals, source: str, destination: str) -> None:
        self._signals = signals
        self._source = source
        self._destination = destination

    def on_work(self, queue: str) -> None:
        """Wake the destination."""
        del queue
        self._signals.wake(self._destination)

    def on_space(self, queue: str) -> None:
        """Wake the source."""
        del queue
        self._signals.wake(self._source)


class ConnectionQueues:
    """All queues of a flow. Used by the controller's thread; `find` by any thread.

    Attributes:
        options: Last options of each queue.
        expired: Number of FlowFiles of each queue that expired while no component polled it.

    Args:
        repository: Newly opened FlowFile repository.
        clock: The current time.
        budget: Memory limit of all queues together.
        background: Runs a job soon, on another thread.
    """

    def __init__(
        self,
        repository: FlowFileRepository,
        clock: Clock,
        budget: HeapBudget,
        background: Callable[[Callable[[], None]], object],
    ) -> None:
        self._repository = repository
        self._clock = clock
        self._budget = budget
        self._background = background
        self._waiting = dict(repository.recovered.queues)
        # Otherwise all recovered FlowFiles would stay in memory after they have left the queues.
        repository.recovered = replace(repository.recovered, queues={})
        self._queues: Mapping[str, FlowFileQueue] = {}
        self.options: dict[str, QueueOptions] = {}
        self.expired: dict[str, int] = {}

    @property
    def orphaned(self) -> Sequence[str]:
        """Return the ids of queues with FlowFiles whose connection is not in the flow."""
        return sorted(self._waiting)

    @property
    def queues(self) -> Mapping[str, FlowFileQueue]:
        """Return all queues by id; the mapping is immutable and replaced on changes."""
        return self._queues

    def find(self, queue_id: str) -> FlowFileQueue:
        """Return a queue.

        Raises:
            NotFound: The flow does not have this connection.
        """
        queue = self._queues.get(queue_id)
        if queue is None:
            raise NotFound(f"unknown connection {queue_id}: see penstock flow status")
        return queue

    def add(
        self, queue_id: str, options: QueueOptions, prioritizers: Sequence[Prioritizer]
    ) -> FlowFileQueue:
        """Create a queue with its recovered FlowFiles."""
        queue = FlowFileQueue(
            queue_id,
            self._repository.swap_store,
            self._clock,
            options,
            budget=self._budget,
            background=self._background,
        )
        try:
            queue.set_prioritizers(prioritizers)
            found = self._waiting.get(queue_id)
            if found is not None:
                queue.restore((), found.swap_files)
            self.options[queue_id] = options
            self._queues = {**self._queues, queue_id: queue}
        except BaseException:
            self._budget.leave(queue_id)
            raise
        self._waiting.pop(queue_id, None)
        if found is not None:
            queue.put_many(found.flowfiles)  # they are in the queue even if this raises
        return queue

    def change(
        self,
        queue_id: str,
        options: QueueOptions,
        prioritizers: Sequence[Prioritizer] | None,
    ) -> FlowFileQueue:
        """Change the options of a queue, and its order unless `prioritizers` is None."""
        queue = self.find(queue_id)
        if options != self.options[queue_id]:
            queue.set_options(options)
            self.options[queue_id] = options
        if prioritizers is not None:
            queue.set_prioritizers(prioritizers)
        return queue

    def remove(self, queue_id: str) -> None:
        """Remove an empty queue."""
        self._budget.leave(queue_id)
        self.options.pop(queue_id, None)
        self.expired.pop(queue_id, None)
        self._queues = {one: queue for one, queue in self._queues.items() if one != queue_id}

    def expire(self) -> None:
        """Remove expired FlowFiles from queues that no component polls."""
        for queue_id, queue in self._queues.items():
            try:
                polled = queue.expire()
            except PenstockError as error:
                _logger.warning(
                    "connection %s: expired FlowFiles could not be removed: %s", queue_id, error
                )
                continue
            count = 0
            if polled.expired and self._removed(queue, polled.expired):
                count = len(polled.expired)
            count += sum(rows.count for rows in polled.expired_rows)
            if count:
                self.expired[queue_id] = self.expired.get(queue_id, 0) + count

    def _removed(self, queue: FlowFileQueue, expired: Sequence[FlowFile]) -> bool:
        """Remove FlowFiles that left a queue from the journal; if that fails, put them back."""
        try:
            records = self._repository.spool is not None
            notes = [expired_note(expired, self._clock)] if records else []
            self._repository.commit(Changes(removes=expired, notes=notes))
        except PenstockError as error:
            queue.put_many(expired)
            _logger.warning(
                "connection %s: %s could not be removed from the journal (%s); they stay in the "
                "queue until a retry",
                queue.id,
                counted(len(expired), "expired FlowFile"),
                error,
            )
            return False
        except BaseException:
            queue.put_many(expired)
            raise
        return True
