"""Takes FlowFiles out of a queue, in order or by a filter.

Owns waiting for writes and sweeps, separating expired FlowFiles, and passing FlowFiles to a filter
without the mutex. Does not own the notifications that follow (`queue`).

Invariant: FlowFiles that were taken are handed out or put back, whatever is raised.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.core.errors import Conflict
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.expiration import Expiring, SweptRows
from penstock.flow.queue.queue_state import Contents
from penstock.flow.queue.swap_cursors import Tally

_SHOWN_AT_ONCE = 256


class Verdict(enum.Enum):
    """Verdict of a filter on a FlowFile, and whether it wants to see more."""

    ACCEPT = "accept"
    REJECT = "reject"
    ACCEPT_AND_STOP = "accept and stop"
    REJECT_AND_STOP = "reject and stop"

    @property
    def is_accepted(self) -> bool:
        """Return whether the FlowFile is taken."""
        return self in {Verdict.ACCEPT, Verdict.ACCEPT_AND_STOP}

    @property
    def is_last(self) -> bool:
        """Return whether the filter stops."""
        return self in {Verdict.ACCEPT_AND_STOP, Verdict.REJECT_AND_STOP}


@dataclass(frozen=True, slots=True)
class Polled:
    """Result of a poll.

    Attributes:
        flowfiles: FlowFiles in order; they count as unacknowledged until `acknowledge`.
        expired: Expired FlowFiles that were in memory and left the queue; the caller removes them
            from the journal.
        expired_rows: Expired rows of swap files that left the queue; already in the journal
            (`SwapHome`).
    """

    flowfiles: list[FlowFile]
    expired: list[FlowFile] = field(default_factory=list)
    expired_rows: list[SweptRows] = field(default_factory=list)


class Taking:
    """Takes FlowFiles out of a queue, for polls.

    Args:
        contents: State of the queue.
        expiring: Separates expired FlowFiles.
    """

    def __init__(self, contents: Contents, expiring: Expiring) -> None:
        self._contents = contents
        self._mutex = contents.mutex
        self._expiring = expiring
        self._filtering_thread: int | None = None

    def take(self, limit: int) -> Polled:
        """Take up to `limit` FlowFiles, in order. Acquires the mutex itself."""
        polled = Polled([], [], self._expiring.expire_rows())
        with self._mutex:
            self._wait_for_filter()
            self._take(limit, polled.flowfiles, polled.expired, self._contents.unacknowledged)
        return polled

    def give_back(self, polled: Polled) -> None:
        """Put polled FlowFiles back, because the caller did not receive them.

        Acquires the mutex itself.
        """
        with self._mutex:
            self._contents.returned += polled.flowfiles
            self._contents.returned += polled.expired
            count, size_bytes = _count(polled.flowfiles)
            self._contents.unacknowledged.add(-count, -size_bytes)

    def sort_returned(self) -> None:
        """Put back FlowFiles that a filter rejected. Acquires the mutex itself."""
        if self._contents.returned:
            with self._mutex:
                self._contents.sort_returned()

    def take_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
        """Take the FlowFiles that a filter accepts.

        Acquires the mutex itself, but not during the filter.

        Raises:
            Conflict: The filter polled this queue.
        """
        contents = self._contents
        polled = Polled([], [], self._expiring.expire_rows())
        kept: list[FlowFile] = []
        is_whole = False
        with self._mutex:
            self._wait_for_filter()
            self._filtering_thread = threading.get_ident()
        try:
            self._show(accept, polled.flowfiles, kept, polled.expired)
            count = _count(polled.flowfiles)
            with self._mutex:
                contents.unacknowledged.add(*count)
                is_whole = True
        finally:
            with self._mutex:
                self._filtering_thread = None
                contents.shown.count = contents.shown.size_bytes = 0
                self._mutex.notify_all()
                contents.returned += kept
                if not is_whole:
                    contents.returned += polled.flowfiles
                    contents.returned += polled.expired
        return polled

    def _take(
        self, limit: int, kept: list[FlowFile], expired: list[FlowFile], tally: Tally
    ) -> None:
        """Take up to `limit` FlowFiles that are not expired; nothing if it raises.

        The mutex is held.

        Args:
            limit: Maximum number.
            kept: Empty list; receives those that are not expired.
            expired: Receives the others.
            tally: Counts those that are not expired.
        """
        found: list[FlowFile] = []
        there = len(expired)
        try:
            self._take_into(kept, expired, found, limit)
            tally.add(*_count(kept))
        except BaseException:
            # A FlowFile that was being moved between two lists may be in both.
            taken = {one.id: one for one in (*kept, *expired[there:], *found)}
            self._contents.returned += taken.values()
            kept.clear()
            del expired[there:]
            raise

    def _take_into(
        self,
        kept: list[FlowFile],
        expired: list[FlowFile],
        found: list[FlowFile],
        limit: int,
    ) -> None:
        """Take FlowFiles; whatever is raised, each one taken is in one of the lists."""
        contents = self._contents
        while len(kept) < limit:
            contents.admit_due()
            while contents.main.runs.resolve_one():
                pass
            if contents.main.runs.is_unread:  # a cursor that is being swept may hold the first one
                self._mutex.wait()
                continue
            contents.main.take(found, limit - len(kept))
            fresh, old = self._expiring.split(found)
            is_blocked = not found and contents.main.is_blocked
            kept += fresh
            expired += old
            found.clear()
            if is_blocked and not kept:
                self._mutex.wait()
            elif not old:
                break

    def _show(
        self,
        accept: Callable[[FlowFile], Verdict],
        accepted: list[FlowFile],
        kept: list[FlowFile],
        expired: list[FlowFile],
    ) -> None:
        """Pass FlowFiles to a filter; each one taken is in one of the lists, whatever it raises."""
        while len(kept) < self._contents.options.swap_threshold:
            batch: list[FlowFile] = []
            with self._mutex:
                self._take(_SHOWN_AT_ONCE, batch, expired, self._contents.shown)
            if not batch:
                return
            seen = 0
            verdict = Verdict.ACCEPT
            try:
                for flowfile in batch:
                    verdict = accept(flowfile)
                    (accepted if verdict.is_accepted else kept).append(flowfile)
                    seen += 1
                    if verdict.is_last:
                        return
            finally:
                kept += batch[seen:]

    def _wait_for_filter(self) -> None:
        while self._filtering_thread is not None:
            if self._filtering_thread == threading.get_ident():
                raise Conflict(
                    f"queue {self._contents.queue_id}: a filter must not poll the queue that "
                    "called it; decide by the FlowFile alone"
                )
            self._mutex.wait()


def _count(flowfiles: Sequence[FlowFile]) -> tuple[int, int]:
    return len(flowfiles), sum([one.size for one in flowfiles])
