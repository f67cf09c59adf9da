"""Blocking code on one thread's schedule: fibers alternate, and only one of them ever runs.

A fiber is a thread that runs while the scheduler waits for it, and stops where it would block. So
blocking code can be interleaved in an order given by the seed, at those places only.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this thread, and the fibers that start meanwhile, on one core.

    Only one of them ever runs, and a core that continues with the next one need not wake another: a
    run takes half of the time or less. Each process picks a core by its number, so that several use
    all cores.
    """
    if not hasattr(os, "sched_setaffinity"):  # Only Linux has it.
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[os.getpid() % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Killed(BaseException):
    """The current process has died. Not an `Exception`, so that nothing catches it."""


def _baton() -> threading.Lock:
    """Return a lock for which one thread waits until another releases it."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class _Carrier:
    """A thread that runs fibers one after the other, because starting a thread is slow."""

    idle: ClassVar[list[_Carrier]] = []

    def __init__(self) -> None:
        self._wake = _baton()
        self._work: Callable[[], Callable[[], None]] | None = None
        threading.Thread(target=self._serve, name="fibers", daemon=True).start()

    @classmethod
    def run(cls, work: Callable[[], Callable[[], None]]) -> None:
        """Run work, then its result once the thread is idle again. For the scheduler's thread."""
        carrier = cls.idle.pop() if cls.idle else cls()
        carrier.begin(work)

    def begin(self, work: Callable[[], Callable[[], None]]) -> None:
        """Run work; the thread must be idle."""
        self._work = work
        self._wake.release()

    def _serve(self) -> None:
        while True:
            self._wake.acquire()
            assert self._work is not None
            say_done = self._work()
            # The next fiber may give this thread its next work at once.
            self.idle.append(self)
            say_done()


class Fiber(Generic[T]):
    """One blocking piece of work.

    Args:
        name: Name for logs.
        work: The function to run.
        wake_s: When it may begin.
    """

    def __init__(self, name: str, work: Callable[[], T], wake_s: float) -> None:
        self.name = name
        self.acting = name
        self.is_vital = False
        self.future: Future[T] = Future()
        self.finished = False
        self.wake_s = wake_s
        self.is_ready: Callable[[], bool] = lambda: False
        self._work: Callable[[], T] | None = work
        self._request: Callable[[], None] | None = None
        self._killed = False
        self._mine = _baton()
        self._turn = _baton()
        self._begun = False

    # The scheduler's thread

    def resume(self) -> None:
        """Run the fiber until it pauses or ends."""
        if not self._begun:
            self._begun = True
            _Carrier.run(self._run)
        else:
            self._mine.release()
        self._turn.acquire()
        while self._request is not None:
            request, self._request = self._request, None
            request()
            if self.finished:  # It was asked to die.
                return
            self._mine.release()
            self._turn.acquire()

    def kill(self) -> None:
        """End the fiber where it waits. Not from the fiber itself: that raises `Killed`."""
        self._killed = True
        if not self._begun:
            self.finished = True
        while not self.finished:
            self.resume()

    # The fiber's own thread

    def pause(self, until_s: float, is_ready: Callable[[], bool] = lambda: False) -> None:
        """Let others run until a time, or until a condition holds.

        Raises:
            Killed: The process died meanwhile.
        """
        self.wake_s, self.is_ready = until_s, is_ready
        self._yield()

    def on_scheduler(self, work: Callable[[], T]) -> T:
        """Run a function on the scheduler's thread, at once."""
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is raised on the fiber
                done.set_exception(error)

        self._request = run
        self._yield()
        return done.result()

    def _yield(self) -> None:
        self._turn.release()
        self._mine.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> Callable[[], None]:
        work, self._work = self._work, None
        assert work is not None
        try:
            result = work()
        except Killed:
            self._killed = True
        except BaseException as error:  # noqa: BLE001 - passed to the fiber's waiter
            self.future.set_exception(error)
        else:
            self.future.set_result(result)
        self.finished = True
        return self._turn.release

    @property
    def was_killed(self) -> bool:
        """Return whether it was ended by the death of its process."""
        return self._killed
