"""Threads whose unexpected end is logged and counted and ends the process or restarts the body.

If a thread dies unnoticed, its process still answers but no longer does the thread's work. So every
thread of Penstock is an `OwnedThread`, which declares the consequence of an unexpected end of its
body:

    END_PROCESS   the process ends, and its launcher starts it again into recovery (the default)
    RESTART       the body is called again after a pause that doubles
    REPORT        no further action: a job of one call, whose thread ends with it

An end is unexpected if the body raised anything, or returned before `expect_end` was called.
`OwnedThread` is the only place that starts threads; tasks of event loops are in `loop_tasks`, and
report to the same `Deaths`. `SerialExecutor` runs calls on one such thread, which starts when the
executor is created. So a later call cannot fail because no thread can be started.

Owns the deaths of this process: their log lines, their counts, which parts are down, and the end of
the process. Does not own how a process ends: its entry point passes that to
`Deaths.end_process_by`. In a program that uses Penstock as a library, and in tests, no entry point
does so, and deaths appear only in the log, the counts and `Deaths.down`.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections import Counter
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import Closed, Unavailable
from penstock.core.metrics import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

P = ParamSpec("P")
T = TypeVar("T")

_logger = logging.getLogger(__name__)

RESTARTS: Final = RetryPolicy(100, 30_000)
# After this run time a body counts as recovered: its next restart counts as the first.
STEADY_S: Final = 60.0
# Time limit for log lines and listeners; then the process ends without them.
_REPORT_LIMIT_S: Final = 2.0

_DEATHS: Final = "Threads and tasks that ended unexpectedly, by name"


class OnDeath(enum.Enum):
    """Consequence of the unexpected end of a body."""

    END_PROCESS = "the process ends"
    RESTART = "it starts again"
    REPORT = "the process continues"


@dataclass(frozen=True, slots=True)
class Death:
    """The unexpected end of a thread or task.

    Attributes:
        name: Name of the thread or task.
        error: Exception that its body raised; None if it returned.
        then: The consequence.
    """

    name: str
    error: BaseException | None
    then: OnDeath

    def __str__(self) -> str:
        how = "it returned" if self.error is None else repr(self.error)
        return f"{self.name} ended unexpectedly ({how})"


class Deaths:
    """The unexpected ends of one process's threads and tasks. Any thread.

    The mutex guards counts and tables and is held only briefly: a thread that just died can neither
    send mail nor wait for another thread.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._down: dict[object, str] = {}
        self._listeners: tuple[Callable[[Death], None], ...] = ()
        self._end: Callable[[Death], object] | None = None
        self._process_stops = False

    def end_process_by(self, end: Callable[[Death], object]) -> None:
        """Let deaths end this process, including those of threads that other code started.

        For the entry point of a Penstock process. It replaces `threading.excepthook`.

        Args:
            end: Ends the process at once; it must not raise, nor wait for another thread.
        """
        self._end = end
        threading.excepthook = self._uncaught

    def process_stops(self) -> None:
        """Record that the process stops as requested: from now on, no death ends it."""
        self._process_stops = True

    def listen(self, listener: Callable[[Death], None]) -> Callable[[], None]:
        """Report each death to a listener before the process ends; return a call that removes it.

        The listener has two seconds at most. Exceptions that it raises are logged.
        """
        with self._mutex:
            self._listeners = (*self._listeners, listener)

        def forget() -> None:
            with self._mutex:
                self._listeners = tuple(one for one in self._listeners if one is not listener)

        return forget

    def ends_process(self, death: Death) -> bool:
        """Return whether a death ends this process."""
        is_declared = death.then is OnDeath.END_PROCESS
        return is_declared and self._end is not None and not self._process_stops

    def report(self, death: Death, owner: object = None, part: str = "") -> None:
        """Log and count a death, and end the process if that follows.

        Args:
            death: The death.
            owner: Part that is down until `recovered`; None: no part is.
            part: Name to count it under instead of the death's.
        """
        end = self._end
        if end is None or not self.ends_process(death):
            self._notify(death, owner, part)
            return
        # The process ends even if the lines below fail, or take too long.
        try:
            notifier = threading.Thread(
                target=self._notify, args=(death, owner, part), name="last words", daemon=True
            )
            notifier.start()
            notifier.join(_REPORT_LIMIT_S)
        except BaseException:  # noqa: BLE001 - no thread could start: only log
            _log(death)
        finally:
            end(death)

    def recovered(self, owner: object) -> None:
        """Record that an owner's body runs again, or that its end was requested."""
        with self._mutex:
            self._down.pop(owner, None)

    def down(self) -> list[str]:
        """Return the parts that are down, with the reasons: for the readiness of the process."""
        with self._mutex:
            return list(self._down.values())

    def counts(self) -> dict[str, int]:
        """Return the number of unexpected ends by name."""
        with self._mutex:
            return dict(self._counts)

    def samples(self, role: str) -> Iterator[Sample]:
        """Yield the metrics."""
        yield from death_samples(role, self.counts())

    def forget(self) -> None:
        """Forget all deaths; for tests, which share one process."""
        with self._mutex:
            self._counts.clear()
            self._down.clear()

    def _notify(self, death: Death, owner: object, part: str) -> None:
        with self._mutex:
            self._counts[part or death.name] += 1
            if owner is not None:
                self._down[owner] = f"{death}; {death.then.value}"
            listeners = self._listeners
        _log(death)
        for listener in listeners:
            try:
                listener(death)
            except Exception:
                # The process may be out of memory; call the other listeners nevertheless.
                _logger.exception("a listener of deaths failed")

    def _uncaught(self, found: threading.ExceptHookArgs) -> None:
        if found.exc_type is SystemExit:  # raised by `sys.exit` in a thread
            return
        name = "a thread" if found.thread is None else f"thread {found.thread.name}"
        self.report(Death(name, found.exc_value, OnDeath.END_PROCESS), part="uncaught")


