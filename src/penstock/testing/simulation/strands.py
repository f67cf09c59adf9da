"""Blocking code on one thread's terms: strands take turns, and only one of them ever runs.

A strand is a thread that runs while the scheduler waits for it, and stops where it would block. So
code that was written to block can be interleaved as the seed says, at those places alone.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Killed(BaseException):
    """The process that runs just now is no more. Not an `Exception`: nothing may catch it."""


class Strand(Generic[T]):
    """One blocking piece of work.

    Args:
        name: For stories.
        work: What to run.
        wake_s: When it may begin.
    """

    def __init__(self, name: str, work: Callable[[], T], wake_s: float) -> None:
        self.name = name
        self.acting = name
        self.future: Future[T] = Future()
        self.finished = False
        self.wake_s = wake_s
        self.is_ready: Callable[[], bool] = lambda: False
        self._work: Callable[[], T] | None = work
        self._request: Callable[[], None] | None = None
        self._killed = False
        self._mine = threading.Semaphore(0)
        self._turn = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    # The scheduler's thread

    def resume(self) -> None:
        """Let it run until it pauses or ends."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._mine.release()
        self._turn.acquire()
        while self._request is not None:
            request, self._request = self._request, None
            request()
            if self.finished:  # The request was its death.
                return
            self._mine.release()
            self._turn.acquire()

    def kill(self) -> None:
        """End it where it stands. Not from itself: that raises `Killed`."""
        self._killed = True
        if self._thread is None:
            self.finished = True
        while not self.finished:
            self.resume()

    # The strand's own thread

    def pause(self, until_s: float, is_ready: Callable[[], bool] = lambda: False) -> None:
        """Let others run, until a time or until something holds.

        Raises:
            Killed: The process has died meanwhile.
        """
        self.wake_s, self.is_ready = until_s, is_ready
        self._yield()

    def on_scheduler(self, work: Callable[[], T]) -> T:
        """Run something on the scheduler's thread, at once."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised on the strand
                done.set_exception(error)

        self._request = run
        self._yield()
        return done.result()

    def _yield(self) -> None:
        self._turn.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            result = work()
        except Killed:
            self._killed = True
        except BaseException as error:  # noqa: BLE001 - whoever waits for the strand hears it
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
        finally:
            self.finished = True
            self._turn.release()

    @property
    def was_killed(self) -> bool:
        """Whether it was ended by the death of its process."""
        return self._killed
