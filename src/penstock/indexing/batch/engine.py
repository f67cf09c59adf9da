"""What batch tasks ask of a data engine: read an input once, write final segment files.

A call blocks and may come from any thread. It writes into the output folder it was given and
nowhere else; files there mean nothing before a publish names them, so a call that failed or was cut
is made again into another folder, and what the first one left is an orphan for the janitor. That is
the first half of the two-phase commit; the publish transaction is the second.
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
    from penstock.indexing.spec import DataSchema, Filter
    from penstock.indexing.spec.inputs import ExternTable, InputFormat, InputSource


@dataclass(frozen=True, slots=True)
class ExternalInput:
    """Files, URLs or inline text in a format, or the rows of a database, which have none."""

    source: InputSource
    format: InputFormat | None


@dataclass(frozen=True, slots=True)
class SegmentInput:
    """Rows of visible segments.

    Attributes:
        files: (File that Spark can read, the part of time that is visible).
        filter: Rows that do not meet it count as filtered; None: there is none. It sees all
            columns as the segments have them.
        hidden: Columns that are read as if the segments had none of them. Only an input that is
            not combined with others may have these two.
        renamed: (Name of a column, name under which it is read), as in the rows' datasource both
            are one column; no file has both.
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
    """A query over the published rows of datasources and files; it gives a column `__time`.

    Attributes:
        query: The statement.
        given: (datasource, its rows): read as these, and not as what is visible when Spark asks.
        externs: Files that it reads, the first as the table `extern_name(1)`, and so on. Each is
            read once and as a whole, however often the query names it.
    """

    query: str
    given: tuple[tuple[str, SegmentInput], ...] = ()
    externs: tuple[ExternTable, ...] = ()


BatchInput = ExternalInput | SegmentInput | CombinedInput | SqlInput


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the rows of a time chunk are spread over segments.

    dynamic: in the order in which they come, at most `rows_max` each; best-effort roll-up.
    hashed: by a hash of `dimensions` (all, if empty) into `shards` buckets, or as many as give
        `rows_target` rows each; perfect roll-up.
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

    Rows outside of `intervals` are thrown away; without intervals every row counts. `output_folder`
    is a path or a URI in deep storage that no other call was given. With more than
    `parse_errors_max` unparseable rows the call fails; up to `parse_errors_saved` of them are given
    back with the reason. None: it may be any number, but not all rows of an input.

    `combines`: the names of metrics that the input's rows have already (compaction): they are read
    from the columns of their own names and combined: counts are summed, sketches merged.

    Raises:
        InvalidRequest: The schema lists time chunks, and rows of other times would count, too.
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
                "rows outside of the time chunks that are listed would be written: let the"
                " intervals lie within these chunks",
                place="intervals",
            )


@dataclass(frozen=True, slots=True)
class Bucket:
    """Which rows of its time chunk a file holds, when that is known.

    hashed: `number` of `count`. range: from `start` on, before `end` (None: open), by dimension.
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
    """A row that was not taken: where it is, how it reads (cut), what is wrong."""

    place: str
    row: str
    reason: str


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The files, ordered by chunk and then by bucket; `counts` are of rows before roll-up.

    Rows outside of the intervals are among `counts.thrown_away_early`. `schema` is the request's,
    with the dimensions that were found in the data where it asked for that.
    """

    files: tuple[WrittenFile, ...]
    counts: RowCounts
    schema: DataSchema
    parse_errors: tuple[ParseError, ...] = ()


class Unparseable(EngineFailure):
    """More rows cannot be parsed than may be.

    Args:
        message: Says so, and which was the first.
        count: How many; at least so many, if the engine stopped to count.
        samples: Some of them.
    """

    def __init__(self, message: str, count: int, samples: Sequence[ParseError]) -> None:
        super().__init__(message)
        self.count = count
        self.samples = tuple(samples)


def refuse_too_many(most: int | None, bad: int, errors: Sequence[ParseError]) -> None:
    """Refuse more unparseable rows than may be; None: any number.

    Raises:
        Unparseable: There are more.
    """
    if most is not None and bad > most:
        raise Unparseable(
            f"{counted(bad, 'row')} cannot be parsed, and at most {most} may be{_first(errors)}."
            " Mend the input, or raise maxParseExceptions",
            bad,
            errors,
        )


def refuse_unreadable(
    most: int | None, bad: int, parsed: int, errors: Sequence[ParseError]
) -> None:
    """Refuse an input of which no row can be parsed, unless a number says that so many may be bad.

    It is of another format, or the spec names the wrong column; what it was to replace would be
    gone.

    Raises:
        Unparseable: There are rows, and none can be parsed.
    """
    if most is None and bad and not parsed:
        none = "the only row cannot" if bad == 1 else f"none of the {bad:,} rows can"
        raise Unparseable(
            f"{none} be parsed{_first(errors)}. Look whether the input is of"
            " the inputFormat, with its time where a timestampSpec says, or set maxParseExceptions"
            " to so many",
            bad,
            errors,
        )


def _first(errors: Sequence[ParseError]) -> str:
    return "".join(f"; the first: {error.place}: {error.reason}" for error in errors[:1])


class Progress(Protocol):
    """Told how far a request is; any thread, often, and must not block."""

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` parts of the work are finished; the total may grow."""
        ...


class BatchEngine(Protocol):
    """The data plane of batch tasks."""

    def write(self, request: BatchRequest, progress: Progress | None = None) -> BatchResult:
        """Write the input's rows as final segment files.

        Raises:
            EngineUnavailable: The engine is not there; try again into another folder.
            EngineLost: It is one of those: the engine broke down while it did this.
            EngineFailure: The request fails for good: a file that is not there or not what the
                format says, too many unparseable rows, an expression that does not parse.
        """
        ...

    def cancel(self, task_id: str) -> None:
        """End what runs for a task, soon; its call raises EngineFailure.

        So does every later call for it: a task that is stopped may be about to make one.
        """
        ...

    def close(self) -> None:
        """Let go of what the engine holds."""
        ...
