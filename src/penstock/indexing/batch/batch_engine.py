"""The protocol of data engines for batch tasks: read an input once, write final segment files.

A call blocks and may come from any thread. It writes only into the output folder that it was given.
Files there have no effect before a publish names them, so a failed or interrupted call is repeated
with another folder, and the janitor deletes the files of the first one. That is the first half of
the two-phase commit; the publish transaction is the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.core.errors import InvalidRequest, counted
from penstock.core.intervals import condensed
from penstock.indexing.engine import DataFile, EngineFailure, RowCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.intervals import Interval
    from penstock.indexing.specs import DataSchema, Filter
    from penstock.indexing.specs.batch.spark_write import SparkFile
    from penstock.indexing.specs.input_formats import InputFormat
    from penstock.indexing.specs.inputs import ExternTable, InputSource


@dataclass(frozen=True, slots=True)
class ExternalInput:
    """Files, URLs or inline text in a format, or the rows of a database, which need no format."""

    source: InputSource
    format: InputFormat | None


@dataclass(frozen=True, slots=True)
class SegmentInput:
    """Rows of visible segments.

    Attributes:
        files: (File that Spark can read, visible interval of it).
        filter: Rows that do not match count as filtered; None for no filter. It sees all columns
            of the segments.
        hidden: Columns that are read as if no segment had them. An input that is combined with
            others must not have these two.
        renamed: (Name of a column, name under which it is read), where both names are the same
            column in the rows' datasource; no file has both.
    """

    files: tuple[tuple[DataFile, Interval], ...]
    filter: Filter | None = None
    hidden: frozenset[str] = frozenset()
    renamed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CombinedInput:
    """Several inputs, read as one."""

    parts: tuple[ExternalInput | SegmentInput, ...]


@dataclass(frozen=True, slots=True)
class SqlInput:
    """A query over the published rows of datasources and files; it returns a column `__time`.

    Attributes:
        query: The statement.
        given: (datasource, its rows): read instead of the visible rows at the time of the query.
        externs: Files that it reads, the first as the table `extern_name(1)`, and so on. Each is
            read once and completely, however many times the query names it.
    """

    query: str
    given: tuple[tuple[str, SegmentInput], ...] = ()
    externs: tuple[ExternTable, ...] = ()


@dataclass(frozen=True, slots=True)
class SparkFilesInput:
    """Final files that Spark's workers have written already, into the folder of the task.

    Attributes:
        files: Their names, rows and sizes, as the client reports them.
        processed: Rows before roll-up.
        unparseable: Rows without a usable time, which the files lack.
        converts: The files are not final: they have the rows in any form of Parquet.
    """

    files: tuple[SparkFile, ...]
    processed: int
    unparseable: int
    converts: bool = False


BatchInput = ExternalInput | SegmentInput | CombinedInput | SqlInput | SparkFilesInput


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the rows of a time chunk are distributed over segments.

    dynamic: in the order of arrival, at most `rows_max` each; best-effort roll-up.
    hashed: by a hash of `dimensions` (all, if empty) into `shards` buckets, or into buckets of
        about `rows_target` rows each; perfect roll-up.
    range: by the order of `dimensions`, about `rows_target` rows each; perfect roll-up.
    """

    kind: Literal["dynamic", "hashed", "range"] = "dynamic"
    rows_max: int = 5_000_000
    rows_target: int = 5_000_000
    shards: int | None = None
    dimensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """Read, parse, transform, filter, bucket by time chunk, partition, roll up, write sorted.

    Rows outside `intervals` are dropped; without intervals every row counts. `output_folder` is a
    path or a URI in deep storage that no other call was given. With more than `parse_errors_max`
    unparseable rows the call fails; None means unlimited, but an input with no other rows fails. Up
    to `parse_errors_saved` of them are returned with the reason.

    `combines`: the names of metrics that the input's rows already have (compaction): they are read
    from the columns of their own names and combined: counts are summed, sketches merged.

    Raises:
        InvalidRequest: The schema lists time chunks, but rows outside them would be written, too.
    """

    task_id: str
    schema: DataSchema
    input: BatchInput
    intervals: tuple[Interval, ...]
    partitioning: Partitioning
    output_folder: str
    parse_errors_max: int | None = None
    parse_errors_saved: int = 0
    combines: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        given = self.schema.segment_granularity.given
        chunks, wanted = condensed(given), [one for one in self.intervals if not one.is_empty]
        if given and (not wanted or condensed([*given, *wanted]) != chunks):
            raise InvalidRequest(
                "rows outside the listed time chunks would be written: choose intervals within"
                " these chunks",
                place="intervals",
            )


