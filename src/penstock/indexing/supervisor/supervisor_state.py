"""Shared state of the parts of one supervisor: spec, task groups, dependencies.

On the overlord's mailbox. Owns the task groups, and ends tasks for reasons that are not their
failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.waits import WaitTable
from penstock.indexing.ports import TaskState
from penstock.indexing.supervisor.task_groups import GroupEvent, GroupState

if TYPE_CHECKING:
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.committed_offsets import CommittedOffsets
    from penstock.indexing.supervisor.health import Health
    from penstock.indexing.supervisor.stream_watch import StreamWatch
    from penstock.indexing.supervisor.supervisor_ports import SupervisorOptions, SupervisorPorts
    from penstock.indexing.supervisor.task_groups import TaskGroup
    from penstock.mailbox.event_mail import EventReceiver


class SupervisorState:
    """The state of one supervisor.

    Args:
        spec: Its first spec.
        ports: Its dependencies.
        options: Its options.
        stream: Its stream.
        committed: Its committed offsets.
        health: Its errors.
        rounds: Receives None to have the supervisor act on the state, in a mail of its own.

    Attributes:
        spec: The current spec.
        ports: Its dependencies.
        options: Its options.
        stream: The stream as last seen.
        committed: The committed offsets as last read.
        health: Recent errors and failure counts.
        groups: Its task groups, by base sequence name.
        stopping: Whether it is being stopped.
        idle: Whether no message came for so long that it needs no tasks.
        polled_ms: When the stream was last seen, 0 if never.
        time_lag_ms: By stream partition, the time between the first unread and the newest message,
            None if their times are unknown; None as a whole if it is not determined or not enabled.
        begun: Whether polling has started, which is `startDelay` after the creation.
        discovered: Whether all tasks that it found have reported.
        waits: Dependencies that the supervisor itself waits for.
        in_round: Whether a round runs: tasks that it ends do not begin another one.
        is_released: Whether it was stopped, its last task has ended, and its source keeps no
            messages for it; until the supervisor has reported that.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        ports: SupervisorPorts,
        options: SupervisorOptions,
        *,
        stream: StreamWatch,
        committed: CommittedOffsets,
        health: Health,
        rounds: EventReceiver[None],
    ) -> None:
        self.spec = spec
        self.ports = ports
        self.options = options
        self.stream = stream
        self.committed = committed
        self.health = health
        self.groups: dict[str, TaskGroup] = {}
        self.stopping = False
        self.idle = False
        self.polled_ms = 0
        self.time_lag_ms: dict[int, int | None] | None = None
        self.begun = False
        self.discovered = False
        self.waits = WaitTable(ports.clock)
        self.in_round = False
        self.is_released = False
        self._rounds = rounds

    @property
    def id(self) -> str:
        """The supervisor's id."""
        return self.spec.supervisor_id

    @property
    def reads(self) -> bool:
        """Whether there should be reading tasks."""
        return not (self.stopping or self.spec.suspended)

    @property
    def bounds(self) -> dict[int, tuple[int, int]] | None:
        """Start and end offsets of each stream partition; None if the stream is unbounded."""
        config = self.spec.io.bounded_stream_config
        if config is None:
            return None
        ends = config.end_sequence_numbers
        return {int(p): (start, ends[p]) for p, start in config.start_sequence_numbers.items()}

    @property
    def is_complete(self) -> bool:
        """Whether a bounded supervisor has published everything before its end."""
        bounds, committed = self.bounds, self.committed.offsets
        return bounds is not None and all(committed.get(p, 0) >= e for p, (_, e) in bounds.items())

    def request_round(self) -> None:
        """Have the supervisor act on the present state soon, after the present mail."""
        self._rounds.put(None)

    def group_of(self, task_id: str) -> TaskGroup | None:
        """Return the task group of a task."""
        return next((g for g in self.groups.values() if task_id in g.replicas), None)

    def remove(self, task_id: str) -> TaskGroup | None:
        """Remove a task, and its group if it was the last one; return the group."""
        group = self.group_of(task_id)
        if group is not None:
            del group.replicas[task_id]
            if not group.replicas:
                del self.groups[group.name]
                group.on(GroupEvent.EMPTY)
        return group

    def end_task(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> None:
        """End a task for a reason that does not count as its failure.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        self.remove(task_id)
        self.ports.queue.shutdown(task_id, reason, state)
        if not self.in_round:
            self.request_round()

    def end_group(self, group: TaskGroup, reason: str, state: TaskState = TaskState.FAILED) -> None:
        """End all tasks of a group, without a round for each of them; raises as `end_task`."""
        was_in_round, self.in_round = self.in_round, True
        try:
            for task_id in tuple(group.replicas):
                self.end_task(task_id, reason, state)
        finally:
            self.in_round = was_in_round

    def note_discovery(self) -> None:
        """Record whether all tasks have reported that existed when the stream was first seen."""
        silent = (
            g.state is GroupState.UNKNOWN and not g.is_unassigned for g in self.groups.values()
        )
        if self.polled_ms and not any(silent):
            self.discovered = True

    def note(self, error: Exception) -> None:
        """Record an error for the status."""
        self.health.note(error, self.ports.clock.now_ms())
