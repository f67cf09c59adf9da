"""Threads for blocking calls, in named lanes: each lane runs its work in order.

A component on a mailbox must not block; it submits the call to a lane and gets the result as mail.
An idle lane costs nothing, so there may be one for each peon that ever existed: a thread of the
pool takes the work of a lane that has some, and then continues with other lanes.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.core.errors import Closed, Unavailable
from penstock.core.threads import promise

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_log = logging.getLogger(__name__)

_BUSY_LANES_MAX: Final = 128


class Lanes(Protocol):
    """Threads of a component, one for each named lane; a lane runs its work in order.

    A lane is for one kind of blocking call, so that a slow one does not delay others.
    """

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work on the lane's thread, after all work submitted there before."""
        ...

    def close(self) -> None:
        """Start no further work; queued work is cancelled."""
        ...


class ThreadLanes:
    """Lanes on the threads of one pool. Any thread may submit.

    The mutex guards the queues of the lanes, which the owner fills and the pool empties; it is held
    for a few lines.

    Args:
        name: Part of the threads' names.
        busy_max: Number of lanes that run work at a time; work of others waits.
    """

    def __init__(self, name: str, *, busy_max: int = _BUSY_LANES_MAX) -> None:
        self._name = name
        self._busy_max = busy_max
        self._pool = self._make_pool()
        self._mutex = threading.Lock()
        # A lane has an entry while it has running or waiting work.
        self._waiting: dict[str, deque[tuple[Future[object], Callable[[], None]]]] = {}
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work in the lane, after all work submitted there before.

        The future raises Unavailable if no thread can be started for the lane; the work does not
        run then.

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
                    # The pool has queued the empty lane nevertheless, and would later count a busy
                    # thread as idle. Its existing threads continue.
                    self._pool.shutdown(wait=False)
                    self._pool = self._make_pool()
                    if not isinstance(error, RuntimeError):
                        raise
                    reason = f"cannot start a thread of {self._name} for {lane!r}: {error}"
                    future.set_exception(Unavailable(reason))
                    return future
                self._waiting[lane] = waiting
            waiting.append((future, run))  # type: ignore[arg-type]  # Future is invariant
        return future

    def close(self) -> None:
        """Start no further work and cancel queued work. Does not wait for running work."""
        with self._mutex:
            self._closed = True
            dropped = [future for waiting in self._waiting.values() for future, _run in waiting]
            for waiting in self._waiting.values():
                waiting.clear()
        # Outside the mutex: cancelling runs the callbacks of the futures here.
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
            except BaseException:  # noqa: BLE001 - the lane's other work must continue
                # Errors of the work are set in its future; this one is from a callback.
                _log.exception("lane %s of %s: a callback of the outcome failed", lane, self._name)
