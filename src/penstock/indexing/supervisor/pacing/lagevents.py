"""Reports a supervisor's lag as metrics every minute, under Druid's names.

On the overlord's mailbox. Defines the times and the names of the metrics; `Standing` and `TimeLag`
determine the lag. While the stream is not visible, or no task should read it, nothing is reported,
because the lag would be out of date.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.supervisor.standing import Standing
    from penstock.indexing.supervisor.state import SupervisorState

PERIOD_S: Final = 60.0
_STEADY: Final = frozenset({"RUNNING", "IDLE"})


class LagEvents:
    """Metrics of one supervisor's lag.

    Args:
        state: The supervisor.
        standing: Determines its lag.
    """

    def __init__(self, state: SupervisorState, standing: Standing) -> None:
        self._state = state
        self._standing = standing
        self._again_s = 0.0

    def tell(self) -> None:
        """Report the lag in messages, and in time if the spec enables it, if that is due."""
        now_s = self._state.ports.clock.monotonic_s()
        if now_s < self._again_s or self._standing.state not in _STEADY:
            return
        self._again_s = now_s + PERIOD_S
        self._measure("", self._standing.lag())
        self._measure("/time", self._standing.time_lag_ms() or {})

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
            dataSource=spec.data_schema.data_source,
            stream=spec.io.stream,
            **dimensions,
        )
