"""When a supervisor looks at its stream and its tasks, and what it notes of what it sees.

On the overlord's mailbox; the stream is looked at on a lane. Owns the rest of a supervisor that has
nothing to look after: one look in each period will do then. What follows from a look is done by
whoever is told that it has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import NotFound, PenstockError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.indexing.supervisor.pacing.lagevents import LagEvents
    from penstock.indexing.supervisor.pacing.pace import Pace
    from penstock.indexing.supervisor.pacing.timelag import TimeLag
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.indexing.supervisor.talk.dialogue import Dialogue
    from penstock.mailbox import Timer

_LOOK: Final = "look at the stream"


class Looks:
    """The looks of one supervisor.

    Args:
        state: The supervisor.
        dialogue: Its talk with its tasks.
        pace: Weighs what was seen.
        time_lag: Finds out how old what waits is.
        lag_events: Tells operators how far it is behind.
        ended: Told at the end of each look, whether or not the stream was there.
    """

    def __init__(
        self,
        state: SupervisorState,
        dialogue: Dialogue,
        pace: Pace,
        time_lag: TimeLag,
        lag_events: LagEvents,
        *,
        ended: Callable[[], None],
    ) -> None:
        self._state = state
        self._dialogue = dialogue
        self._pace = pace
        self._time_lag = time_lag
        self._lag_events = lag_events
        self._fetch_from_s = 0.0
        self._ended = ended
        self._stopped = False
        self._rests_until_s = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        """Look from now on as often as the spec says now."""
        state = self._state
        if self._timer is not None:
            self._timer.cancel()
        self._timer = state.ports.processor.timers.schedule_every(
            min(state.options.look_interval_ms, state.spec.io.period),
            self._look,
            f"supervisor {state.id}",
            first_after_ms=state.spec.io.start_delay,
        )

    def stop(self) -> None:
        """Look no more, and tell nothing of a look under way."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def rest_no_more(self) -> None:
        """Look soon, though there may be nothing to look after, or the stream was seen lately."""
        self._rests_until_s = self._fetch_from_s = 0.0

    @property
    def _is_idle(self) -> bool:
        state = self._state
        return state.spec.suspended and not state.groups and not state.stopping

    def _now_s(self) -> float:
        return self._state.ports.clock.monotonic_s()

    def _look(self) -> None:
        if self._stopped or (self._is_idle and self._now_s() < self._rests_until_s):
            return
        self._state.begun = True
        if self._must_fetch():
            self._state.stream.look(self._seen, self._unseen)
        else:
            self._ended()
            self._rest()
        for group in self._state.groups.values():
            self._dialogue.ask(group)
        self._lag_events.tell()

    def _must_fetch(self) -> bool:
        """Whether to look at the stream: each time, if the spec names no `offsetFetchPeriod`.

        What depends on a look, such as the successor of a task that was lost, does not wait for it.
        """
        stream = self._state.stream
        return (
            self._state.spec.tuning.offset_fetch_period is None
            or stream.is_doubtful
            or not stream.is_newer_than_losses
            or self._now_s() >= self._fetch_from_s
        )

    def _seen(self) -> None:
        if self._stopped:
            # What the source is to keep is for whoever leads now to say.
            return
        state = self._state
        state.looked_ms = state.ports.clock.now_ms()
        state.health.looked()
        state.waits.ended(_LOOK)
        try:
            self._pace.weigh()
        except Unavailable as error:
            state.note(error)  # The next look weighs again.
        self._tell_vanished()
        self._ended()
        self._time_lag.refresh()  # By now there are committed offsets to begin at.
        self._rest()
        fetch_period_ms = state.spec.tuning.offset_fetch_period or 0
        self._fetch_from_s = self._now_s() + fetch_period_ms / 1_000
        if not state.stopping:
            state.stream.hold(state.committed.to_keep, self._not_held)

    def _rest(self) -> None:
        self._rests_until_s = self._now_s() + self._state.spec.io.period / 1_000

    def _unseen(self, error: PenstockError) -> None:
        if self._stopped:
            return
        self._state.health.look_failed()
        self._state.note(error)
        if isinstance(error, Unavailable):
            self._state.waits.failed(_LOOK, error)
        else:
            self._state.waits.ended(_LOOK)
        self._ended()

    def _not_held(self, error: PenstockError) -> None:
        self.rest_no_more()  # The source may delete what is still to be read: try soon.
        self._state.note(error)

    def _tell_vanished(self) -> None:
        """Say once what nobody can read any more: a file was deleted before it was read."""
        state = self._state
        for p, last in sorted(state.stream.vanished.items()):
            persisted = (g.persisted.get(p, 0) for g in state.groups.values())
            reached = max([state.committed.offsets.get(p, last.earliest), *persisted])
            if reached < last.latest:
                text = f"{last.folder} is gone, and nothing of it was read behind offset {reached}"
                state.note(NotFound(f"{text}, though up to {last.latest} was there"))
