"""An event loop on a thread of its own, for processors that serve or listen on the network.

Owns the thread and its end. Does not own what runs on the loop: that is made and used there only,
and triggers, which run on other threads, ask with `run` and `post`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final, TypeVar

from penstock.core.errors import Closed, Unavailable
from penstock.core.loopstalls import watched_loop

T = TypeVar("T")

_END_S: Final = 10.0


class LoopThread:
    """A loop that runs from `start` to `stop`.

    Not a mailbox: servers and clients of the network need a loop of asyncio.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = watched_loop(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to run."""
        self._thread.start()

    def run(self, work: Coroutine[object, object, T], timeout_s: float) -> T:
        """Run something on the loop and wait for its end; not from the loop itself.

        Raises:
            Unavailable: It took too long; it was cancelled.
            Closed: The loop has ended.
        """
        if self._loop.is_closed():
            work.close()
            raise Closed(f"{self._name} has ended: start the processor again")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise Unavailable(f"{self._name}: nothing happened within {timeout_s} s") from None

    def post(self, work: Callable[[], object]) -> None:
        """Have something called on the loop soon; nothing happens if it has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(work)

    def stop(self) -> None:
        """Cancel what runs, and wait for the end of the thread. Twice is fine."""
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
