"""Status of a supervisor: its state, its lag, its task groups. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency
from penstock.core.waits import merged

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.core.waits import DependencyWait
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.groups import TaskGroup
    from penstock.indexing.supervisor.state import SupervisorState


WAITING_FOR: Final = "WAITING_FOR_"
"""Prefix of the detailed state of a supervisor that waits for a dependency."""
_TRIES_MIN: Final = 3
_WAIT_MS_MIN: Final = 5_000


class Standing:
    """Status of one supervisor. On the overlord's mailbox.

    Args:
        state: The supervisor.
    """

    def __init__(self, state: SupervisorState) -> None:
        self._state = state

    @property
    def spec(self) -> SupervisorSpec:
        """Its spec."""
        return self._state.spec

    @property
    def state(self) -> str:
        """Its state in Druid's terms."""
        state = self._state
        if state.stopping:
            return "STOPPING"
        if state.spec.suspended:
            return "SUSPENDED"
        now_s = state.ports.clock.monotonic_s()
        trouble = state.health.trouble(now_s, was_there=state.stream.available is not None)
        if trouble is not None:
            return trouble
        if (wait := self._lasting_wait()) is not None:
            return f"{WAITING_FOR}{wait.dependency.name}"
        if state.stream.available is None:
            return "CONNECTING_TO_STREAM" if state.begun else "PENDING"
        if state.is_complete:
            return "COMPLETED"
        if state.idle:
            return "IDLE"
        if not state.discovered:
            return "DISCOVERING_INITIAL_TASKS"
        return "RUNNING" if state.groups else "CREATING_TASKS"

    @property
    def healthy(self) -> bool:
        """Whether it works as it should."""
        return not self.state.startswith(("UN", "LOST", WAITING_FOR))

    def waits(self) -> list[DependencyWait]:
        """Return the waits of the supervisor and its tasks, one for each dependency."""
        state = self._state
        replicas = (one for group in state.groups.values() for one in group.replicas.values())
        return merged([state.waits.all(), *(replica.waits for replica in replicas)])

    def own_waits(self) -> tuple[DependencyWait, ...]:
        """Return the waits of the supervisor itself. Any thread."""
        return self._state.waits.all()

    def _lasting_wait(self) -> DependencyWait | None:
        """Return a wait that lasts longer than a restart of the dependency."""
        now_ms = self._state.ports.clock.now_ms()
        for wait in self.waits():
            is_lasting = wait.tries >= _TRIES_MIN and now_ms - wait.since_ms >= _WAIT_MS_MIN
            if is_lasting and wait.dependency is not Dependency.OTHER:
                return wait
        return None

    def lag(self) -> dict[int, int]:
        """Return the number of messages of each stream partition that are not persisted yet."""
        return {p: end - start for p, (start, end) in self.unread().items()}

    def time_lag_ms(self) -> dict[int, int | None] | None:
        """Return the lag in time of each stream partition, None if its times are unknown.

        Returns None if the lag is not enabled or not determined yet.
        """
        return self._state.time_lag_ms

    def unread(self) -> dict[int, tuple[int, int]]:
        """Return the offsets [start, end) of each stream partition that are not persisted yet."""
        state = self._state
        available = state.stream.available or {}
        if state.committed.is_left_behind:
            # Nothing of the current stream has been read yet.
            return {p: (a.earliest, a.latest) for p, a in available.items()}
        current = dict(state.committed.offsets)
        for group in state.groups.values():
            for p, offset in group.persisted.items():
                current[p] = max(offset, current.get(p, 0))
        return {
            p: (min(current.get(p, a.latest), a.latest), a.latest)
            for p, a in sorted(available.items())
        }

    def groups(self) -> tuple[TaskGroup, ...]:
        """Return the task groups, reading and publishing."""
        return tuple(self._state.groups.values())

    def committed(self) -> Mapping[int, int]:
        """Return the committed offsets as last seen."""
        return dict(self._state.committed.offsets)

    @property
    def stream_id(self) -> str:
        """The id of the stream that the committed offsets belong to, empty if unknown."""
        return self._state.committed.topic_id

    def latest(self) -> tuple[dict[int, int], int]:
        """Return the end of each stream partition, and when it was seen."""
        ends = {p: a.latest for p, a in (self._state.stream.available or {}).items()}
        return ends, self._state.looked_ms

    def errors(self) -> list[dict[str, str]]:
        """Return the recent errors, newest last."""
        return self._state.health.errors()

    def remaining_s(self, group: TaskGroup) -> int:
        """Return the remaining seconds in which a group may read or publish."""
        clock = self._state.ports.clock
        if group.is_pending:
            return max(0, int(group.deadline_s - clock.monotonic_s()))
        read_ms = clock.now_ms() - group.since_ms
        return max(0, (self.spec.io.task_duration - read_ms) // 1000)
