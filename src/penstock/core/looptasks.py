"""Start tasks and loops of asyncio, and notice when one ends that should not.

The only place that creates tasks, runs loops on threads, and sets a loop's exception handler. Three
kinds of tasks:

    keep_running   a body that runs until it is cancelled or `may_return`; declared as a thread is
    start_job      one coroutine that nobody awaits: what it raises is logged and counted
    start_awaited  one coroutine whose result somebody awaits, who gets its exception, too

A task that is cancelled ends as was asked, whatever its kind.

An exception that reaches a loop itself, because it came from a callback or from a task that nobody
awaited, ends the process as an uncaught exception of a thread does (`watch_loop`). These do not:

- an error of the operating system, which belongs to a connection or to a lack of resources, and a
  `PenstockError`: both are foreseen kinds of failure;
- an exception of the protocol of one connection, which the loop closes then: a client must not be
  able to end a server.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, PenstockError, Unavailable
from penstock.core.threads import DEATHS, Death, OnDeath, OwnedThread, RestartPauses

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

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
        name: In logs, readiness and metrics.
        body: Makes the coroutine, again at each restart.
        on_death: What follows if it raises, or returns.
        may_return: It may end by itself: only an exception is unexpected.
    """
    loop = asyncio.get_running_loop()
    return loop.create_task(_keep(name, body, on_death, may_return), name=name)


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
        # The top of a task: nobody awaits it before the stop.
        except Exception as caught:  # noqa: BLE001
            error = caught
        DEATHS.report(Death(name, error, on_death), owner)
        del error  # its trace holds what the body worked on
        if on_death is not OnDeath.RESTART:
            return
        try:
            await asyncio.sleep(pauses.next_s())
        finally:
            DEATHS.recovered(owner)


def start_job(name: str, job: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Start a coroutine that nobody awaits, on the running loop; its failure is logged."""
    task = asyncio.get_running_loop().create_task(job, name=name)
    task.add_done_callback(_report_failure)
    return task


def _report_failure(task: asyncio.Task[object]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        DEATHS.report(Death(task.get_name(), error, OnDeath.REPORT))


def start_awaited(work: Coroutine[object, object, T]) -> asyncio.Task[T]:
    """Start a coroutine whose result somebody awaits, on the running loop."""
    return asyncio.get_running_loop().create_task(work)


def watch_loop(
    loop: asyncio.AbstractEventLoop,
    log: Callable[[asyncio.AbstractEventLoop, dict[str, object]], None] | None = None,
) -> None:
    """Have exceptions that nobody caught on a loop end the process, and log the other trouble.

    Args:
        loop: The loop.
        log: Logs trouble that ends nothing; None: as asyncio does.
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


class LoopThread:
    """An event loop on a thread of its own, from `start` to `stop`.

    Owns the thread and its end. Does not own what runs on the loop: that is made and used there
    only, and other threads ask with `run` and `post`.

    Args:
        name: Of the thread.
        loop: A new loop that runs nowhere yet; it is closed at the end.
    """

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop) -> None:
        self._name = name
        self._loop = loop
        self._thread = OwnedThread(name, self._run)

    def start(self) -> None:
        """Begin to run."""
        watch_loop(self._loop)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], timeout_s: float | None = None) -> T:
        """Run something on the loop and wait for its end; not from the loop itself.

        Raises:
            Unavailable: It took too long; it was cancelled.
            Closed: The loop has ended.
        """
        if self._loop.is_closed():
            work.close()
            raise Closed(f"{self._name} has ended: start it again")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if timeout_s is None or not future.cancel():
                raise  # by the work itself
            raise Unavailable(f"{self._name}: nothing happened within {timeout_s} s") from None

    def post(self, work: Callable[[], object]) -> None:
        """Have something called on the loop soon; nothing happens if it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """Cancel what runs, and wait for the end of the thread. Twice is fine."""
        self._thread.expect_end()
        self.post(self._loop.stop)
        if self._thread.ident is not None:
            self._thread.join(_END_S)
        elif not self._loop.is_closed():
            self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            if tasks:
                self._loop.run_until_complete(asyncio.wait(tasks, timeout=_END_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
