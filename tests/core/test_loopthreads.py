"""Work on threads whose executor raises, and callbacks that raise."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from penstock.core.loopthreads import call_each, run_on_thread

if TYPE_CHECKING:
    from collections.abc import Callable


class LateExecutor(ThreadPoolExecutor):
    """Queues work and raises, as an executor does whose thread cannot start."""

    def __init__(self, *, runs_first: bool = False) -> None:
        super().__init__(1)
        self.queued: list[Callable[[], object]] = []
        self._runs_first = runs_first

    def submit(self, fn, /, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.queued.append(fn)
        if self._runs_first:
            fn(*args)
        raise RuntimeError("can't start new thread")


def test_work_whose_executor_raised_never_runs() -> None:
    executor, ran = LateExecutor(), []

    async def ask() -> None:
        with pytest.raises(RuntimeError, match="can't start"):
            await run_on_thread(lambda: ran.append(1), executor)

    asyncio.run(ask())
    for work in executor.queued:
        work()  # a thread that starts later
    assert not ran


def test_work_that_a_thread_took_before_the_executor_raised_counts() -> None:
    executor = LateExecutor(runs_first=True)
    assert asyncio.run(run_on_thread(lambda: 7, executor)) == 7


def test_results_and_exceptions_go_to_the_caller() -> None:
    def fail() -> None:
        raise MemoryError

    async def ask() -> int:
        with pytest.raises(MemoryError):
            await run_on_thread(fail)
        return await run_on_thread(threading.get_ident)

    assert asyncio.run(ask()) != threading.get_ident()


def test_work_that_waits_for_a_thread_does_not_run_if_its_caller_is_cancelled() -> None:
    ran: list[int] = []

    async def ask() -> None:
        gate: Future[None] = Future()
        executor = ThreadPoolExecutor(1)
        first = asyncio.ensure_future(run_on_thread(gate.result, executor))
        second = asyncio.ensure_future(run_on_thread(lambda: ran.append(1), executor))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        gate.set_result(None)
        await first
        executor.shutdown()

    asyncio.run(ask())
    assert not ran


def test_each_callback_is_called_whatever_one_raises() -> None:
    called: list[int] = []
    told: list[object] = []

    def fail() -> None:
        raise MemoryError

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def call() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        with pytest.raises(KeyboardInterrupt):
            call_each([fail, lambda: called.append(1), interrupt, lambda: called.append(2)])

    asyncio.run(call())
    assert called == [1, 2]
    assert [type(error) for error in told] == [MemoryError]
