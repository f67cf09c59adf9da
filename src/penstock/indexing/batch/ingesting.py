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
and before the publish always, so no two tasks publish the same time under one version.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.core.intervals import condensed
from penstock.indexing.actions import (
    LockList,
    MarkSegmentsToUpgrade,
    PublishSegments,
    SegmentAllocate,
    SegmentListUsed,
)
from penstock.indexing.batch.engine import BatchRequest, SegmentInput
from penstock.indexing.batch.insisting import Insistence, Losses, Stopped
from penstock.indexing.batch.job import ids_digest, publish_kind
from penstock.indexing.batch.locking import HeldLocks, acquire, outside
from penstock.indexing.batch.placing import (
    SegmentForm,
    appended,
    empty_chunks,
    replacing,
    tombstones,
)
from penstock.indexing.batch.progress import TaskProgress
from penstock.indexing.batch.visible import basis_of, joined, visible_segments
from penstock.indexing.batch.written import Written
from penstock.indexing.engine import RowCounts
from penstock.indexing.ports import TaskState
from penstock.indexing.spec.context import IngestionMode
from penstock.indexing.task import TaskResult
from penstock.indexing.worker.peontask import IngestionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.core.errors import Unavailable
    from penstock.core.intervals import Interval
    from penstock.indexing.batch.engine import BatchResult
    from penstock.indexing.batch.job import Job
    from penstock.indexing.batch.ports import BatchPorts
    from penstock.indexing.batch.visible import VisibleSegment
    from penstock.indexing.spec.context import TaskContext
    from penstock.indexing.task.folder import TaskFolder
    from penstock.indexing.worker.peontask import IngestionReport
    from penstock.segments.model import Segment
    from penstock.storage.metadata import Basis, SegmentRow
    from penstock.storage.metadata.rows import PublishKind

_TOMBSTONES_MAX: Final = 100_000
_PUBLISH: Final = "publish.json"


