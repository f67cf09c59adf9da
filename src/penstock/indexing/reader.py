"""The reading side of a streaming task: ask the broker what is there, have it persisted, commit.

One batch at a time. Each is preceded by a question to the broker, so it takes what arrived while
the one before was persisted. Part of the task, on its mailbox.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.core.errors import NotFound
from penstock.indexing.batches import Available, Batch, BatchLimits, next_batch
from penstock.indexing.commit import BadFile, Persist
from penstock.indexing.deadletters import in_reading_order
from penstock.indexing.engine import DataFile, PersistRequest, RowCounts, TopicRange

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.indexing.sequences import Offsets
    from penstock.indexing.taskstate import TaskContext


@dataclass(frozen=True, slots=True)
class _Persisted:
    """A persist whose files are durable."""

    files: tuple[DataFile, ...]
    counts: RowCounts
    bad_files: tuple[BadFile, ...]


class Reader:
    """Reads and persists.

    Args:
        context: The task.
        persisted: Told of each sequence that has new files.
    """

    def __init__(self, context: TaskContext, persisted: Callable[[str], None]) -> None:
        self._context = context
        self._persisted = persisted
        self._poll = context.errand("asking the broker", "broker")
        self._persist = context.errand("persisting", "persist")
        self._batch: Batch | None = None
        tuning = context.spec.tuning_config
        self._limits = BatchLimits(tuning.max_rows_per_persist, tuning.max_bytes_per_persist)

    @property
    def planned(self) -> Offsets:
        """Up to where everything is read, or is being read and will be: the next batch's start."""
        return self._batch.end if self._batch is not None else self._context.state.commit.current

    @property
    def trouble(self) -> str:
        """What it waits for, empty if nothing."""
        return self._persist.trouble or self._poll.trouble

    def advance(self) -> None:
        """Begin to look for the next batch unless there is nothing left to read."""
        state = self._context.state
        ended = all(s.is_read(self.planned) for s in state.sequences.items)
        if self._batch is None and not self._poll.busy and not ended:
            self._ask()

    def _ask(self) -> None:
        context, after = self._context, dict(self.planned)
        # Nothing beyond a closed sequence is wanted, but there is no harm in hearing of it.
        self._poll.start(
            lambda: context.ports.broker.available(
                context.spec.topic, after=after, wait_ms=context.options.poll_wait_ms
            ),
            self._consider,
        )

    def _consider(self, available: dict[int, Available]) -> None:
        context = self._context
        current = context.state.commit.current
        lost = {
            p: (current[p], a.earliest)
            for p, a in available.items()
            if p in current and current[p] < a.earliest
        }
        if lost:
            partition, (wanted, earliest) = next(iter(sorted(lost.items())))
            context.fail(
                NotFound(
                    f"topic {context.spec.topic}: stream partition {partition} is no longer kept"
                    f" from offset {wanted} on, only from {earliest}: reset the supervisor's"
                    " offsets, or set resetOffsetAutomatically"
                )
            )
            return
        if not context.paused:
            batch = next_batch(context.state.sequences, current, available, self._limits)
            if batch is not None:
                self._begin(batch, available)
        context.wake()

    def _begin(self, batch: Batch, available: dict[int, Available]) -> None:
        self._batch = batch
        ranges = tuple(
            TopicRange(p, available[p].folder, batch.start[p], batch.end[p])
            for p in sorted(batch.start)
            if batch.start[p] < batch.end[p]
        )
        self._persist.start(lambda: self._run(ranges), lambda result: self._commit(batch, result))

    def _run(self, ranges: tuple[TopicRange, ...]) -> _Persisted:
        """Persist and make durable; on the lane. Each try has folders of its own."""
        context = self._context
        spec, folder = context.spec, context.folder
        result = context.ports.engine.persist(
            PersistRequest(
                task_id=spec.id,
                topic=spec.topic,
                ranges=ranges,
                schema=spec.data_schema,
                output_folder=folder.new_folder("persist"),
                bad_folder=folder.new_folder("bad"),
                min_time_ms=spec.min_time_ms,
                max_time_ms=spec.max_time_ms,
            )
        )
        bad = in_reading_order(context.ports.fs, result.bad_files)
        sizes = folder.sync([*(file.path for file in result.files), *bad])
        return _Persisted(
            files=tuple(replace(file, bytes=sizes[file.path]) for file in result.files),
            counts=result.counts,
            bad_files=tuple(BadFile(path, sizes[path]) for path in bad),
        )

    def _commit(self, batch: Batch, result: _Persisted) -> None:
        state = self._context.state
        state.change_commit(
            state.commit.add(
                Persist(
                    number=state.commit.number + 1,
                    sequence=batch.sequence,
                    start=batch.start,
                    end=batch.end,
                    files=result.files,
                    counts=result.counts,
                    bad_files=result.bad_files,
                )
            )
        )
        self._batch = None
        self._persisted(batch.sequence)
        self._context.wake()