@dataclass(frozen=True, slots=True)
class Bucket:
    """The rows of its time chunk that a file holds, if known.

    hashed: bucket `number` of `count`. range: from `start` on, before `end` (None: open), by
    dimension.
    """

    number: int
    count: int = 0
    start: tuple[str | None, ...] | None = None
    end: tuple[str | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One final segment file, durable in deep storage; `data.path` is its URI there."""

    data: DataFile
    bucket: Bucket | None = None


@dataclass(frozen=True, slots=True)
class ParseError:
    """A rejected row: its place, its text (shortened), and the reason."""

    place: str
    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The files, ordered by chunk and then by bucket; `counts` are of rows before roll-up.

    Rows outside the intervals are among `counts.thrown_away_early`. `schema` is the request's, with
    the discovered dimensions if discovery was requested.
    """

    files: tuple[WrittenFile, ...]
    counts: RowCounts
    schema: DataSchema
    parse_errors: tuple[ParseError, ...] = ()


class Unparseable(EngineFailure):
    """More rows are unparseable than the limit.

    Args:
        message: The error, with the first such row.
        count: Their number; a lower bound if the engine stopped early.
        samples: Some of them.
    """

    def __init__(self, message: str, count: int, samples: Sequence[ParseError]) -> None:
        super().__init__(message)
        self.count = count
        self.samples = tuple(samples)


def refuse_too_many(most: int | None, bad: int, errors: Sequence[ParseError]) -> None:
    """Refuse more unparseable rows than the limit; None means unlimited.

    Raises:
        Unparseable: There are more.
    """
    if most is not None and bad > most:
        raise Unparseable(
            f"{counted(bad, 'row')} cannot be parsed, but the limit is {most}{_first(errors)}."
            " Correct the input, or raise maxParseExceptions",
            bad,
            errors,
        )


def refuse_unreadable(
    most: int | None, bad: int, parsed: int, errors: Sequence[ParseError]
) -> None:
    """Refuse an input of which no row can be parsed, unless the limit is set to that number.

    The input has another format, or the spec names the wrong column; a replace with no rows would
    remove the existing ones.

    Raises:
        Unparseable: There are rows, and none can be parsed.
    """
    if most is None and bad and not parsed:
        none = "the only row cannot" if bad == 1 else f"none of the {bad:,} rows can"
        raise Unparseable(
            f"{none} be parsed{_first(errors)}. Check that the input has the inputFormat, with its"
            " time where timestampSpec expects it, or set maxParseExceptions to at least this"
            " number",
            bad,
            errors,
        )


def _first(errors: Sequence[ParseError]) -> str:
    return "".join(f"; the first: {error.place}: {error.reason}" for error in errors[:1])


@dataclass(frozen=True, slots=True)
class WorkDone:
    """Progress of one attempt of a request.

    Attributes:
        parts: Finished parts of the engine's work.
        parts_total: All parts so far; the number may grow.
        rows: Rows of the input that finished parts have read, including unparseable ones.
        files: Files of the input that were read completely.
        files_total: Number of files of the input; 0: the rows of datasources.
    """

    parts: int = 0
    parts_total: int = 0
    rows: int = 0
    files: int = 0
    files_total: int = 0


class EngineProgress(Protocol):
    """Callback for the progress of a request; any thread, often, and must not block."""

    def __call__(self, done: WorkDone) -> None:
        """Take the progress of the current attempt."""
        ...


class BatchEngine(Protocol):
    """The data engine of batch tasks."""

    def write(self, request: BatchRequest, progress: EngineProgress | None = None) -> BatchResult:
        """Write the input's rows as final segment files.

        Raises:
            EngineUnavailable: The engine is not running; retry with another folder.
            EngineLost: A subclass: the engine crashed during this call.
            EngineFailure: The request fails permanently: a file that is missing or does not have
                the format, too many unparseable rows, an invalid expression.
        """
        ...

    def cancel(self, task_id: str) -> None:
        """End the work of a task soon; its call raises EngineFailure.

        So does every later call for it, because a stopped task may be about to make one.
        """
        ...

    def close(self) -> None:
        """Release the engine's resources."""
        ...
