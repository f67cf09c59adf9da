"""How many FlowFiles a session of one processor may take after a trigger failed.

A FlowFile at which a processor raises would hold up all FlowFiles that are taken together with it,
because they come back as the same batch. So a failed batch is retried in halves, until the FlowFile
that fails is alone.

Invariant: without a failure there is no limit, and reading that takes no lock.
"""

from __future__ import annotations

import threading


class BatchLimit:
    """Limit on the FlowFiles of one session; used by all threads of a processor.

    The limit ends after as many FlowFiles as failed were processed, for each input of the
    processor: the inputs take turns, and the FlowFiles of one input must not end the limit for
    those of another.

    Attributes:
        count: How many FlowFiles a session may take; None: no limit.
    """

    __slots__ = ("_left", "_mutex", "count")

    def __init__(self) -> None:
        self.count: int | None = None
        self._left = 0
        self._mutex = threading.Lock()

    def failed(self, taken: int, inputs: int) -> None:
        """Halve the limit after a trigger that raised, whose FlowFiles go back.

        Args:
            taken: FlowFiles that the trigger had taken.
            inputs: Inputs of the processor.
        """
        if taken < 2:
            self.passed(taken)
            return
        with self._mutex:
            half = taken // 2
            self.count = half if self.count is None else min(self.count, half)
            self._left = max(self._left, taken * max(1, inputs))

    def passed(self, taken: int) -> None:
        """Count FlowFiles that were processed, or that failed alone."""
        if self.count is None:
            return
        with self._mutex:
            self._left -= taken
            if self._left <= 0:
                self.count = None
                self._left = 0
