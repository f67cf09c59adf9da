"""Lag of a supervisor in time, the lag metrics, and the lag of the last hour.

`TimeLag` samples the times of a few records of each stream partition with unread ones, every
`offsetFetchPeriod`, if the spec requests it. `LagEvents` emits the metrics each minute under
Druid's names. `LagHistories` keeps the lag of the last hour in memory, for the console. The lag in
messages belongs to `SupervisorSnapshot`.

Threading: all run on the overlord's mailbox; the stream is read on a lane of its own, because
that may take long. Invariant: no lag is emitted while the stream is unreachable or the
supervisor is not meant to read it, because the value would be outdated.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.errors import PenstockError
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.supervisor_status import SupervisorSnapshot


PERIOD_S: Final = 60.0
_STEADY: Final = frozenset({"RUNNING", "IDLE"})

SAMPLE_EVERY_MS: Final = 10_000
"""Time between two samples of a supervisor's lag."""
SAMPLES_MAX: Final = 360
"""Samples of one supervisor: an hour."""
SAMPLES_OF_ALL_MAX: Final = 1_000_000
"""Samples of all supervisors, 24 bytes each. More supervisors have shorter series."""
_MARKS_MAX: Final = 16


class LagEvents:
    """Metrics of one supervisor's lag.

    Args:
        state: The supervisor.
        snapshot: Determines its lag.
        history: Keeps its lag.
    """

    def __init__(
        self, state: SupervisorState, snapshot: SupervisorSnapshot, history: LagHistory
    ) -> None:
        self._state = state
        self._snapshot = snapshot
        self._history = history
        self._again_s = 0.0

    def keep(self) -> None:
        """Add the lag to the history, after a poll that has seen the stream.

        A suspended supervisor falls behind too; without committed offsets there is no lag.
        """
        unread = self._snapshot.unread()
        if unread:
            self._history.note(self._state.polled_ms, unread)

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


@dataclass(frozen=True, slots=True)
class LagSamples:
    """Samples of one supervisor's lag, the oldest first.

    Attributes:
        times_ms: Time of each sample, in epoch milliseconds.
        messages: Messages that were not persisted then.
        oldest_ms: How long the oldest of them had been in the stream, at least, in milliseconds.
    """

    times_ms: Sequence[int]
    messages: Sequence[int]
    oldest_ms: Sequence[int]


class LagHistories:
    """The lag of all supervisors of a term in the last hour, in memory.

    Args:
        samples_of_all_max: Maximum number of samples of all supervisors together.
    """

    def __init__(self, samples_of_all_max: int = SAMPLES_OF_ALL_MAX) -> None:
        self._samples_of_all_max = samples_of_all_max
        self._by_id: dict[str, LagHistory] = {}

    def of(self, supervisor_id: str) -> LagHistory:
        """Return the history of a supervisor, an empty one if it has none."""
        return self._by_id.setdefault(supervisor_id, LagHistory(self))

    def forget(self, supervisor_id: str) -> None:
        """Delete the history of a supervisor that has ended."""
        self._by_id.pop(supervisor_id, None)

    @property
    def samples_max(self) -> int:
        """Maximum number of samples of each supervisor now."""
        return min(SAMPLES_MAX, max(1, self._samples_of_all_max // max(1, len(self._by_id))))


class LagHistory:
    """The lag of one supervisor in the last hour.

    The lag in time is the time since a poll first saw the oldest message that is not persisted, so
    no message is read for it. A restart of the overlord begins again.
    """

    def __init__(self, histories: LagHistories) -> None:
        self._histories = histories
        self._times, self._messages, self._oldest = array("q"), array("q"), array("q")
        # Ends that polls have seen, each with the time, by stream partition.
        self._marks: dict[int, list[tuple[int, int]]] = {}

    def note(self, now_ms: int, unread: Mapping[int, tuple[int, int]]) -> None:
        """Record the result of a poll.

        Args:
            now_ms: The current time.
            unread: Offsets [start, end) of each stream partition that are not persisted yet.
        """
        marks = {p: self._marks.get(p, []) for p, (start, end) in unread.items() if start < end}
        for p, seen in marks.items():
            start, end = unread[p]
            # An end before the offsets belongs to another stream, or to an earlier reset.
            seen[:] = [mark for mark in seen if start < mark[0] <= end]
            if not seen or seen[-1][0] < end:
                seen.append((end, now_ms))
            if len(seen) > _MARKS_MAX:
                del seen[1:-1:2]
        self._marks = marks
        if self._times and 0 <= now_ms - self._times[-1] < SAMPLE_EVERY_MS:
            return
        self._times.append(now_ms)
        self._messages.append(sum(end - start for start, end in unread.values()))
        oldest_ms = min((seen[0][1] for seen in marks.values()), default=now_ms)
        self._oldest.append(max(0, now_ms - oldest_ms))
        excess = len(self._times) - self._histories.samples_max
        if excess > 0:
            for column in (self._times, self._messages, self._oldest):
                del column[:excess]

    def samples(self) -> LagSamples:
        """Return a copy of the samples."""
        return LagSamples(self._times.tolist(), self._messages.tolist(), self._oldest.tolist())
