"""Streaming task: reads its stream partitions, persists rows and publishes its sequences.

`StreamingTask` owns the task's mailbox and all of its state. Its parts (reader, dead letters,
merges, publisher) report events of the sequences to `StreamTaskState`. Its default action carries
out the effects of these events, lets each part start what it can, then suspends itself; results,
control calls and timers arrive as mail. The task therefore responds at once even while the engine
is busy. Parts in this module announce persisted files to the overlord (the newest state only),
request a checkpoint from the supervisor when a sequence is full (reading continues meanwhile; the
supervisor agrees on the end with all replicas), and execute the supervisor's control calls: pause,
resume and set end offsets.

Invariants:

- Files are durable before ``commit.json`` names them, and ``commit.json`` is durable before
  they are announced or published.
- ``sequences.json`` is durable before the caller learns that end offsets were accepted.
- A sequence is published when all of it is persisted and announced and its bad messages are in
  the dead-letter topic; the oldest first.
- Offsets that were returned to a pause are never moved back, unless the topic is deleted: then
  the task ends where it is.
- A pause ends after a time-out, so an absent supervisor does not stop a task from reading.

Control calls may come from any thread. `docs/indexing.md` lists what happens if the process
dies at each step.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Closed, Conflict
from penstock.indexing.actions import AnnounceFiles, CheckPointDataSourceMetadata
from penstock.indexing.engine_json import counts_to_json
from penstock.indexing.ports import TaskPhase, TaskReport, TaskState
from penstock.indexing.sequences import SequenceEffect
from penstock.indexing.task.dead_letters import DeadLetterSends
from penstock.indexing.task.persist_merge import PersistMerge
from penstock.indexing.task.sequence_publisher import SequencePublisher
from penstock.indexing.task.stream_reader import StreamReader
from penstock.indexing.task.streaming_state import (
    StreamTaskEffect,
    StreamTaskParts,
    TaskOptions,
    TaskPorts,
    TaskResult,
)
from penstock.mailbox import DefaultActionController, MailboxProcessor

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.parse_errors import Sample
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.mailbox import Timer


class FileAnnouncer:
    """Announces all files of a sequence again whenever they change; only the newest state.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        self._context = context
        self._call = context.background_call("announcing files", "announce")
        self._stale: dict[str, None] = {}
        self._under_way = ""

    @property
    def last_error(self) -> str:
        """The last error, empty if none."""
        return self._call.last_error

    def changed(self, sequence: str) -> None:
        """Record that the files of a sequence have changed."""
        self._stale[sequence] = None

    def is_current(self, sequence: str) -> bool:
        """Return whether the current files are announced, and no announcement is running.

        An announcement after the publish would show rows twice.
        """
        return sequence not in self._stale and sequence != self._under_way

    def advance(self) -> None:
        """Announce changed sequences."""
        if self._call.busy or not self._stale:
            return
        name = next(iter(self._stale))
        del self._stale[name]
        state = self._context.state
        sequence = state.sequence(name)
        if sequence is None:
            return  # Published meanwhile: its files are segments now.
        self._under_way = name
        commit = state.commit
        files, reach = commit.files(name), commit.reach(name, sequence.start)
        action = AnnounceFiles(name, files, sequence.start, reach, commit.topic_id)
        actions, fail = self._context.ports.actions, self._context.fail
        self._call.start(lambda: actions.perform(action), self._announced, fail)

    def _announced(self, _shown: object) -> None:
        # False means that this task published the sequence before it was interrupted: its own
        # publish will detect that.
        self._under_way = ""
        self._context.wake()


