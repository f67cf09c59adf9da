"""Lag of a supervisor in time, if its spec enables it.

On the overlord's mailbox; the stream is read on a lane of its own, because that may take long.
Reads the times of a few records of each stream partition with unread ones, at the interval of
`offsetFetchPeriod`. `Standing` determines the lag in messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.errors import PenstockError
    from penstock.indexing.supervisor.standing import Standing
    from penstock.indexing.supervisor.state import SupervisorState


class TimeLag:
    """The lag of one supervisor in time, kept in its state.

    Args:
        state: The supervisor.
        standing: Determines the unread messages.
    """

    def __init__(self, state: SupervisorState, standing: Standing) -> None:
        self._state = state
        self._standing = standing
        self._asks = False
        self._again_s = 0.0

    def refresh(self) -> None:
        """Determine the lag again if it is enabled and due."""
        state = self._state
        if not state.spec.io.emit_time_lag_metrics:
            state.time_lag_ms, self._again_s = None, 0.0
            return
        ranges = self._standing.unread()
        unread = {p: (start, end) for p, (start, end) in ranges.items() if start < end}
        if not unread or state.time_lag_ms is not None:
            self._set({})  # Stream partitions that were read to their end have no lag.
        now_s = state.ports.clock.monotonic_s()
        if not unread or self._asks or now_s < self._again_s:
            return
        self._asks, self._again_s = True, now_s + state.spec.tuning.time_lag_every_ms / 1000

        def done(spans: dict[int, int | None]) -> None:
            self._asks = False
            if state.spec.io.emit_time_lag_metrics:
                self._set(spans)

        def failed(error: PenstockError) -> None:
            self._asks = False
            state.time_lag_ms = None  # The last result is out of date.
            state.note(error)

        state.stream.spans(unread, done, failed)

    def _set(self, spans: Mapping[int, int | None]) -> None:
        """Store the results; other stream partitions keep their last result.

        Those that were read to their end meanwhile have no lag.
        """
        before = self._state.time_lag_ms or {}
        self._state.time_lag_ms = {
            p: spans.get(p, before.get(p)) if start < end else 0
            for p, (start, end) in self._standing.unread().items()
        }
