"""The protocol of data engines for indexing, independent of any engine.

The engine converts offset ranges of a stream into sorted Parquet files, one or more for each time
chunk, and merges such files. Calls block and may come from any thread. They change only the folders
that they are given, so a failed or interrupted call can be repeated with a new folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.intervals import Interval

if TYPE_CHECKING:
    # Not at run time: the models take 21 MB, and the router reads no spec.
    from penstock.indexing.specs import DataSchema
    from penstock.indexing.specs.input_formats import CsvFormat, TsvFormat
    from penstock.indexing.specs.rows.stream_formats import KafkaFormat


class EngineUnavailable(Unavailable):
    """The engine was lost or is not running yet: repeat the call with a new folder."""

    dependency = Dependency.SPARK


class EngineLost(EngineUnavailable):
    """The engine crashed during the request, which may be the cause; or another request was."""


class InputUnavailable(EngineUnavailable):
    """The source of an input does not answer: the message names the input."""

    dependency = Dependency.INPUT


class EngineFailure(PenstockError):
    """The request itself fails, and would fail again: the message has the place."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Messages [start, end) of one stream partition; `folder` holds its log files."""

    partition: int
    folder: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class KafkaRange:
    """Records [start, end) of one partition of a Kafka topic; there may be fewer than offsets.

    `properties` are settings of a Kafka client, as (name, value) pairs, including
    `bootstrap.servers`; they hold secrets, so they are not shown. `bytes` is the approximate size
    of the records, 0 if unknown.
    """

    partition: int
    topic: str
    start: int
    end: int
    properties: tuple[tuple[str, str], ...] = field(repr=False)
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileRange:
    """Lines [start, end) of a file: its bytes from `start_position` up to `end_position`."""

    partition: int
    path: str
    start: int
    end: int
    start_position: int
    end_position: int


StreamRange = TopicRange | KafkaRange | FileRange
"""Records [start, end) of one stream partition of any kind."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Counts of the messages of a request; `processed` rows are in its files.

    processed + unparseable + thrown_away_* equals the messages read, before roll-up; `read_bytes`
    is the size of all of them.
    """

    processed: int = 0
    unparseable: int = 0
    thrown_away_late: int = 0
    thrown_away_early: int = 0
    thrown_away_filtered: int = 0
    read_bytes: int = 0

    def plus(self, other: RowCounts) -> RowCounts:
        """Return the sum, field by field."""
        return RowCounts(
            self.processed + other.processed,
            self.unparseable + other.unparseable,
            self.thrown_away_late + other.thrown_away_late,
            self.thrown_away_early + other.thrown_away_early,
            self.thrown_away_filtered + other.thrown_away_filtered,
            self.read_bytes + other.read_bytes,
        )


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of one time chunk, sorted by time and dimensions as its schema specifies.

    `min_time_ms` and `max_time_ms` are the smallest and the largest `__time` in it; `columns` its
    (name, Spark SQL type) pairs in order, `__time` first.
    """

    path: str
    interval: Interval
    rows: int
    bytes: int
    min_time_ms: int
    max_time_ms: int
    columns: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PersistRequest:
    """Read the ranges, parse, transform, filter, bucket by time chunk, roll up, write sorted.

    Rows with a time before `min_time_ms` are dropped as late, those at or after `max_time_ms` as
    early. Messages that cannot be parsed go to JSON-lines files in `bad_folder`, named by their
    offset range so that a repeated attempt writes the same file again. Both folders are absent or
    empty before the call. Without a `delimited` format messages are JSON. With a `record_format`
    other parts of records than their values are read as columns, too.

    With discovery, the dimensions are those of these messages; the files name them, and files of
    other requests may have others.
    """

    task_id: str
    topic: str
    ranges: tuple[StreamRange, ...]
    schema: DataSchema
    output_folder: str
    bad_folder: str
    min_time_ms: int | None = None
    max_time_ms: int | None = None
    delimited: CsvFormat | TsvFormat | None = None
    record_format: KafkaFormat | None = None


@dataclass(frozen=True, slots=True)
class PersistResult:
    """The files of one persist, the counts, and the files of unparseable messages."""

    files: tuple[DataFile, ...]
    counts: RowCounts
    bad_files: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class MergeRequest:
    """Merge files of one time chunk into one, sorted, rolled up again if the schema rolls up.

    With discovery the result has the dimensions of all files: null if a file lacks one, and the
    wider type if they differ.
    """

    task_id: str
    interval: Interval
    files: tuple[DataFile, ...]
    schema: DataSchema
    output_folder: str


@dataclass(frozen=True, slots=True)
class DivideRequest:
    """Divide a file by time: `times` are disjoint, in order, and cover all of its rows."""

    task_id: str
    file: DataFile
    times: tuple[Interval, ...]
    schema: DataSchema
    output_folder: str


class IndexingEngine(Protocol):
    """The data engine of a streaming task."""

    def persist(self, request: PersistRequest) -> PersistResult:
        """Write the rows of the ranges.

        Raises:
            EngineUnavailable: The engine was lost; try again.
            EngineFailure: The request fails permanently, such as an invalid expression.
        """
        ...

    def merge(self, request: MergeRequest) -> DataFile:
        """Write one file of all rows of the given ones. Raises as `persist`."""
        ...

    def divide(self, request: DivideRequest) -> tuple[DataFile, ...]:
        """Write a file for each of the times that has rows, in order, with that interval.

        Raises as `persist`.
        """
        ...

    def close(self) -> None:
        """Release the engine's resources."""
        ...
