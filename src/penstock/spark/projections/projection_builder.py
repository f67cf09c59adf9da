"""Make the files of projections that queries requested, in the background, one job at a time.

Owns the thread and its bounded queue. Requests over the bound are dropped with a count, because the
next query repeats them. A failure is counted and logged, and the failed file is not retried for a
while; queries read the rows meanwhile. It has a Spark session of its own. A mutex guards the queue:
queries add requests without waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.core.clock import Clock
from penstock.core.errors import PenstockError, Unavailable, counted
from penstock.core.metrics import Counter
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.threads import OnDeath, OwnedThread
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.segments.layout import projection_file, projection_folder
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkDiskFull, SparkSessions
from penstock.spark.projections.build_job import ProjectionFolder, make_files
from penstock.spark.projections.file_store import ProjectionFiles
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.projection_catalog import ProjectionCatalog
from penstock.spark.sql_guard import OUTLINE_CONF
from penstock.spark.tables.remote_reads import needs_workers
from penstock.spark.tables.table_files import Columns, TableFile, TableSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

# Groups are few, and one of Spark's tasks sorts them.
_CONF: Final[Mapping[str, str]] = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    **OUTLINE_CONF,
}
_ENDS: Final = "the router is stopping"
_END_S: Final = 1.0
_TOO_LONG: Final = "it took too long"


@dataclass(frozen=True, slots=True)
class BuilderOptions:
    """Limits of the jobs.

    Attributes:
        file_bytes_min: Minimum size of a file for which a projection is made; queries read the rows
            of smaller ones.
        batch_files: Maximum number of files of one job.
        batch_bytes: Maximum number of bytes that one job reads, unless a single file has more.
        queued_files: Maximum number of files in the queue.
        job_limit_s: Time limit of a job.
        pause_s: Pause of all jobs after a failure of Spark or of the store, and pause for a file
            that cannot be aggregated.
        delete_unneeded_every_s: Interval of searches for unneeded files.
    """

    file_bytes_min: int = 256 * 1024
    batch_files: int = 16
    batch_bytes: int = 256 << 20
    queued_files: int = 10_000
    job_limit_s: float = 600.0
    pause_s: float = 600.0
    delete_unneeded_every_s: float = 600.0


@dataclass(frozen=True, slots=True)
class _BuildRequest:
    """A file to make."""

    datasource: str
    plan: ProjectionPlan
    columns: Columns
    file: TableFile

    @property
    def target(self) -> str:
        folder = projection_folder(self.datasource, self.plan.digest)
        return f"{folder}/{projection_file(self.file.path)}"


class ProjectionBuilder:
    """Makes files; `request` is thread-safe.

    Args:
        sessions: Spark, with the settings that queries have.
        file_store: Store of the files.
        source: Returns the visible files, to find unneeded ones.
        known: The plans.
        clock: Clock.
        options: Limits.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        file_store: ProjectionFiles,
        source: TableSource,
        known: ProjectionCatalog,
        clock: Clock,
        options: BuilderOptions | None = None,
    ) -> None:
        self._sessions = sessions.with_conf(_CONF)
        self._file_store = file_store
        self._source = source
        self._known = known
        self._clock = clock
        self.options = options or BuilderOptions()
        self.made, self.failed, self.dropped = Counter(), Counter(), Counter()
        self._log = RateLimitedLog(logger, clock)
        self._changed = threading.Condition()
        self._queue: dict[str, _BuildRequest] = {}  # by target; the first is made next
        self._file_paused_until_s: dict[str, float] = {}
        self._paused_until_s = clock.monotonic_s()
        self._delete_unneeded_from_s = clock.monotonic_s() + self.options.delete_unneeded_every_s
        self._running: RunningCall | None = None
        self._stopped = False
        self._thread = OwnedThread("projections", self._run, on_death=OnDeath.RESTART)

    def eligible(self, file: TableFile) -> bool:
        """Return whether a visible file may have a projection: published, whole, large enough."""
        return (
            not file.announced
            and file.clip is None
            and file.size_bytes >= self.options.file_bytes_min
        )

    def request(
        self,
        datasource: str,
        plan: ProjectionPlan,
        columns: Columns,
        files: Sequence[TableFile],
    ) -> None:
        """Request the files of a plan for eligible files, to be made soon, in their order."""
        now_s = self._clock.monotonic_s()
        with self._changed:
            if self._stopped or now_s < self._paused_until_s:
                return
            for file in files:
                request = _BuildRequest(datasource, plan, columns, file)
                target = request.target
                if target in self._queue or now_s < self._file_paused_until_s.get(target, now_s):
                    continue
                if len(self._queue) >= self.options.queued_files:
                    self.dropped.add()
                else:
                    self._queue[target] = request
            self._changed.notify_all()

    def start(self) -> None:
        """Start the thread that makes requested files."""
        self._thread.start()

    def stop(self) -> None:
        """Make no further files, and stop the current job without waiting for it."""
        self._thread.expect_end()
        with self._changed:
            self._stopped = True
            self._queue.clear()
            self._changed.notify_all()
            running = self._running
        if running is not None:
            running.stop(_ENDS)

    def close(self) -> None:
        """End the Spark session, after `stop`: once it is unused, or a little later."""
        if self._thread.is_alive():
            self._thread.join(_END_S)
        self._sessions.close()

    def work(self) -> None:
        """Make all requested files. Called by the thread, or by a test."""
        while batch := self._next_batch():
            self._make(batch)

    def delete_unneeded(self) -> None:
        """Delete files that were not needed for an hour.

        Raises:
            PenstockError: The metadata or the deep storage does not answer.
        """
        self._file_store.list_once()
        if self._file_store.is_empty:
            return
        if deleted := self._file_store.delete_unneeded(self._known.needed(self._source.tables())):
            files = counted(deleted, "file")
            logger.info("deleted %s of projections that are no longer needed", files)

    def _run(self) -> None:
        # Files made before this process began are used from its first query on.
        self._try(self._file_store.list_once)
        while True:
            with self._changed:
                wait_s = self._delete_unneeded_from_s - self._clock.monotonic_s()
                if not self._queue and not self._stopped and wait_s > 0:
                    self._clock.wait(self._changed, wait_s)
                if self._stopped:
                    return
            self.work()
            if self._clock.monotonic_s() >= self._delete_unneeded_from_s:
                self._delete_unneeded_from_s = (
                    self._clock.monotonic_s() + self.options.delete_unneeded_every_s
                )
                self._try(self.delete_unneeded)

    def _try(self, action: Callable[[], None]) -> None:
        try:
            action()
        except PenstockError as error:
            self._log.warning("the files of projections cannot be listed: %s", error)

    def _next_batch(self) -> list[_BuildRequest]:
        batch: list[_BuildRequest] = []
        read_bytes = 0
        with self._changed:
            for target, request in list(self._queue.items()):
                if batch and (request.datasource, request.plan) != (
                    batch[0].datasource,
                    batch[0].plan,
                ):
                    continue
                read_bytes += request.file.size_bytes
                if batch and read_bytes > self.options.batch_bytes:
                    break
                del self._queue[target]
                batch.append(request)
                if len(batch) >= self.options.batch_files:
                    break
        return batch

    def _make(self, batch: Sequence[_BuildRequest]) -> None:
        """Make the files of one plan in one job; after a failure, try them one by one."""
        try:
            self._file_store.list_once()
            made = self._file_store.made(batch[0].datasource, batch[0].plan.digest)
            missing = [one for one in batch if projection_file(one.file.path) not in made]
            if wanted := [one for one in missing if not self._exists(one)]:
                self._retry(wanted)
        except EngineFailure as error:
            if self._stopped:
                return
            if len(batch) == 1:
                self._pause_file(batch[0], error)
                return
            for one in batch:
                if self._clock.monotonic_s() >= self._paused_until_s:
                    self._make([one])
                else:
                    self.dropped.add()
        except PenstockError as error:
            if self._stopped:
                return
            self.failed.add(len(batch))
            with self._changed:
                self._paused_until_s = self._clock.monotonic_s() + self.options.pause_s
                dropped = len(self._queue)
                self._queue.clear()
            self.dropped.add(dropped)
            name = batch[0].plan.name
            self._log.warning(
                "projection %s of datasource %s could not be built; queries read the rows: %s",
                *(name, batch[0].datasource, error),
            )

    def _pause_file(self, request: _BuildRequest, error: PenstockError) -> None:
        self.failed.add()
        now_s = self._clock.monotonic_s()
        with self._changed:
            paused = {
                one: until for one, until in self._file_paused_until_s.items() if until > now_s
            }
            self._file_paused_until_s = paused | {request.target: now_s + self.options.pause_s}
        self._log.warning(
            "projection %s of datasource %s could not be built from %s; queries read its rows: %s",
            *(request.plan.name, request.datasource, request.file.path, error),
        )

    def _exists(self, request: _BuildRequest) -> bool:
        """Return whether another process made the file meanwhile."""
        return self._file_store.find(request.datasource, request.plan.digest, request.file.path)

    def _retry(self, batch: Sequence[_BuildRequest]) -> None:
        """Aggregate; if Spark was restarted, the lost session is replaced once."""
        try:
            self._sum_up(batch)
        except EngineUnavailable as error:
            if isinstance(error, SparkDiskFull):
                raise
            self._sum_up(batch)

    def _sum_up(self, batch: Sequence[_BuildRequest]) -> None:
        first = batch[0]
        folder = ProjectionFolder(
            self._file_store.root, projection_folder(first.datasource, first.plan.digest)
        )
        files = [one.file for one in batch]
        running = RunningCall()
        with self._changed:
            if self._stopped:
                return
            self._running = running
        try:
            with (
                self._sessions.use() as spark,
                running.limited(self.options.job_limit_s, _TOO_LONG),
                running.tagged(spark),
            ):
                _check_readable(spark, files)
                wrote = make_files(spark, first.plan, first.columns, files, folder)
        finally:
            self._running = None
            running.end()
        for one in batch:
            # This process must see the files that the workers wrote.
            if not self._exists(one):
                raise EngineFailure(
                    f"{self._file_store.root} is not the same folder here and where Spark's workers"
                    f" are: {one.target} was written, but does not exist"
                )
        self.made.add(len(wrote))


def _check_readable(spark: SparkSession, files: Sequence[TableFile]) -> None:
    if needs_workers(spark, files):
        raise Unavailable("Spark's JVM has no driver for the store of their segments")
