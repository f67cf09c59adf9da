"""Work of an event loop that runs on threads, and callbacks that fail by themselves.

`ThreadPoolExecutor.submit` raises if no thread can be started, but it has queued the work by then,
and a thread that starts later runs it. A caller that was told of the failure has undone its part,
or has asked again. So work is given to an executor behind a claim: either the work runs and its
outcome goes to the caller, or the caller gets the exception and the work never runs.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

T = TypeVar("T")

_logger = logging.getLogger(__name__)


async def run_on_thread(work: Callable[[], T], executor: Executor | None = None) -> T:
    """Return the result of work that runs on a thread, beside the event loop.

    Args:
        work: What runs. If the caller is cancelled, work that has begun goes on.
        executor: Whose thread it runs on; by default the loop's.

    Raises:
        RuntimeError: No thread can be started; the work has not run, and will not.
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

    awaited = asyncio.wrap_future(outcome)
    try:
        asyncio.get_running_loop().run_in_executor(executor, run)
    except BaseException:
        if outcome.cancel():
            awaited.cancel()
            raise
        # A thread had taken it before the executor raised.
    return await awaited


def call_each(callbacks: Iterable[Callable[[], object]]) -> None:
    """Call all callbacks, whatever one of them raises.

    An exception goes to the event loop's exception handler: it is not the caller's, and whoever
    waits behind the callback may wait for ever. One that ends the program, as Ctrl-C does, is
    raised when all were called.
    """
    ends: BaseException | None = None
    for callback in callbacks:
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - the exception handler has it
            report("a callback failed", error)
        except BaseException as error:  # noqa: BLE001 - raised below
            ends = error
    if ends is not None:
        raise ends


def report(message: str, error: BaseException) -> None:
    """Give the event loop's exception handler an exception that has no other taker."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # no loop runs, as in tests of parts
        _logger.error(message, exc_info=error)  # noqa: TRY400
    else:
        loop.call_exception_handler({"message": message, "exception": error})
