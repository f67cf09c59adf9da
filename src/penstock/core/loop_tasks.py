"""Start tasks, callbacks, threads and loops of asyncio, and report failures in them.

The only place that creates tasks, runs loops on threads, and sets a loop's exception handler. Four
kinds of tasks:

    keep_running   a body that runs until it is cancelled or `may_return`; declared like a thread
    start_job      one coroutine that no code awaits: an exception is logged and counted
    start_owned    one coroutine whose exception goes to a callback of its owner
    start_awaited  one coroutine whose result, or exception, goes to the code that awaits it

`run_shielded` awaits the last kind, and lets it continue if the code that awaits it is cancelled.

A task of any kind that is cancelled ends as requested. A task of `keep_running` that itself raises,
because memory does not suffice to report or restart its body, ends the process.

An exception that reaches a loop itself, because it came from a callback or from a task that no code
awaited, ends the process as an uncaught exception of a thread does (`watch_loop`). Exceptions:

- an error of the operating system, which concerns one connection or a lack of resources, and a
  `PenstockError`: both are expected kinds of failure;
- an exception of the protocol of one connection, which the loop then closes: a client must not be
  able to end a server.

`call_each` and `report` pass such an exception to the loop themselves. In contrast to
`core.cleanup`, which raises the first exception to the caller, they are for callbacks whose failure
does not concern the caller.

A loop passes blocking work to threads with `run_on_thread`. `ThreadPoolExecutor.submit` raises if
no thread can be started, but it has already queued the work, and a thread that starts later runs
it, although the caller may have undone its part or tried again. So the work must first be claimed:
either it runs and its outcome goes to the caller, or the caller gets the exception and the work
never runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.core.threads import DEATHS, Death, OnDeath, OwnedThread, RestartPauses

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Executor

T = TypeVar("T")

_logger = logging.getLogger(__name__)

_END_S: Final = 10.0


def keep_running(
    name: str,
    body: Callable[[], Coroutine[object, object, object]],
    *,
    on_death: OnDeath = OnDeath.END_PROCESS,
    may_return: bool = False,
) -> asyncio.Task[None]:
    """Start a task that runs until it is cancelled, on the running loop.

    Args:
        name: Name in logs, readiness and metrics.
        body: Creates the coroutine, again at each restart.
        on_death: Consequence if it raises or returns.
        may_return: It may return: only an exception is unexpected.
    """
    task = _start(_keep(name, body, on_death, may_return), name)
    task.add_done_callback(_report_lost)
    return task


def _report_lost(task: asyncio.Task[None]) -> None:
    """Report to the loop the error of a task that could neither report it nor restart its body."""
    if (error := _exception_of(task)) is not None:
        report(f"{task.get_name()} ended, and could not be reported or restarted", error)


async def _keep(
    name: str,
    body: Callable[[], Coroutine[object, object, object]],
    on_death: OnDeath,
    may_return: bool,
) -> None:
    pauses, owner = RestartPauses(), object()
    while True:
        error: BaseException | None = None
        pauses.begin()
        try:
            await body()
            if may_return:
                return
        except asyncio.CancelledError:
            raise
        # The outermost handler of a task: no code awaits it before the stop.
        except Exception as caught:  # noqa: BLE001
            error = caught
        DEATHS.report(Death(name, error, on_death), owner)
        del error  # the traceback refers to objects of the body
        if on_death is not OnDeath.RESTART:
            return
        try:
            await asyncio.sleep(pauses.next_s())
        finally:
            DEATHS.recovered(owner)


def start_job(name: str, job: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Start a coroutine that no code awaits, on the running loop; its failure is logged."""
    task = _start(job, name)
    task.add_done_callback(_report_failure)
    return task


def _report_failure(task: asyncio.Task[object]) -> None:
    if (error := _exception_of(task)) is not None:
        DEATHS.report(Death(task.get_name(), error, OnDeath.REPORT))


