"""An event loop under a virtual clock, and threads whose work is done on the spot.

What the broker does on its loop and beside it then happens on one thread, in one order, at once:
so a test can cut the power at any step of it, and come back to the same step.
"""

from __future__ import annotations

import asyncio
import selectors
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.testing.memory_disk import PowerLoss

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from penstock.broker.topics.topic_changes import TopicChanges
    from penstock.testing.clock import VirtualClock

T = TypeVar("T")


class InlineExecutor(ThreadPoolExecutor):
    """Does the work where it is given."""

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it hears it
            future.set_exception(error)
        return future


def change_inline(changes: TopicChanges) -> None:
    """Have the changes of topics made on the event loop, not on a thread."""
    changes._thread.shutdown()
    changes._thread = InlineExecutor(1)


class _JumpingSelector(selectors.SelectSelector):
    """Moves the clock instead of waiting."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the test waits for what nothing will bring about")
        found = super().select(0)
        if not found and timeout > 0:
            self._clock.advance(max(timeout, 1e-6))
        return found


class SteppedLoop(asyncio.SelectorEventLoop):
    """A loop whose time is the virtual clock's."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(_JumpingSelector(clock))
        self._virtual = clock
        self.set_default_executor(InlineExecutor(1))

    def time(self) -> float:
        return self._virtual.monotonic_s()


def run_stepped(clock: VirtualClock, work: Coroutine[object, object, T]) -> T:
    """Run a coroutine to its end; what it left running ends with it, as with a process.

    What callbacks raise is raised here, but for a power loss, which ends whatever meets it.
    """
    loop = SteppedLoop(clock)
    raised: list[BaseException] = []

    def take_note(_: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException) and not isinstance(error, PowerLoss):
            raised.append(error)

    loop.set_exception_handler(take_note)
    try:
        result = loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
            for task in left:
                _ = task.cancelled() or task.exception()  # or the loop would speak of it
        loop.close()
        if raised:
            raise raised[0]
    return result
