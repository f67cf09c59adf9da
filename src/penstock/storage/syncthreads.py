"""The threads that fsync, for any number of queues: as many as the disk can use.

Owns: one thread that waits until the next callback is due, and a few that do the work. Does not
own: when a queue is due (`syncing`).

Invariants:

- A callback planned for a time is called once, at its time or shortly after, on the waiting thread;
  if it is planned again, it is called at the earlier of both times. It must not block.
- The waiting thread and a first worker start with their owner, which cannot be created without
  them: otherwise a durable write would be the first call to fail. Further workers start on demand.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

from penstock.core.errors import Closed, Unavailable
from penstock.core.rate_limited_log import SparseLog
from penstock.core.threads import OwnedThread
from penstock.storage.unsynced import UnsyncedData

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)

_SLACK: Final = 64


class SyncThreads:
    """Runs work now, or a callback at a time; from any thread.

    Its mutex guards the plan, which many threads change; it is held for a few lines.

    Args:
        clock: Returns the time.
        most: Maximum number of concurrent fsyncs.
        name: The name of the threads.

    Attributes:
        trouble: Logs failed fsyncs for all queues.
        unsynced: Since when each queue has unsynced data.

    Raises:
        Unavailable: No thread can be started.
    """

    def __init__(self, *, clock: Clock, most: int = 16, name: str = "sync") -> None:
        self._clock = clock
        self._name = name
        self.trouble = SparseLog(_logger, clock)
        self._changed = threading.Condition()
        self._planned: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self.unsynced = UnsyncedData(name, clock, self.call_at)
        self._workers = ThreadPoolExecutor(most, thread_name_prefix=name)
        self._timer = OwnedThread(f"{name} timer", self._wait_and_call, part="sync timer")
        try:
            self._workers.submit(_nothing).result()
            self._timer.start()
        except BaseException as error:
            self._timer.expect_end()
            with self._changed:  # the timer may have started before its start raised
                self._closed = True
                self._changed.notify()
            self._workers.shutdown(wait=False, cancel_futures=True)
            if not isinstance(error, RuntimeError | MemoryError):
                raise
            raise Unavailable(
                f"{name}: cannot start a thread to fsync ({error}): raise the limit of processes"
                " (ulimit -u) or of memory"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, work: Callable[[], None]) -> None:
        """Run work on one of the threads, as soon as one is free.

        Raises:
            Closed: The threads are stopped.
            RuntimeError: No thread can be started; the work does not run.
        """
        with self._changed:
            self._check_open()
            given = [work]

            def begin() -> None:
                try:
                    given_work = given.pop()
                except IndexError:
                    return  # withdrawn
                given_work()

            try:
                # The work must handle its own exceptions: the future is not checked.
                self._workers.submit(begin)
            except BaseException:
                # The pool may have queued it for a running thread. The first `pop` decides.
                with suppress(IndexError):
                    given.pop()
                    raise

    def call_at(self, at_s: float, callback: Callable[[], None]) -> None:
        """Call back at a monotonic time, unless it is planned for an earlier one already.

        Raises:
            Closed: The threads are stopped.
        """
        with self._changed:
            self._check_open()
            known = self._planned.get(callback)
            if known is not None and known <= at_s:
                return
            heapq.heappush(self._heap, (at_s, next(self._numbers), callback))
            self._planned[callback] = at_s
            if len(self._heap) > 2 * len(self._planned) + _SLACK:
                self._forget_replaced()
            if self._heap[0][0] == at_s:
                self._changed.notify()

    def close(self) -> None:
        """Finish the submitted work, drop planned callbacks, and stop. It may be called twice."""
        self._timer.expect_end()
        with self._changed:
            self._closed = True
            self._planned.clear()
            self._heap.clear()
            self._changed.notify()
        self._timer.join()
        self._workers.shutdown()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._name}: the threads are stopped: close the queues first")

    def _forget_replaced(self) -> None:
        self._heap = [entry for entry in self._heap if self._planned.get(entry[2]) == entry[0]]
        heapq.heapify(self._heap)

    def _wait_and_call(self) -> None:
        while (callback := self._next_due()) is not None:
            try:
                callback()
            except Exception:
                # The callbacks of the other queues continue.
                _logger.exception("%s: a callback failed", self._name)

    def _next_due(self) -> Callable[[], None] | None:
        """Wait for the next callback that is due; None at the end."""
        with self._changed:
            while not self._closed:
                wait_s = None
                if self._heap:
                    at_s, _, callback = self._heap[0]
                    wait_s = at_s - self._clock.monotonic_s()
                    if self._planned.get(callback) != at_s:
                        heapq.heappop(self._heap)  # planned for an earlier time since
                        continue
                    if wait_s <= 0:
                        heapq.heappop(self._heap)
                        del self._planned[callback]
                        return callback
                self._clock.wait(self._changed, wait_s)
        return None


def _nothing() -> None:
    """Do nothing: the work that starts a worker."""