def death_samples(role: str, counts: Mapping[str, int]) -> Iterator[Sample]:
    """Yield the metrics of a process that counted deaths by name."""
    for name, count in sorted(counts.items()):
        labels = (("role", role), ("thread", name))
        yield Sample("penstock_thread_deaths_total", "counter", _DEATHS, labels, float(count))


def _log(death: Death) -> None:
    if death.then is OnDeath.REPORT:
        _logger.error("%s failed", death.name, exc_info=death.error)
    else:
        _logger.critical("%s; %s", death, death.then.value, exc_info=death.error)


DEATHS: Final = Deaths()
"""The deaths of this process. A death may end the process, so it is process-wide state."""


def pause_s(in_a_row: int) -> float:
    """Return the pause before a restart; a test replaces it."""
    return RESTARTS.delay_ms(in_a_row) / 1_000


class RestartPauses:
    """Counts consecutive restarts of one body. Used only by its thread or task."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._begun_s = time.monotonic()

    def begin(self) -> None:
        """Record that the body begins."""
        self._begun_s = time.monotonic()

    def next_s(self) -> float:
        """Return the pause before the next restart."""
        steady = time.monotonic() - self._begun_s >= STEADY_S
        self._in_a_row = 1 if steady else self._in_a_row + 1
        return pause_s(self._in_a_row)


class OwnedThread(threading.Thread):
    """A thread whose unexpected end is reported.

    Args:
        name: Name of the thread in logs, readiness and metrics.
        body: Function to run. After a restart it finds its state as the exception left it.
        on_death: Consequence if the body raises, or returns before `expect_end`.
        may_return: The body may return: only an exception is unexpected.
        part: Name in metrics, for threads with numbers in their names.
        daemon: Let the process end without waiting for the thread.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], object],
        *,
        on_death: OnDeath = OnDeath.END_PROCESS,
        may_return: bool = False,
        part: str = "",
        daemon: bool = True,
    ) -> None:
        super().__init__(name=name, daemon=daemon)
        self._body = body
        self._on_death = on_death
        self._may_return = may_return or on_death is OnDeath.REPORT
        self._part = part or name
        self._end_expected = threading.Event()

    def expect_end(self) -> None:
        """Record that the end of the body was requested: no restart follows. Any thread."""
        self._end_expected.set()

    @property
    def is_end_expected(self) -> bool:
        """Return whether the end of the body was requested. Any thread."""
        return self._end_expected.is_set()

    def end(self, changed: threading.Condition, timeout: float | None = None) -> None:
        """Request the end of a body that waits for a condition, and wait for it.

        Args:
            changed: The condition. The body checks `is_end_expected` before and after each wait.
            timeout: Limit in seconds; None: no limit.
        """
        self.expect_end()
        with changed:
            changed.notify_all()
        self.join(timeout)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the end, or for this time in seconds; returns at once if it never started."""
        if self.ident is not None:
            super().join(timeout)

    def run(self) -> None:
        """Run the body; `start` has the new thread call it."""
        try:
            self._run()
        finally:
            del self._body  # it may refer to this thread

    def _run(self) -> None:
        pauses = RestartPauses()
        while True:
            error: BaseException | None = None
            pauses.begin()
            try:
                self._body()
            # The outermost handler of a thread: no caller could notice the exception.
            except BaseException as caught:  # noqa: BLE001
                error = caught
            if error is None and (self._may_return or self._end_expected.is_set()):
                DEATHS.recovered(self)
                return
            death = Death(self.name, error, self._on_death)
            owner = None if self._on_death is OnDeath.REPORT else self
            DEATHS.report(death, owner, self._part)
            del death, error  # the traceback refers to objects of the body
            if self._on_death is not OnDeath.RESTART:
                return
            is_over = self._end_expected.wait(pauses.next_s())
            DEATHS.recovered(self)
            if is_over:
                return


def start_job(name: str, job: Callable[[], object], *, part: str = "") -> OwnedThread:
    """Run one call on a new daemon thread; an exception is logged and counted.

    Raises:
        RuntimeError: No thread can be started.
    """
    thread = OwnedThread(name, job, on_death=OnDeath.REPORT, part=part)
    thread.start()
    return thread


class JobTimer:
    """Runs one call after a delay on a thread of its own; an exception is logged and counted.

    Args:
        name: Name of the thread.
        delay_s: Delay from `start` to the call.
        job: The call.
    """

    def __init__(self, name: str, delay_s: float, job: Callable[[], object]) -> None:
        self._delay_s = delay_s
        self._job = job
        self._cancelled = threading.Event()
        self._thread = OwnedThread(name, self._wait, on_death=OnDeath.REPORT)

    def start(self) -> None:
        """Start the delay. Raises RuntimeError if no thread can be started."""
        self._thread.start()

    def cancel(self) -> None:
        """Prevent the call unless it has begun."""
        self._cancelled.set()

    def _wait(self) -> None:
        if not self._cancelled.wait(self._delay_s):
            self._job()


def promise(
    work: Callable[[], T], *, through: tuple[type[BaseException], ...] = ()
) -> tuple[Future[T], Callable[[], None]]:
    """Return a future, and a function that runs the work and resolves the future.

    Args:
        work: The work; it does not run if the future is cancelled before.
        through: Exceptions that are raised to the caller, and not set in the future.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except through:
            raise
        except BaseException as error:  # noqa: BLE001 - the owner of the future gets it
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, run


