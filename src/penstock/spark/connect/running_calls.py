"""Spark work of one call, which another thread can stop.

`RunningCall` owns the tag of a call and its interrupt. The interrupt is repeated, because Spark
ignores an interrupt of work that has not started yet, and may start it later. `stop` may be called
from any thread.

`end_jobs` ends jobs that Spark starts after the operation has ended: Spark submits the jobs of
broadcasts, subqueries and adaptive stages on its own threads, where no interrupt finds them any
more. Spark Connect ends all jobs of an operation that fails, by the operation's id, so a second
operation with the same id that fails before it needs a core ends them. This requires a server
that forgets ids at once (`server_settings`); other servers refuse a known id, and the job runs
to its end.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

from penstock.core.cleanup import CleanupSteps
from penstock.core.threads import JobTimer, OnDeath, OwnedThread
from penstock.indexing.engine import EngineFailure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Connected


_NO_TABLE: Final = "`penstock: there is no such table`"


def end_jobs(session: SparkSession, operation: str) -> None:
    """End the jobs that run under the id of an operation that has ended; never raises."""
    if not hasattr(session, "client"):
        return  # a classic session ends jobs by their tag, whenever they began
    # Imported here: it costs a second and 60 MB, which a command that needs no Spark saves.
    from pyspark.sql.connect.plan import Read  # noqa: PLC0415

    client = cast("Connected", session).client
    with contextlib.suppress(Exception):  # it must fail; Spark may also be lost
        # No public call accepts an operation id; PySpark's version is pinned.
        request = client._execute_plan_request_with_metadata(operation)  # noqa: SLF001
        request.plan.CopyFrom(Read(_NO_TABLE).to_proto(client))
        for _ in client._execute_and_fetch_as_iterator(request, {}):  # noqa: SLF001
            pass


_INTERRUPT_EVERY_S: Final = 0.2
# Waits before late work is ended again: on a busy machine a job has begun 3.3 s late.
_LATE_S: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
# Interrupted work of Spark ends within a second or two; planning may never check.
_IGNORED_AFTER_S: Final = 10.0
# For callers that wait for it: a task that is stopped has ten seconds to end.
_LATE_WAITED_S: Final = _LATE_S[:4]


class RunningCall:
    """A call in progress; `stop` is thread-safe.

    One thread for each stopped call repeats the interrupt. If it cannot start, the next `stop`
    starts it, or the thread of the time limit does its work.

    Args:
        on_ignored: Called once if Spark ignores the interrupts for ten seconds, on any thread.
    """

    def __init__(self, on_ignored: Callable[[], None] | None = None) -> None:
        self._on_ignored = on_ignored
        self.session: SparkSession | None = None
        self.stopped = ""
        self._tag = f"penstock-{uuid.uuid4().hex}"
        self._ended = threading.Event()
        self._operations: set[str] = set()  # interrupted operations of Spark
        # Held to start the two threads: `stop` and `end` are called from any thread.
        self._mutex = threading.Lock()
        self._ender: OwnedThread | None = None
        self._ignored: JobTimer | None = None

    def stop(self, reason: str) -> None:
        """Interrupt the work; only the reason of the first call counts.

        Raises:
            RuntimeError: No thread can be started to repeat the interrupt; the next call of `stop`
                and the time limit try again. If only the thread of the report that Spark ignores
                the interrupts cannot be started, nothing is raised: the repeated interrupt starts
                it later.
        """
        is_first = not self.stopped
        if is_first:
            self.stopped = reason
        if self._ended.is_set():
            return
        steps = CleanupSteps()
        if is_first or self._ender is None:  # otherwise interrupts are repeated already
            steps.take(self._interrupt)
        steps.take(self._start_ender)
        with contextlib.suppress(RuntimeError, MemoryError):  # `_end_work` tries again
            self._plan_report()
        steps.finish()

    def end(self) -> None:
        """Mark the end of the call; if it was stopped, later work of Spark is ended.

        If no thread can be started for that, the work runs to its end, because an exception here
        would replace the outcome of the call.
        """
        self._ended.set()
        if self._ignored is not None:
            self._ignored.cancel()
        if self.stopped:
            with contextlib.suppress(RuntimeError, MemoryError):
                self._start_ender()

    def end_late_work(self) -> None:
        """End late work of a stopped call, and wait for that.

        For a call whose Spark session or process ends with it, so that `end` would be too late.
        Takes 1.5 seconds if the call was stopped, otherwise no time. Not to be called within
        `tagged`.
        """
        session = self.session
        if session is None or not self.stopped:
            return
        for seconds in _LATE_WAITED_S:
            self._ended.wait(seconds)
            self._end_operations(session)

    def wait(self, seconds: float) -> None:
        """Return when nothing is left to stop, or after this time."""
        self._ended.wait(seconds)

    def check(self) -> None:
        """Raise if the call was stopped.

        Raises:
            EngineFailure: The call was stopped.
        """
        if self.stopped:
            raise EngineFailure(self.stopped)

    @contextlib.contextmanager
    def limited(self, seconds: float, reason: str) -> Iterator[None]:
        """Stop the work in the block after this time; at once if there is no time left."""
        if seconds <= 0:
            self.stop(reason)
            yield
            return
        timer = JobTimer("time limit", seconds, lambda: self._overdue(reason))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def tagged(self, spark: SparkSession) -> Iterator[None]:
        """Run the block so that `stop` finds its work; tags belong to the thread.

        Raises:
            EngineFailure: The call was stopped already.
        """
        self.check()
        self.session = spark
        spark.addTag(self._tag)
        try:
            yield
        finally:
            spark.removeTag(self._tag)

    def _overdue(self, reason: str) -> None:
        """Stop the work, on the thread of the time limit, which also repeats the interrupt."""
        try:
            self.stop(reason)
        except BaseException:
            if self._ender is None:
                self._end_work()
            raise

    def _start_ender(self) -> None:
        """Start the thread that ends the work, unless it was started."""
        with self._mutex:
            if self._ender is None:
                ender = OwnedThread(
                    "query end", self._end_work, on_death=OnDeath.RESTART, may_return=True
                )
                ender.start()
                self._ender = ender

    def _end_work(self) -> None:
        """Repeat the interrupt until the call ends; then end work that Spark starts late."""
        while not self._ended.wait(_INTERRUPT_EVERY_S):
            with contextlib.suppress(RuntimeError, MemoryError):  # tried again
                self._plan_report()
            self._interrupt()
        session = self.session
        if session is None:
            return
        for seconds in _LATE_S:
            threading.Event().wait(seconds)
            self._end_operations(session)

    def _interrupt(self) -> None:
        session = self.session
        if session is not None and not self._ended.is_set():
            with contextlib.suppress(Exception):  # it may have ended, or Spark may be lost
                self._operations.update(session.interruptTag(self._tag))

    def _plan_report(self) -> None:
        """Plan the report that Spark ignores the interrupts, unless it is planned.

        It has a thread of its own, because an interrupt may wait for Spark without a limit.
        """
        with self._mutex:
            if self._on_ignored is not None and self._ignored is None:
                timer = JobTimer("query end", _IGNORED_AFTER_S, self._report_ignored)
                timer.start()
                self._ignored = timer

    def _report_ignored(self) -> None:
        if not self._ended.is_set() and self.session is not None and self._on_ignored is not None:
            try:
                self._on_ignored()
            except BaseException:
                with self._mutex:  # the thread that planned it may not have noted it yet
                    self._ignored = None  # it is planned again
                raise

    def _end_operations(self, session: SparkSession) -> None:
        for operation in tuple(self._operations):
            end_jobs(session, operation)
