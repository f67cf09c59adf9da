"""The Spark data source `penstock.topic`: stream partitions of a topic, by offset.

Owns the options of reads and Spark's data source API; `split_reader` reads the messages, and
`writer` publishes them. Spark's Python workers import the classes by name, so Penstock must be
installed there, and the workers must reach the topic's folders under the same paths.

Options:

    url, topic        the broker's HTTP address, and the topic
    token             bearer token of the broker
    tlsCa             file of the authorities of its certificate, if its address is https
    startingOffsets   earliest (default for batch), latest (default for streams) or
                      {"0": 17, "1": -2}: by stream partition; -2 is earliest, -1 latest
    endingOffsets     latest (default) or by stream partition; batch only
    ranges            instead of url: [[partition, folder, start, end], …]
    maxOffsetsPerTrigger   maximum number of messages in a micro-batch; streams only
    cursor            name of a cursor of the topic, which follows the query; streams only
    timeColumn, timeFormat, missingTime   with a schema that has `__time`: location of the time
    badFolder, mode   messages that do not parse: a folder to keep them in, or DROPMALFORMED;
                      otherwise the read fails and names the message
    splits, splitBytes     maximum number of pieces read at once, and their minimum size

Without a schema the rows are (partition, offset, timestamp, message). With `.schema(…)` messages
are parsed as JSON objects into its columns.

The offsets of a streaming query contain the number of splits of the micro-batch that ends there, so
that a repeated micro-batch is divided in the same way, even if the log files have grown: sinks may
recognize rows by the number of their Spark partition. They also contain the topic's id. If the
topic was deleted and created again under its name, the offsets are not valid in it, and the query
fails instead of skipping messages.

Only the checkpoint has the place of a query, so a broker knows nothing of its readers. With the
option `cursor` the query sets a cursor after each micro-batch: the broker keeps the messages from
it on, and reports how far it is behind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)

from penstock.broker.broker_client import PartitionOffsets, TopicOffsets
from penstock.broker.topic_names import require_name
from penstock.core.errors import InvalidRequest
from penstock.core.intervals import parse_time
from penstock.spark.topic.offset_splits import SourceRange, Split, cut
from penstock.spark.topic.parse import MessageParser
from penstock.spark.topic.row_shape import TIME_COLUMN, FieldType, RowShape, TimeField, time_format
from penstock.spark.topic.split_reader import (
    RAW_COLUMNS,
    BadMessagePolicy,
    read_parsed,
    read_raw,
    sized,
)
from penstock.spark.topic.topic_options import FORMAT, topic_client
from penstock.spark.topic.writer import TopicStreamWriter, TopicWriter
from penstock.storage.disk import OsFileSystem

if TYPE_CHECKING:
    import pyarrow as pa

SPLIT_BYTES: Final = 8 << 20

_ID: Final = "id"
_SPLITS: Final = "splits"
_OF_SUPERVISORS: Final = "supervisor."
_EARLIEST: Final = -2
_LATEST: Final = -1
_RAW_FIELDS: Final = ["partition", "offset", "timestamp", "message"]
_FIELD_TYPES: Final[Mapping[type[DataType], FieldType]] = {
    StringType: FieldType.STRING,
    LongType: FieldType.LONG,
    DoubleType: FieldType.DOUBLE,
    FloatType: FieldType.FLOAT,
    BooleanType: FieldType.BOOLEAN,
}


class TopicSplit(InputPartition):
    """The ranges that one Spark task reads."""

    def __init__(self, ranges: Split) -> None:
        super().__init__(None)
        self.ranges = ranges


class TopicSource(DataSource):
    """`format("penstock.topic")` of reads, writes, and streams."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of a read without a schema."""
        return RAW_COLUMNS

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return TopicReader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""
        return TopicStreamReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch job."""
        _check_mode(overwrite=overwrite)
        return TopicWriter(self.options, schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        _check_mode(overwrite=overwrite)
        return TopicStreamWriter(self.options, schema)


def _check_mode(*, overwrite: bool) -> None:
    if overwrite:
        raise InvalidRequest(
            'messages of a topic are not overwritten: use mode("append"), or'
            ' outputMode("append") or outputMode("update") for a stream'
        )


class TopicReader(DataSourceReader):
    """Reads fixed offset ranges."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        # Not copied: names of options ignore case, which a plain dict would not.
        self._options = options
        self._rows = _RowReader(options, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the splits of the ranges, or of the offsets that the broker reports."""
        if "ranges" in self._options:
            ranges = _ranges(self._options["ranges"])
        else:
            ranges = _ask_ranges(self._options)
        return _splits(self._options, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        return self._rows.read(partition)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads new messages; Spark keeps the offsets, as {"0": next offset, …, "id": …, "splits": 2}.

    Spark calls one object for a run of a query, and others in its workers, which only read.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._rows = _RowReader(options, schema)
        self._cursor = _cursor_of(options)
        # Where a run with `availableNow` ends.
        self._target: TopicOffsets | None = None
        # The place of the cursor, by stream partition.
        self._followed: dict[int, int] = {}

    def initialOffset(self) -> dict[str, int | str]:  # noqa: N802
        """Return where a new query starts."""
        wanted = _positions(self._options.get("startingOffsets", "latest"), "startingOffsets")
        topic = _read_offsets(self._options)
        starts = {str(p.partition): _resolve(p, wanted, _LATEST) for p in topic.partitions}
        return {**starts, _ID: topic.id}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the bound of a micro-batch."""
        most = self._options.get("maxOffsetsPerTrigger")
        return (
            ReadAllAvailable()
            if most is None
            else ReadMaxRows(_whole(most, "maxOffsetsPerTrigger"))
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the durable messages of this moment, at which the run ends."""
        self._target = _read_offsets(self._options)

    def reportLatestOffset(self) -> dict[str, int | str]:  # noqa: N802
        """Return the end of the topic now, for the progress of the query."""
        topic = _read_offsets(self._options, durable=False)
        return {**{str(p.partition): p.latest for p in topic.partitions}, _ID: topic.id}

    def latestOffset(  # noqa: N802
        self, start: dict[str, int | str], limit: ReadLimit
    ) -> dict[str, int | str]:
        """Return the end of the next micro-batch: the durable messages, within the limit."""
        topic = _read_offsets(self._options) if self._target is None else self._target
        begins = _known_in(topic, start)
        self._follow(begins)
        end = {
            str(p.partition): max(p.latest, begins.get(p.partition, 0)) for p in topic.partitions
        }
        if isinstance(limit, ReadMaxRows):
            left = limit.max_rows
            for index, name in enumerate(sorted(end)):
                begin = begins.get(int(name), 0)
                share = -(-left // (len(end) - index))
                end[name] = min(end[name], begin + share)
                left -= end[name] - begin
        ranges = _new_ranges(topic, begins, {int(name): at for name, at in end.items()})
        if not ranges and begins.keys() == {int(name) for name in end}:
            return start
        return {**end, _ID: topic.id, _SPLITS: len(_splits(self._options, ranges))}

    def partitions(
        self, start: dict[str, int | str], end: dict[str, int | str]
    ) -> Sequence[InputPartition]:
        """Return the splits of a micro-batch."""
        topic = _read_offsets(self._options, durable=False)
        ranges = _new_ranges(topic, _known_in(topic, start), _known_in(topic, end))
        if _SPLITS not in end:  # planned by an early release
            return _splits(self._options, ranges)
        counted = [replace(one, size=one.end - one.start) for one in ranges]
        return [TopicSplit(split) for split in cut(counted, int(end[_SPLITS]), 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        return self._rows.read(partition)

    def _follow(self, completed: Mapping[int, int]) -> None:
        """Set the cursor to the end of the last micro-batch, which Spark has recorded as read.

        Spark's own call, `commit`, comes only with the next micro-batch, so a cursor that is set
        there is behind while no messages arrive.
        """
        moved = [n for n in completed.items() if self._followed.get(n[0]) != n[1]]
        if not self._cursor or not moved:
            return
        with topic_client(self._options) as client:
            for partition, offset in moved:
                client.set_cursor(self._options["topic"], partition, self._cursor, offset)
                self._followed[partition] = offset


class _RowReader:
    """Makes rows of a split, raw or parsed, depending on the schema."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._shape: RowShape | None = None
        if schema.fieldNames() != _RAW_FIELDS:
            self._shape = _shape_of(schema, options)
        drop = options.get("mode", "FAILFAST").upper()
        if drop not in {"FAILFAST", "DROPMALFORMED"}:
            raise InvalidRequest(f"mode {drop!r} is unknown: use FAILFAST or DROPMALFORMED")
        self._policy = BadMessagePolicy(
            options.get("badFolder"),
            drop == "DROPMALFORMED",
            options.get("topic", ""),
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split."""
        # Spark passes in an empty partition if there are no splits.
        ranges = partition.ranges if isinstance(partition, TopicSplit) else ()
        fs = OsFileSystem()
        if self._shape is None:
            return read_raw(fs, ranges)
        return read_parsed(fs, ranges, MessageParser(self._shape), self._policy)


def _shape_of(schema: StructType, options: Mapping[str, str]) -> RowShape:
    fields = []
    time = None
    for field in schema.fields:
        if field.name == TIME_COLUMN and isinstance(field.dataType, TimestampType):
            missing = options.get("missingTime")
            time = TimeField(
                options.get("timeColumn", "timestamp"),
                time_format(options.get("timeFormat", "auto")),
                None if missing is None else parse_time(missing),
            )
            if schema.fields[0] is not field:
                raise InvalidRequest(f"{TIME_COLUMN} must be the first column of the schema")
            continue
        type_ = _FIELD_TYPES.get(type(field.dataType))
        if type_ is None:
            raise InvalidRequest(
                f"column {field.name!r}: {field.dataType.simpleString()} cannot be read from"
                f" JSON: use one of {', '.join(FieldType)} and cast it"
            )
        fields.append((field.name, type_))
    return RowShape(tuple(fields), time)


def _splits(options: Mapping[str, str], ranges: Sequence[SourceRange]) -> list[InputPartition]:
    most = _whole(options.get("splits", str(os.cpu_count() or 1)), "splits")
    if not ranges:
        return []
    fs = OsFileSystem()
    least = _whole(options.get("splitBytes", str(SPLIT_BYTES)), "splitBytes")
    return [TopicSplit(split) for split in cut([sized(fs, r) for r in ranges], most, least)]


def _ranges(text: str) -> list[SourceRange]:
    try:
        return [
            SourceRange(int(partition), str(folder), int(start), int(end))
            for partition, folder, start, end in json.loads(text)
        ]
    except (ValueError, TypeError) as error:
        raise InvalidRequest(
            f"option ranges must be [[partition, folder, start, end], …]: {error}"
        ) from None


def _ask_ranges(options: Mapping[str, str]) -> list[SourceRange]:
    start = _positions(options.get("startingOffsets", "earliest"), "startingOffsets")
    end = _positions(options.get("endingOffsets", "latest"), "endingOffsets")
    return [
        SourceRange(p.partition, p.folder, _resolve(p, start, _EARLIEST), _resolve(p, end, _LATEST))
        for p in _read_offsets(options).partitions
    ]


def _known_in(topic: TopicOffsets, offsets: Mapping[str, int | str]) -> dict[int, int]:
    """Return a checkpoint's offsets by stream partition, if they are of this topic.

    Raises:
        InvalidRequest: They belong to an earlier topic of the same name.
    """
    # Checkpoints of early releases have no id.
    if offsets.get(_ID, topic.id) != topic.id:
        raise InvalidRequest(
            f"topic {topic.topic} was deleted and created again since this query's checkpoint"
            f" (id {offsets[_ID]}, now {topic.id}), so the offsets of the checkpoint are no longer"
            " valid: start the query with a new checkpointLocation"
        )
    return {int(name): int(at) for name, at in offsets.items() if name not in {_ID, _SPLITS}}


def _new_ranges(
    topic: TopicOffsets, begins: Mapping[int, int], ends: Mapping[int, int]
) -> list[SourceRange]:
    """Return the ranges between two places that have messages."""
    folders = {p.partition: p.folder for p in topic.partitions}
    return [
        SourceRange(number, folders[number], begins.get(number, 0), at)
        for number, at in ends.items()
        if begins.get(number, 0) < at
    ]


def _read_offsets(options: Mapping[str, str], *, durable: bool = True) -> TopicOffsets:
    with topic_client(options) as client:
        return client.offsets(options["topic"], durable=durable)


def _cursor_of(options: Mapping[str, str]) -> str:
    """Return the name of the query's cursor; empty: it has none."""
    name = options.get("cursor", "")
    if name.startswith(_OF_SUPERVISORS):
        raise InvalidRequest(
            f"option cursor is {name!r}: names that begin with {_OF_SUPERVISORS} belong to"
            " supervisors; use another one"
        )
    return require_name(name, "cursor") if name else ""


def _positions(text: str, option: str) -> int | Mapping[str, int]:
    """Return the number of a word, or the positions by stream partition."""
    word = {"earliest": _EARLIEST, "latest": _LATEST}.get(text.strip().lower())
    if word is not None:
        return word
    try:
        return {str(int(name)): int(at) for name, at in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        raise InvalidRequest(
            f'option {option} is {text!r}: use earliest, latest or {{"0": 17}}'
        ) from None


def _resolve(place: PartitionOffsets, wanted: int | Mapping[str, int], default: int) -> int:
    at = wanted if isinstance(wanted, int) else wanted.get(str(place.partition), default)
    if at == _EARLIEST:
        return place.earliest
    return place.latest if at == _LATEST else min(at, place.latest)


def _whole(text: str, option: str) -> int:
    try:
        return max(1, int(text))
    except ValueError:
        raise InvalidRequest(f"option {option} must be a whole number, not {text!r}") from None
