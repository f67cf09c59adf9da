"""What the parts of one supervisor share: its spec, its task groups, and what it works with.

On the overlord's mailbox. Owns the list of task groups, and the way in which a task is ended for a
reason that is not its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.waits import WaitTable
from penstock.indexing.ports import TaskState
from penstock.indexing.supervisor.groups import GroupPhase

if TYPE_CHECKING:
    from penstock.indexing.spec import SupervisorSpec
    from penstock.indexing.supervisor.committed import Committed
    from penstock.indexing.supervisor.groups import TaskGroup
    from penstock.indexing.supervisor.health import Health
    from penstock.indexing.supervisor.ports import SupervisorOptions, SupervisorPorts
    from penstock.indexing.supervisor.streamwatch import StreamWatch


class SupervisorState:
    """The state of one supervisor.

    Attributes:
        spec: What it is to do, as last submitted.
        ports: What it works with.
        options: How it behaves.
        stream: The stream as it is seen.
        committed: The committed offsets as last read.
        health: What went wrong lately.
        groups: Its task groups, by base sequence name.
        stopping: Whether it was told to stop.
        idle: Whether nothing came for so long that it needs no tasks.
        looked_ms: When the stream was seen last, 0 if it never was.
        time_lag_ms: By stream partition, how much time lies between the first message that is not
            read and the newest, None where their times are not known; None as a whole while nobody
            has looked, or wants it.
        begun: Whether it has begun to look, which is `startDelay` after it was made.
        discovered: Whether the tasks that it found have all said how they stand.
        waits: Dependencies that the supervisor itself waits for.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        ports: SupervisorPorts,
        options: SupervisorOptions,
        *,
        stream: StreamWatch,
        committed: Committed,
        health: Health,
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
        self.looked_ms = 0
        self.time_lag_ms: dict[int, int | None] | None = None
        self.begun = False
        self.discovered = False
        self.waits = WaitTable(ports.clock)

    @property
    def id(self) -> str:
        """The supervisor's name."""
        return self.spec.supervisor_id

    @property
    def reads(self) -> bool:
        """Whether there should be tasks that read."""
        return not (self.stopping or self.spec.suspended)

    @property
    def bounds(self) -> dict[int, tuple[int, int]] | None:
        """From where to where it reads each stream partition; None if there is no end."""
        config = self.spec.io.bounded_stream_config
        if config is None:
            return None
        ends = config.end_sequence_numbers
        return {int(p): (start, ends[p]) for p, start in config.start_sequence_numbers.items()}

    @property
    def is_complete(self) -> bool:
        """Whether a supervisor with an end has published everything before it."""
        bounds, committed = self.bounds, self.committed.offsets
        return bounds is not None and all(committed.get(p, 0) >= e for p, (_, e) in bounds.items())

    def group_of(self, task_id: str) -> TaskGroup | None:
        """Return the task group of a task."""
        return next((g for g in self.groups.values() if task_id in g.replicas), None)

    def remove(self, task_id: str) -> TaskGroup | None:
        """Forget a task, and its group if that was the last; return the group."""
        group = self.group_of(task_id)
        if group is not None:
            del group.replicas[task_id]
            if not group.replicas:
                del self.groups[group.name]
        return group

    def end_task(self, task_id: str, reason: str, state: TaskState = TaskState.FAILED) -> None:
        """End a task for a reason that is not its own, so that it does not count as a failure.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        self.remove(task_id)
        self.ports.queue.shutdown(task_id, reason, state)

    def end_group(self, group: TaskGroup, reason: str, state: TaskState = TaskState.FAILED) -> None:
        """End all tasks of a group; raises as `end_task`."""
        for task_id in tuple(group.replicas):
            self.end_task(task_id, reason, state)

    def note_discovery(self) -> None:
        """Note whether those that were found when the stream was first seen have all answered."""
        silent = (
            g.phase is GroupPhase.UNKNOWN and not g.is_unassigned for g in self.groups.values()
        )
        if self.looked_ms and not any(silent):
            self.discovered = True

    def note(self, error: Exception) -> None:
        """Keep an error for the status."""
        self.health.note(error, self.ports.clock.now_ms())
