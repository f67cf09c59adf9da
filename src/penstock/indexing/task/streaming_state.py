"""State of a running streaming task, and the context that its parts share.

Owns the order of disk and memory: a change is durable before memory shows it, so answers to other
processes never exceed the state after a restart. The parts of the task report events of its
sequences here; `StreamTaskState` saves the results, and queues the other effects for the task.
Belongs to the task's mailbox thread.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import CorruptData, PenstockError
from penstock.core.waits import WaitTable
from penstock.indexing.engine import RowCounts
from penstock.indexing.ports import TaskState
from penstock.indexing.sequences import (
    Sequence,
    SequenceEffect,
    SequenceEvent,
    SequenceStep,
    TaskSequences,
)
from penstock.indexing.source import open_source
from penstock.indexing.stream_location import StreamLocation
from penstock.indexing.task.commit_file import CommitFile
from penstock.mailbox.background_calls import CALL_RETRY, BackgroundCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.engine import DataFile, IndexingEngine
    from penstock.indexing.ports import (
        ActionClient,
        BrokerPort,
        DeadLetterPort,
        DeepStorePort,
    )
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.commit_file import Persist
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.mailbox import MailboxProcessor, Suspension
    from penstock.mailbox.lanes import Lanes
    from penstock.storage.filesystem import FileSystem


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Options of a task that are not part of its spec.

    Attributes:
        poll_wait_ms: How long the broker may hold a poll until new messages arrive.
        missing_wait_ms: Time between two checks for missing messages.
        pause_limit_ms: Time after which a pause ends by itself.
        checkpoint_repeat_ms: Time between two reports of a full sequence.
        drop_delay_ms: How long files are kept after queries are no longer sent to them.
        fold_fan_in: Number of small persists that are merged into one.
        fold_max_rows: Larger merges are left to the publish.
        retry: Delays between attempts when a service does not answer.
    """

    poll_wait_ms: int = 500
    missing_wait_ms: int = 30_000
    pause_limit_ms: int = 60_000
    checkpoint_repeat_ms: int = 30_000
    drop_delay_ms: int = 30_000
    fold_fan_in: int = 12
    fold_max_rows: int = 1_000_000
    retry: RetryPolicy = CALL_RETRY


