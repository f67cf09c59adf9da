"""Blocking code on one thread's terms: strands take turns, and only one of them ever runs.

A strand is a thread that runs while the scheduler waits for it, and stops where it would block. So
code that was written to block can be interleaved as the seed says, at those places alone.
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
    """Keep this thread, and the strands that begin meanwhile, on one core.

    Only one of them ever runs, and a core that goes on with the next one needs no other to wake up:
    a run takes half of the time or less. Each process takes a core by its number, so that several
    share all that there are.
    """
    if not hasattr(os, "sched_setaffinity"):  # Linux alone has it.
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(allowed)[os.getpid() % len(allowed)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


class Killed(BaseException):
    """The process that runs just now is no more. Not an `Exception`: nothing may catch it."""


def _baton() -> threading.Lock:
    """Return what one thread waits for and another hands on: a lock, which is free for a moment."""
    baton = threading.Lock()
    baton.acquire()
    return baton


class _Carrier:
    """A thread that runs strands, one after the other: to start one costs more than to wake one."""

    idle: ClassVar[list[_Carrier]] = []

    def __init__(self) -> None:
        self._wake = _baton()
        self._work: Callable[[], Callable[[], None]] | None = None
        threading.Thread(target=self._serve, name="strands", daemon=True).start()

    @classmethod
    def run(cls, work: Callable[[], Callable[[], None]]) -> None:
        """Run work, and what it returns when the thread is idle again. The scheduler's thread."""
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
            # Whoever runs next may give this thread its next work at once.
            self.idle.append(self)
            say_done()


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
        """Let it run until it pauses or ends."""
        if not self._begun:
            self._begun = True
            _Carrier.run(self._run)
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
        if not self._begun:
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

    def _run(self) -> Callable[[], None]:
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
        self.finished = True
        return self._turn.release

    @property
    def was_killed(self) -> bool:
        """Whether it was ended by the death of its process."""
        return self._killed
