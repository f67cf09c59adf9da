"""Batch task that writes segments: `index_parallel`, SQL INSERT and REPLACE, and compaction.

`IngestTask` owns the steps of a task. Its plan has the jobs to write: `ingest_plans` has those of
`index_parallel` and of SQL, `compact_plan` those of a compaction.

    locked     the intervals that the spec names
    written    one engine call for each job; ``written-N.json`` records its result, valid
               while the segments that the task replaces are unchanged;
               ``losses-N.json`` counts the failed attempts
    covered    time chunks that are known only from the rows are locked too
    placed     ``publish.json`` has the segments to publish; nothing is read again from here on,
               because a publish that succeeded has changed the visible segments
    published  all jobs in one transaction; if the task failed, the janitor deletes its files

A peon that dies is restarted in the same folder. Recorded steps are not repeated, and a repeated
publish is recognized by the task's id.

Invariant: locks are held before the write if the spec names intervals, and always before the
publish. No two tasks therefore publish the same time chunk with the same version, or, with segment
locks, the same segments. A task runs on its own thread, except for `stop` and `report`:
`TaskProgress` is updated by this thread and the engine's, and read by any thread. Each of its
attributes is replaced as a whole, so readers never see a partial update.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import structs

from penstock.core.errors import Conflict, InvalidRequest, PenstockError, counted
from penstock.core.intervals import condensed
from penstock.indexing.actions import PublishSegments, SegmentAllocate
from penstock.indexing.batch.batch_engine import BatchRequest, Unparseable, WorkDone
from penstock.indexing.batch.batch_locks import BatchTaskLocks
from penstock.indexing.batch.input_segments import SegmentListing
from penstock.indexing.batch.job import publish_kind
from penstock.indexing.batch.retries import RetryBudget, wait_fields
from penstock.indexing.batch.retrying_caller import RetryingCaller, Stopped
from penstock.indexing.batch.segment_assembly import (
    SegmentForm,
    appended_segments,
    empty_chunks,
    replacement_segments,
    rewritten_segments,
    tombstones,
)
from penstock.indexing.batch.task_input import TaskInput, digest
from penstock.indexing.batch.written_files import EngineOutput
from penstock.indexing.engine import RowCounts
from penstock.indexing.ports import TaskState
from penstock.indexing.specs.task_context import IngestionMode
from penstock.indexing.task import TaskResult
from penstock.indexing.task.parse_errors import LOGGED_MAX, log_parse_errors
from penstock.indexing.worker.peon_task import IngestionReport, IngestionState
from penstock.segments.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import JsonValue

    from penstock.core.intervals import Interval
    from penstock.core.waits import DependencyWait
    from penstock.indexing.batch.batch_engine import ParseError
    from penstock.indexing.batch.batch_locks import IngestSpec
    from penstock.indexing.batch.batch_ports import BatchPorts
    from penstock.indexing.batch.job import IngestJob
    from penstock.indexing.task.task_folder import TaskFolder
    from penstock.storage.metadata import PublishOutcome, SegmentRow
    from penstock.storage.metadata.rows.publish import PublishKind


_log = logging.getLogger(__name__)

_TOMBSTONES_MAX: Final = 100_000
_PUBLISH: Final = "publish.json"
# Key in that file: fingerprint of the input.
_READ: Final = "read"


class IngestPlan(Protocol):
    """Plan of the output of a task; `ingest_plans` and `compact_plan` have one for each type."""

    @property
    def wanted(self) -> Sequence[Interval]:
        """The intervals to lock before the write."""
        ...

    def jobs(self, task_input: TaskInput) -> Sequence[IngestJob]:
        """Return the jobs to write.

        Called after those intervals are locked; each call returns the same jobs.
        """
        ...


class IngestTask:
    """One task that writes segments. On its own thread, except for `stop` and `report`.

    Args:
        spec: The spec of the task.
        plan: Plan of its output.
        folder: Its folder, which this process has locked.
        ports: Its ports.
    """

    def __init__(
        self,
        spec: IngestSpec,
        plan: IngestPlan,
        folder: TaskFolder,
        ports: BatchPorts,
    ) -> None:
        self._spec = spec
        self._wanted = tuple(condensed(plan.wanted))
        self._plan = plan
        self._folder = folder
        self._ports = ports
        self._progress = TaskProgress()
        self._retries = RetryingCaller(ports.actions, ports.clock, ports.waits_changed)
        listing = SegmentListing(self._retries)
        self._locks = BatchTaskLocks(spec, ports, self._retries, listing)
        self._task_input = TaskInput(
            spec.datasource, self._locks, self._retries, listing, ports.store
        )

    # Any thread

    def stop(self) -> None:
        """Make `run` return soon; the task continues when it is restarted."""
        self._retries.stop()
        self._ports.engine.cancel(self._spec.id)

    def report(self) -> IngestionReport:
        """Return the current status."""
        return self._progress.report(self._retries.wait)

    # The task's thread

    def run(self) -> TaskResult:
        """Run to the end and return the result."""
        try:
            text = self._run()
        except PenstockError as error:
            # `stop` interrupted the call of the engine, which is not a failure of the task.
            if isinstance(error, Stopped) or self._retries.is_stopped:
                return TaskResult(TaskState.RUNNING)
            self._progress.failed(str(error))
            return TaskResult(TaskState.FAILED, str(error))
        _log.info("task %s: %s", self._spec.id, text)
        return TaskResult(TaskState.SUCCESS)

    def _run(self) -> str:
        """Run all steps, and return a summary."""
        publish = self._find_publish() or self._prepare()
        if publish is None:
            return self._progress.published(0, ())
        outcome = self._publish(publish)
        if outcome.earlier_task:
            return self._progress.repeated(outcome.reason)
        hide = [one.interval for one in map(Segment.from_row, publish.segments) if one.is_tombstone]
        return self._progress.published(len(publish.segments), condensed(hide))

    def _prepare(self) -> PublishSegments | None:
        """Run all steps before the publish; return None if there is nothing to publish."""
        self._progress.state(IngestionState.DETERMINE_PARTITIONS)
        if self._wanted:
            self._locks.cover(self._wanted)
        jobs = self._plan.jobs(self._task_input)
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
            basis=self._task_input.basis,
            overwritten=overwritten,
        )
        self._folder.write_json(_PUBLISH, {**publish.to_json(), _READ: self._task_input.trial()})
        return publish

    def _find_publish(self) -> PublishSegments | None:
        """Return the publish that an earlier peon recorded, if any."""
        value = self._folder.read_json(_PUBLISH)
        if value is None:
            return None
        self._progress.state(IngestionState.BUILD_SEGMENTS)
        publish = self._in_current_form(PublishSegments.from_json(value))
        for number in itertools.count():
            read = value.get(_READ, digest(publish.basis))
            written = EngineOutput.find(self._folder, number, str(read))
            if written is None:
                break
            self._progress.wrote(written.counts, written.parse_errors, written.rows)
        return publish

    def _in_current_form(self, publish: PublishSegments) -> PublishSegments:
        """Convert a recorded publish, perhaps from an earlier release, to the current form."""
        current = self._ports.store.current

        def with_current_load_spec(row: SegmentRow) -> SegmentRow:
            load_spec = row.payload.get("loadSpec")
            if not isinstance(load_spec, Mapping):
                return row
            payload = {**row.payload, "loadSpec": dict(current(load_spec))}
            return structs.replace(row, payload=payload)

        rows = tuple(with_current_load_spec(row) for row in publish.segments)
        return replace(publish, segments=rows)

    def _write(self, number: int, job: IngestJob) -> EngineOutput:
        read = self._task_input.trial()
        known = EngineOutput.find(self._folder, number, read)
        if known is not None:
            known = known.rebased(self._ports.store.rebased)
        else:
            known = self._write_with_retries(number, job)
            known.keep(self._folder, number, read)
        self._progress.wrote(known.counts, known.parse_errors, known.rows)
        return known

    def _write_with_retries(self, number: int, job: IngestJob) -> EngineOutput:
        budget = RetryBudget(self._ports.chance, self._folder, number)
        try:
            return self._retries.call("writing segments", lambda: self._try_to_write(job), budget)
        except Unparseable as error:  # narrow: reports
            # The report of the failed task lists the rows, as the report of a successful task does.
            samples = error.samples[: job.parse_errors_saved]
            _log_errors(job, error.samples, error.count)
            self._progress.wrote(RowCounts(unparseable=error.count), samples)
            raise

    def _try_to_write(self, job: IngestJob) -> EngineOutput:
        # Each attempt has a new folder, because an engine that lost its connection may still write
        # to the old one.
        spec, ports = self._spec, self._ports
        # Engines create the folders that they write to, even below an unmounted mount point.
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
                    LOGGED_MAX if job.logs_parse_errors else 1, job.parse_errors_saved
                ),
                combines=job.combines,
            ),
            self._progress,
        )
        _log_errors(job, result.parse_errors, result.counts.unparseable)
        errors = result.parse_errors[: job.parse_errors_saved]
        return EngineOutput.of(replace(result, parse_errors=errors))

    # From files to segments

    def _place(
        self, done: Sequence[tuple[IngestJob, EngineOutput]]
    ) -> tuple[list[Segment], PublishKind, tuple[str, ...]]:
        """Return the segments to publish, the kind of publish, and the rewritten segments' ids."""
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
            segments += replacement_segments(form, written, locks.version_of)
            if job.mode is IngestionMode.REPLACE:
                empty = self._empty_chunks(job, written)
                segments += tombstones(form, empty, locks.version_of)
        return segments, publish_kind(locks.types), ()

    def _place_beside(
        self, done: Sequence[tuple[IngestJob, EngineOutput]]
    ) -> tuple[list[Segment], PublishKind, tuple[str, ...]]:
        """Return the same as `_place`, for segments that are rewritten one by one.

        Two tasks that add to an empty time chunk would not conflict, so empty chunks are locked.
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
                segments += replacement_segments(form, new, locks.version_of)
            if not old.files:
                continue
            intervals = tuple(file.data.interval for file in old.files)
            action = SegmentAllocate(self._spec.id, intervals, by_segment=True, rewrites=True)
            places = self._retries.perform("allocating segment ids", action)
            segments += rewritten_segments(form, old, rewrites, places)
            overwritten.update(*(rewrites[interval].ids for interval in intervals))
        return segments, "insert", tuple(sorted(overwritten))

    def _append(self, job: IngestJob, written: EngineOutput) -> list[Segment]:
        if not written.files:
            return []
        intervals = tuple(file.data.interval for file in written.files)
        by_segment = self._locks.by_segment
        if by_segment:
            self._locks.check_count(len(intervals))
        else:
            # Allocation is retried without a limit, but locking only until taskLockTimeout, because
            # the owner of a conflicting lock may wait for the slot that this task occupies.
            self._locks.lock(intervals)
        action = SegmentAllocate(self._spec.id, intervals, by_segment=by_segment)
        places = self._retries.perform("allocating segment ids", action)
        return appended_segments(self._form(job), written, places)

    def _form(self, job: IngestJob) -> SegmentForm:
        return SegmentForm(
            self._spec.datasource,
            self._ports.store,
            job.partitioning,
            job.compaction_state,
            job.rollup or job.schema.rollup_json(),
        )

    def _empty_chunks(self, job: IngestJob, written: EngineOutput) -> list[Interval]:
        """Return the time chunks of the job that have visible rows and get no new ones."""
        shown = [
            one.interval for one in self._task_input.visible(self._spec.datasource, job.intervals)
        ]
        buckets: Iterator[Interval] = itertools.chain.from_iterable(
            map(job.granularity.buckets, condensed(shown))
        )
        chunks = list(itertools.islice(dict.fromkeys(buckets), _TOMBSTONES_MAX + 1))
        if len(chunks) > _TOMBSTONES_MAX:
            raise InvalidRequest(
                f"more than {_TOMBSTONES_MAX} time chunks would need a tombstone each:"
                " replace a shorter interval, or use a larger segmentGranularity"
            )
        return empty_chunks(chunks, (file.data.interval for file in written.files), shown)

    # The second phase

    def _publish(self, action: PublishSegments) -> PublishOutcome:
        outcome = self._retries.perform("publishing", action)
        if outcome.ok or outcome.already_published:
            return outcome
        # The files are left to the janitor: if this peon dies here, its successor may repeat the
        # publish and succeed.
        raise Conflict(f"the segments of the task were not published: {outcome.reason}")


def _log_errors(job: IngestJob, errors: Sequence[ParseError], count: int) -> None:
    """Log the rows that could not be parsed, if the spec requests it."""
    if job.logs_parse_errors:
        log_parse_errors(
            [f"{one.place}: {one.reason}: {one.row!r}" for one in errors[:LOGGED_MAX]], count
        )


_PHASE = "buildSegments"
_EMPTIED_SHOWN_MAX = 100


class TaskProgress:
    """Progress of a task; used by any thread."""

    def __init__(self) -> None:
        self._state = IngestionState.NOT_STARTED
        self._counts = RowCounts()
        self._samples: tuple[ParseError, ...] = ()
        self._done = WorkDone()
        self._rows = 0
        self._segments = 0
        self._emptied: tuple[Interval, ...] = ()
        self._error = ""
        self._earlier = ""

    def __call__(self, done: WorkDone) -> None:
        """Record the progress of the engine's current call."""
        self._done = done

    def state(self, state: IngestionState) -> None:
        """Set the phase of the task."""
        self._state = state

    def wrote(self, counts: RowCounts, samples: Sequence[ParseError], rows: int = 0) -> None:
        """Add the counts of a successful call of the engine, and the rows of its files."""
        # First, so that a report in between does not count the rows of this call twice.
        self._done = replace(self._done, rows=0)
        self._counts = self._counts.plus(counts)
        self._rows += rows
        self._samples = (*self._samples, *samples)

    def published(self, segments: int, emptied: Sequence[Interval]) -> str:
        """Record the end of the task, and return a summary.

        Args:
            segments: Number of published segments, including tombstones.
            emptied: Intervals whose segments are hidden and have no new rows, in order and
                disjoint.
        """
        self._segments = segments
        self._emptied = tuple(emptied)
        self._state = IngestionState.COMPLETED
        text = f"{counted(self._rows, 'row')} written"
        if not emptied:
            return text
        shown = ", ".join(str(one) for one in emptied[:_EMPTIED_SHOWN_MAX])
        more = len(emptied) - _EMPTIED_SHOWN_MAX
        rest = f" and {counted(more, 'interval')} more" if more > 0 else ""
        return f"{text}; the segments of {shown}{rest} are hidden and have no new rows"

    def repeated(self, reason: str) -> str:
        """Record that another task has published these rows, and return a summary."""
        self._rows = 0
        self._earlier = reason
        self._state = IngestionState.COMPLETED
        return f"nothing published, because {reason}"

    def failed(self, reason: str) -> None:
        """Record why the task failed; its state is the phase in which it failed."""
        self._error = reason

    def report(self, wait: DependencyWait | None = None) -> IngestionReport:
        """Return the report, with the current wait if there is one."""
        counts = self._counts
        samples: list[JsonValue] = [
            {"place": one.place, "input": one.row, "details": [one.reason]} for one in self._samples
        ]
        done = self._done
        # The row stats only have the rows of finished calls, because a call that fails is repeated.
        left_out = counts.thrown_away_early + counts.thrown_away_late + counts.thrown_away_filtered
        more: dict[str, JsonValue] = {
            "partsDone": done.parts,
            "partsTotal": done.parts_total,
            "rowsRead": counts.processed + counts.unparseable + left_out + done.rows,
            "filesRead": done.files,
            "filesTotal": done.files_total,
            "rowsWritten": self._rows,
            "segmentsPublished": self._segments,
        }
        if self._emptied:
            more["intervalsEmptied"] = [str(one) for one in self._emptied[:_EMPTIED_SHOWN_MAX]]
            more["intervalsEmptiedCount"] = len(self._emptied)
        if self._earlier:
            more["alreadyPublished"] = self._earlier
        if wait is not None:
            more |= wait_fields(wait)
        return IngestionReport(
            self._state,
            row_stats={
                _PHASE: {
                    "processed": counts.processed,
                    "processedWithError": 0,
                    "unparseable": counts.unparseable,
                    "thrownAway": left_out,
                }
            },
            unparseable={_PHASE: samples},
            error=self._error,
            more=more,
        )
