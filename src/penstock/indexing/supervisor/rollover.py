"""Ends task groups: they have read long enough, were asked to end, or do not answer.

On the overlord's mailbox. Selects the groups to end, oldest first, and the tasks that count as
failed. `Dialogue` agrees with the tasks on the end.
"""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING

from penstock.indexing.supervisor.groups import GroupPhase, partitions_of
from penstock.indexing.task_spec import is_made_by

if TYPE_CHECKING:
    from penstock.indexing.supervisor.groups import TaskGroup
    from penstock.indexing.supervisor.state import SupervisorState
    from penstock.indexing.supervisor.talk.dialogue import Dialogue


class RollOver:
    """Roll-over of one supervisor's groups.

    Args:
        state: The supervisor.
        dialogue: Its communication with its tasks.
    """

    def __init__(self, state: SupervisorState, dialogue: Dialogue) -> None:
        self._state = state
        self._dialogue = dialogue
        self._first_seen_s: dict[int, float] = {}
        # Whether each group, by name, differs from what spec `_judge` creates. Cached, because
        # computing a name takes longer than the rest of a round without changes.
        self._judge = state.spec
        self._strange: dict[str, bool] = {}

    def advance(self) -> None:
        """Agree on the ends of groups that must end, and bring tasks in line with their replicas.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        self._note_partitions()
        at_once = not state.reads
        # Limit how many groups that have read long enough end at the same time.
        room = state.spec.io.stop_task_count or state.spec.io.task_count
        room -= sum(g.is_pending or g.phase is GroupPhase.ROLLING for g in state.groups.values())
        for group in sorted(state.groups.values(), key=operator.attrgetter("since_ms")):
            self._dialogue.bring_in_line(group)
            if group.phase is GroupPhase.UNKNOWN and at_once and group.is_unassigned:
                state.end_group(group, "the supervisor stopped before it began")
            if group.phase is not GroupPhase.READING:
                continue
            if at_once or self._is_asked(group):
                self._dialogue.roll(group)
            elif room > 0 and self._has_read_enough(group):
                self._dialogue.roll(group)
                room -= 1

    def is_stale(self, group: TaskGroup) -> bool:
        """Return whether its work must end: the current spec wants other tasks or replicas.

        Either a task of the current spec that reads the same has another name, or none of the
        replicas with a worker has a wanted priority, and successors have these priorities.
        """
        spec = self._state.spec
        turnover = group.turnover(spec.io.server_priorities)
        return self._is_strange(group) or group.is_at_end_with(turnover)

    def _is_strange(self, group: TaskGroup) -> bool:
        spec = self._state.spec
        if spec is not self._judge:
            self._judge, self._strange = spec, {}
        found = self._strange.get(group.name)
        if found is None:
            there = self._state.groups
            self._strange = {name: one for name, one in self._strange.items() if name in there}
            found = self._strange[group.name] = not is_made_by(spec, group.task)
        return found

    def _is_asked(self, group: TaskGroup) -> bool:
        return group.roll_asked or self.is_stale(group) or self._is_misfit(group)

    def _has_read_enough(self, group: TaskGroup) -> bool:
        state = self._state
        return state.ports.clock.now_ms() - group.since_ms >= state.spec.io.task_duration

    def _is_misfit(self, group: TaskGroup) -> bool:
        """Return whether the stream partitions or the number of groups have changed.

        New stream partitions are collected for a while, because files appear one by one and each
        would end a group. Removed ones change nothing, because there is nothing to read.
        """
        state = self._state
        known = (state.stream.available or {}).keys() & state.committed.offsets.keys()
        if not known:
            return False
        group_id, task_count = group.group_id, state.spec.io.task_count
        fitting = set(partitions_of(group_id, task_count, known | group.partitions))
        if not group.partitions <= fitting:
            return True
        patience_s = state.spec.tuning.repartition_transition_duration / 1000
        now_s = state.ports.clock.monotonic_s()
        return any(now_s - self._since_s(p) >= patience_s for p in fitting - group.partitions)

    def _note_partitions(self) -> None:
        """Record when each stream partition appeared; those of the first poll may be old."""
        available = self._state.stream.available
        if available is None:
            return
        since_s = self._state.ports.clock.monotonic_s() if self._first_seen_s else -math.inf
        known = self._first_seen_s
        self._first_seen_s = {p: known.get(p, since_s) for p in available}

    def _since_s(self, partition: int) -> float:
        return self._first_seen_s.get(partition, -math.inf)

    def end_overdue(self) -> None:
        """End groups that do not publish in time, and tasks that do not answer.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        state, now_s = self._state, self._state.ports.clock.monotonic_s()
        for group in list(state.groups.values()):
            # Its last report may be out of date: it must have answered after the deadline.
            overdue = any(r.heard_s > group.deadline_s for r in group.replicas.values())
            for task_id, replica in tuple(group.replicas.items()):
                silent_s = now_s - replica.heard_s
                if overdue:
                    seconds = state.spec.io.completion_timeout // 1000
                    reason = f"it has not published within completionTimeout ({seconds} s)"
                elif silent_s * 1000 > state.options.silence_limit_ms:
                    reason = f"it has not answered for {silent_s:.0f} s"
                else:
                    continue
                state.ports.queue.shutdown(task_id, reason)
