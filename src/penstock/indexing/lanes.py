"""Threads for blocking calls, one for each named lane.

A component on a mailbox must not block; it submits the call to a lane and gets the result as mail.
One lane serves one kind of call, in order, so that what it waits for holds up nothing else.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Closed

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class ThreadLanes:
    """One thread for each lane, started when the lane is first used.

    Used by one thread, the owner's mailbox.

    Args:
        name: Part of the threads' names.
        width: Threads of a lane; above 1 its work is not in order any more.
    """

    def __init__(self, name: str, *, width: int = 1) -> None:
        self._name = name
        self._width = width
        self._lanes: dict[str, ThreadPoolExecutor] = {}
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work on the lane's thread, after what was submitted there before.

        Raises:
            Closed: The lanes were closed.
        """
        if self._closed:
            raise Closed(f"the lanes of {self._name} are closed")
        pool = self._lanes.get(lane)
        if pool is None:
            pool = ThreadPoolExecutor(self._width, thread_name_prefix=f"{self._name}-{lane}")
            self._lanes[lane] = pool
        return pool.submit(work)

    def close(self) -> None:
        """Begin no more work; cancel what is queued. What runs is not waited for."""
        self._closed = True
        for pool in self._lanes.values():
            pool.shutdown(wait=False, cancel_futures=True)
