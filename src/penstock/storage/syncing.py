"""Group commit: when to fsync, and one fsync for all who wait.

Owns: the waiting futures, the count of what is not synced, and the thread that syncs. Does not own:
what a pass does (the queue gives it as a function that returns the durable offset).

Invariants:

- A pass covers whoever asked before it began: it serves every request made up to then, and those
  made meanwhile go to the next one. So the number of fsyncs does not grow with that of waiters.
- One pass at a time.
- A failed pass fails its waiters; what it was for counts as not synced again, and unless somebody
  asks it is tried again after the interval, however much is written meanwhile.

What the limits bound: a pass begins when `sync_every_messages` are not synced or the oldest of them
is `sync_interval_ms` old; but, if nobody waits for it, not within `sync_pause_ms` of the end of the
one before, because a file that is fsynced without a pause takes appends at a fifth of the rate.
Appends go on beside a pass. So a crash of the operating system loses `sync_every_messages`, or what
was appended during the pause and one pass if that is more. The queue bounds it to two log files
however slow the disk is, and asks to hurry when the second one is full.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from penstock.core.errors import Closed, PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock

_logger = logging.getLogger(__name__)


class Syncer:
    """Runs passes, on a thread of its own that starts with the first write, or on the caller's.

    Its mutex guards a few fields and is never held during a pass: the owner of the state is
    whoever appends, and mail to it would put every batch through a queue.
    """

    def __init__(
        self,
        run_pass: Callable[[], int],
        *,
        every_messages: int,
        interval_ms: int,
        pause_ms: int,
        clock: Clock,
        in_background: bool,
        name: str,
    ) -> None:
        self._run_pass = run_pass
        self._every = every_messages
        self._interval_s = interval_ms / 1000
        self._pause_s = pause_ms / 1000 if in_background else 0.0
        self._clock = clock
        self._in_background = in_background
        self._name = name
        self._changed = threading.Condition()
        self._pass_mutex = threading.Lock()
        self._waiters: list[Future[int]] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self._dirty_since_s: float | None = None
        self._hurried = False
        self._not_before_s = clock.monotonic_s()
        self.unsynced_messages = 0
        self.passes = 0
        self.failures = 0

    def wrote(self, messages: int) -> None:
        """Count messages that are not synced; start a pass if it is time.

        Without a thread the pass runs here, and its failure is only logged: the append that came
        along succeeded, and did not ask for more.
        """
        with self._changed:
            first = self._dirty_since_s is None
            if first:
                self._dirty_since_s = self._clock.monotonic_s()
            before = self.unsynced_messages
            self.unsynced_messages += messages
            if self._in_background:
                # Otherwise the thread knows already when its time comes.
                if first or before < self._every <= self.unsynced_messages:
                    self._wake()
                return
            due = self._wait_s() == 0
        if due:
            self._serve([])

    def hurry(self) -> None:
        """Let the next pass begin as soon as the pause is over, whatever the limits say.

        Without a thread the next `wrote` runs it.
        """
        with self._changed:
            if self._hurried:
                return
            self._hurried = True
            if self._dirty_since_s is None:
                self._dirty_since_s = self._clock.monotonic_s()
            if self._in_background:
                self._wake()

    def request(self) -> Future[int]:
        """Ask for a pass; the future gives the durable offset, or the error of the pass.

        Raises:
            Closed: The queue was closed.
        """
        future: Future[int] = Future()
        with self._changed:
            if self._closing:
                raise Closed(f"{self._name}: is closed: open the queue again")
            if self._in_background:
                self._waiters.append(future)
                self._wake()
                return future
        self._serve([future])
        return future

    def close(self) -> None:
        """Stop the thread. Waiters are served before; nothing is asked for afterwards."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _wait_s(self) -> float | None:
        """Return the seconds until a pass is due; None while there is nothing to sync."""
        if self._dirty_since_s is None:
            return None
        due_s = self._not_before_s
        if self.unsynced_messages < self._every and not self._hurried:
            due_s = max(due_s, self._dirty_since_s + self._interval_s)
        return max(0.0, due_s - self._clock.monotonic_s())

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._waiters or self._closing or (wait_s := self._wait_s()) == 0):
                    self._clock.wait(self._changed, wait_s)
                waiters, self._waiters = self._waiters, []
                if self._closing and not waiters:
                    return
            self._serve(waiters)

    def _serve(self, waiters: list[Future[int]]) -> None:
        # A future that its owner cancelled takes no result.
        waiters = [waiter for waiter in waiters if waiter.set_running_or_notify_cancel()]
        with self._pass_mutex:
            with self._changed:
                taken, self.unsynced_messages = self.unsynced_messages, 0
                self._dirty_since_s, self._hurried = None, False
                self.passes += 1
            try:
                durable = self._run_pass()
            except Exception as error:  # noqa: BLE001  -- top of a thread: waiters must hear of it
                self._failed(error, taken, waiters)
            else:
                self._not_before_s = self._clock.monotonic_s() + self._pause_s
                for waiter in waiters:
                    waiter.set_result(durable)

    def _failed(self, error: Exception, taken: int, waiters: list[Future[int]]) -> None:
        with self._changed:
            self.failures += 1
            self._dirty_since_s = self._clock.monotonic_s()
            # Or a failing disk would be asked again and again.
            self._not_before_s = self._dirty_since_s + self._interval_s
        if isinstance(error, PenstockError):
            _logger.warning("%s: %d messages could not be synced: %s", self._name, taken, error)
        else:
            _logger.error("%s: syncing failed", self._name, exc_info=error)
        for waiter in waiters:
            waiter.set_exception(error)
