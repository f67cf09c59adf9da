"""Streaming task: reads its stream partitions, persists rows and publishes its sequences.

`StreamingTask` owns the task's mailbox and all of its state. Its default action lets each part
(reader, announcements, dead letters, rollup, publisher) start what it can, then suspends
itself; results, control calls and timers arrive as mail. The task therefore responds at once
whatever the engine does. Parts in this module announce persisted files to the overlord (the
newest state only), request a checkpoint from the supervisor when a sequence is full (reading
continues meanwhile; the supervisor agrees on the end with all replicas), and execute the
supervisor's control calls: pause, resume and set end offsets.

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

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Closed, Conflict, PenstockError
from penstock.indexing.actions import AnnounceFiles, CheckPointDataSourceMetadata
from penstock.indexing.engine_json import counts_to_json
from penstock.indexing.ports import TaskPhase, TaskReport, TaskState
from penstock.indexing.task.dead_letters import DeadLetterSends
from penstock.indexing.task.persist_merge import Folding
from penstock.indexing.task.reader import Reader
from penstock.indexing.task.sequence_publisher import SequencePublisher
from penstock.indexing.task.task_state import StreamTaskParts, TaskOptions, TaskPorts
from penstock.mailbox import DefaultActionController, MailboxProcessor, Suspension

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.indexing.sequences import Offsets, Sequence
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
        self._errand = context.errand("announcing files", "announce")
        self._stale: dict[str, None] = {}
        self._under_way = ""

    @property
    def trouble(self) -> str:
        """The last error, empty if none."""
        return self._errand.trouble

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
        if self._errand.busy or not self._stale:
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
        self._errand.start(lambda: self._context.ports.actions.perform(action), self._announced)

    def _announced(self, _shown: object) -> None:
        # False means that this task published the sequence before it was interrupted: its own
        # publish will detect that.
        self._under_way = ""
        self._context.wake()


class Checkpoints:
    """Requests a checkpoint once for each sequence, and again until it is closed.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        self._context = context
        self._errand = context.errand("asking for a checkpoint", "checkpoint")
        self._asked = ""
        context.processor.timers.schedule_every(
            context.options.checkpoint_repeat_ms, self._ask_again, "is the sequence full?"
        )

    def ask_if_full(self) -> None:
        """Request an end of the open sequence from the supervisor if it is full."""
        sequence = self._context.state.sequences.last
        if sequence is None or sequence.end is not None or not self._is_full(sequence):
            return
        if self._errand.busy or self._asked == sequence.name:
            return
        self._asked = sequence.name
        action = CheckPointDataSourceMetadata(sequence.start)
        actions = self._context.ports.actions
        self._errand.start(lambda: actions.perform(action), lambda _heard: None)

    def _ask_again(self) -> None:
        # The overlord may have received it but restarted before it acted.
        self._asked = ""
        self.ask_if_full()

    def _is_full(self, sequence: Sequence) -> bool:
        tuning, commit = self._context.spec.tuning_config, self._context.state.commit
        chunks: dict[object, int] = {}
        for file in commit.files(sequence.name):
            chunks[file.interval] = chunks.get(file.interval, 0) + file.rows
        return (
            max(chunks.values(), default=0) >= tuning.max_rows_per_segment
            or sum(chunks.values()) >= tuning.max_total_rows
        )


class Steering:
    """The control of one task.

    Args:
        context: The task.
        reader: Has the offsets that are read.
    """

    def __init__(self, context: StreamTaskParts, reader: Reader) -> None:
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
        context, state = self._context, self._context.state
        state.change_sequences(
            state.sequences.set_end_offsets(
                end, finish=finish, current=self._reader.planned, paused=context.paused
            )
        )
        self.resume()


T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task. RUNNING: it was stopped, and continues when it is restarted."""

    state: TaskState
    error: str = ""


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
        self._suspension: Suspension | None = None
        self._result: TaskResult | None = None
        context = StreamTaskParts(
            spec,
            folder,
            ports,
            options or TaskOptions(),
            self.processor,
            wake=self._wake,
            fail=self._fail,
        )
        self._context = context
        self._announcer = FileAnnouncer(context)
        self._reader = Reader(context, self._persisted)
        self._dead_letters = DeadLetterSends(context)
        self._folding = Folding(context, self._announcer.changed)
        self._publisher = SequencePublisher(context, self._announcer.is_current)
        self._checkpoints = Checkpoints(context)
        self._steering = Steering(context, self._reader)
        for sequence in context.state.sequences.items:
            # Files that were announced before a crash may be lost.
            self._announcer.changed(sequence.name)

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
        return self._result or TaskResult(TaskState.RUNNING)

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
        return self._change(self._steering.pause, "pause")

    def resume(self) -> Future[None]:
        """Continue reading."""
        return self._change(self._steering.resume, "resume")

    def set_end_offsets(self, end: Offsets, *, finish: bool) -> Future[None]:
        """Close the open sequence at these offsets and resume; the task ends there if `finish`.

        The future raises InvalidRequest if the offsets do not match.
        """
        return self._change(lambda: self._steering.set_end(end, finish=finish), "set end offsets")

    def stop(self) -> None:
        """Make `run` return soon. The next process repeats unfinished work."""
        with suppress(Closed):
            self._change(lambda: self._end(TaskResult(TaskState.RUNNING)), "stop")

    def _change(self, command: Callable[[], T], description: str) -> Future[T]:
        return self.processor.main_executor.submit_change(command, description)

    # The mailbox thread

    def _advance(self, controller: DefaultActionController) -> None:
        """Start all possible work, then wait for mail."""
        if self._context.state.sequences.done:
            self._end(TaskResult(TaskState.SUCCESS))
            return
        self._dead_letters.advance()
        self._announcer.advance()
        self._publisher.advance()
        if not self._context.paused:
            self._reader.advance()
        self._folding.advance()
        if self._result is None:
            self._suspension = controller.suspend_default_action(self.processor.metrics.idle)

    def _wake(self) -> None:
        if self._suspension is not None:
            self._suspension.resume()

    def _persisted(self, sequence_name: str) -> None:
        self._announcer.changed(sequence_name)
        self._checkpoints.ask_if_full()

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
            error="; ".join(part.trouble for part in parts if part.trouble),
            averages=self._reader.averages.rates(now_s),
            unparseable=self._reader.parse_errors.saved,
            effort=self._reader.effort.measure(now_s),
        )

    def _phase(self) -> TaskPhase:
        sequences = self._context.state.sequences
        if self._result is not None:
            return TaskPhase.ENDED
        if self._context.paused:
            return TaskPhase.PAUSED
        if sequences.final is not None and all(
            s.is_read(self._reader.planned) for s in sequences.items
        ):
            return TaskPhase.PUBLISHING
        return TaskPhase.READING

    def _fail(self, error: Exception) -> None:
        """End the task: its work cannot be done, or another task does it."""
        if not isinstance(error, PenstockError):
            # A bug in Penstock: let it end the loop with its traceback.
            raise error
        _log.error("task %s failed: %s", self._context.spec.id, error)
        self._end(TaskResult(TaskState.FAILED, str(error)))

    def _end(self, result: TaskResult) -> None:
        if self._result is None:
            self._result = result
        self.processor.all_actions_completed()
