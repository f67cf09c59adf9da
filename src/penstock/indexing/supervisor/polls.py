"""Polls a supervisor's stream and tasks, and records the results.

On the overlord's mailbox; the stream is polled on a lane. A supervisor without tasks rests: it
polls only once in each period. Each poll ends with a round of the reconciler, even if it failed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError, Unavailable

if TYPE_CHECKING:
    from penstock.indexing.supervisor.autoscaler import Autoscaler
    from penstock.indexing.supervisor.lag import LagEvents, TimeLag
    from penstock.indexing.supervisor.reconciler import Reconciler
    from penstock.indexing.supervisor.supervisor_state import SupervisorState
    from penstock.indexing.supervisor.task_protocol import TaskProtocol
    from penstock.mailbox import Timer

_POLL: Final = "poll the stream"


class SupervisorPolls:
    """The polls of one supervisor.

    Args:
        state: The supervisor.
        protocol: Its communication with its tasks.
        pace: Decides on idleness and the number of task groups.
        time_lag: Determines the lag in time.
        lag_events: Reports the lag to operators.
        reconciler: Acts on the results of each poll.
    """

    def __init__(
        self,
        state: SupervisorState,
        protocol: TaskProtocol,
        pace: Autoscaler,
        time_lag: TimeLag,
        lag_events: LagEvents,
        reconciler: Reconciler,
    ) -> None:
        self._state = state
        self._protocol = protocol
        self._pace = pace
        self._time_lag = time_lag
        self._lag_events = lag_events
        self._fetch_from_s = 0.0
        self._reconciler = reconciler
        self._stopped = False
        self._rests_until_s = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Start to poll at the interval of the current spec."""
        state = self._state
        if self._timer is not None:
            self._timer.cancel()
        self._timer = state.ports.processor.timers.schedule_every(
            min(state.options.poll_interval_ms, state.spec.io.period),
            self._poll,
            f"supervisor {state.id}",
            first_after_ms=state.spec.io.start_delay,
        )

    def stop(self) -> None:
        """Stop polling, and ignore a running poll."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def poll_soon(self) -> None:
        """Poll soon, even if there are no tasks or the stream was polled recently."""
        self._rests_until_s = self._fetch_from_s = 0.0

    @property
    def _is_idle(self) -> bool:
        state = self._state
        return state.spec.suspended and not state.groups and not state.stopping

    def _now_s(self) -> float:
        return self._state.ports.clock.monotonic_s()

    def _poll(self) -> None:
        if self._stopped or (self._is_idle and self._now_s() < self._rests_until_s):
            return
        self._state.begun = True
        if self._must_fetch():
            self._state.stream.poll(self._polled, self._poll_failed)
        else:
            self._reconciler.advance()
            self._rest()
        for group in self._state.groups.values():
            self._protocol.request_reports(group)
        self._lag_events.emit()

    def _must_fetch(self) -> bool:
        """Return whether to poll the stream: always, unless the spec sets `offsetFetchPeriod`.

        Actions that depend on a poll, such as replacing a lost task, do not wait for the period.
        """
        stream = self._state.stream
        return (
            self._state.spec.tuning.offset_fetch_period is None
            or stream.is_doubtful
            or not stream.is_newer_than_losses
            or self._now_s() >= self._fetch_from_s
        )

    def _polled(self) -> None:
        if self._stopped:
            # The current leader determines what the source keeps.
            return
        state = self._state
        state.polled_ms = state.ports.clock.now_ms()
        state.health.poll_succeeded()
        state.waits.ended(_POLL)
        try:
            self._pace.evaluate()
        except Unavailable as error:
            state.note(error)  # The next poll retries.
        self._note_vanished()
        self._reconciler.advance()
        self._lag_events.keep()
        self._time_lag.refresh()  # By now there are committed offsets to start from.
        self._rest()
        fetch_period_ms = state.spec.tuning.offset_fetch_period or 0
        self._fetch_from_s = self._now_s() + fetch_period_ms / 1_000
        if not state.stopping:
            state.stream.hold(state.committed.to_keep, self._hold_failed)

    def _rest(self) -> None:
        self._rests_until_s = self._now_s() + self._state.spec.io.period / 1_000

    def _poll_failed(self, error: PenstockError) -> None:
        if self._stopped:
            return
        self._state.health.poll_failed()
        self._state.note(error)
        if isinstance(error, Unavailable):
            self._state.waits.failed(_POLL, error)
        else:
            self._state.waits.ended(_POLL)
        self._reconciler.advance()

    def _hold_failed(self, error: PenstockError) -> None:
        self.poll_soon()  # The source may delete unread messages: retry soon.
        self._state.note(error)

    def _note_vanished(self) -> None:
        """Report once which messages are missing because a file was deleted before it was read.

        If the file exists but cannot be read, they are read once that is corrected.
        """
        state = self._state
        for p, last in sorted(state.stream.vanished_partitions.items()):
            persisted = (g.persisted.get(p, 0) for g in state.groups.values())
            reached = max([state.committed.offsets.get(p, last.earliest), *persisted])
            if reached < last.latest:
                reason = state.stream.skipped.get(last.folder)
                what = "was deleted" if reason is None else f"is skipped ({reason})"
                text = f"{last.folder} {what}, and nothing after offset {reached} was read"
                state.note(NotFound(f"{text}, though it held offsets up to {last.latest}"))
