"""A streaming task: it reads its stream partitions, persists, and publishes its sequences.

All of its state belongs to one mailbox. The default action has each part start what can be started
(`Reader`, `Announcer`, `DeadLetters`, `Folding`, `Publisher`), then suspends itself; outcomes,
control calls and timers arrive as mail and wake it. So the task answers at once whatever the engine
does. Invariants:

- files are durable before ``commit.json`` names them, and ``commit.json`` is durable before they
  are announced or published;
- ``sequences.json`` is durable before the caller hears that end offsets were accepted;
- a sequence is published when all of it is persisted and announced and its bad messages are in the
  dead-letter topic; the oldest first;
- offsets that were answered to a pause are never moved back, but when the topic is gone: then the
  task ends where it stands.

`docs/indexing.md` has the table of what happens when the process dies at each step.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from penstock.core.errors import Closed, PenstockError
from penstock.indexing.filejson import counts_to_json
from penstock.indexing.ports import TaskPhase, TaskReport, TaskState
from penstock.indexing.task.announcing import Announcer
from penstock.indexing.task.checkpointing import Checkpoints
from penstock.indexing.task.deadletters import DeadLetters
from penstock.indexing.task.folding import Folding
from penstock.indexing.task.publishing import Publisher
from penstock.indexing.task.reader import Reader
from penstock.indexing.task.state import TaskContext, TaskOptions, TaskPorts
from penstock.indexing.task.steering import Steering
from penstock.mailbox import DefaultActionController, MailboxProcessor, Suspension

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.folder import TaskFolder
    from penstock.indexing.task.parsing import Sample
    from penstock.indexing.taskspec import StreamTaskSpec

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended. RUNNING: it was stopped, and goes on when it is started again."""

    state: TaskState
    error: str = ""


class StreamingTask:
    """One streaming task. Made and run by its mailbox thread; the control calls are for any thread.

    Args:
        spec: What the task is.
        folder: Its folder, which this process has locked.
        ports: What it works with.
        options: How it behaves.

    Attributes:
        started_ms: Since when this process runs it.

    Raises:
        CorruptData: What the folder keeps is damaged.
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
        context = TaskContext(
            spec,
            folder,
            ports,
            options or TaskOptions(),
            self.processor,
            wake=self._wake,
            fail=self._fail,
        )
        self._context = context
        self._announcer = Announcer(context)
        self._reader = Reader(context, self._persisted)
        self._dead_letters = DeadLetters(context)
        self._folding = Folding(context, self._announcer.changed)
        self._publisher = Publisher(context, self._announcer.is_current)
        self._checkpoints = Checkpoints(context)
        self._steering = Steering(context, self._reader)
        for sequence in context.state.sequences.items:
            # What was announced before a crash may be gone since.
            self._announcer.changed(sequence.name)

    def run(self) -> TaskResult:
        """Run to the end: of the task, or of this process's patience (`stop`)."""
        try:
            self.processor.run()
        finally:
            self.processor.close()
        return self.result

    @property
    def result(self) -> TaskResult:
        """How the task ended; RUNNING while it has not."""
        return self._result or TaskResult(TaskState.RUNNING)

    @property
    def counts(self) -> dict[str, int]:
        """What was counted; on the mailbox thread, or when `run` has returned."""
        return counts_to_json(self._context.state.counts.plus(self._reader.refused))

    @property
    def unparseable(self) -> tuple[Sample, ...]:
        """Some messages that could not be parsed; for when its mailbox runs no more."""
        return self._reader.parse_errors.saved

    # Control, any thread

    def report(self) -> Future[TaskReport]:
        """Tell how the task stands."""
        return self.processor.main_executor.submit(self._report, "report")

    def pause(self) -> Future[dict[int, int]]:
        """Begin to read nothing more; tell the offsets at which reading stands then.

        What is being persisted counts as read, since it will be. The pause ends by itself after
        `TaskOptions.pause_limit_ms`. The future raises Conflict if the end is agreed already.
        """
        return self._change(self._steering.pause, "pause")

    def resume(self) -> Future[None]:
        """Go on reading."""
        return self._change(self._steering.resume, "resume")

    def set_end_offsets(self, end: Offsets, *, finish: bool) -> Future[None]:
        """Close the open sequence at these offsets and resume; the task ends there if `finish`.

        The future raises InvalidRequest if the offsets do not fit.
        """
        return self._change(lambda: self._steering.set_end(end, finish=finish), "set end offsets")

    def stop(self) -> None:
        """Let `run` return soon. What is under way is done again by the next process."""
        with suppress(Closed):
            self._change(lambda: self._end(TaskResult(TaskState.RUNNING)), "stop")

    def _change(self, command: Callable[[], T], description: str) -> Future[T]:
        return self.processor.main_executor.submit_change(command, description)

    # The mailbox thread

    def _advance(self, controller: DefaultActionController) -> None:
        """Start what can be started, then wait for mail."""
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
        """End the task: its work cannot be done, or somebody else does it."""
        if not isinstance(error, PenstockError):
            # A bug of ours: let it end the loop with its story.
            raise error
        _log.error("task %s failed: %s", self._context.spec.id, error)
        self._end(TaskResult(TaskState.FAILED, str(error)))

    def _end(self, result: TaskResult) -> None:
        if self._result is None:
            self._result = result
        self.processor.all_actions_completed()