def start_owned(
    name: str,
    work: Coroutine[object, object, object],
    failed: Callable[[str, BaseException], object],
) -> asyncio.Task[object]:
    """Start a coroutine on the running loop; its owner handles an exception.

    Args:
        name: Name of the task.
        work: The coroutine.
        failed: Called with the name and the exception, if the coroutine raises one.
    """

    def pass_failure(task: asyncio.Task[object]) -> None:
        if (error := _exception_of(task)) is not None:
            failed(name, error)

    task = _start(work, name)
    task.add_done_callback(pass_failure)
    return task


def start_awaited(work: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Start a coroutine whose result is awaited, on the running loop."""
    return _start(work)


async def run_shielded(
    work: Coroutine[object, object, T], failed: Callable[[], object] = lambda: None
) -> T:
    """Run a coroutine and return its result; it continues to its end if the caller is cancelled.

    Args:
        work: The coroutine.
        failed: Called if the coroutine raises, even if its caller was cancelled before. If it
            raises, too, the event loop's exception handler receives that exception.
    """

    def ended(task: asyncio.Task[T]) -> None:
        retrieve_exception(task)
        if _exception_of(task) is not None:
            failed()

    task = start_awaited(work)
    task.add_done_callback(ended)
    return await asyncio.shield(task)


def retrieve_exception(task: asyncio.Task[T]) -> None:
    """Log the exception of an ended task at level DEBUG, because no code may await the task.

    Without this call, `watch_loop` would end the process for an exception that no code retrieved.
    """
    if _exception_of(task) is not None:
        _logger.debug("a task failed: %r", task)


def _exception_of(task: asyncio.Task[T]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def _start(work: Coroutine[object, object, T], name: str | None = None) -> asyncio.Task[T]:
    try:
        return asyncio.get_running_loop().create_task(work, name=name)
    except BaseException:
        work.close()  # or Python warns that it was never awaited
        raise


def watch_loop(
    loop: asyncio.AbstractEventLoop,
    log: Callable[[asyncio.AbstractEventLoop, dict[str, object]], None] | None = None,
) -> None:
    """Let uncaught exceptions on a loop end the process, and log other problems.

    Args:
        loop: The loop.
        log: Logs problems that do not end the process; None: the default handler of asyncio.
    """

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        is_fatal = (
            isinstance(error, BaseException)
            and not isinstance(error, OSError | PenstockError | asyncio.CancelledError)
            and not context.keys() & {"transport", "protocol"}
        )
        if is_fatal and isinstance(error, BaseException):
            what = str(context.get("message") or "a callback failed")
            death = Death(f"an event loop: {what}", error, OnDeath.END_PROCESS)
            DEATHS.report(death, part="uncaught")
        elif log is not None:
            log(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)


async def run_on_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """Run work on another thread, without blocking the event loop, and return its result.

    Args:
        work: The call. If the caller is cancelled, work that has begun continues.
        executor: Executor that runs it; by default the loop's.

    Raises:
        RuntimeError: No thread can be started; the work has not run, and will not.
        MemoryError: The thread had no memory to begin the work, or the work raised it.
        Closed: The thread ended before the work began; the work has not run, and will not.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            outcome.set_exception(error)
        else:
            outcome.set_result(result)

    def pass_on(ran: asyncio.Future[None]) -> None:
        """End the wait if the thread could not run the work, for lack of memory or at its end."""
        if ran.cancelled():
            error: BaseException | None = Closed("the thread ended before the call began")
        else:
            error = ran.exception()
        if error is not None and not outcome.done():
            outcome.set_exception(error)

    awaited = asyncio.wrap_future(outcome)
    try:
        ran = asyncio.get_running_loop().run_in_executor(executor, run)
        ran.add_done_callback(pass_on)
    except BaseException:
        if outcome.cancel():
            awaited.cancel()
            raise
        # A thread took the work before the executor raised.
    return await awaited


def call_each(callbacks: Iterable[Callable[[], object]]) -> None:
    """Call all callbacks, even if one of them raises.

    An exception goes to the event loop's exception handler: it does not concern the caller, and
    later callbacks must not be lost. One that ends the program, such as Ctrl-C, is raised after all
    calls.
    """
    ends: BaseException | None = None
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - reported to the exception handler
            report("a callback failed", error)
        except BaseException as error:  # noqa: BLE001 - raised below
            ends = error
    if ends is not None:
        raise ends


def report(message: str, error: BaseException) -> None:
    """Pass an exception that no code receives to the event loop's exception handler."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # no loop runs, as in unit tests
        _logger.error(message, exc_info=error)  # noqa: TRY400
    else:
        loop.call_exception_handler({"message": message, "exception": error})


class LoopThread:
    """An event loop on a thread of its own, from `start` to `stop`.

    Owns the thread and its end. Does not own the objects on the loop: they are created and used
    there only, and other threads call `run` and `post`.

    Its mutex is held while a coroutine is submitted to the loop, and while the end of the loop is
    recorded. Mail cannot replace it, because a loop that ends accepts none: each coroutine must
    either be refused or be a task when the tasks are cancelled.

    Args:
        name: Name of the thread.
        loop: A new loop that does not run yet; it is closed at the end.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._mutex = threading.Lock()
        self._ends = False
        self._waiting: set[Callable[[BaseException | None], None]] = set()
        self._thread = OwnedThread(name, self._run)

    def start(self) -> None:
        """Start the thread."""
        watch_loop(self._loop)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its end; not from the loop itself.

        Raises:
            Unavailable: The time limit was exceeded; the coroutine was cancelled.
            Closed: The loop has ended, before or meanwhile.
        """
        future = self._hand_over(work)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if timeout_s is None or not future.cancel():
                return future.result()  # the work raised this itself, or returned just now
            raise Unavailable(f"{self._name}: no result within {timeout_s} s") from None
        except CancelledError:
            if self._ends:
                raise self._closed() from None
            raise Unavailable(f"{self._name}: the work was cancelled") from None

    def post(self, work: Callable[[], object]) -> None:
        """Schedule a call on the loop; no effect if the loop has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """Cancel all tasks, and wait for the end of the thread. Idempotent."""
        self._thread.expect_end()
        self.post(self._stop_loop)
        if self._thread.ident is not None:
            self._thread.join(_END_S)
        elif not self._loop.is_closed():
            self._close()

    def _stop_loop(self) -> None:
        # A second stop must not end the wait for the tasks that the first one cancelled.
        if not self._ends:
            self._loop.stop()

    def _hand_over(self, work: Coroutine[object, object, T]) -> Future[T]:
        try:
            with self._mutex:
                self._check_runs()
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
                fail = future.set_exception
                self._waiting.add(fail)
        except BaseException:
            work.close()
            raise
        future.add_done_callback(lambda _done: self._waiting.discard(fail))
        return future

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._end()

    def _end(self) -> None:
        """Refuse new work, cancel the tasks, and close the loop."""
        with self._mutex:
            self._ends = True
        try:
            # Coroutines submitted before are tasks when this runs, because the loop is
            # first-in-first-out.
            self._loop.run_until_complete(_cancel_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._close()

    def _close(self) -> None:
        with self._mutex:
            self._ends = True
        self._loop.close()
        for fail in tuple(self._waiting):  # of tasks that did not end when they were cancelled
            with suppress(InvalidStateError):
                fail(self._closed())

    def _check_runs(self) -> None:
        if self._ends:
            raise self._closed()

    def _closed(self) -> Closed:
        return Closed(f"{self._name} has ended: start it again")


async def _cancel_tasks() -> None:
    """Cancel all other tasks of the running loop, and wait up to ten seconds for their ends."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=_END_S)
