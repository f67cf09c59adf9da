"""Lag of a supervisor in time, and the lag metrics in messages and in time.

`TimeLag` samples the times of a few records of each stream partition with unread ones, every
`offsetFetchPeriod`, if the spec requests it. `LagEvents` emits the metrics each minute under
Druid's names. The lag in messages belongs to `SupervisorSnapshot`.

Threading: both run on the overlord's mailbox; the stream is read on a lane of its own, because
that may take long. Invariant: no lag is emitted while the stream is unreachable or the
supervisor is not meant to read it, because the value would be outdated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.errors import PenstockError
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.supervisor_status import SupervisorSnapshot


PERIOD_S: Final = 60.0
_STEADY: Final = frozenset({"RUNNING", "IDLE"})


class LagEvents:
    """Metrics of one supervisor's lag.

    Args:
        state: The supervisor.
        snapshot: Determines its lag.
    """

    def __init__(self, state: SupervisorState, snapshot: SupervisorSnapshot) -> None:
        self._state = state
        self._snapshot = snapshot
        self._again_s = 0.0

    def emit(self) -> None:
        """Report the lag in messages, and in time if the spec enables it, if that is due."""
        now_s = self._state.ports.clock.monotonic_s()
        if now_s < self._again_s or self._snapshot.state not in _STEADY:
            return
        self._again_s = now_s + PERIOD_S
        self._measure("", self._snapshot.lag())
        self._measure("/time", self._snapshot.time_lag_ms() or {})

    def _measure(self, suffix: str, lag: Mapping[int, int | None]) -> None:
        known = {partition: n for partition, n in lag.items() if n is not None}
        for partition, n in known.items():
            self._one(f"partitionLag{suffix}", n, partition=str(partition))
        # A total is known only if the lag of every stream partition is.
        if known and len(known) == len(lag):
            total = sum(known.values())
            self._one(f"lag{suffix}", total)
            self._one(f"maxLag{suffix}", max(known.values()))
            self._one(f"avgLag{suffix}", total / len(known))

    def _one(self, name: str, value: float, **dimensions: str) -> None:
        spec = self._state.spec
        self._state.ports.events.measured(
            f"ingest/{spec.type}/{name}",
            value,
            supervisorId=self._state.id,
            dataSource=spec.data_schema.datasource,
            stream=spec.io.stream,
            **dimensions,
        )


class TimeLag:
    """The lag of one supervisor in time, kept in its state.

    Args:
        state: The supervisor.
        snapshot: Determines the unread messages.
    """

    def __init__(self, state: SupervisorState, snapshot: SupervisorSnapshot) -> None:
        self._state = state
        self._snapshot = snapshot
        self._is_running = False
        self._again_s = 0.0

    def refresh(self) -> None:
        """Determine the lag again if it is enabled and due."""
        state = self._state
        if not state.spec.io.emit_time_lag_metrics:
            state.time_lag_ms, self._again_s = None, 0.0
            return
        ranges = self._snapshot.unread()
        unread = {p: (start, end) for p, (start, end) in ranges.items() if start < end}
        if not unread or state.time_lag_ms is not None:
            self._set({})  # Stream partitions that were read to their end have no lag.
        now_s = state.ports.clock.monotonic_s()
        if not unread or self._is_running or now_s < self._again_s:
            return
        self._is_running, self._again_s = True, now_s + state.spec.tuning.time_lag_every_ms / 1000

        def done(spans: dict[int, int | None]) -> None:
            self._is_running = False
            if state.spec.io.emit_time_lag_metrics:
                self._set(spans)

        def failed(error: PenstockError) -> None:
            self._is_running = False
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
            for p, (start, end) in self._snapshot.unread().items()
        }