class CheckpointRequests:
    """Requests a checkpoint once for each sequence, and again until it is closed.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        self._context = context
        self._call = context.background_call("requesting a checkpoint", "checkpoint")
        self._requested = ""
        context.processor.timers.schedule_every(
            context.options.checkpoint_repeat_ms, self._request_again, "is the sequence full?"
        )

    def request(self, name: str) -> None:
        """Request an end of a full sequence from the supervisor, unless it was requested."""
        sequence = self._context.state.sequence(name)
        if sequence is None or self._call.busy or self._requested == name:
            return
        self._requested = name
        action = CheckPointDataSourceMetadata(sequence.start)
        actions = self._context.ports.actions
        self._call.start(lambda: actions.perform(action), lambda _heard: None, self._context.fail)

    def _request_again(self) -> None:
        # The overlord may have received it but restarted before it acted.
        self._requested = ""
        self._context.state.report_full()
        self._context.wake()


class StreamTaskControl:
    """The control of one task.

    Args:
        context: The task.
        reader: Has the offsets that are read.
    """

    def __init__(self, context: StreamTaskParts, reader: StreamReader) -> None:
        self._context = context
        self._reader = reader
        self._pause_end: Timer | None = None

    def pause(self) -> dict[int, int]:
        """Pause reading; return the offsets that the task has reached.

        Raises:
            Conflict: The end is agreed already.
        """
        context = self._context
        if context.state.sequences.final is not None:
            raise Conflict(
                f"task {context.spec.id}: its end is agreed already, so it cannot be paused"
            )
        if self._pause_end is not None:
            self._pause_end.cancel()
        context.paused = True
        self._pause_end = context.processor.timers.schedule_after(
            context.options.pause_limit_ms, self.resume, "the pause has lasted too long"
        )
        # A task behind its replicas may not have reached the start of its open sequence.
        last, planned = context.state.sequences.last, self._reader.planned
        return {p: max(o, last.start[p]) if last else o for p, o in planned.items()}

    def resume(self) -> None:
        """Continue reading."""
        self._context.paused = False
        if self._pause_end is not None:
            self._pause_end.cancel()
            self._pause_end = None
        self._context.wake()

    def set_end(self, end: Offsets, *, finish: bool) -> None:
        """Close the open sequence at these offsets and resume; the task ends there if `finish`.

        Raises:
            InvalidRequest: The offsets do not match the sequence.
        """
        self._context.state.set_end_offsets(
            end, finish=finish, current=self._reader.planned, paused=self._context.paused
        )
        self.resume()


T = TypeVar("T")


class StreamingTask:
    """One streaming task. Made and run by its mailbox thread; the control calls are for any thread.

    Args:
        spec: The spec of the task.
        folder: Its folder, which this process has locked.
        ports: Its ports.
        options: Its options.

    Attributes:
        started_ms: When this process started it.

    Raises:
        CorruptData: A file in the folder is damaged.
    """

    def __init__(
        self,
        spec: StreamTaskSpec,
        folder: TaskFolder,
        ports: TaskPorts,
        options: TaskOptions | None = None,
    ) -> None:
        self.started_ms = ports.clock.now_ms()
        self.processor = MailboxProcessor(self._advance, name=spec.id, clock=ports.clock)
        context = StreamTaskParts(spec, folder, ports, options or TaskOptions(), self.processor)
        self._context = context
        self._announcer = FileAnnouncer(context)
        self._reader = StreamReader(context)
        self._dead_letters = DeadLetterSends(context)
        self._persist_merge = PersistMerge(context)
        self._publisher = SequencePublisher(context)
        self._checkpoints = CheckpointRequests(context)
        self._control = StreamTaskControl(context, self._reader)

    def run(self) -> TaskResult:
        """Run until the task ends, or until `stop`."""
        try:
            self.processor.run()
        finally:
            self.processor.close()
        return self.result

    @property
    def result(self) -> TaskResult:
        """The result of the task; RUNNING until it ends."""
        return self._context.result or TaskResult(TaskState.RUNNING)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of rows; on the mailbox thread, or after `run` has returned."""
        return counts_to_json(self._context.state.counts.plus(self._reader.refused))

    @property
    def unparseable(self) -> tuple[Sample, ...]:
        """Some messages that could not be parsed; to be used after its mailbox has ended."""
        return self._reader.parse_errors.saved

    # Control, any thread

    def report(self) -> Future[TaskReport]:
        """Return the status of the task."""
        return self.processor.main_executor.submit(self._report, "report")

    def pause(self) -> Future[dict[int, int]]:
        """Pause reading; return the offsets that the task has reached.

        Messages that are being persisted count as read. The pause ends by itself after
        `TaskOptions.pause_limit_ms`. The future raises Conflict if the end is agreed already.
        """
        return self._change(self._control.pause, "pause")

    def resume(self) -> Future[None]:
        """Continue reading."""
        return self._change(self._control.resume, "resume")

    def set_end_offsets(self, end: Offsets, *, finish: bool) -> Future[None]:
        """Close the open sequence at these offsets and resume; the task ends there if `finish`.

        The future raises InvalidRequest if the offsets do not match.
        """
        return self._change(lambda: self._control.set_end(end, finish=finish), "set end offsets")

    def stop(self) -> None:
        """Make `run` return soon. The next process repeats unfinished work."""
        with suppress(Closed):
            self._change(lambda: self._context.end(TaskResult(TaskState.RUNNING)), "stop")

    def _change(self, command: Callable[[], T], description: str) -> Future[T]:
        return self.processor.main_executor.submit_change(command, description)

    # The mailbox thread

    def _advance(self, controller: DefaultActionController) -> None:
        """Start all possible work, then wait for mail."""
        context = self._context
        self._carry_out_effects()
        if context.state.sequences.done:
            context.end(TaskResult(TaskState.SUCCESS))
            return
        self._dead_letters.advance()
        self._announcer.advance()
        self._publisher.advance()
        self._publish_if_ready()
        if not context.paused:
            self._reader.advance()
        self._persist_merge.advance()
        if context.result is None:
            context.suspension = controller.suspend_default_action(self.processor.metrics.idle)

    def _publish_if_ready(self) -> None:
        state = self._context.state
        first = state.sequences.to_publish
        # Rows would be invisible during the publish if their files were not announced.
        if (
            first is not None
            and self._publisher.is_free
            and state.commit.all_sent(first.name)
            and self._announcer.is_current(first.name)
        ):
            state.ready(first.name)
            self._carry_out_effects()

    def _carry_out_effects(self) -> None:
        """Carry out the effects of the events that the parts have reported."""
        effects = self._context.state.effects
        while effects:
            self._carry_out(effects.popleft())

    def _carry_out(self, effect: StreamTaskEffect) -> None:
        match effect.kind:
            case SequenceEffect.ANNOUNCE:
                self._announcer.changed(effect.sequence)
            case SequenceEffect.REQUEST_CHECKPOINT:
                self._checkpoints.request(effect.sequence)
            case SequenceEffect.PUBLISH:
                self._publisher.publish(effect.sequence)
            case SequenceEffect.DELETE_OLD_FILES_LATER:
                self._context.drop_later(effect.old_files)
            case SequenceEffect.DELETE_NEW_FILES:
                self._context.drop(effect.new_files)
            case SequenceEffect.RELEASE_LOCKS:
                self._publisher.release_locks()
            case SequenceEffect.SAVE_SEQUENCES | SequenceEffect.SAVE_COMMIT:
                raise AssertionError(f"{effect.kind} is carried out with its event")

    def _report(self) -> TaskReport:
        context = self._context
        now_s = context.ports.clock.monotonic_s()
        sequences, commit = context.state.sequences, context.state.commit
        parts = (self._reader, self._announcer, self._dead_letters, self._publisher)
        return TaskReport(
            phase=self._phase(),
            current=dict(self._reader.planned),
            persisted=dict(commit.current),
            end=None if sequences.final is None else dict(sequences.final),
            checkpoints={s.number: dict(s.start) for s in sequences.items},
            counts=self.counts,
            error="; ".join(part.last_error for part in parts if part.last_error),
            averages=self._reader.averages.rates(now_s),
            unparseable=self._reader.parse_errors.saved,
            throughput=self._reader.throughput.measure(now_s),
        )

    def _phase(self) -> TaskPhase:
        sequences = self._context.state.sequences
        if self._context.result is not None:
            return TaskPhase.ENDED
        if self._context.paused:
            return TaskPhase.PAUSED
        if sequences.final is not None and all(
            s.is_read(self._reader.planned) for s in sequences.items
        ):
            return TaskPhase.PUBLISHING
        return TaskPhase.READING
