"""Threads for blocking calls, which run in named lanes: the work of one lane in order.

A component on a mailbox must not block; it submits the call to a lane and gets the result as mail.
A lane that has nothing to do costs nothing, so there may be one for each peon that ever was: a
thread of the pool takes a lane's work when there is some, and goes on with other lanes after it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_log = logging.getLogger(__name__)

_BUSY_LANES_MAX: Final = 128


def promise(
    work: Callable[[], T], *, through: tuple[type[BaseException], ...] = ()
) -> tuple[Future[T], Callable[[], None]]:
    """Return a future, and what runs the work and settles it.

    Args:
        work: What is to be run; never, if the future is cancelled before.
        through: Exceptions that end who runs it, and are none of the future's.
    """
    future: Future[T] = Future()

    def run() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except through:
            raise
        except BaseException as error:  # noqa: BLE001 - whoever holds the future hears it
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, run


class ThreadLanes:
    """Lanes on the threads of one pool. Any thread may submit.

    The mutex guards the queues of the lanes, which the owner fills and the pool empties; it is held
    around a few lines.

    Args:
        name: Part of the threads' names.
        busy_max: Lanes that run work at a time; work of others waits.
    """

    def __init__(self, name: str, *, busy_max: int = _BUSY_LANES_MAX) -> None:
        self._name = name
        self._busy_max = busy_max
        self._pool = self._make_pool()
        self._mutex = threading.Lock()
        # A lane is here while it has work that runs or waits.
        self._waiting: dict[str, deque[tuple[Future[object], Callable[[], None]]]] = {}
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work in the lane, after what was submitted there before.

        The future raises Unavailable if no thread can be started for the lane; the work is not
        done then.

        Raises:
            Closed: The lanes were closed.
        """
        future, run = promise(work)

        with self._mutex:
            if self._closed:
                raise Closed(f"the lanes of {self._name} are closed")
            waiting = self._waiting.get(lane)
            if waiting is None:
                waiting = deque()
                try:
                    self._pool.submit(self._run_lane, lane, waiting)
                except BaseException as error:
                    # The pool has queued the empty lane all the same, and after it would take a
                    # busy thread for an idle one. Its threads go on with what they have.
                    self._pool.shutdown(wait=False)
                    self._pool = self._make_pool()
                    if not isinstance(error, RuntimeError):
                        raise
                    reason = f"no thread of {self._name} for {lane!r} can be started: {error}"
                    future.set_exception(Unavailable(reason))
                    return future
                self._waiting[lane] = waiting
            waiting.append((future, run))  # type: ignore[arg-type]  # Future is invariant
        return future

    def close(self) -> None:
        """Begin no more work; cancel what is queued. What runs is not waited for."""
        with self._mutex:
            self._closed = True
            dropped = [future for waiting in self._waiting.values() for future, _run in waiting]
            for waiting in self._waiting.values():
                waiting.clear()
        # Outside of the mutex: those who wait for them are called from here.
        for future in dropped:
            future.cancel()
        self._pool.shutdown(wait=False)

    def _make_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._busy_max, thread_name_prefix=f"{self._name} lane")

    def _run_lane(
        self, lane: str, waiting: deque[tuple[Future[object], Callable[[], None]]]
    ) -> None:
        while True:
            with self._mutex:
                if not waiting:
                    if self._waiting.get(lane) is waiting:
                        del self._waiting[lane]
                    return
                _future, run = waiting.popleft()
            try:
                run()
            except BaseException:  # noqa: BLE001 - the lane's other work must go on
                # The work's own errors are its future's; this one is of who was called back.
                _log.exception("lane %s of %s: an outcome could not be told", lane, self._name)
