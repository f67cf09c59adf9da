"""Number of task groups, derived from the lag of the last minutes.

Pure. After a change, no other follows before `minTriggerScaleActionFrequencyMillis` is over and a
whole window of new lags was collected, because earlier lags do not apply to the new number of
groups. So a constant lag moves the number in one direction only.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.specs.stream_config import AutoScalerConfig


class LagScaler:
    """The scaler of one supervisor.

    Args:
        config: Its thresholds and times.
        now_s: The time; the first decision comes after the start delay.
    """

    def __init__(self, config: AutoScalerConfig, now_s: float) -> None:
        self.config = config
        self._samples: deque[tuple[float, float]] = deque()
        self._not_before_s = now_s + config.scale_action_start_delay_millis / 1000

    def observe(self, lag: Mapping[int, int], now_s: float) -> None:
        """Record the lag of each stream partition, if the next sample is due."""
        interval_s = self.config.lag_collection_interval_millis / 1000
        if self._samples and now_s < self._samples[-1][0] + interval_s:
            return
        self._samples.append((now_s, aggregate(lag, self.config.lag_aggregate)))
        while self._samples[0][0] < now_s - self.config.lag_collection_range_millis / 1000:
            self._samples.popleft()

    def decide(self, task_count: int, partition_count: int, now_s: float) -> int | None:
        """Return a new number of groups, None to keep the current one.

        Args:
            task_count: The current number.
            partition_count: Number of stream partitions; further groups would be empty.
            now_s: The time.
        """
        if now_s < self._not_before_s:
            return None
        self._not_before_s = now_s + self.config.scale_action_period_millis / 1000
        wanted = self._wanted(task_count, partition_count, now_s)
        return None if wanted == task_count else wanted

    def changed(self, now_s: float) -> None:
        """The decided number is in effect; until this call, the decision is repeated."""
        quiet_ms = self.config.min_trigger_scale_action_frequency_millis
        self._not_before_s = max(self._not_before_s, now_s + quiet_ms / 1000)
        self._samples.clear()

    def _wanted(self, task_count: int, partition_count: int, now_s: float) -> int:
        config = self.config
        most = max(config.task_count_min, min(config.task_count_max, partition_count))
        bounded = min(max(task_count, config.task_count_min), most)
        if bounded != task_count or not self._is_full(now_s):
            return bounded
        lags = [lag for _, lag in self._samples]
        high = sum(lag >= config.scale_out_threshold for lag in lags) / len(lags)
        low = sum(lag <= config.scale_in_threshold for lag in lags) / len(lags)
        if high >= config.trigger_scale_out_fraction_threshold and high > 0:
            return min(most, task_count + config.scale_out_step)
        if low >= config.trigger_scale_in_fraction_threshold:
            return max(config.task_count_min, task_count - config.scale_in_step)
        return task_count

    def _is_full(self, now_s: float) -> bool:
        """Return whether the samples span the whole window."""
        if not self._samples:
            return False
        config = self.config
        span_ms = config.lag_collection_range_millis - config.lag_collection_interval_millis
        return now_s - self._samples[0][0] >= span_ms / 1000


def aggregate(lag: Mapping[int, int], how: str) -> float:
    """Return the SUM, MAX or AVERAGE of the lags of all stream partitions."""
    if not lag:
        return 0.0
    if how == "MAX":
        return float(max(lag.values()))
    total = sum(lag.values())
    return total / len(lag) if how == "AVERAGE" else float(total)
