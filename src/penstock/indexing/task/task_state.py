"""State of a running streaming task, and the context that its parts share.

Owns the order of disk and memory: a change is durable before memory shows it, so answers to other
processes never exceed the state after a restart. Belongs to the task's mailbox thread.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.backoff import RetryPolicy
from penstock.core.errors import CorruptData, PenstockError
from penstock.core.waits import WaitTable
from penstock.indexing.engine import RowCounts
from penstock.indexing.errand import CALL_RETRY, Errand
from penstock.indexing.sequences import Sequence, TaskSequences
from penstock.indexing.source import open_source
from penstock.indexing.stream_location import StreamLocation
from penstock.indexing.task.commit_file import CommitFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.clock import Clock
    from penstock.core.waits import DependencyWait
    from penstock.indexing.engine import IndexingEngine
    from penstock.indexing.ports import (
        ActionClient,
        BrokerPort,
        DeadLetterPort,
        DeepStorePort,
        Lanes,
    )
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.mailbox import MailboxProcessor
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
    dependencies that the task waits for, each time that they change.
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


class StreamTaskState:
    """Sequences and commit of one task, in memory as on disk.

    Args:
        spec: The spec of the task.
        folder: Its folder, which this process has locked.
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
        self.sequences = sequences
        self.commit = commit

    def change_commit(self, commit: CommitFile) -> None:
        """Make a commit durable, then make it the current one."""
        self._folder.write_commit(commit)
        self.commit = commit

    def change_sequences(self, sequences: TaskSequences) -> None:
        """Make sequences durable, then make them the current ones."""
        if sequences is not self.sequences:
            self._folder.write_sequences(sequences)
            self.sequences = sequences

    def mark_published(self, name: str) -> None:
        """Remove a sequence whose rows are committed in the metadata store.

        May be called again if a full disk interrupted it.
        """
        # In this order: the next start drops persists of an unknown sequence, but would read a
        # sequence without its persists again.
        if self.sequence(name) is not None:
            self.change_sequences(self.sequences.mark_published(name))
        self.change_commit(self.commit.without(name))

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
    """State, ports and mailbox of a task, and two callbacks, shared by its parts.

    Args:
        spec: The spec of the task.
        folder: Its folder.
        ports: Its ports.
        options: Its options.
        processor: Its mailbox.
        wake: Makes the default action check for work again.
        fail: Ends the task with an error.
    """

    def __init__(
        self,
        spec: StreamTaskSpec,
        folder: TaskFolder,
        ports: TaskPorts,
        options: TaskOptions,
        processor: MailboxProcessor,
        *,
        wake: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.spec = spec
        self.folder = folder
        self.ports = ports
        self.options = options
        self.processor = processor
        self.wake = wake
        self.fail = fail
        self.state = StreamTaskState(spec, folder)
        place = spec.place or StreamLocation(name=spec.topic)
        self.source = open_source(place, ports.broker, ports.fs, ports.clock)
        self.paused = False
        self.waits = WaitTable(ports.clock, lambda: ports.waits_changed(self.waits.all()))

    def errand(self, name: str, lane: str) -> Errand:
        """Return an errand on a lane; errors that a retry cannot fix end the task."""
        return Errand(
            name,
            lane,
            self.ports.lanes,
            self.processor,
            retry=self.options.retry,
            on_failure=self.fail,
            waits=self.waits,
        )

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
