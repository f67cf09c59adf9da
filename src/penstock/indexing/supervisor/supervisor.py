"""A supervisor: keeps the right streaming tasks running for one datasource.

All state belongs to the overlord's mailbox; the source and the peons are called on lanes. Every
second it looks what there is and moves it towards what should be: for every group of stream
partitions as many tasks that read as it should have replicas, an end agreed with those that have
read long enough, successors for them at once, and a task in place of each that was lost. Nothing is
remembered that a new overlord could not find again: offsets and tasks are in the metadata store,
their progress is asked of the peons.

The work is done by its parts: `adoption` finds tasks, `RollOver` chooses which end, `Dialogue`
agrees with them on where, `Starts` begins what lacks. This module owns their order, and what users
ask of a supervisor.

A task group that fails while it publishes leaves a gap between the committed offsets and the tasks
that read on behind it. Those are healthy and are left alone; another task reads the gap again, and
their publishes wait for it.

A stream that was deleted and made again under its name has another id. The tasks of the old one see
that too, publish what they have read, and end; when the last has, the new one is read from its
start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import NotFound, PenstockError, Unavailable
from penstock.indexing.errand import Calls
from penstock.indexing.ports import TaskState
from penstock.indexing.source import open_source
from penstock.indexing.streamplace import place_of
from penstock.indexing.supervisor.adoption import adopt, end_late_comers
from penstock.indexing.supervisor.backfill import backfill_spec, check_backfill
from penstock.indexing.supervisor.committed import Committed
from penstock.indexing.supervisor.health import Health
from penstock.indexing.supervisor.pacing.pace import Pace
from penstock.indexing.supervisor.rollover import RollOver
from penstock.indexing.supervisor.standing import Standing
from penstock.indexing.supervisor.starts import Starts
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
    from penstock.mailbox import Timer


class Supervisor:
    """One supervisor. On the overlord's mailbox.

    Args:
        spec: What it is to do.
        ports: What it works with.
        options: How it behaves.
        stopped: Told when it was stopped and its last task has ended.

    Attributes:
        standing: How it stands, to look at.
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
            ports.peons,
            calls,
            ports.clock,
            completion_timeout_ms=lambda: state.spec.io.completion_timeout,
            agreed=self._converge,
            misfit=self._end_misfit,
            note=state.note,
        )
        self._roll_over = RollOver(state, self._dialogue)
        self._starts = Starts(state, self._dialogue, self._roll_over)
        self.standing = Standing(state)
        self._pace = Pace(state, self.standing)
        self._stopped = stopped
        self._converging = False
        self._letting_go = False
        self._ended = False
        self._rests_until_s = 0.0
        self._timer: Timer | None = None

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
        state = self._state
        self._timer = state.ports.processor.timers.schedule_every(
            min(state.options.look_interval_ms, state.spec.io.period),
            self._look,
            f"supervisor {self.id}",
            first_after_ms=state.spec.io.start_delay,
        )

    # Notices and wishes

    @property
    def is_stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._state.stopping

    def update(self, spec: SupervisorSpec) -> None:
        """Take another version of the spec; tasks of the old one are told to end and publish."""
        self._state.spec = spec
        if self._timer is not None:
            self._timer.cancel()
        self.start()
        self._converge()

    def stop(self) -> None:
        """Have all tasks publish what they read, then be gone."""
        self._state.stopping = True
        self._converge()

    def abandon(self) -> None:
        """Look no more; the tasks go on and are found by the next overlord."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()

    def hand_off(self, group_ids: Iterable[int] | None = None) -> None:
        """Have groups, or all, agree on an end now and publish."""
        wanted = None if group_ids is None else set(group_ids)
        for group in self._state.groups.values():
            if wanted is None or group.group_id in wanted:
                group.roll_asked = True
        self._converge()

    def reset(self, offsets: Offsets | None = None) -> None:
        """Forget committed offsets, all or those of some stream partitions, and begin anew there.

        The tasks that read them are ended; what they have not published is read again, or not, as
        the new offsets say.

        Raises:
            InvalidRequest: The topic does not hold these offsets.
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        if offsets is not None:
            state.stream.check(offsets)
        adopt(state, self._dialogue)
        state.committed.read()
        whole = offsets is None or state.committed.is_left_behind
        for group in list(state.groups.values()):
            if offsets is None or whole or group.partitions & offsets.keys():
                self._end_quietly(group, "the supervisor's offsets were reset")
        if offsets is None:
            state.committed.reset({}, earliest=self.spec.io.use_earliest_offset)
        elif whole:
            state.committed.reset(offsets, earliest=True)
        else:
            state.committed.move(offsets)
        state.health.begin_anew()
        self._rests_until_s = 0.0  # The source is to hear soon what it must keep now.
        self._converge()

    def cut_backfill(self, task_count: int | None) -> SupervisorSpec:
        """End the tasks, and return the spec of a supervisor that reads up to the latest messages.

        Raises:
            InvalidRequest: The spec, or how the supervisor stands, does not allow it.
            Unavailable: The metadata store does not answer.
        """
        state = self._state
        check_backfill(self.standing)
        adopt(state, self._dialogue)
        for group in list(state.groups.values()):
            self._end_quietly(group, "the supervisor leaves what it has not published to another")
        # Now that none of them can publish any more, this is where the others left off.
        state.committed.read()
        return backfill_spec(self.standing, state.ports.new_token(), task_count)

    def leave_behind(self, piece: SupervisorSpec) -> None:
        """Go on behind what another supervisor is to read.

        Raises:
            Unavailable: The metadata store does not answer.
        """
        bounds = piece.io.bounded_stream_config
        if bounds is not None:
            ends = {int(p): end for p, end in bounds.end_sequence_numbers.items()}
            self._state.committed.move(ends)
        self._converge()

    def _end_quietly(self, group: TaskGroup, reason: str) -> None:
        # What is done here ends tasks, and that leads back here.
        converging, self._converging = self._converging, True
        try:
            self._state.end_group(group, reason)
        finally:
            self._converging = converging

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
        self._converge()

    def _end_replicas(self, group: TaskGroup, done: str) -> None:
        """End the tasks that would only publish again what their replica has published."""
        converging, self._converging = self._converging, True
        try:
            reason = f"its replica {done} has published all"
            self._state.end_group(group, reason, TaskState.SUCCESS)
        except Unavailable as error:
            self._state.note(error)  # They find out by themselves.
        finally:
            self._converging = converging

    def _end_misfit(self, task_id: str, reason: str) -> None:
        """End a task that has left its replicas; another takes its place."""
        try:
            self._state.ports.queue.shutdown(task_id, reason)
        except Unavailable as error:
            self._state.note(error)  # It is still not in line when it is looked at next.

    # Looking

    def _look(self) -> None:
        if self._ended or (self._is_idle and self._now_s() < self._rests_until_s):
            return
        self._state.begun = True
        self._state.stream.look(self._seen, self._unseen)
        for group in self._state.groups.values():
            self._dialogue.ask(group)

    def _seen(self) -> None:
        if self._ended:
            # What the source is to keep is for whoever leads now to say.
            return
        state = self._state
        state.looked_ms = state.ports.clock.now_ms()
        state.health.looked()
        try:
            self._pace.weigh()
        except Unavailable as error:
            state.note(error)  # The next look weighs again.
        self._tell_vanished()
        self._converge()
        self._rests_until_s = self._now_s() + state.spec.io.period / 1_000
        if not state.stopping:
            state.stream.hold(state.committed.to_keep, self._not_held)

    @property
    def _is_idle(self) -> bool:
        """Whether it has nothing to look after: then one look in each period will do."""
        state = self._state
        return state.spec.suspended and not state.groups and not state.stopping

    def _now_s(self) -> float:
        return self._state.ports.clock.monotonic_s()

    def _not_held(self, error: PenstockError) -> None:
        self._rests_until_s = 0.0  # The source may delete what is still to be read: try soon.
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

    def _unseen(self, error: PenstockError) -> None:
        if self._ended:
            return
        self._state.health.look_failed()
        self._state.note(error)
        self._converge()

    # Moving towards what should be

    def _converge(self) -> None:
        """Look at everything that is known, and do what is due. Errors wait for the next look."""
        if self._ended or self._converging:
            # What is done here ends tasks, and that leads here again: the next look does the rest.
            return
        self._converging = True
        state = self._state
        try:
            adopt(state, self._dialogue)
            self._roll_over.advance()
            end_late_comers(state)
            self._roll_over.end_overdue()
            state.committed.read()
            if state.committed.is_left_behind:
                self._starts.leave_stream()
            else:
                self._starts.retract()
                if state.health.may_start_tasks(state.ports.clock.monotonic_s()):
                    self._starts.start_missing(state.stream.available or {})
            state.note_discovery()
            self._finish_stopping()
        except PenstockError as error:
            state.health.round_failed()
            state.note(error)
        else:
            state.health.round_done()
        finally:
            self._converging = False

    def _finish_stopping(self) -> None:
        """When all tasks are gone, let the source delete what they held back, then be gone."""
        state = self._state
        if state.groups or not state.stopping or self._letting_go:
            return
        self._letting_go = True

        def done() -> None:
            self.abandon()
            self._stopped()

        def failed(error: PenstockError) -> None:
            self._letting_go = False  # The next look tries again.
            state.note(error)

        state.stream.let_go(state.committed.offsets, done, failed)
