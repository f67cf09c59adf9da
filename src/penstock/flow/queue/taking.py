"""Taking FlowFiles out of a queue, in order or as a filter likes.

Owns waiting for what is just being written or swept, setting expired ones apart, and showing
FlowFiles to a filter without the mutex. Does not own what is told to others afterwards (`queue`).

Invariant: what was taken for a filter is handed out, or goes back, whatever the filter raises.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.core.errors import Conflict
from penstock.flow.flowfile import FlowFile
from penstock.flow.queue.contents import Contents
from penstock.flow.queue.expiring import Expiring
from penstock.flow.queue.swapped.run import Tally
from penstock.flow.queue.sweeping import SweptRows

_SHOWN_AT_ONCE = 256


class Verdict(enum.Enum):
    """What a filter says of a FlowFile, and whether it wants to see more."""

    ACCEPT = "accept"
    REJECT = "reject"
    ACCEPT_AND_STOP = "accept and stop"
    REJECT_AND_STOP = "reject and stop"

    @property
    def is_accepted(self) -> bool:
        """Say whether the FlowFile is taken."""
        return self in {Verdict.ACCEPT, Verdict.ACCEPT_AND_STOP}

    @property
    def is_last(self) -> bool:
        """Say whether the filter wants no more."""
        return self in {Verdict.ACCEPT_AND_STOP, Verdict.REJECT_AND_STOP}


@dataclass(frozen=True, slots=True)
class Polled:
    """What a poll gave.

    Attributes:
        flowfiles: In order; they count as unacknowledged until `acknowledge`.
        expired: Were in memory and left the queue; the caller has the journal remove them.
        expired_rows: Were swapped and left the queue; the journal knows already (`SwapHome`).
    """

    flowfiles: list[FlowFile]
    expired: list[FlowFile] = field(default_factory=list)
    expired_rows: list[SweptRows] = field(default_factory=list)


class Taking:
    """Takes FlowFiles out of a queue, for whoever polls it.

    Args:
        contents: The queue's.
        expiring: Sets those apart that are too old.
    """

    def __init__(self, contents: Contents, expiring: Expiring) -> None:
        self._contents = contents
        self._mutex = contents.mutex
        self._expiring = expiring
        self._filtering_thread: int | None = None

    def take(self, limit: int) -> Polled:
        """Take up to so many, in order. Takes the mutex itself."""
        swept = self._expiring.expire_rows()
        with self._mutex:
            self._wait_for_filter()
            flowfiles, expired = self._take(limit)
            self._contents.unacknowledged.add(*_count(flowfiles))
        return Polled(flowfiles, expired, swept)

    def give_back(self, polled: Polled) -> None:
        """Take back what was polled, because nobody got it. Takes the mutex itself."""
        with self._mutex:
            count, size_bytes = _count(polled.flowfiles)
            self._contents.unacknowledged.add(-count, -size_bytes)
            self._contents.returned += polled.flowfiles + polled.expired

    def sort_returned(self) -> None:
        """Bring what a filter left into order. Takes the mutex itself."""
        if self._contents.returned:
            with self._mutex:
                self._contents.sort_returned()

    def take_where(self, accept: Callable[[FlowFile], Verdict]) -> Polled:
        """Take what a filter accepts. Takes the mutex itself, but not around the filter.

        Raises:
            Conflict: The filter polls the queue that it is asked for.
        """
        swept = self._expiring.expire_rows()
        with self._mutex:
            self._wait_for_filter()
            self._filtering_thread = threading.get_ident()
        accepted: list[FlowFile] = []
        kept: list[FlowFile] = []
        expired: list[FlowFile] = []
        try:
            self._show(accept, accepted, kept, expired)
        except BaseException:
            kept += accepted + expired
            accepted, expired = [], []
            raise
        finally:
            with self._mutex:
                self._contents.shown = Tally()
                self._contents.returned += kept
                self._contents.unacknowledged.add(*_count(accepted))
                self._filtering_thread = None
                self._mutex.notify_all()
        return Polled(accepted, expired, swept)

    def _take(self, limit: int) -> tuple[list[FlowFile], list[FlowFile]]:
        """Take up to so many that are not expired; the others come second. The mutex is held."""
        kept: list[FlowFile] = []
        expired: list[FlowFile] = []
        found: list[FlowFile] = []
        try:
            self._take_into(kept, expired, found, limit)
        except BaseException:
            self._contents.returned += kept + expired + found
            raise
        return kept, expired

    def _take_into(
        self,
        kept: list[FlowFile],
        expired: list[FlowFile],
        found: list[FlowFile],
        limit: int,
    ) -> None:
        """Take; whatever is raised, each FlowFile that was taken is in one of the lists."""
        contents = self._contents
        while len(kept) < limit:
            contents.admit_due()
            while contents.main.runs.resolve_one():
                pass
            if contents.main.runs.is_unread:  # a run that is being swept may hold the first one
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
        """Show FlowFiles to a filter; what was taken is in one of the lists, whatever it raises."""
        while len(kept) < self._contents.options.swap_threshold:
            with self._mutex:
                batch, old = self._take(_SHOWN_AT_ONCE)
                self._contents.shown.add(*_count(batch))
            expired += old
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
                    f"queue {self._contents.queue_id}: a filter polls the queue it is asked for; "
                    "have it answer from the FlowFile alone"
                )
            self._mutex.wait()


def _count(flowfiles: Sequence[FlowFile]) -> tuple[int, int]:
    return len(flowfiles), sum([one.size for one in flowfiles])
