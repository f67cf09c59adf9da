"""Group commit: one fsync pass for all waiting writers, on shared threads.

`Syncer` owns the waiting futures and the count of unsynced messages. `SyncThreads` owns one
thread that waits for the next due time and a few workers, for any number of queues.
`UnsyncedData` owns the age of unsynced data of each queue, and its alarm: an error in the log,
repeated while data is older than ten times the interval after which it should be synced. Without
this alarm, neither a disk that hangs nor a planned sync that never ran would be reported. Does not
own what a pass does: the queue provides it as a function that returns the durable offset.

A pass begins when `sync_every_messages` are not synced or the oldest of them is
`sync_interval_ms` old. If no caller waits for it, it does not begin within `sync_pause_ms` of
the end of the previous one, because a file that is fsynced continuously accepts appends at a
fifth of the rate. Appends continue during a pass. A crash of the operating system therefore
loses `sync_every_messages`, or what was appended during the pause and one pass if that is more.
The queue limits this to two log files however slow the disk is, and requests a pass early when
the second one is full.

Invariants:

- A pass serves every request made before it began; later requests go to the next pass. The
  number of fsyncs does not grow with the number of waiters.
- One pass runs at a time and is given to a thread once. If no thread can be started, a caller that
  waits runs the pass itself. If a pass cannot be planned, for example because memory ran out, the
  next call plans it. The waiting thread also checks for such passes at least every ten seconds. An
  append does not fail because of this.
- A failed pass fails its waiters, and its messages count as unsynced again. It is retried when a
  caller requests it, otherwise after the interval, regardless of how much is written meanwhile.
- A callback planned for a time is called once, at that time or shortly after, on the waiting
  thread, and must not block; if it is planned twice, the earlier time counts. A callback that
  raises is called again after a second. Work that raises ends the process.
- The waiting thread and a first worker start when `SyncThreads` is created, so that a failure
  to start them is not first noticed by a durable write. Further workers start on demand.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

from penstock.core.cleanup import CleanupSteps
from penstock.core.errors import Closed, PenstockError, Unavailable, counted
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import DEATHS, Death, OnDeath, OwnedThread

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from penstock.core.clock import Clock


_logger = logging.getLogger(__name__)

_UNPLANNED_EVERY_S: Final = 10.0  # the age at which unsynced data may be reported
_RETRY_S: Final = 1.0  # until a plan or a callback that failed is tried again


class Syncer:
    """Runs passes, on shared threads, or on the caller's.

    Its mutex guards a few fields and is never held during a pass. Appending threads own the state,
    because mail to an owning thread would put every batch through a queue.

    Args:
        run_pass: Makes all appends durable, and returns the durable offset.
        every_messages: See above.
        interval_ms: See above.
        pause_ms: See above.
        clock: Returns the time.
        threads: Run the passes; None: the caller's thread does.
        name: For the log.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_closing",
        "_dirty_since_s",
        "_every",
        "_failure_log",
        "_given",
        "_interval_s",
        "_mutex",
        "_name",
        "_not_before_s",
        "_oldest_s",
        "_pass_mutex",
        "_pause_s",
        "_run_pass",
        "_soon_requested",
        "_threads",
        "_unplanned",
        "_unsynced",
        "_waiters",
        "failures",
        "passes",
        "unsynced_messages",
    )

    def __init__(
        self,
        run_pass: Callable[[], int],
        *,
        every_messages: int,
        interval_ms: int,
        pause_ms: int,
        clock: Clock,
        threads: SyncThreads | None,
        name: str,
    ) -> None:
        self._run_pass = run_pass
        self._every = every_messages
        self._interval_s = interval_ms / 1000
        self._pause_s = pause_ms / 1000 if threads else 0.0
        self._clock = clock
        self._threads = threads
        self._failure_log = threads.failure_log if threads else RateLimitedLog(_logger, clock)
        self._unsynced = threads.unsynced if threads else None
        if threads is not None:
            threads.unsynced.allow(self._interval_s)
            threads.add(self)
        self._name = name
        self._mutex = threading.Lock()
        self._pass_mutex = threading.Lock()
        self._waiters: list[Future[int]] = []
        self._given = False
        self._unplanned = False  # the next pass may be needed, and could not be planned
        self._closing = False
        self._dirty_since_s: float | None = None
        self._oldest_s: float | None = None  # of the messages that no pass has begun to sync
        self._soon_requested = False
        self._not_before_s = clock.monotonic_s()
        self.unsynced_messages = 0
        self.passes = 0
        self.failures = 0

    def wrote(self, messages: int) -> None:
        """Count unsynced messages; start a pass if it is due.

        Without a thread the pass runs here, and its failure is only logged, because the append
        succeeded and did not request a sync.
        """
        with self._mutex:
            before = self.unsynced_messages
            self.unsynced_messages = before + messages
            is_new = self._dirty_since_s is None
            if self._threads is not None:
                # Otherwise it is planned already.
                if is_new or self._unplanned or before < self._every <= self.unsynced_messages:
                    self._unplanned = True
                    self._arrange(self._threads, is_dirty=True)
                return
            if is_new:
                self._dirty_since_s = self._clock.monotonic_s()
            due = self._wait_s() == 0
        if due:
            self._serve()

    def sync_soon(self) -> None:
        """Start the next pass as soon as the pause is over, regardless of the limits.

        Without a thread the next `wrote` runs it.
        """
        with self._mutex:
            if self._soon_requested and not self._unplanned:
                return
            if self._threads is not None:
                self._soon_requested = self._unplanned = True
                self._arrange(self._threads, is_dirty=True)
                return
            if self._dirty_since_s is None:
                self._dirty_since_s = self._clock.monotonic_s()
            self._soon_requested = True

    def mark_unplanned(self) -> None:
        """Record that data was written and no pass could be planned; needs no memory."""
        with self._mutex:
            self._unplanned = True
            if self._threads is not None:
                self._threads.has_unplanned = True

    def request(self) -> Future[int]:
        """Request a pass; the future returns the durable offset, or raises the error of the pass.

        Raises:
            Closed: The queue was closed.
        """
        future: Future[int] = Future()
        with self._mutex:
            if self._closing:
                raise Closed(f"{self._name}: is closed: open the queue again")
            self._waiters.append(future)
            if self._threads is not None:
                is_dirty, self._unplanned = self._unplanned, True
                self._arrange(self._threads, is_dirty=is_dirty)
                if not self._unplanned:
                    return future
        self._serve()
        return future

    def close(self) -> None:
        """Wait for the running pass, which serves its requests. Later requests are refused."""
        with self._mutex:
            self._closing = True
        self._serve()
        with self._mutex:
            if self._unsynced is not None:
                self._unsynced.synced(self, None)

    def _arrange(self, threads: SyncThreads, *, is_dirty: bool) -> None:
        """Plan the next pass; the caller holds the mutex, and has set `_unplanned` before.

        A plan that cannot be made is logged and tried again after a while, and by the next call:
        the append of the caller is stored, and must not be repeated.

        Args:
            threads: Run the pass.
            is_dirty: There may be unsynced data of which nothing is noted yet.
        """
        try:
            if is_dirty:
                self._note_dirty(threads)
            # Otherwise checked again when the pass ends.
            if not (self._given or self._closing):
                wait_s = 0.0 if self._waiters else self._wait_s()
                if wait_s == 0:
                    threads.run(self._work)
                    self._given = True
                elif wait_s is not None:
                    threads.call_at(self._clock.monotonic_s() + wait_s, self.rearrange)
            self._unplanned = False
        except BaseException as error:
            threads.has_unplanned = True
            with suppress(Exception):  # if memory ran out, the next call or the timer plans it
                retry_s = max(self._interval_s, _RETRY_S)
                threads.call_at(self._clock.monotonic_s() + retry_s, self.rearrange)
            if not isinstance(error, Exception):
                raise
            self._failure_log.warning("%s: cannot plan the next sync: %r", self._name, error)

    def _note_dirty(self, threads: SyncThreads) -> None:
        """Record that there is unsynced data."""
        if self._dirty_since_s is None:
            self._dirty_since_s = self._clock.monotonic_s()
        if self._oldest_s is None:
            threads.note_append(self, self._dirty_since_s)
            self._oldest_s = self._dirty_since_s

    def rearrange(self) -> None:
        """Plan the next pass, if one is needed; for the waiting thread."""
        with self._mutex:
            if self._threads is not None and not self._closing:
                is_dirty, self._unplanned = self._unplanned, True
                self._arrange(self._threads, is_dirty=is_dirty)

    def _work(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - waiters, if any, are served by the next pass
            self._failure_log.warning("%s: a sync ended early: %r", self._name, error)
        finally:
            with self._mutex:
                self._given = False
                if self._threads is not None:
                    is_dirty, self._unplanned = self._unplanned, True
                    self._arrange(self._threads, is_dirty=is_dirty)

    def _wait_s(self) -> float | None:
        """Return the seconds until a pass is due; None while there is nothing to sync."""
        if self._dirty_since_s is None:
            return None
        due_s = self._not_before_s
        if self.unsynced_messages < self._every and not self._soon_requested:
            due_s = max(due_s, self._dirty_since_s + self._interval_s)
        return max(0.0, due_s - self._clock.monotonic_s())

    def _serve(self) -> None:
        with self._pass_mutex:
            steps = CleanupSteps()
            nobody: list[Future[int]] = []
            with self._mutex:
                began_s = self._clock.monotonic_s()
                waiters, self._waiters = self._waiters, nobody
                if not waiters and (self._closing or self._dirty_since_s is None):
                    return  # another pass has served the request
                taken, self.unsynced_messages = self.unsynced_messages, 0
                oldest_s, self._oldest_s = self._oldest_s, None
                self._dirty_since_s, self._soon_requested = None, False
                self.passes += 1
            try:
                durable = self._run_pass()
                if self._unsynced is not None:
                    with self._mutex:
                        self._unsynced.synced(self, self._oldest_s)
                self._not_before_s = self._clock.monotonic_s() + self._pause_s
            except BaseException as error:
                with self._mutex:
                    self.failures += 1
                    self.unsynced_messages += taken
                    if oldest_s is not None:
                        self._oldest_s = oldest_s
                    # Not at once, or a failing disk would be tried again and again.
                    self._dirty_since_s, self._not_before_s = began_s, began_s + self._interval_s
                    now_s = steps.take(self._clock.monotonic_s)
                    if now_s is not None:
                        self._dirty_since_s, self._not_before_s = now_s, now_s + self._interval_s
                for waiter in waiters:
                    if steps.take(waiter.set_running_or_notify_cancel):
                        steps.take(waiter.set_exception, error)
                self._log_failure(error, taken)
                steps.finish()
                if not isinstance(error, Exception):
                    raise  # an interrupt of the caller
            else:
                for waiter in waiters:
                    # A future that its owner cancelled takes no result.
                    if steps.take(waiter.set_running_or_notify_cancel):
                        steps.take(waiter.set_result, durable)
                steps.finish()

    def _log_failure(self, error: BaseException, taken: int) -> None:
        if isinstance(error, PenstockError):
            self._failure_log.warning(
                "%s: cannot sync %s: %s", self._name, counted(taken, "message"), error
            )
        else:
            _logger.error("%s: syncing failed", self._name, exc_info=error)


INTERVALS_MAX: Final = 10
LIMIT_MIN_S: Final = 10.0


class UnsyncedData:
    """Since when each of many owners has unsynced data. Any thread.

    It needs no mutex: each change is one step of a dictionary, and each owner changes its entry
    under its own mutex.

    Args:
        name: For messages.
        clock: Returns the time.

    Attributes:
        limit_s: Age at which the alarm is raised.
        check_planned: A call of `check` is planned; the owner of the timer sets it.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._since_s: dict[object, float] = {}
        self.check_planned = False
        self.limit_s = LIMIT_MIN_S

    def allow(self, interval_s: float) -> None:
        """Take an owner's interval into account: the longest one applies."""
        self.limit_s = max(self.limit_s, INTERVALS_MAX * interval_s)

    def appended(self, owner: object, since_s: float) -> float | None:
        """Record that an owner has unsynced data; no effect if it is recorded already.

        Returns:
            The monotonic time at which to call `check`; None: that is planned.
        """
        self._since_s.setdefault(owner, since_s)
        return None if self.check_planned else since_s + self.limit_s

    def synced(self, owner: object, since_s: float | None) -> None:
        """Record a successful pass, and since when other data is unsynced; None: none is."""
        if since_s is None:
            self._since_s.pop(owner, None)
        else:
            self._since_s[owner] = since_s

    def age_s(self) -> float:
        """Return the age of the oldest unsynced byte; 0 if there is none."""
        since_s = min(tuple(self._since_s.values()), default=None)
        return 0.0 if since_s is None else max(0.0, self._clock.monotonic_s() - since_s)

    def sync_failure(self) -> str | None:
        """Return an error message if data is too old, else None."""
        age_s = self.age_s()
        if age_s < self.limit_s:
            return None
        return (
            f"{self._name}: data has not been synced for {age_s:.0f} s, and a power loss would lose"
            f" it (the limit is {self.limit_s:.0f} s): check whether the disk responds"
        )

    def check(self) -> float | None:
        """Log an error if data is too old; return when to check again, None: all is synced."""
        failure = self.sync_failure()
        if failure is not None:
            _logger.error("%s", failure)
        self.check_planned = False  # first: an append from here on plans the next check itself
        oldest_s = min(tuple(self._since_s.values()), default=None)
        if oldest_s is None:
            return None
        # When the oldest would be too old; if it already is, after the same time again.
        begin_s = oldest_s if failure is None else self._clock.monotonic_s()
        return begin_s + self.limit_s


_SLACK: Final = 64


class SyncThreads:
    """Runs work now, or a callback at a time; from any thread.

    Its mutex guards the plan, which many threads change; it is held for a few lines.

    Args:
        clock: Returns the time.
        most: Maximum number of concurrent fsyncs.
        name: The name of the threads.

    Attributes:
        failure_log: Logs failed fsyncs for all queues.
        unsynced: Since when each queue has unsynced data.
        has_unplanned: A queue may need a pass that could not be planned; any thread sets it.

    Raises:
        Unavailable: No thread can be started.
    """

    def __init__(self, *, clock: Clock, most: int = 16, name: str = "sync") -> None:
        self._clock = clock
        self._name = name
        self.failure_log = RateLimitedLog(_logger, clock)
        self._changed = threading.Condition()
        self._planned: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closed = False
        self.unsynced = UnsyncedData(name, clock)
        self._syncers: WeakSet[Syncer] = WeakSet()
        self.has_unplanned = False
        self._unplanned_at_s = clock.monotonic_s()
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
                self._workers.submit(begin).add_done_callback(self._check_end)
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

    def add(self, syncer: Syncer) -> None:
        """Plan the passes of a queue, including those that it could not plan."""
        with self._changed:
            self._syncers.add(syncer)

    def note_append(self, owner: object, now_s: float) -> None:
        """Record that an owner has unsynced data since now; no effect if it is recorded already."""
        at_s = self.unsynced.appended(owner, now_s)
        # If memory runs out, the next append plans it. Closed threads have synced everything.
        with suppress(Closed, MemoryError):
            self._plan_check(at_s)

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

    def _check_end(self, ended: Future[None]) -> None:
        """End the process if work raised, because no other thread completes that work."""
        if not ended.cancelled() and (error := ended.exception()) is not None:
            DEATHS.report(Death(self._name, error, OnDeath.END_PROCESS))

    def _check_age(self) -> None:
        at_s = self.unsynced.check()
        with suppress(Closed):
            self._plan_check(at_s)

    def _plan_unplanned(self) -> None:
        self.has_unplanned = False  # first: a plan that fails from here on sets it again
        try:
            with self._changed:
                syncers = list(self._syncers)
            for syncer in syncers:
                syncer.rearrange()
        except BaseException:
            self.has_unplanned = True
            raise

    def _plan_check(self, at_s: float | None) -> None:
        """Plan a check of the age of unsynced data."""
        if at_s is None:
            return
        # First: a check that runs before the next line ends clears it again.
        self.unsynced.check_planned = True
        try:
            # One plan at a time: `call_at` keeps the earlier of two for a callback.
            self.call_at(at_s, self._check_age)
        except BaseException:
            self.unsynced.check_planned = False
            raise

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
                with suppress(Closed):
                    self.call_at(self._clock.monotonic_s() + _RETRY_S, callback)
                _logger.exception("%s: a callback failed; it is called again", self._name)

    def _next_due(self) -> Callable[[], None] | None:
        """Wait for the next callback that is due; None at the end."""
        with self._changed:
            while not self._closed:
                if self.has_unplanned and self._clock.monotonic_s() >= self._unplanned_at_s:
                    self._unplanned_at_s = self._clock.monotonic_s() + _RETRY_S
                    return self._plan_unplanned
                wait_s = _UNPLANNED_EVERY_S
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
                self._clock.wait(self._changed, min(wait_s, _UNPLANNED_EVERY_S))
        return None


def _nothing() -> None:
    """Do nothing: the work that starts a worker."""
