"""Drop requests: drop all FlowFiles of a queue, or those that match, with progress and cancel.

Owns the request and its steps: memory first, then one swap file after the other. Does not own the
sweep of a file (`expiration`). FlowFiles that a session has taken are not dropped.
"""

from __future__ import annotations

import enum
import threading
from dataclasses import dataclass

from penstock.core.errors import PenstockError
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.expiration import sweep
from penstock.flow.queue.listing import Predicate, match_mask
from penstock.flow.queue.queue_size import QueueSize
from penstock.flow.queue.queue_state import QueueState


class DropState(enum.Enum):
    """State of a request; the last three are final."""

    WAITING = "waiting"
    DROPPING = "dropping"
    COMPLETE = "complete"
    FAILED = "failed"
    CANCELLED = "cancelled"


_FINAL = frozenset({DropState.COMPLETE, DropState.FAILED, DropState.CANCELLED})


@dataclass(frozen=True, slots=True)
class DropProgress:
    """Progress of a request.

    Attributes:
        state: State of the request.
        original: Size of the queue when it began.
        dropped_count: FlowFiles dropped so far.
        dropped_bytes: Their content.
        failure: Why it failed; empty if it did not.
    """

    state: DropState
    original: QueueSize
    dropped_count: int
    dropped_bytes: int
    failure: str


class DropRequest:
    """Drop request; `run` executes it, on any thread.

    The mutex protects a few fields: one thread executes the request, and others query it.

    Args:
        queue_state: State of the queue.
        predicate: Selects FlowFiles by their attributes; None: everything.
    """

    def __init__(self, queue_state: QueueState, predicate: Predicate | None) -> None:
        self._queue_state = queue_state
        self._predicate = predicate
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._state = DropState.WAITING
        self._is_cancelled = False
        with queue_state.mutex:
            self._original = queue_state.size()
        self._count = 0
        self._bytes = 0
        self._failure = ""

    @property
    def progress(self) -> DropProgress:
        """Return the progress."""
        with self._mutex:
            return DropProgress(
                self._state, self._original, self._count, self._bytes, self._failure
            )

    def cancel(self) -> bool:
        """Stop after the current step; return False if the request had already ended."""
        with self._mutex:
            if self._state in _FINAL:
                return False
            self._is_cancelled = True
            if self._state is DropState.WAITING:
                self._end(DropState.CANCELLED)
            return True

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the request ends; return False after a timeout."""
        return self._ended.wait(timeout_s)

    def run(self) -> None:
        """Execute the request.

        `progress` reports failures: FlowFiles that could not be dropped stay.
        """
        with self._mutex:
            if self._state is not DropState.WAITING:
                return
            self._state = DropState.DROPPING
        end, failure = DropState.FAILED, "it was interrupted"
        try:
            self._drop_from_memory()
            failures = self._drop_from_files()
            end = DropState.CANCELLED if self._is_cancelled else DropState.COMPLETE
            if failures:
                end = DropState.FAILED
            failure = "; ".join(failures)
        except PenstockError as error:
            failure = str(error)
        finally:
            with self._mutex:
                self._failure = failure
                self._end(end)

    def _drop_from_memory(self) -> None:
        queue_state, predicate = self._queue_state, self._predicate
        with queue_state.mutex:
            queue_state.sort_returned()
            queue_state.wait_until_written()
            seen = [one for store in queue_state.stores for one in store.memory.flowfiles()]
        # The predicate is user code, so it runs without the mutex; FlowFiles may leave meanwhile.
        ids = {one.id for one in seen if predicate is None or predicate(one.attributes)}
        gone: list[FlowFile] = []
        try:
            with queue_state.mutex:
                for store in queue_state.stores:
                    store.memory.remove(ids, gone)
            if gone:
                queue_state.swap_store.remove(gone)
        except BaseException:
            with queue_state.mutex:
                queue_state.returned += gone
            raise
        self._dropped(gone)

    def _drop_from_files(self) -> list[str]:
        queue_state, predicate = self._queue_state, self._predicate
        with queue_state.mutex:
            cursors = [(store, cursor) for store in queue_state.stores for cursor in store.cursors]
        failures: list[str] = []
        for store, cursor in cursors:
            if self._is_cancelled:
                break
            try:
                swept = sweep(
                    queue_state,
                    store,
                    cursor,
                    None if predicate is None else lambda page: match_mask(page, predicate),
                )
            except PenstockError as error:
                failures.append(str(error))
                continue
            if swept is not None:
                self._add(swept.count, swept.size_bytes)
        return failures

    def _dropped(self, flowfiles: list[FlowFile]) -> None:
        self._add(len(flowfiles), sum([one.size for one in flowfiles]))

    def _add(self, count: int, size_bytes: int) -> None:
        with self._mutex:
            self._count += count
            self._bytes += size_bytes

    def _end(self, state: DropState) -> None:
        self._state = state
        self._ended.set()