@dataclass(frozen=True, slots=True)
class TaskPorts:
    """The ports of a streaming task.

    `new_token` returns unique texts, such as random ones. `waits_changed` is called with the
    dependencies that the task waits for, whenever they change.
    """

    engine: IndexingEngine
    broker: BrokerPort
    dead_letters: DeadLetterPort
    actions: ActionClient
    deep_store: DeepStorePort
    fs: FileSystem
    lanes: Lanes
    clock: Clock
    new_token: Callable[[], str]
    waits_changed: Callable[[tuple[DependencyWait, ...]], None] = lambda _waits: None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task. RUNNING: it was stopped, and continues when it is restarted."""

    state: TaskState
    error: str = ""


@dataclass(frozen=True, slots=True)
class StreamTaskEffect:
    """An effect of an event of a sequence that the task must carry out.

    Attributes:
        kind: The effect.
        sequence: The name of the sequence.
        old_files: Files that the event replaced.
        new_files: Files that it made.
    """

    kind: SequenceEffect
    sequence: str
    old_files: tuple[str, ...] = ()
    new_files: tuple[str, ...] = ()


_SAVES = (SequenceEffect.SAVE_SEQUENCES, SequenceEffect.SAVE_COMMIT)


class StreamTaskState:
    """Sequences and commit of one task, in memory as on disk.

    Args:
        spec: The spec of the task.
        folder: Its folder, which this process has locked.

    Attributes:
        sequences: Its sequences that are not published.
        commit: Its persisted work.
        effects: Effects that the task has not carried out yet, in order.
    """

    def __init__(self, spec: StreamTaskSpec, folder: TaskFolder) -> None:
        self._folder = folder
        sequences = _restore_sequences(spec, folder)
        names = {sequence.name for sequence in sequences.items} if sequences else set()
        commit = folder.restore_commit(names)
        if sequences is None:
            sequences = TaskSequences.begin(
                spec.base_sequence_name, spec.start_offsets, spec.end_offsets, spec.checkpoints
            )
            folder.write_sequences(sequences)
        if commit is None:
            start = sequences.items[0].start if sequences.items else sequences.final or {}
            commit = CommitFile(0, dict(start), topic_id=spec.topic_id)
            folder.write_commit(commit)
        self.sequences = sequences.reached(commit.current)
        self.commit = commit
        self.effects: deque[StreamTaskEffect] = deque()
        tuning = spec.tuning_config
        self._rows_limits = tuning.max_rows_per_segment, tuning.max_total_rows
        for sequence in sequences.items:
            self._follow(sequence.name, self.sequences.on(sequence.name, SequenceEvent.STARTED))

    def change_commit(self, commit: CommitFile) -> None:
        """Make a commit durable, then make it the current one."""
        self._folder.write_commit(commit)
        self.commit = commit

    # Events of sequences. Each raises what a failed write raises; then nothing has changed.

    def persisted(self, persist: Persist) -> None:
        """Messages of a sequence are persisted."""
        name, commit = persist.sequence, self.commit.add(persist)
        self._follow(name, self.sequences.on(name, SequenceEvent.PERSISTED), commit)
        self.report_full()

    def report_full(self) -> None:
        """Report whether the newest sequence has as many rows as it should."""
        last = self.sequences.last
        if last is not None and self.commit.is_full(last.name, *self._rows_limits):
            self._follow(last.name, self.sequences.on(last.name, SequenceEvent.FULL))

    def merged(self, run: tuple[Persist, ...], files: tuple[DataFile, ...]) -> None:
        """Small files of a sequence are merged."""
        name = run[0].sequence
        old = {file.path for persist in run for file in persist.files}
        new = {file.path for file in files}
        step = self.sequences.on(name, SequenceEvent.MERGED)
        commit = None
        if SequenceEffect.SAVE_COMMIT in step.effects:
            commit = self.commit.fold(run, files)
            assert commit is not None, "only the publish of a sequence removes its persists"
        self._follow(name, step, commit, tuple(old - new), tuple(new - old))

    def set_end_offsets(
        self, end: Offsets, *, finish: bool, current: Offsets, paused: bool
    ) -> None:
        """The end of the open sequence is set; see `TaskSequences.set_end_offsets`."""
        last = self.sequences.last
        step = self.sequences.set_end_offsets(end, finish=finish, current=current, paused=paused)
        self._follow("" if last is None else last.name, step)

    def stream_lost(self) -> None:
        """The stream is lost: the task ends at its persisted offsets."""
        self._follow("", self.sequences.cut(self.commit.current))

    def ready(self, name: str) -> None:
        """The oldest sequence may be published."""
        self._follow(name, self.sequences.on(name, SequenceEvent.READY))

    def published(self, name: str, old: tuple[str, ...], new: tuple[str, ...]) -> None:
        """The rows of a sequence are committed in the metadata store.

        Args:
            name: The sequence.
            old: Its files, which queries may still read.
            new: Files that only the publish needed.
        """
        step = self.sequences.on(name, SequenceEvent.PUBLISHED)
        self._follow(name, step, self.commit.without(name), old, new)

    def _follow(
        self,
        name: str,
        step: SequenceStep,
        commit: CommitFile | None = None,
        old: tuple[str, ...] = (),
        new: tuple[str, ...] = (),
    ) -> None:
        """Save the result of an event, make it current, and queue the other effects."""
        commit = commit or self.commit
        if SequenceEffect.SAVE_SEQUENCES in step.effects:
            self._folder.write_sequences(step.sequences)
        if SequenceEffect.SAVE_COMMIT in step.effects:
            self._folder.write_commit(commit)
        self.sequences = step.sequences.reached(commit.current)
        self.commit = commit
        others = (kind for kind in step.effects if kind not in _SAVES)
        self.effects.extend(StreamTaskEffect(kind, name, old, new) for kind in others)

    @property
    def counts(self) -> RowCounts:
        """Counts of rows, published or not."""
        total = self.commit.published
        for name in self.commit.sequence_names():
            total = total.plus(self.commit.counts(name))
        return total

    def sequence(self, name: str) -> Sequence | None:
        """Return an unpublished sequence by name, or None."""
        return next((s for s in self.sequences.items if s.name == name), None)


def _restore_sequences(spec: StreamTaskSpec, folder: TaskFolder) -> TaskSequences | None:
    sequences = folder.restore_sequences()
    if sequences is not None and sequences.base_name != spec.base_sequence_name:
        raise CorruptData(
            f"{folder.path}/sequences.json",
            0,
            f"it belongs to {sequences.base_name}, but the task is {spec.base_sequence_name}",
        )
    return sequences


class StreamTaskParts:
    """State, ports and mailbox of a task, and its result, shared by its parts.

    Args:
        spec: The spec of the task.
        folder: Its folder.
        ports: Its ports.
        options: Its options.
        processor: Its mailbox.

    Attributes:
        state: Its sequences and commit.
        source: Its stream.
        paused: Whether it is paused.
        waits: Dependencies that it waits for.
        suspension: The suspension of its default action, if any.
        result: Its result, once it ends.
    """

    def __init__(
        self,
        spec: StreamTaskSpec,
        folder: TaskFolder,
        ports: TaskPorts,
        options: TaskOptions,
        processor: MailboxProcessor,
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.ports = ports
        self.options = options
        self.processor = processor
        self.state = StreamTaskState(spec, folder)
        place = spec.place or StreamLocation(name=spec.topic)
        self.source = open_source(place, ports.broker, ports.fs, ports.clock)
        self.paused = False
        self.waits = WaitTable(ports.clock, lambda: ports.waits_changed(self.waits.all()))
        self.suspension: Suspension | None = None
        self.result: TaskResult | None = None

    def background_call(self, name: str, lane: str) -> BackgroundCall:
        """Return a background call on a lane."""
        return BackgroundCall(
            name,
            lane,
            self.ports.lanes,
            self.processor,
            retry=self.options.retry,
            waits=self.waits,
        )

    def wake(self) -> None:
        """Make the default action check for work again."""
        if self.suspension is not None:
            self.suspension.resume()

    def fail(self, error: Exception) -> None:
        """End the task: its work cannot be done, or another task does it."""
        if not isinstance(error, PenstockError):
            # A bug in Penstock: let it end the loop with its traceback.
            raise error
        _log.error("task %s failed: %s", self.spec.id, error)
        self.end(TaskResult(TaskState.FAILED, str(error)))

    def end(self, result: TaskResult) -> None:
        """End the task; the first result counts."""
        if self.result is None:
            self.result = result
        self.processor.all_actions_completed()

    def drop(self, paths: Iterable[str]) -> None:
        """Delete unused files; those that cannot be deleted now are deleted at the next start."""
        try:
            self.folder.delete(paths)
        except PenstockError as error:
            _log.warning("task %s: cannot delete files: %s", self.spec.id, error)

    def drop_later(self, paths: Iterable[str]) -> None:
        """Delete files once the queries that may still read them have ended."""
        doomed = list(paths)
        if doomed:
            self.processor.timers.schedule_after(
                self.options.drop_delay_ms, lambda: self.drop(doomed), "drop files"
            )
