"""How much a supervisor does: with how many task groups, and whether with any.

On the overlord's mailbox. After each look at the stream it weighs what came: a stream that was
quiet for long enough needs no tasks, and one that is far behind more of them, if the spec says so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.indexing.supervisor.pacing.idleness import Idleness
from penstock.indexing.supervisor.pacing.scaling import LagScaler
from penstock.indexing.supervisor.updates import with_task_count

if TYPE_CHECKING:
    from penstock.indexing.supervisor.standing import Standing
    from penstock.indexing.supervisor.state import SupervisorState

_log = logging.getLogger(__name__)


class Pace:
    """The pace of one supervisor.

    Args:
        state: The supervisor.
        standing: Its lag.
    """

    def __init__(self, state: SupervisorState, standing: Standing) -> None:
        self._state = state
        self._standing = standing
        self._idleness = Idleness()
        self._scaler: LagScaler | None = None

    def weigh(self) -> None:
        """Look at the lag, and change what follows from it.

        Raises:
            Unavailable: The metadata store does not answer; the number of groups stays as it is.
        """
        state = self._state
        now_s = state.ports.clock.monotonic_s()
        lag = self._standing.lag()
        latest, _ = self._standing.latest()
        limit_ms = state.spec.io.inactive_after_ms
        state.idle = self._idleness.is_idle(latest, sum(lag.values()), limit_ms, now_s)
        config = state.spec.io.scaler
        if config is None or not state.reads:
            self._scaler = None
            return
        if self._scaler is None or self._scaler.config != config:
            self._scaler = LagScaler(config, now_s)
        self._scaler.observe(lag, now_s)
        count = state.spec.io.task_count
        wanted = self._scaler.decide(count, len(latest), now_s)
        if wanted is not None:
            _log.info("supervisor %s: %d groups instead of %d", state.id, wanted, count)
            spec = with_task_count(state.spec, wanted)
            state.ports.metadata.supervisors.put(state.id, spec.to_json())
            state.spec = spec