class IngestSpec(Protocol):
    """What is needed of the spec of a task that writes segments."""

    @property
    def id(self) -> str:
        """Its name."""
        ...

    @property
    def datasource(self) -> str:
        """Where its rows go."""
        ...

    @property
    def mode(self) -> IngestionMode:
        """What becomes of what is there."""
        ...

    @property
    def settings(self) -> TaskContext:
        """The context with its defaults."""
        ...

    @property
    def locks_max(self) -> int | None:
        """How many locks it may have; None: any number."""
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
        plan: Callable[[IngestTask], Sequence[Job]],
        folder: TaskFolder,
        ports: BatchPorts,
    ) -> None:
        self._spec = spec
        self._wanted = tuple(condensed(wanted))
        self._plan = plan
        self._folder = folder
        self._ports = ports
        self._insistence = Insistence(ports.actions, ports.clock)
        self._progress = TaskProgress()
        self._locked: list[Interval] = []
        self._basis: Basis | None = None

    # Any thread

    def stop(self) -> None:
        """Have `run` return soon; the task goes on when it is started again."""
        self._insistence.stop()
        self._ports.engine.cancel(self._spec.id)

    def report(self) -> IngestionReport:
        """Tell how it stands."""
        return self._progress.report()

    # The task's thread

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
        self._progress.published(published)
        return TaskResult(TaskState.SUCCESS)

    def lock(self, intervals: Iterable[Interval]) -> HeldLocks:
        """Lock intervals beside those that are locked.

        Raises:
            InvalidRequest: They would be more than the task may have.
            PenstockError: As `locking.acquire`.
        """
        # Never one lock around another of the task: it would wait for itself.
        more = outside(condensed(intervals), self._locked)
        locked = sorted([*self._locked, *more])
        most = self._spec.locks_max
        if most is not None and len(locked) > most:
            raise InvalidRequest(
                f"the rows lie in times that need {len(locked)} locks, more than"
                f" maxAllowedLockCount {most}: raise it, or ingest fewer time chunks at once",
                place="tuningConfig.maxAllowedLockCount",
            )
        self._locked = locked
        return acquire(
            self._ports,
            self._insistence,
            self._locked,
            appends=self._spec.mode is IngestionMode.APPEND,
            timeout_ms=self._spec.settings.lock_timeout_ms,
        )

    def visible(
        self, datasource: str, intervals: Iterable[Interval], *, replacing: bool = False
    ) -> list[VisibleSegment]:
        """Return what is visible in intervals.

        Args:
            datasource: Any.
            intervals: Where.
            replacing: Leave out what the task's own publish carries over.
        """
        return visible_segments(*self._list(datasource, intervals, replacing=replacing))

    def to_replace(
        self, intervals: Iterable[Interval], basis: Iterable[Interval] | None = None
    ) -> list[VisibleSegment]:
        """Return what is visible of the task's own datasource, which it reads and replaces.

        The publish is refused when somebody marks a segment of it meanwhile.

        Args:
            intervals: Where.
            basis: Where a mark matters, if that is not the same.
        """
        rows, wanted = self._list(self._spec.datasource, intervals, replacing=True)
        found = basis_of(rows, wanted if basis is None else basis)
        self._basis = found if self._basis is None else joined(self._basis, found)
        return visible_segments(rows, wanted)

    def to_replace_some(
        self,
        interval: Interval,
        part: Callable[[Sequence[VisibleSegment]], tuple[list[VisibleSegment], set[str]]],
    ) -> list[VisibleSegment]:
        """Return some of what is visible, which it reads and replaces; its publish keeps others.

        Args:
            interval: Where.
            part: Returns those that it reads, and the ids of those that the publish lists again;
                the rest it does not touch.
        """
        rows, wanted = self._list(self._spec.datasource, [interval], replacing=False)
        chosen, kept = part(visible_segments(rows, wanted))
        if kept:
            action = MarkSegmentsToUpgrade(tuple(sorted(kept)))
            self._insistence.ask("keeping segments", action)
        found = basis_of(rows, wanted)
        # What is kept the publish looks at by itself, as at what was appended since: so a second
        # try finds the same basis, and what the first one wrote.
        self._basis = dataclasses.replace(found, shown=frozenset(found.shown) - kept)
        return chosen

    def as_input(self, found: Iterable[VisibleSegment]) -> SegmentInput:
        """Return visible segments as the engine takes them."""
        return SegmentInput(tuple(one.to_input(self._ports.store) for one in found))

    def _list(
        self, datasource: str, intervals: Iterable[Interval], *, replacing: bool
    ) -> tuple[tuple[SegmentRow, ...], tuple[Interval, ...]]:
        wanted = tuple(condensed(intervals))
        action = SegmentListUsed(datasource, wanted, replacing)
        return self._insistence.ask("listing segments", action), wanted

    def _run(self) -> int:
        publish = self._find_publish() or self._prepare()
        if publish is None:
            return 0
        self._publish(publish)
        return len(publish.segments)

    def _prepare(self) -> PublishSegments | None:
        """Do all that comes before the publish; None: there is nothing to publish."""
        self._progress.state(IngestionState.DETERMINE_PARTITIONS)
        if self._wanted:
            self.lock(self._wanted)
        jobs = self._plan(self)
        self._progress.state(IngestionState.BUILD_SEGMENTS)
        done = [(job, self._write(number, job)) for number, job in enumerate(jobs)]
        segments, kind = self._place(done)
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
            basis=self._basis,
        )
        self._folder.write_json(_PUBLISH, publish.to_json())
        return publish

    def _find_publish(self) -> PublishSegments | None:
        """Return what an earlier peon was about to publish, if it came that far."""
        value = self._folder.read_json(_PUBLISH)
        if value is None:
            return None
        self._progress.state(IngestionState.BUILD_SEGMENTS)
        publish = PublishSegments.from_json(value)
        for number in itertools.count():
            written = Written.find(self._folder, number, _read(publish.basis))
            if written is None:
                break
            self._progress.wrote(written.counts, written.parse_errors)
        return publish

    def _write(self, number: int, job: Job) -> Written:
        read = _read(self._basis)
        known = Written.find(self._folder, number, read)
        if known is None:
            known = self._insist_on(number, job)
            known.keep(self._folder, number, read)
        self._progress.wrote(known.counts, known.parse_errors)
        return known

    def _insist_on(self, number: int, job: Job) -> Written:
        losses = Losses(self._ports.chance, self._folder, number)

        def failed(error: Unavailable) -> int:
            self._progress.tried(str(error))
            return losses.pause_ms(error)

        return self._insistence.call("writing segments", lambda: self._try_to_write(job), failed)

    def _try_to_write(self, job: Job) -> Written:
        # A folder that was never given before: what a lost engine still writes is not ours.
        spec, ports = self._spec, self._ports
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
                parse_errors_saved=max(1, job.parse_errors_saved),
                combines=job.combines,
            ),
            self._progress,
        )
        if job.parse_errors_max is None:
            _refuse_unreadable(result)
        errors = result.parse_errors[: job.parse_errors_saved]
        return Written.of(dataclasses.replace(result, parse_errors=errors))

    # From files to segments

    def _place(self, done: Sequence[tuple[Job, Written]]) -> tuple[list[Segment], PublishKind]:
        if self._spec.mode is IngestionMode.APPEND:
            segments = [s for job, written in done for s in self._append(job, written)]
            held = self._insistence.ask("listing locks", LockList())
            return segments, publish_kind([lock.type for lock in held])
        chunks = [file.data.interval for _, written in done for file in written.files]
        if not chunks and not self._wanted:
            return [], "insert"
        locks = self.lock([*self._wanted, *chunks])
        segments = []
        for job, written in done:
            form = self._form(job)
            segments += replacing(form, written, locks.version_of)
            if job.mode is IngestionMode.REPLACE:
                empty = self._empty_chunks(job, written)
                segments += tombstones(form, empty, locks.version_of)
        return segments, publish_kind(locks.types)

    def _append(self, job: Job, written: Written) -> list[Segment]:
        if not written.files:
            return []
        intervals = tuple(file.data.interval for file in written.files)
        # Places are asked for as long as it takes, locks no longer than taskLockTimeout: who is in
        # the way may wait for the very slot that this task has.
        self.lock(intervals)
        action = SegmentAllocate(self._spec.id, intervals)
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
        shown = [one.interval for one in self.visible(self._spec.datasource, job.intervals)]
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


def _refuse_unreadable(result: BatchResult) -> None:
    """Refuse an input of which no row can be parsed.

    It is of another format, or the spec names the wrong column; what it was to replace would be
    gone. Who bears it says so by `maxParseExceptions`.
    """
    bad = result.counts.unparseable
    if bad == 0 or dataclasses.replace(result.counts, unparseable=0, read_bytes=0) != RowCounts():
        return
    first = "".join(f"; the first: {e.place}: {e.reason}" for e in result.parse_errors[:1])
    raise InvalidRequest(
        f"none of the {bad} rows can be parsed{first}. Look whether the input is of the"
        " inputFormat and has its time where timestampSpec says, or set maxParseExceptions"
    )


def _read(basis: Basis | None) -> str:
    """Return what tells the input of one try of a task from that of another."""
    return "" if basis is None else ids_digest(list(basis.shown))
