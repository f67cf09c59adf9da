"""A supervisor: keeps the right streaming tasks running for one datasource.

All state belongs to the overlord's mailbox; the source and the peons are called on lanes. Every
second it compares the actual tasks with the desired ones. Every group of stream partitions needs
the configured number of reading replicas. Groups that have read long enough agree on an end and get
successors at once, and every lost task is replaced. All state can be recovered by a new overlord:
offsets and tasks are in the metadata store, and the peons report the progress.

Its parts do the work: `SupervisorPolls` polls the stream and the tasks, `Reconciler` runs the
reconciliation rounds, `TaskProtocol` carries out the effects of task groups and agrees with tasks
on their ends, `OffsetMoves` moves offsets for users. This module connects them and receives
notifications.

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
from penstock.indexing.ports import TaskState
from penstock.indexing.source import open_source
from penstock.indexing.stream_location import location_of
from penstock.indexing.supervisor.autoscaler import Autoscaler
from penstock.indexing.supervisor.committed_offsets import CommittedOffsets
from penstock.indexing.supervisor.health import Health
from penstock.indexing.supervisor.lag import LagEvents, TimeLag
from penstock.indexing.supervisor.offset_moves import OffsetMoves
from penstock.indexing.supervisor.polls import SupervisorPolls
from penstock.indexing.supervisor.reconciler import Reconciler
from penstock.indexing.supervisor.stream_watch import StreamWatch, cursor_name
from penstock.indexing.supervisor.supervisor_state import SupervisorState
from penstock.indexing.supervisor.supervisor_status import SupervisorSnapshot
from penstock.indexing.supervisor.task_groups import GroupEvent
from penstock.indexing.supervisor.task_protocol import EventFacts, TaskProtocol
from penstock.mailbox.background_calls import CallDispatcher
from penstock.mailbox.event_mail import EventMail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.specs import SupervisorSpec
    from penstock.indexing.supervisor.lag import LagHistory
    from penstock.indexing.supervisor.supervisor_ports import SupervisorOptions, SupervisorPorts
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.mailbox.event_mail import EventReceiver


class Supervisor:
    """One supervisor. On the overlord's mailbox.

    Args:
        spec: Its spec.
        ports: Its dependencies.
        options: Its options.
        lag_history: Keeps its lag.
        ended: Receives its id once it was stopped and its last task has ended.

    Attributes:
        snapshot: Its status.
        lag_history: Its lag in the last hour.
        offsets: Operations on its committed offsets.
    """

    def __init__(
        self,
        spec: SupervisorSpec,
        ports: SupervisorPorts,
        options: SupervisorOptions,
        *,
        lag_history: LagHistory,
        ended: EventReceiver[str],
    ) -> None:
        supervisor_id = spec.supervisor_id
        calls = CallDispatcher(ports.lanes, ports.processor)
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
            rounds=EventMail(ports.processor, self._act, f"a round of supervisor {supervisor_id}"),
        )
        self._protocol = TaskProtocol(state, calls)
        self._ended = ended
        self._reconciler = Reconciler(state, self._protocol)
        self.snapshot: Final = SupervisorSnapshot(state)
        self.lag_history: Final = lag_history
        self._polls = SupervisorPolls(
            state,
            self._protocol,
            Autoscaler(state, self.snapshot),
            TimeLag(state, self.snapshot),
            LagEvents(state, self.snapshot, lag_history),
            self._reconciler,
        )
        self.offsets: Final = OffsetMoves(
            state, self.snapshot, self._protocol, self._reconciler, self._polls
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
        self._polls.start()

    # Notifications and commands

    @property
    def is_stopping(self) -> bool:
        """Whether it is being stopped."""
        return self._state.stopping

    def update(self, spec: SupervisorSpec) -> None:
        """Apply a new version of the spec; tasks of the old one end and publish."""
        self._state.spec = spec
        self._polls.start()
        self._reconciler.advance()

    def stop(self) -> None:
        """Have all tasks publish the rows that they have read, then finish."""
        self._state.stopping = True
        self._reconciler.advance()

    def abandon(self) -> None:
        """Stop supervising; the tasks continue, and the next overlord finds them."""
        self._polls.stop()
        self._reconciler.stop()

    def _act(self, _event: None) -> None:
        """Act on a request of `SupervisorState.request_round`."""
        if self._state.is_released:
            self._state.is_released = False  # Report it once.
            self.abandon()
            self._ended.put(self.id)
        else:
            self._reconciler.advance()

    def hand_off(self, group_ids: Iterable[int] | None = None) -> None:
        """Have some groups, or all, agree on an end and publish now."""
        wanted = None if group_ids is None else set(group_ids)
        for group in self._state.groups.values():
            if wanted is None or group.group_id in wanted:
                group.roll_requested = True
        self._reconciler.advance()

    def checkpoint_wanted(self, task_id: str, start: Offsets) -> None:
        """A task's open sequence is full: close it and have the task continue with the next.

        A notification of an unknown task is ignored: the task reads on, and repeats it.
        """
        group = self._state.group_of(task_id)
        if group is not None:
            self._protocol.checkpoint(group, start)

    def task_ended(self, task: StreamTaskSpec, state: TaskState, error: str) -> None:
        """A task of this supervisor has ended."""
        group = self._state.remove(task.id)
        if state is TaskState.FAILED:
            self._state.stream.note_loss()
        if state is TaskState.SUCCESS:
            self._state.health.task_succeeded()
            if group is not None:
                self._protocol.report(group, GroupEvent.SUCCEEDED, EventFacts(task_id=task.id))
        elif group is not None:
            self._state.health.task_failed(self._state.ports.clock.monotonic_s())
            self._state.note(Unavailable(f"task {task.id} failed: {error}"))
        if group is not None:  # Otherwise the supervisor itself ended it, in a round or before one.
            self._reconciler.advance()