class SerialExecutor(Executor):
    """One thread that runs calls in order. Any thread may submit.

    In contrast to a `ThreadPoolExecutor`, its thread starts with it, and an unexpected end of the
    thread is reported. The mutex makes sure that a call is either refused or run: it is held while
    a call is put into the queue, and while the end of the thread is recorded.

    Args:
        name: Name of the thread.

    Raises:
        Unavailable: No thread can be started.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._mutex = threading.Lock()
        self._ended = False
        # Each call, and the function that cancels it if the thread dies before.
        self._calls: SimpleQueue[tuple[Callable[[], None], Callable[[], object]] | None]
        self._calls = SimpleQueue()
        self._thread = OwnedThread(name, self._run)
        try:
            self._thread.start()
        except BaseException as error:
            self._thread.expect_end()
            self._calls.put(None)  # the thread may have started before its start raised
            if not isinstance(error, RuntimeError | MemoryError):
                raise
            raise Unavailable(
                f"cannot start thread {name!r} ({error}): raise the limit of processes (ulimit -u)"
                " or of memory"
            ) from error

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call after all that were submitted before; its future gets the outcome.

        Raises:
            Closed: The executor was shut down.
        """
        future, run = promise(lambda: fn(*args, **kwargs))
        self._put(run, future.cancel)
        return future

    def start_job(self, job: Callable[[], object]) -> None:
        """Run a call whose outcome no code awaits; an exception is logged and counted.

        Raises:
            Closed: The executor was shut down.
        """

        def run() -> None:
            try:
                job()
            except BaseException as error:  # noqa: BLE001 - no caller could notice it
                DEATHS.report(Death(self._name, error, OnDeath.REPORT))

        self._put(run, lambda: None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Run the calls that were submitted, and end the thread. Idempotent.

        Args:
            wait: Wait for the end of the thread.
            cancel_futures: Not supported: `submit` promises that a call runs.
        """
        assert not cancel_futures
        self._thread.expect_end()
        with self._mutex:
            if not self._ended:
                self._calls.put(None)  # first: if it raises, the next call puts it
                self._ended = True
        if wait:
            self._thread.join()

    def _put(self, run: Callable[[], None], cancel: Callable[[], object]) -> None:
        with self._mutex:
            if self._ended:
                raise Closed(f"thread {self._name!r} has ended: start its owner again")
            self._calls.put((run, cancel))

    def _run(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                call[0]()
                del call  # it may refer to this executor
        finally:
            with self._mutex:
                self._ended = True
            while not self._calls.empty():
                if (left := self._calls.get()) is not None:
                    left[1]()
