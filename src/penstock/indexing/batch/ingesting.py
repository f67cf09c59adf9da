"""A batch task that writes segments: lock, write, lock what the rows tell, publish.

    locked     the intervals that the spec names
    written    one call of the engine for each job; ``written-N.json`` is the memory of it, which
               counts as long as what the task replaces shows the same segments;
               ``losses-N.json`` says how often that was tried in vain
    covered    the time chunks that only the rows told are locked too
    placed     ``publish.json`` says what is published: from here on nothing is looked up anew, as a
               publish that went through has changed what is visible
    published  all jobs in one transaction, or the task failed and its files are the janitor's

A peon that dies is started again in the folder: what is written down is not done again, and the
publish is known by the task's id. Locks are held before the write where the spec names intervals,
and before the publish always, so no two tasks publish the same time under one version; or, where
the context asks for that and what is there allows it, no two the same segments.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.core.intervals import condensed
from penstock.indexing.actions import PublishSegments, SegmentAllocate
from penstock.indexing.batch.engine import BatchRequest, Unparseable
from penstock.indexing.batch.insisting import Insistence, Losses, Stopped
from penstock.indexing.batch.job import publish_kind
from penstock.indexing.batch.locks.claiming import LockingSpec, TaskLocks
from penstock.indexing.batch.placing import (
    SegmentForm,
    appended,
    empty_chunks,
    replacing,
    rewriting,
    tombstones,
)
from penstock.indexing.batch.progress import TaskProgress, shown_wait
from penstock.indexing.batch.reading import TaskReading, digest
from penstock.indexing.batch.written import Written
from penstock.indexing.engine import RowCounts
from penstock.indexing.ports import TaskState
from penstock.indexing.spec.context import IngestionMode
from penstock.indexing.task import TaskResult
from penstock.indexing.task.parsing import LOGGED_MAX, tell
from penstock.indexing.worker.peontask import IngestionState
from penstock.segments.model import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.intervals import Interval
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batch.engine import ParseError
    from penstock.indexing.batch.job import Job
    from penstock.indexing.batch.ports import BatchPorts
    from penstock.indexing.task.folder import TaskFolder
    from penstock.indexing.worker.peontask import IngestionReport
    from penstock.storage.metadata import SegmentRow
    from penstock.storage.metadata.rows import PublishKind

_log = logging.getLogger(__name__)

_TOMBSTONES_MAX: Final = 100_000
_PUBLISH: Final = "publish.json"
# In that file: of which input it was written.
_READ: Final = "read"


class IngestSpec(LockingSpec, Protocol):
    """What is needed of the spec of a task that writes segments."""

    @property
    def datasource(self) -> str:
        """Where its rows go."""
        ...


class IngestTask:
    """One task that writes segments. On its own thread, but for `stop` and `report`.

    Args:
        spec: What the task is.
        wanted: What it locks before it writes.
        plan: Says what is to be written, once that is locked: the same jobs each time it is asked.
        folder: Its folder, which this process has locked.
        ports: What it works with.
    """

    def __init__(
        self,
        spec: IngestSpec,
        wanted: Iterable[Interval],
        plan: Callable[[TaskReading], Sequence[Job]],
        folder: TaskFolder,
        ports: BatchPorts,
    ) -> None:
        self._spec = spec
        self._wanted = tuple(condensed(wanted))
        self._plan = plan
        self._folder = folder
        self._ports = ports
        self._progress = TaskProgress()
        self._insistence = Insistence(ports.actions, ports.clock, told=self._tried)
        self._locks = TaskLocks(
            *(spec, ports, self._insistence),
            visible=lambda intervals: self._reading.visible(spec.datasource, intervals),
        )
        self._reading = TaskReading(spec.datasource, self._locks, self._insistence, ports.store)

    # Any thread

    def stop(self) -> None:
        """Have `run` return soon; the task goes on when it is started again."""
        self._insistence.stop()
        self._ports.engine.cancel(self._spec.id)

    def report(self) -> IngestionReport:
        """Tell how it stands."""
        return self._progress.report()

    # The task's thread

    def _tried(self, wait: DependencyWait | None) -> None:
        self._progress.tries(wait)
        self._ports.waits_changed(() if wait is None else (shown_wait(wait),))

    def run(self) -> TaskResult:
        """Run to the end and say how it ended."""
        try:
            published = self._run()
        except PenstockError as error:
            # The engine's call was cut by `stop`, and that is no failure of the task.
            if isinstance(error, Stopped) or self._insistence.is_stopped:
                return TaskResult(TaskState.RUNNING)
            self._progress.failed(str(error))
            return TaskResult(TaskState.FAILED, str(error))
        hide = [one.interval for one in map(Segment.from_row, published) if one.is_tombstone]
        text = self._progress.published(len(published), condensed(hide))
        _log.info("task %s: %s", self._spec.id, text)
        return TaskResult(TaskState.SUCCESS)

    def _run(self) -> Sequence[SegmentRow]:
        publish = self._find_publish() or self._prepare()
        if publish is None:
            return ()
        self._publish(publish)
        return publish.segments

    def _prepare(self) -> PublishSegments | None:
        """Do all that comes before the publish; None: there is nothing to publish."""
        self._progress.state(IngestionState.DETERMINE_PARTITIONS)
        if self._wanted:
            self._locks.cover(self._wanted)
        jobs = self._plan(self._reading)
        self._progress.state(IngestionState.BUILD_SEGMENTS)
        done = [(job, self._write(number, job)) for number, job in enumerate(jobs)]
        segments, kind, overwritten = self._place(done)
        if not segments:
            return None
        counts = RowCounts()
        for _, written in done:
            counts = counts.plus(written.counts)
        publish = PublishSegments(
            sequence_name=self._spec.id,
            segments=tuple(segment.to_row() for segment in segments),
            start=None,
            end=None,
            counts=counts,
            kind=kind,
            basis=self._reading.basis,
            overwritten=overwritten,
        )
        self._folder.write_json(_PUBLISH, {**publish.to_json(), _READ: self._reading.trial()})
        return publish

    def _find_publish(self) -> PublishSegments | None:
        """Return what an earlier peon was about to publish, if it came that far."""
        value = self._folder.read_json(_PUBLISH)
        if value is None:
            return None
        self._progress.state(IngestionState.BUILD_SEGMENTS)
        publish = self._in_current_form(PublishSegments.from_json(value))
        for number in itertools.count():
            read = value.get(_READ, digest(publish.basis))
            written = Written.find(self._folder, number, str(read))
            if written is None:
                break
            self._progress.wrote(written.counts, written.parse_errors, written.rows)
        return publish

    def _in_current_form(self, publish: PublishSegments) -> PublishSegments:
        """Return a publish that was written down, by an earlier release perhaps, as of today."""
        current = self._ports.store.current

        def with_current_load_spec(row: SegmentRow) -> SegmentRow:
            load_spec = row.payload.get("loadSpec")
            if not isinstance(load_spec, Mapping):
                return row
            payload = {**row.payload, "loadSpec": dict(current(load_spec))}
            return dataclasses.replace(row, payload=payload)

        rows = tuple(with_current_load_spec(row) for row in publish.segments)
        return dataclasses.replace(publish, segments=rows)

    def _write(self, number: int, job: Job) -> Written:
        read = self._reading.trial()
        known = Written.find(self._folder, number, read)
        if known is not None:
            known = known.rebased(self._ports.store.rebased)
        else:
            known = self._insist_on(number, job)
            known.keep(self._folder, number, read)
        self._progress.wrote(known.counts, known.parse_errors, known.rows)
        return known

    def _insist_on(self, number: int, job: Job) -> Written:
        losses = Losses(self._ports.chance, self._folder, number)
        try:
            return self._insistence.call(
                "writing segments", lambda: self._try_to_write(job), losses.note
            )
        except Unparseable as error:  # narrow: reports
            # Its report shows what the task failed for, as of one that bears it.
            samples = error.samples[: job.parse_errors_saved]
            _tell(job, error.samples, error.count)
            self._progress.wrote(RowCounts(unparseable=error.count), samples)
            raise

    def _try_to_write(self, job: Job) -> Written:
        # A folder that was never given before: what a lost engine still writes is not ours.
        spec, ports = self._spec, self._ports
        # Engines make the folders that they write to, also below a mount point without its disk.
        ports.store.probe()
        result = ports.engine.write(
            BatchRequest(
                task_id=spec.id,
                schema=job.schema,
                input=job.input,
                intervals=job.intervals,
                partitioning=job.partitioning,
                output_folder=ports.store.attempt_folder(
                    spec.datasource, spec.id, ports.new_token()
                ),
                parse_errors_max=job.parse_errors_max,
                parse_errors_saved=max(
                    LOGGED_MAX if job.tells_parse_errors else 1, job.parse_errors_saved
                ),
                combines=job.combines,
            ),
            self._progress,
        )
        _tell(job, result.parse_errors, result.counts.unparseable)
        errors = result.parse_errors[: job.parse_errors_saved]
        return Written.of(dataclasses.replace(result, parse_errors=errors))

    # From files to segments

    def _place(
        self, done: Sequence[tuple[Job, Written]]
    ) -> tuple[list[Segment], PublishKind, tuple[str, ...]]:
        """Return what is published, how, and which segments it rewrites."""
        if self._spec.mode is IngestionMode.APPEND:
            segments = [s for job, written in done for s in self._append(job, written)]
            return segments, publish_kind(self._locks.types()), ()
        chunks = [file.data.interval for _, written in done for file in written.files]
        self._locks.cover_written(chunks)
        if self._locks.by_segment:
            return self._place_beside(done)
        if not chunks and not self._wanted:
            return [], "insert", ()
        locks = self._locks.lock([*self._wanted, *chunks])
        segments = []
        for job, written in done:
            form = self._form(job)
            segments += replacing(form, written, locks.version_of)
            if job.mode is IngestionMode.REPLACE:
                empty = self._empty_chunks(job, written)
                segments += tombstones(form, empty, locks.version_of)
        return segments, publish_kind(locks.types), ()

    def _place_beside(
        self, done: Sequence[tuple[Job, Written]]
    ) -> tuple[list[Segment], PublishKind, tuple[str, ...]]:
        """Return what is published as `_place` does, where segments are rewritten one by one.

        Where there were none, two tasks would not see each other: such time chunks are locked.
        """
        segments: list[Segment] = []
        overwritten: set[str] = set()
        rewrites = self._locks.rewrites
        for job, written in done:
            form = self._form(job)
            old = written.of_chunks(rewrites.__contains__)
            new = written.of_chunks(lambda chunk: chunk not in rewrites)
            if new.files:
                locks = self._locks.lock([file.data.interval for file in new.files])
                segments += replacing(form, new, locks.version_of)
            if not old.files:
                continue
            intervals = tuple(file.data.interval for file in old.files)
            action = SegmentAllocate(self._spec.id, intervals, by_segment=True, rewrites=True)
            places = self._insistence.ask("asking for places", action)
            segments += rewriting(form, old, rewrites, places)
            overwritten.update(*(rewrites[interval].ids for interval in intervals))
        return segments, "insert", tuple(sorted(overwritten))

    def _append(self, job: Job, written: Written) -> list[Segment]:
        if not written.files:
            return []
        intervals = tuple(file.data.interval for file in written.files)
        by_segment = self._locks.by_segment
        if by_segment:
            self._locks.check_count(len(intervals))
        else:
            # Places are asked for as long as it takes, locks no longer than taskLockTimeout: who
            # is in the way may wait for the very slot that this task has.
            self._locks.lock(intervals)
        action = SegmentAllocate(self._spec.id, intervals, by_segment=by_segment)
        places = self._insistence.ask("asking for places", action)
        return appended(self._form(job), written, places)

    def _form(self, job: Job) -> SegmentForm:
        return SegmentForm(
            self._spec.datasource,
            self._ports.store.load_spec_of,
            job.partitioning,
            job.compaction_state,
            job.rollup or job.schema.rollup_json(),
        )

    def _empty_chunks(self, job: Job, written: Written) -> list[Interval]:
        """Return the time chunks of the intervals that show rows now and got none."""
        shown = [
            one.interval for one in self._reading.visible(self._spec.datasource, job.intervals)
        ]
        buckets: Iterator[Interval] = itertools.chain.from_iterable(
            map(job.granularity.buckets, condensed(shown))
        )
        chunks = list(itertools.islice(dict.fromkeys(buckets), _TOMBSTONES_MAX + 1))
        if len(chunks) > _TOMBSTONES_MAX:
            raise InvalidRequest(
                f"more than {_TOMBSTONES_MAX} time chunks would have to be hidden one by one:"
                " replace a shorter interval, or take a larger segmentGranularity"
            )
        return empty_chunks(chunks, (file.data.interval for file in written.files), shown)

    # The second phase

    def _publish(self, action: PublishSegments) -> None:
        outcome = self._insistence.ask("publishing", action)
        if outcome.ok or outcome.already_published:
            return
        # The files are the janitor's: a peon that dies here asks once more, and may be heard then.
        raise Conflict(f"its segments were not published: {outcome.reason}")


def _tell(job: Job, errors: Sequence[ParseError], count: int) -> None:
    """Write into the log which rows could not be parsed, if the spec says so."""
    if job.tells_parse_errors:
        tell([f"{one.place}: {one.reason}: {one.row!r}" for one in errors[:LOGGED_MAX]], count)
