"""A supervisor: keeps the right streaming tasks running for one datasource.

All state belongs to the overlord's mailbox; the source and the peons are called on lanes. Every
second it looks what there is and moves it towards what should be: for every group of stream
partitions as many tasks that read as it should have replicas, an end agreed with those that have
read long enough, successors for them at once, and a task in place of each that was lost. Nothing is
remembered that a new overlord could not find again: offsets and tasks are in the metadata store,
their progress is asked of the peons.

The work is done by its parts: `Looks` sees what there is, `Convergence` does what is due in rounds,
`Dialogue` agrees with tasks on their ends, `OffsetMoves` does what users wish of the offsets. This
module puts them together, and takes what others tell a supervisor.

A task group that fails while it publishes leaves a gap between the committed offsets and the tasks
that read on behind it. Those are healthy and are left alone; another task reads the gap again, and
their publishes wait for it.

A stream that was deleted and made again under its name has another id. The tasks of the old one see
that too, publish what they have read, and end; when the last has, the new one is read from its
start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Unavailable
from penstock.indexing.errand import Calls
from penstock.indexing.ports import TaskState
from penstock.indexing.source import open_source
from penstock.indexing.streamplace import place_of
from penstock.indexing.supervisor.committed import Committed
from penstock.indexing.supervisor.converging import Convergence
from penstock.indexing.supervisor.health import Health
from penstock.indexing.supervisor.offsets.moving import OffsetMoves
from penstock.indexing.supervisor.pacing.lagevents import LagEvents
from penstock.indexing.supervisor.pacing.looking import Looks
from penstock.indexing.supervisor.pacing.pace import Pace
from penstock.indexing.supervisor.pacing.timelag import TimeLag
from penstock.indexing.supervisor.standing import Standing
from penstock.indexing.supervisor.state import SupervisorState
from penstock.indexing.supervisor.streamwatch import StreamWatch, cursor_name
from penstock.indexing.supervisor.talk.dialogue import Dialogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.spec import SupervisorSpec
    from penstock.indexing.supervisor.groups import TaskGroup
    from penstock.indexing.supervisor.ports import SupervisorOptions, SupervisorPorts
    from penstock.indexing.taskspec import StreamTaskSpec


class Supervisor:
    """One supervisor. On the overlord's mailbox.

    Args:
        spec: What it is to do.
        ports: What it works with.
        options: How it behaves.
        stopped: Told when it was stopped and its last task has ended.

    Attributes:
        standing: How it stands, to look at.
        offsets: Its committed offsets, for users to move.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        ports: SupervisorPorts,
        options: SupervisorOptions,
        *,
        stopped: Callable[[], None],
    ) -> None:
        supervisor_id = spec.supervisor_id
        calls = Calls(ports.lanes, ports.processor)
        stream = StreamWatch(
            open_source(place_of(spec.io), ports.broker, ports.fs, ports.clock),
            cursor_name(supervisor_id),
            calls,
            f"broker-{supervisor_id}",
        )
        self._state = state = SupervisorState(
            spec,
            ports,
            options,
            stream=stream,
            committed=Committed(supervisor_id, ports.metadata, stream),
            health=Health(supervisor_id, options.retry_delay_ms, options.retry_delay_max_ms),
        )
        self._dialogue = Dialogue(
            lambda: ports.peons.within(state.spec.tuning.http_timeout),
            calls,
            ports.clock,
            completion_timeout_ms=lambda: state.spec.io.completion_timeout,
            agreed=self._agreed,
            misfit=self._end_misfit,
            note=state.note,
        )
        self._stopped = stopped
        self._convergence = Convergence(state, self._dialogue, finished=self._finished)
        self.standing: Final = Standing(state)
        self._looks = Looks(
            state,
            self._dialogue,
            Pace(state, self.standing),
            TimeLag(state, self.standing),
            LagEvents(state, self.standing),
            ended=self._convergence.advance,
        )
        self.offsets: Final = OffsetMoves(
            state, self.standing, self._dialogue, self._convergence, self._looks
        )

    @property
    def id(self) -> str:
        """Its name."""
        return self._state.id

    @property
    def spec(self) -> SupervisorSpec:
        """What it is to do."""
        return self._state.spec

    def start(self) -> None:
        """Begin to look after the tasks."""
        self._looks.start()

    # Notices and wishes

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._state.stopping

    def update(self, spec: SupervisorSpec) -> None:
        """Take another version of the spec; tasks of the old one are told to end and publish."""
        self._state.spec = spec
        self._looks.start()
        self._convergence.advance()

    def stop(self) -> None:
        """Have all tasks publish what they read, then be gone."""
        self._state.stopping = True
        self._convergence.advance()

    def abandon(self) -> None:
        """Look no more; the tasks go on and are found by the next overlord."""
        self._looks.stop()
        self._convergence.stop()

    def _finished(self) -> None:
        self.abandon()
        self._stopped()

    def hand_off(self, group_ids: Iterable[int] | None = None) -> None:
        """Have groups, or all, agree on an end now and publish."""
        wanted = None if group_ids is None else set(group_ids)
        for group in self._state.groups.values():
            if wanted is None or group.group_id in wanted:
                group.roll_asked = True
        self._convergence.advance()

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence is full: close it and have the task go on with another.

        A notice of a task that is not known yet is ignored: it reads on, and asks again.
        """
        group = self._state.group_of(task_id)
        if group is not None:
            self._dialogue.checkpoint(group, start)

    def task_ended(self, task: StreamTaskSpec, state: TaskState, error: str) -> None:
        """A task of this supervisor has ended."""
        group = self._state.remove(task.id)
        if state is TaskState.FAILED:
            self._state.stream.note_loss()
        if state is TaskState.SUCCESS:
            self._state.health.task_succeeded()
            if group is not None:
                self._end_replicas(group, task.id)
        elif group is not None:
            self._state.health.task_failed(self._state.ports.clock.monotonic_s())
            self._state.note(Unavailable(f"task {task.id} failed: {error}"))
        self._convergence.advance()

    def _end_replicas(self, group: TaskGroup, done: str) -> None:
        """End the tasks that would only publish again what their replica has published."""
        try:
            reason = f"its replica {done} has published all"
            self._convergence.end_group(group, reason, TaskState.SUCCESS)
        except Unavailable as error:
            self._state.note(error)  # They find out by themselves.

    def _agreed(self) -> None:
        """A group has agreed on its end: it reads no more, and another reads on."""
        self._convergence.advance()

    def _end_misfit(self, task_id: str, reason: str) -> None:
        """End a task that has left its replicas; another takes its place."""
        try:
            self._state.ports.queue.shutdown(task_id, reason)
        except Unavailable as error:
            self._state.note(error)  # It is still not in line when it is looked at next.
