"""A supervisor: keeps the right streaming tasks running for one datasource.

All state belongs to the overlord's mailbox; the source and the peons are called on lanes. Every
second it compares the actual tasks with the desired ones. Every group of stream partitions needs
the configured number of reading replicas. Groups that have read long enough agree on an end and get
successors at once, and every lost task is replaced. All state can be recovered by a new overlord:
offsets and tasks are in the metadata store, and the peons report the progress.

Its parts do the work: `Looks` polls the stream and the tasks, `Convergence` runs the reconciliation
rounds, `Dialogue` agrees with tasks on their ends, `OffsetMoves` moves offsets for users. This
module connects them and receives notifications.

A task group that fails while it publishes leaves a gap between the committed offsets and the tasks
that read after it. These are healthy and continue; another task reads the gap again, and their
publishes wait for it.

A stream that was deleted and created again under its name has another id. The tasks of the old one
detect that, publish what they have read, and end. After the last one, the new stream is read from
its start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.core.errors import Unavailable
from penstock.indexing.errand import Calls
from penstock.indexing.ports import TaskState
from penstock.indexing.source import open_source
from penstock.indexing.stream_location import location_of
from penstock.indexing.supervisor.autoscaler import Autoscaler
from penstock.indexing.supervisor.committed_offsets import CommittedOffsets
from penstock.indexing.supervisor.health import Health
from penstock.indexing.supervisor.lag import LagEvents, TimeLag
from penstock.indexing.supervisor.offset_moves import OffsetMoves
from penstock.indexing.supervisor.polling import Looks
from penstock.indexing.supervisor.reconciler import Convergence
from penstock.indexing.supervisor.state import SupervisorState
from penstock.indexing.supervisor.status import SupervisorSnapshot
from penstock.indexing.supervisor.stream_watch import StreamWatch, cursor_name
from penstock.indexing.supervisor.task_protocol import Dialogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.ports import SupervisorOptions, SupervisorPorts
    from penstock.indexing.supervisor.task_groups import TaskGroup
    from penstock.indexing.task_spec import StreamTaskSpec


class Supervisor:
    """One supervisor. On the overlord's mailbox.

    Args:
        spec: Its spec.
        ports: Its dependencies.
        options: Its options.
        stopped: Called when it was stopped and its last task has ended.

    Attributes:
        standing: Its status.
        offsets: Operations on its committed offsets.
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
            open_source(location_of(spec.io), ports.broker, ports.fs, ports.clock),
            cursor_name(supervisor_id),
            calls,
            f"broker-{supervisor_id}",
        )
        self._state = state = SupervisorState(
            spec,
            ports,
            options,
            stream=stream,
            committed=CommittedOffsets(supervisor_id, ports.metadata, stream),
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
        self.standing: Final = SupervisorSnapshot(state)
        self._looks = Looks(
            state,
            self._dialogue,
            Autoscaler(state, self.standing),
            TimeLag(state, self.standing),
            LagEvents(state, self.standing),
            ended=self._convergence.advance,
        )
        self.offsets: Final = OffsetMoves(
            state, self.standing, self._dialogue, self._convergence, self._looks
        )

    @property
    def id(self) -> str:
        """Its id."""
        return self._state.id

    @property
    def spec(self) -> SupervisorSpec:
        """Its spec."""
        return self._state.spec

    def start(self) -> None:
        """Start to supervise the tasks."""
        self._looks.start()

    # Notifications and commands

    @property
    def is_stopping(self) -> bool:
        """Whether it is being stopped."""
        return self._state.stopping

    def update(self, spec: SupervisorSpec) -> None:
        """Apply a new version of the spec; tasks of the old one end and publish."""
        self._state.spec = spec
        self._looks.start()
        self._convergence.advance()

    def stop(self) -> None:
        """Have all tasks publish what they have read, then finish."""
        self._state.stopping = True
        self._convergence.advance()

    def abandon(self) -> None:
        """Stop supervising; the tasks continue, and the next overlord finds them."""
        self._looks.stop()
        self._convergence.stop()

    def _finished(self) -> None:
        self.abandon()
        self._stopped()

    def hand_off(self, group_ids: Iterable[int] | None = None) -> None:
        """Have some groups, or all, agree on an end and publish now."""
        wanted = None if group_ids is None else set(group_ids)
        for group in self._state.groups.values():
            if wanted is None or group.group_id in wanted:
                group.roll_asked = True
        self._convergence.advance()

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence is full: close it and have the task continue with the next.

        A notification of an unknown task is ignored: the task reads on, and repeats it.
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
        """End tasks that would only publish again what their replica has published."""
        try:
            reason = f"its replica {done} has published all"
            self._convergence.end_group(group, reason, TaskState.SUCCESS)
        except Unavailable as error:
            self._state.note(error)  # The tasks detect it themselves.

    def _agreed(self) -> None:
        """A group has agreed on its end: start a successor."""
        self._convergence.advance()

    def _end_misfit(self, task_id: str, reason: str) -> None:
        """End a task that contradicts its replicas; another one replaces it."""
        try:
            self._state.ports.queue.shutdown(task_id, reason)
        except Unavailable as error:
            self._state.note(error)  # The next round detects the contradiction again.
