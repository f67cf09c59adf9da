"""Publishing of a sequence: merge, divide, allocate, push, commit.

If segments of finer time chunks than the task's are visible, its files are divided by them.

Blocking; runs on a lane. A publish may be interrupted anywhere, by an error that is retried or by
the end of the process. Within one process it continues where it stopped; a new process starts
again, and the offsets in the transaction ensure that the rows are committed once. Invariants:

- the parts of a sequence are derived from its files and the visible time chunks, so a repeated
  publish requests the same segment ids;
- pushed files of a refused publish are deleted; files that an interrupted or otherwise failed
  publish has pushed are orphans, which the janitor deletes;
- a file whose length differs from its recorded length is never published.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Conflict, CorruptData, Unavailable
from penstock.core.intervals import condensed
from penstock.indexing.actions import (
    AllocatedSegment,
    LockList,
    LockRelease,
    PublishSegments,
    RetrieveSegmentsById,
    SegmentAllocate,
    SegmentDivision,
)
from penstock.indexing.engine import DataFile, DivideRequest, MergeRequest, RowCounts
from penstock.segments.segment import Segment, SegmentId, ShardSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock.core.intervals import Interval
    from penstock.indexing.engine import IndexingEngine
    from penstock.indexing.ports import ActionClient, DeepStorePort
    from penstock.indexing.sequences import Offsets
    from penstock.indexing.task.streaming_state import StreamTaskParts
    from penstock.indexing.task_spec import StreamTaskSpec
    from penstock.segments.deep_storage import PushedFile

_ADOPT_ROWS: Final = 250_000
"""A file with this many rows is a segment of good size, which merging would not improve."""
_DIVISIONS_MAX: Final = 5
"""How many times a publish is divided again because others published there concurrently."""


@dataclass(frozen=True, slots=True)
class PublishJob:
    """The part of a sequence to publish: offsets and topic, the files of the rows, counts."""

    sequence_name: str
    start: Offsets
    end: Offsets
    files: tuple[DataFile, ...]
    counts: RowCounts
    topic_id: str


@dataclass(frozen=True, slots=True)
class PublishTools:
    """Tools of a publish. `new_folder` returns a folder that was never used."""

    engine: IndexingEngine
    actions: ActionClient
    deep_store: DeepStorePort
    new_folder: Callable[[], str]
    new_token: Callable[[], str]


class PublishRefused(Conflict):
    """The transaction was refused permanently: other tasks have moved the committed offsets."""


@dataclass(slots=True)
class _Part:
    """A future segment: the interval of its rows, its file, its id, its location once pushed."""

    times: Interval
    file: DataFile
    place: AllocatedSegment | None = None
    pushed: PushedFile | None = None


def plan_parts(
    files: Iterable[DataFile], max_rows: int
) -> list[tuple[Interval, tuple[DataFile, ...]]]:
    """Return the files that become one segment each, by time chunk.

    A large file becomes a segment unchanged; small ones of a chunk are merged, up to `max_rows`.
    """
    chunks: dict[Interval, list[DataFile]] = {}
    for file in files:
        chunks.setdefault(file.interval, []).append(file)
    parts: list[tuple[Interval, tuple[DataFile, ...]]] = []
    for interval in sorted(chunks):
        small: list[DataFile] = []
        for file in chunks[interval]:
            if file.rows >= min(_ADOPT_ROWS, max_rows):
                parts.append((interval, (file,)))
                continue
            if small and sum(f.rows for f in small) + file.rows > max_rows:
                parts.append((interval, tuple(small)))
                small = []
            small.append(file)
        if small:
            parts.append((interval, tuple(small)))
    return parts


class SequencePublish:
    """One publish; call `run` again, on one thread at a time, while it raises `Unavailable`.

    Args:
        task: The task of the sequence.
        job: The part of the sequence to publish.
        tools: The tools.
    """

    def __init__(self, task: StreamTaskSpec, job: PublishJob, tools: PublishTools) -> None:
        self._task = task
        self._job = job
        self._tools = tools
        # Two publishes of one sequence, before and after a crash, must not write the same files.
        self._unique = tools.new_token()
        # The merged files, from the start of the plan; then the files of one segment each.
        self._merged: list[DataFile] = []
        self._parts: list[_Part] | None = None
        self._divisions = 0
        self._made: list[str] = []

    def run(self) -> tuple[str, ...]:
        """Publish, continuing an interrupted run; return the files it created, for deletion.

        Raises:
            Unavailable: A service does not answer, or an earlier sequence must publish first.
            PublishRefused: Other tasks published these offsets differently, or they were reset.
            LockRevoked: The overlord regards the task as ended.
            EngineFailure: The files could not be merged.
            CorruptData: A file differs from the written one.
        """
        plan = plan_parts(self._job.files, self._task.tuning_config.max_rows_per_segment)
        for interval, files in plan[len(self._merged) :]:
            self._merged.append(files[0] if len(files) == 1 else self._merge(interval, files))
        if self._parts is None:
            times = self._division([interval for interval, _ in plan])
            pairs = zip(plan, self._merged, strict=True)
            self._parts = [p for (i, _), file in pairs for p in self._divide(file, times[i])]
        self._allocate(self._parts)
        self._commit([self._push(part) for part in self._parts])
        return tuple(self._made)

    def _merge(self, interval: Interval, files: tuple[DataFile, ...]) -> DataFile:
        request = MergeRequest(
            task_id=self._task.id,
            interval=interval,
            files=files,
            schema=self._task.data_schema,
            output_folder=self._tools.new_folder(),
        )
        file = self._tools.engine.merge(request)
        self._made.append(file.path)
        return file

    def _division(self, intervals: Iterable[Interval]) -> dict[Interval, tuple[Interval, ...]]:
        """Return the intervals of each time chunk that must not share a segment."""
        wanted = tuple(dict.fromkeys(intervals))
        found = self._tools.actions.perform(SegmentDivision(wanted)) if wanted else ()
        return dict(zip(wanted, found, strict=True))

    def _divide(self, file: DataFile, times: tuple[Interval, ...]) -> list[_Part]:
        inside = [
            part
            for part in times
            if part.start_ms <= file.max_time_ms and file.min_time_ms < part.end_ms
        ]
        if len(inside) == 1:
            return [_Part(inside[0], file)]
        request = DivideRequest(
            task_id=self._task.id,
            file=file,
            times=tuple(inside),
            schema=self._task.data_schema,
            output_folder=self._tools.new_folder(),
        )
        pieces = self._tools.engine.divide(request)
        self._made += [piece.path for piece in pieces]
        return [_Part(piece.interval, piece) for piece in pieces]

    def _allocate(self, parts: list[_Part]) -> None:
        if not parts or parts[0].place is not None:
            return
        action = SegmentAllocate(self._job.sequence_name, tuple(part.times for part in parts))
        try:
            places = self._tools.actions.perform(action)
        except Conflict as error:  # narrow: only a conflict divides the files again
            self._divisions += 1
            if self._divisions == _DIVISIONS_MAX:
                raise
            self._parts = None
            raise Unavailable(f"other segments were published meanwhile: {error}") from error
        for part, place in zip(parts, places, strict=True):
            part.place = place

    def _push(self, part: _Part) -> Segment:
        assert part.place is not None
        file, place = part.file, part.place
        name = SegmentId(
            self._task.datasource, place.interval, place.version, place.partition_number
        )
        if part.pushed is None:
            part.pushed = self._pushed(file, name)
        schema = self._task.data_schema
        metrics = tuple(metric.name for metric in schema.metrics)
        dimensions = tuple(dimension.name for dimension in schema.dimensions)
        if schema.dimensions_spec.discovers:
            # The columns of a file are those that were found in its messages.
            dimensions = tuple(name for name, _ in file.columns[1:] if name not in metrics)
        return Segment(
            datasource=name.datasource,
            interval=name.interval,
            version=name.version,
            load_spec=part.pushed.load_spec,
            shard_spec=ShardSpec(place.partition_number, place.core_partitions),
            size=part.pushed.size,
            total_rows=file.rows,
            dimensions=dimensions,
            metrics=metrics,
            columns=file.columns,
            rollup=schema.rollup_json(),
        )

    def _pushed(self, file: DataFile, name: SegmentId) -> PushedFile:
        """Push a file, and refuse one that was truncated since it was written.

        Once the offsets have moved, its events are never read again.
        """
        pushed = self._tools.deep_store.push(file.path, name, self._unique)
        if pushed.size != file.bytes:
            self._tools.deep_store.kill(pushed.load_spec)
            raise CorruptData(
                file.path,
                pushed.size,
                f"it was written with {file.bytes} bytes. The next task reads its events again;"
                " check the disk",
            )
        return pushed

    def _commit(self, segments: list[Segment]) -> None:
        job = self._job
        if not segments and dict(job.start) == dict(job.end):
            return
        outcome = self._tools.actions.perform(
            PublishSegments(
                sequence_name=job.sequence_name,
                segments=tuple(segment.to_row() for segment in segments),
                start=job.start,
                end=job.end,
                counts=job.counts,
                topic_id=job.topic_id,
            )
        )
        if outcome.ok:
            return
        if outcome.retryable:
            raise Unavailable(outcome.reason)
        self._delete_unpublished(segments)
        if not outcome.already_published:
            raise PublishRefused(
                f"sequence {job.sequence_name} was refused: {outcome.reason}. The next task reads"
                " its rows again from the committed offsets"
            )

    def _delete_unpublished(self, segments: list[Segment]) -> None:
        """Delete the pushed files that no published segment refers to.

        The transaction may have been committed although its answer was lost, so this checks first.
        """
        ids = tuple(str(segment.id) for segment in segments)
        rows = self._tools.actions.perform(RetrieveSegmentsById(ids)) if ids else ()
        published = [Segment.from_row(row).load_spec for row in rows]
        for segment in segments:
            if segment.load_spec not in published:
                self._tools.deep_store.kill(segment.load_spec)


def release_locks(actions: ActionClient, needed: Iterable[Interval]) -> None:
    """Release the locks of a task except those that overlap intervals which it needs.

    Raises:
        LockRevoked: The overlord regards the task as ended.
        Unavailable: The overlord does not answer.
    """
    kept = condensed(needed)
    held = dict.fromkeys(lock.interval for lock in actions.perform(LockList()))
    for interval in held:
        if not any(interval.overlaps(one) for one in kept):
            actions.perform(LockRelease(interval))


class SequencePublisher:
    """Publishes the sequences of a task, the oldest first. Part of the task, on its mailbox.

    With `releaseLocksOnHandoff` the locks of a sequence are released when it is published, except
    those of time chunks in which other rows of the task wait to be published. The release runs
    before the next publish, never concurrently with it, because it would also release the locks
    that the publish has just acquired. A task that was interrupted before releases them at its
    start.

    Args:
        context: The task.
    """

    def __init__(self, context: StreamTaskParts) -> None:
        self._context = context
        self._call = context.background_call("publishing", "merge")
        ports = context.ports
        self._tools = PublishTools(
            engine=ports.engine,
            actions=ports.actions,
            deep_store=ports.deep_store,
            new_folder=lambda: context.folder.new_folder("merge"),
            new_token=ports.new_token,
        )
        self._may_release = context.spec.tuning_config.release_locks_on_handoff

    @property
    def last_error(self) -> str:
        """The last error, empty if none."""
        return self._call.last_error

    @property
    def is_free(self) -> bool:
        """Whether it may publish now."""
        return not self._call.busy and not self._may_release

    def advance(self) -> None:
        """Release locks that are no longer needed."""
        if self._may_release and not self._call.busy:
            commit, actions = self._context.state.commit, self._tools.actions
            waiting = [f.interval for name in commit.sequence_names() for f in commit.files(name)]
            self._may_release = False
            self._call.start(
                lambda: release_locks(actions, waiting), self._released, self._context.fail
            )

    def release_locks(self) -> None:
        """Before the next publish, release the locks of a published sequence if requested."""
        self._may_release = self._context.spec.tuning_config.release_locks_on_handoff

    def publish(self, name: str) -> None:
        """Publish a sequence, whose end is known."""
        sequence, commit = self._context.state.sequence(name), self._context.state.commit
        assert sequence is not None, f"{name} was published"
        assert sequence.end is not None, f"{name} is open"
        job = PublishJob(
            sequence_name=name,
            start=sequence.start,
            end=sequence.end,
            files=commit.files(name),
            counts=commit.counts(name),
            topic_id=commit.topic_id,
        )
        publish = SequencePublish(self._context.spec, job, self._tools)
        self._call.start(
            publish.run, lambda merged: self._published(job, merged), self._context.fail
        )

    def _released(self, _nothing: None) -> None:
        self._context.wake()

    def _published(self, job: PublishJob, merged: tuple[str, ...]) -> None:
        files = tuple(file.path for file in job.files)
        self._context.state.published(job.sequence_name, files, merged)
        self._context.wake()
