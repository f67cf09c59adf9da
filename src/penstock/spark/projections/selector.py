"""Choice of the projection that answers a query, and the query run over it.

Chooses the coarsest projection that fits, once files of it exist for half of the visible bytes, or
at once if the query requires one. If anything fails over a projection, the query runs over the
rows: `answered` returns None. Damaged files are built again.

The views of projections live in a Spark session of their own, so that SHOW TABLES does not list
them. A mutex, shared by all queries over projections, is held while a view is defined.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, PenstockError, counted
from penstock.core.metrics import Counter
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.core.sql.checked_query import CheckedQuery
from penstock.segments.layout import projection_file
from penstock.spark.connect.running_calls import RunningCall
from penstock.spark.connect.spark_sessions import SparkDiskFull, SparkRefusal, SparkSessions
from penstock.spark.projections.file_store import ProjectionFiles
from penstock.spark.projections.matcher import matched_query, why_not
from penstock.spark.projections.plan import ProjectionPlan
from penstock.spark.projections.projection_builder import ProjectionBuilder
from penstock.spark.projections.projection_catalog import DatasourceProjections, ProjectionCatalog
from penstock.spark.projections.relation import ProjectionViews, ViewFiles, view_name
from penstock.spark.sql_guard import OUTLINE_CONF, relation
from penstock.spark.tables.table_files import TableFile, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

USED_FROM: Final = 0.5
"""A projection is used once files of it exist for this part of the visible bytes."""
# Maximum number of files requested at once; later queries request the rest.
_WANTED_MAX: Final = 1_000
_STATES_MAX: Final = 1_000
# A file that is found damaged while it is read is left out of the next attempt.
_TRIES: Final = 2
_NAME: Final = re.compile(r"\b[0-9a-f]{32}\.parquet")


class FetchedRows(Protocol):
    """The part of `penstock.spark.sql.fetcher.FetchedAnswer` that this package uses."""

    @property
    def rows(self) -> object | None:
        """Return the rows; None if they are too many to be fetched at once."""
        ...


F = TypeVar("F", bound=FetchedRows)


@dataclass(frozen=True, slots=True)
class ProjectionOptions:
    """Options of a query's context about projections; the names are Druid's.

    Attributes:
        use: Only the projection of this name may answer, and it must.
        force: Some projection must answer.
        none: No projection may answer.
    """

    use: str = ""
    force: bool = False
    none: bool = False

    def __post_init__(self) -> None:
        if self.none and self.is_required:
            raise InvalidRequest(
                "useProjection and forceProjections contradict it: leave one out",
                place="context.noProjections",
            )

    @property
    def is_required(self) -> bool:
        """Return whether the query must not be answered from the rows."""
        return self.force or bool(self.use)

    @property
    def place(self) -> str:
        """Return the field that requires or names a projection."""
        return "context.useProjection" if self.use else "context.forceProjections"


NO_PROJECTION_OPTIONS: Final = ProjectionOptions()


@dataclass(frozen=True, slots=True)
class ProjectionChoice:
    """A query over a projection.

    Attributes:
        datasource: Its datasource.
        plan: The projection.
        columns: The datasource's columns.
        sql: The query over the projection's view.
        files: The visible files of the datasource.
        revision: Metadata revision at which the files are visible.
        options: The options of the query's context.
    """

    datasource: str
    plan: ProjectionPlan
    columns: tuple[tuple[str, str], ...]
    sql: str
    files: tuple[TableFile, ...]
    revision: int
    options: ProjectionOptions


@dataclass(frozen=True, slots=True)
class _ProjectionState:
    """Files of a projection that exist, at one digest and one version of the file store.

    `missing` has the newest files that may have a file of the projection, but have none yet.
    """

    files: tuple[TableFile, ...]
    found_at: tuple[str, int]
    parts: ViewFiles
    share: float
    missing: tuple[TableFile, ...]


class Projections:
    """Projections of a router: chosen, queried, and made in the background. Thread-safe.

    Args:
        sessions: Spark, with the settings that queries have.
        file_store: The files of projections.
        known: The plans.
        maker: Makes the files that queries miss.
        clock: Limits how often a failure is logged.
    """

    def __init__(
        self,
        sessions: SparkSessions,
        file_store: ProjectionFiles,
        known: ProjectionCatalog,
        maker: ProjectionBuilder,
        clock: Clock,
    ) -> None:
        self._sessions = sessions.with_conf(OUTLINE_CONF)
        self._log = RateLimitedLog(logger, clock)
        self._file_store = file_store
        self._known = known
        self._maker = maker
        self._mutex = threading.Lock()
        self._views: ProjectionViews | None = None
        # By datasource and projection; valid while files, digest and file store are unchanged.
        self._states: dict[tuple[str, str], _ProjectionState] = {}
        self.used = Counter()

    def choice(
        self, query: CheckedQuery, options: ProjectionOptions, names: Sequence[str], tables: Tables
    ) -> ProjectionChoice | None:
        """Return the projection query that replaces a query, if one fits; request missing files.

        Args:
            query: The query.
            options: The options of its context.
            names: The datasources that it may read.
            tables: The visible files.

        Raises:
            InvalidRequest: The query requires a projection and none fits.
        """
        if options.none:
            return None
        fitting: list[ProjectionChoice] = []
        reasons: list[str] = []
        for name in names:
            known = self._known.of(name, tables.files[name])
            if known is not None:
                fitting += self._fitting(query, options, name, known, tables.revision, reasons)
        if not fitting:
            if options.is_required:
                raise InvalidRequest(_none_fits(options, reasons), place=options.place)
            return None
        fitting.sort(key=lambda one: _fineness(one.plan))  # stable: ties keep the spec's order
        for number, one in enumerate(fitting):
            state = self._state_of(one)
            if number == 0 and state.missing:
                self._maker.request(one.datasource, one.plan, one.columns, state.missing)
            if state.share >= USED_FROM or options.is_required:
                return one
        return None

    def answered(
        self,
        choice: ProjectionChoice,
        parameters: Sequence[object],
        fetch: Callable[[DataFrame], F],
        wanted: Sequence[str],
        running: RunningCall,
    ) -> F | None:
        """Run a query over its projection; return None if the rows must answer it.

        Args:
            choice: The query.
            parameters: Its parameters.
            fetch: Fetches the rows from Spark.
            wanted: The types that its columns must have.
            running: Called when the query starts.

        Raises:
            InvalidRequest: The query requires a projection, and the types differ.
            PenstockError: The query was stopped; or its answer cannot be kept, for which the
                projection is not the cause; or the query requires it, and Spark raised this error.
        """
        of_answer: PenstockError | None = None
        for attempt in range(1, _TRIES + 1):
            try:
                with self._sessions.use() as spark, running.tagged(spark):
                    self._update_view(spark, choice)
                    found = relation(spark, choice.sql, parameters)
                    types = [field.dataType.simpleString() for field in found.schema.fields]
                    is_fit = types == list(wanted)
                    try:
                        answer = fetch(found) if is_fit else None
                    except PenstockError as error:  # narrow: Spark raises other errors here
                        of_answer = error
                        raise
            except PenstockError as error:
                # The answer from the rows would be as large, and the disk as full.
                if running.stopped or error is of_answer or isinstance(error, SparkDiskFull):
                    raise
                # Without a file to read again, the next attempt would fail in the same way.
                if not self._forget(choice, error) or attempt == _TRIES:
                    if choice.options.is_required:
                        raise
                    return None
            else:
                if not is_fit:
                    self._refuse(choice, f"its types are {types}, not {list(wanted)}")
                elif answer is not None and answer.rows is not None:
                    self.used.add()
                return answer
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        """End the Spark session."""
        self._sessions.close()

    def _fitting(
        self,
        query: CheckedQuery,
        options: ProjectionOptions,
        name: str,
        known: DatasourceProjections,
        revision: int,
        reasons: list[str],
    ) -> list[ProjectionChoice]:
        found = []
        for plan in known.plans:
            if options.use and plan.name != options.use:
                continue
            table = view_name(name, plan)
            text = matched_query(query, name, plan, known.columns, table)
            if text is not None:
                of_files = (known.columns, text, known.files, revision)
                found.append(ProjectionChoice(name, plan, *of_files, options))
            elif options.is_required:
                why = why_not(query, name, plan, known.columns)
                reasons.append(f"{plan.name!r} of {name}: {why}")
        if options.is_required:
            reasons += [
                f"{one!r} of {name} cannot be built: it names a column that does not exist, or an"
                " expression or its filter has no exact counterpart in Spark SQL, or columns of "
                "the datasource differ only in case"
                for one in known.unresolved
                if not options.use or one == options.use
            ]
        return found

    def _state_of(self, choice: ProjectionChoice) -> _ProjectionState:
        """Return which files of a projection exist and which are missing."""
        datasource, plan, files = choice.datasource, choice.plan, choice.files
        key, found_at = (datasource, plan.name), (plan.digest, self._file_store.version)
        kept = self._states.get(key)
        if kept is not None and kept.files is files and kept.found_at == found_at:
            return kept
        made, rest, missing = [], [], []
        sizes, made_bytes = self._file_store.made(datasource, plan.digest), 0
        for file in files:
            own = projection_file(file.path)
            if file.announced or file.clip is not None or own not in sizes:
                rest.append(file)
                if self._maker.eligible(file):
                    missing.append(file)
                continue
            path = self._file_store.location(datasource, plan.digest, own)
            made.append(TableFile(path, (), file.interval, size_bytes=sizes[own]))
            made_bytes += file.size_bytes
        missing.sort(key=lambda file: file.interval.start_ms, reverse=True)
        all_bytes = sum(file.size_bytes for file in files)
        state = _ProjectionState(
            files,
            found_at,
            ViewFiles(tuple(made), tuple(rest)),
            made_bytes / all_bytes if all_bytes else 0.0,
            tuple(missing[:_WANTED_MAX]),
        )
        if len(self._states) >= _STATES_MAX:
            self._states.clear()  # includes entries of deleted datasources
        self._states[key] = state
        return state

    def _update_view(self, spark: SparkSession, choice: ProjectionChoice) -> None:
        with self._mutex:
            if self._views is None or self._views.session is not spark:
                self._views = ProjectionViews(spark)
            name = view_name(choice.datasource, choice.plan)
            parts = self._state_of(choice).parts
            if self._views.shows(name, choice.revision, parts):
                return
            names = (file.path.rpartition("/")[2] for file in parts.made)
            if damaged := self._file_store.damaged(choice.datasource, choice.plan.digest, names):
                # Spark reads an empty file as no rows, without an error.
                self._file_store.forget(choice.datasource, choice.plan.digest, damaged)
                parts = self._state_of(choice).parts
                self._log_damage(choice, len(damaged))
            self._views.define(name, choice.plan, choice.columns, choice.revision, parts)

    def _forget(self, choice: ProjectionChoice, error: PenstockError) -> int:
        """Delete the files that an error names, to be built again; return their number."""
        said: BaseException = error
        while said.__cause__ is not None:
            said = said.__cause__
        made = self._file_store.made(choice.datasource, choice.plan.digest)
        named = {name for name in _NAME.findall(f"{error}\n{said}") if name in made}
        if not named and isinstance(error, SparkRefusal):
            return 0  # the query is the cause: the rows fail the same way
        self._file_store.forget(choice.datasource, choice.plan.digest, named)
        with self._mutex:
            if self._views is not None:
                self._views.forget(view_name(choice.datasource, choice.plan))
        if named:
            self._log_damage(choice, len(named))
        else:
            self._log.warning(
                "the projection %s of %s failed for a query, which is answered from the rows: %s",
                *(choice.plan.name, choice.datasource, error),
            )
        return len(named)

    def _log_damage(self, choice: ProjectionChoice, count: int) -> None:
        self._log.warning(
            "projection %s of datasource %s: missing or damaged files are built again: %s",
            *(choice.plan.name, choice.datasource, counted(count, "file")),
        )

    def _refuse(self, choice: ProjectionChoice, why: str) -> None:
        text = f"the projection {choice.plan.name!r} does not answer this query: {why}"
        if choice.options.is_required:
            raise InvalidRequest(text, place=choice.options.place)
        self._log.warning("%s", text)


def _fineness(plan: ProjectionPlan) -> tuple[int, float]:
    """Return a key that is smaller the coarser a projection is: fewer keys, then longer times."""
    lengths = [_length_ms(key.time.fixed_ms, key.time.months) for key in plan.keys if key.time]
    return len(plan.keys), -min(lengths, default=float("inf"))


def _length_ms(fixed_ms: int, months: int) -> float:
    # A bucket without a fixed length and without months covers all of time.
    return float(fixed_ms or months * 28 * 86_400_000) or float("inf")


def _none_fits(options: ProjectionOptions, reasons: Sequence[str]) -> str:
    what = (
        f"the projection {options.use!r} does not answer"
        if options.use
        else "no projection answers"
    )
    none = f"none called {options.use!r}" if options.use else "none"
    why = "; ".join(reasons[:10]) or f"its datasource has {none}"
    return f"{what} this query: {why}. Leave it out, and the rows answer"


def projection_options(context: Mapping[str, object]) -> ProjectionOptions:
    """Read the options about projections from a query's context.

    Raises:
        InvalidRequest: A field has the wrong type, or two fields contradict each other.
    """
    use = context.get("useProjection")
    if use is not None and not isinstance(use, str):
        raise InvalidRequest("must be the name of a projection", place="context.useProjection")
    flags = []
    for name in ("forceProjections", "noProjections"):
        value = context.get(name)
        if not (value is None or isinstance(value, bool) or value in ("true", "false")):
            raise InvalidRequest("must be true or false", place=f"context.{name}")
        flags.append(value in (True, "true"))
    return ProjectionOptions(use or "", *flags)
