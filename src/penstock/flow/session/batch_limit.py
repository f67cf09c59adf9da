"""Limit on the FlowFiles that a session of one processor takes after a trigger failed.

A FlowFile for which a processor raises would hold up all FlowFiles that are taken together with it,
because they return as the same batch. So a failed batch is retried in halves, until the failing
FlowFile is alone. It is penalized, and taken alone again after its penalty. A FlowFile that always
fails therefore costs one trigger per penalty, and divides no further batch. If the processor takes
several FlowFiles at once, other FlowFiles are processed between two such triggers.

Invariant: without a failure there is no limit, and this is read without a lock.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.flow.flowfile import FlowFile

REMEMBERED_MS: Final = 600_000
"""For how long a suspect is remembered after its penalty, in milliseconds.

A suspect may expire, be dropped, or come back much later. One that comes back after this time is
taken with others, so that a batch is divided once more.
"""

_SUSPECTS_MAX: Final = 1_000


class BatchLimit:
    """Limit on the FlowFiles of one session; used by all threads of a processor.

    The limit ends after as many FlowFiles as failed were processed, for each input of the
    processor: the inputs take turns, and the FlowFiles of one input must not end the limit for
    those of another.

    Attributes:
        count: How many FlowFiles a session may take; None: no limit.
        suspects: Ids of FlowFiles that failed alone, the oldest first; at most 1,000. The next
            session that polls one takes it alone, but only once: if the processor needs several
            FlowFiles and returns it, it is taken together with others afterwards. The value is the
            time at which it is forgotten, in monotonic seconds.
    """

    __slots__ = ("_left", "_mutex", "_others_first", "count", "suspects")

    def __init__(self) -> None:
        self.count: int | None = None
        self.suspects: dict[int, float] = {}
        self._left = 0
        self._others_first = False
        self._mutex = threading.Lock()

    def failed(self, count: int, inputs: int, ids: Iterable[int], penalty_end_s: float) -> None:
        """Halve the limit after a trigger that raised, whose FlowFiles go back.

        Args:
            count: How many FlowFiles the trigger had taken.
            inputs: Inputs of the processor.
            ids: Ids of those FlowFiles.
            penalty_end_s: End of the penalty of a FlowFile that failed alone, in monotonic seconds.
        """
        if count < 2:
            with self._mutex:
                self._others_first = True
                self.suspects.update(dict.fromkeys(ids, penalty_end_s + REMEMBERED_MS / 1_000))
                if len(self.suspects) > _SUSPECTS_MAX:
                    del self.suspects[next(iter(self.suspects))]
            self.passed(count)
            return
        with self._mutex:
            half = count // 2
            self.count = half if self.count is None else min(self.count, half)
            self._left = max(self._left, count * max(1, inputs))

    def separate(
        self, flowfiles: list[FlowFile], *, is_first: bool, now_s: float
    ) -> tuple[list[FlowFile], list[FlowFile], bool]:
        """Return polled FlowFiles that a session takes, and those that go back to their queue.

        After one failed alone, the others are taken first, so that suspects do not hold them up.

        Args:
            flowfiles: FlowFiles in the order of their queue.
            is_first: Whether the session has taken no other FlowFile.
            now_s: Monotonic time in seconds.

        Returns:
            Both, and whether a suspect is taken, alone.
        """
        with self._mutex:
            self._forget_old(now_s)
            others = [one for one in flowfiles if one.id not in self.suspects]
            if len(others) == len(flowfiles):
                return flowfiles, [], False
            suspects = [one for one in flowfiles if one.id in self.suspects]
            if not is_first or (others and self._others_first):
                self._others_first = False
                return others, suspects, False
            suspect, *rest = suspects
            back = [*others, *rest]
            del self.suspects[suspect.id]
            return [suspect], back, True

    def _forget_old(self, now_s: float) -> None:
        while self.suspects:
            oldest, forgotten_s = next(iter(self.suspects.items()))
            if forgotten_s > now_s:
                return
            del self.suspects[oldest]

    def passed(self, taken: int) -> None:
        """Count FlowFiles that were processed, or that failed alone."""
        if self.count is None:
            return
        with self._mutex:
            self._left -= taken
            if self._left <= 0:
                self.count = None
                self._left = 0
