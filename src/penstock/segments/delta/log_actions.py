"""Actions of a Delta log, and the state of a table that they lead to. Pure.

Owns the JSON form of entries, and the Parquet form of checkpoints. An entry is a text with one
action in each line. A log has the actions `protocol`, `metaData`, `add`, `remove`, `txn` and
`commitInfo`, because only Penstock writes to it. Source of their fields: the Delta transaction log
protocol, "Actions", "Per-file Statistics" and "Checkpoint Schema".

Invariants:

- an entry is applied as a whole, or not at all;
- each entry has the application transaction of its table, with the revision of its rows;
- a checkpoint and the entries up to it lead to the same state, except that the checkpoint lacks
  files that were removed long ago.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast
from urllib.parse import quote

import orjson

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.intervals import Interval, format_time, parse_time
from penstock.segments.visible_rows import TIME_COLUMN

Json: TypeAlias = "dict[str, object]"

WRITER_FEATURE: Final = "penstock"
"""Feature that no other writer has.

Others refuse to write to such a table, or to delete files that its log does not name (VACUUM): the
folder has files of running tasks and of unused segments.
"""
CUT_TAG: Final = "penstock.cut"
"""Tag of a file with the visible rows of a segment that is visible in part."""

_READER_FEATURES_VERSION: Final = 3
_WRITER_FEATURES_VERSION: Final = 7
# Memory of the writer and reader of a checkpoint is bounded by this number of actions.
_CHECKPOINT_ROWS: Final = 5_000
# Characters of names in the deep storage that have no meaning in URIs.
_PLAIN: Final = "/=+@"


@dataclass(frozen=True, slots=True)
class LoggedFile:
    """A file of a table.

    Attributes:
        path: Its path from the folder of the table, in the form of a URI.
        size_bytes: Its size.
        rows: Number of its rows.
        times: An interval with the times of its rows; None: unknown.
        added_ms: When it was added, epoch milliseconds.
        cut: Digest of a segment's file and its visible intervals, if these are the rows.
    """

    path: str
    size_bytes: int
    rows: int
    times: Interval | None
    added_ms: int
    cut: str = ""

    @property
    def id(self) -> str:
        """Id of its rows: the digest of visible rows, or the path if all are visible."""
        return self.cut or self.path

    def to_action(self) -> Json:
        """Return the action `add`."""
        found: Json = {
            "path": self.path,
            "partitionValues": {},
            "size": self.size_bytes,
            "modificationTime": self.added_ms,
            "dataChange": True,
            "stats": self._stats(),
        }
        if self.cut:
            found["tags"] = {CUT_TAG: self.cut}
        return found

    def _stats(self) -> str:
        stats: Json = {"numRecords": self.rows}
        if self.times is not None and not self.times.is_empty:
            # Times are cut to milliseconds, and engines read a maximum as the whole millisecond.
            stats["minValues"] = {TIME_COLUMN: format_time(self.times.start_ms)}
            stats["maxValues"] = {TIME_COLUMN: format_time(self.times.end_ms - 1)}
            stats["tightBounds"] = False
        return orjson.dumps(stats).decode()

    @classmethod
    def from_action(cls, action: Mapping[str, object]) -> LoggedFile:
        """Parse the output of `to_action`."""
        stats = cast("Json", orjson.loads(str(action["stats"])))
        times = None
        if "minValues" in stats:
            low = cast("Mapping[str, str]", stats["minValues"])[TIME_COLUMN]
            high = cast("Mapping[str, str]", stats["maxValues"])[TIME_COLUMN]
            times = Interval(parse_time(low), parse_time(high) + 1)
        tags = cast("Mapping[str, str]", action.get("tags") or {})
        return cls(
            str(action["path"]),
            int(str(action["size"])),
            int(str(stats["numRecords"])),
            times,
            int(str(action["modificationTime"])),
            tags.get(CUT_TAG, ""),
        )


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that is not part of the table any longer, and since when (epoch milliseconds)."""

    path: str
    size_bytes: int
    removed_ms: int

    def to_action(self) -> Json:
        """Return the action `remove`."""
        return {
            "path": self.path,
            "deletionTimestamp": self.removed_ms,
            "dataChange": True,
            "extendedFileMetadata": True,
            "partitionValues": {},
            "size": self.size_bytes,
        }

    @classmethod
    def from_action(cls, action: Mapping[str, object]) -> RemovedFile:
        """Parse the output of `to_action`."""
        return cls(
            str(action["path"]), int(str(action["size"])), int(str(action["deletionTimestamp"]))
        )


@dataclass(slots=True)
class TableState:
    """The state of a table at a version.

    Attributes:
        version: Number of the last entry; -1: there is none.
        revision: The revision of the metadata whose visible rows the table has.
        protocol: The action `protocol`.
        metadata: The action `metaData`.
        files: The files of the table by path.
        removed: Files that were removed, by path.
    """

    version: int = -1
    revision: int = -1
    protocol: Mapping[str, object] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    files: dict[str, LoggedFile] = field(default_factory=dict)
    removed: dict[str, RemovedFile] = field(default_factory=dict)

    @property
    def table_id(self) -> str:
        """The id of the table; empty before the first entry."""
        return str(self.metadata.get("id", ""))

    def apply(self, version: int, content: bytes, place: str) -> int:
        """Apply an entry, and return the number of its actions.

        Args:
            version: Its number.
            content: Its content.
            place: Its place, for messages.

        Raises:
            CorruptData: It is not an entry that Penstock wrote for this table; nothing changes.
        """
        return self.apply_actions(version, map(_action, io.BytesIO(content)), place)

    def apply_actions(
        self, version: int, actions: Iterable[tuple[str, Mapping[str, object]]], place: str
    ) -> int:
        """Apply the actions of an entry, which are pairs of kind and fields. Returns as `apply`."""
        added: list[LoggedFile] = []
        removed: list[RemovedFile] = []
        protocol, metadata = self.protocol, self.metadata
        revision, writer, count = None, "", 0
        try:
            for kind, one in actions:
                count += 1
                if kind == "add":
                    added.append(LoggedFile.from_action(one))
                elif kind == "remove":
                    removed.append(RemovedFile.from_action(one))
                elif kind == "protocol":
                    protocol = one
                elif kind == "metaData":
                    metadata = one
                elif kind == "txn":
                    revision, writer = int(str(one["version"])), str(one["appId"])
            table_id = str(metadata["id"])
        except (KeyError, TypeError, ValueError, AttributeError, InvalidRequest) as error:
            reason = f"an action is damaged ({type(error).__name__}: {error})"
            raise CorruptData(place, None, reason) from error
        if revision is None or writer != application(table_id):
            raise CorruptData(place, None, "it was not written for this Delta table")
        self.version, self.revision = version, revision
        self.protocol, self.metadata = protocol, metadata
        for gone in removed:
            self.files.pop(gone.path, None)
            self.removed[gone.path] = gone
        for new in added:
            self.files[new.path] = new
            self.removed.pop(new.path, None)
        return count


def application(table_id: str) -> str:
    """Return the id of the application transaction of a table."""
    return f"{WRITER_FEATURE}/{table_id}"


def protocol_action(reader_features: Iterable[str]) -> Json:
    """Return the action `protocol` of a table whose readers need some features."""
    features = sorted(reader_features)
    found: Json = {
        "minReaderVersion": _READER_FEATURES_VERSION if features else 1,
        "minWriterVersion": _WRITER_FEATURES_VERSION,
        "writerFeatures": [*features, WRITER_FEATURE],
    }
    return found | {"readerFeatures": features} if features else found


def reader_features(protocol: Mapping[str, object]) -> set[str]:
    """Return the features that readers of a table need."""
    return set(cast("Sequence[str]", protocol.get("readerFeatures") or ()))


def entry(actions: Iterable[tuple[str, Mapping[str, object]]]) -> bytes:
    """Return the content of an entry with these actions, which are pairs of kind and fields."""
    return b"".join(orjson.dumps({kind: one}) + b"\n" for kind, one in actions)


def relative_uri(path: str) -> str:
    """Return a path below the folder of a table in the form of a URI."""
    return quote(path, safe=_PLAIN)


def write_checkpoint(state: TableState, removed_after_ms: int) -> tuple[bytes, int]:
    """Return the content of a checkpoint, and the number of its actions.

    Args:
        state: The state of the table.
        removed_after_ms: Files that were removed before are left out.
    """
    import pyarrow as pa  # noqa: PLC0415 - 40 MB
    import pyarrow.parquet as pq  # noqa: PLC0415

    transaction = {"appId": application(state.table_id), "version": state.revision}
    first: list[Json] = [
        {"protocol": dict(state.protocol)},
        {"metaData": dict(state.metadata)},
        {"txn": transaction},
    ]
    added = ({"add": file.to_action()} for file in state.files.values())
    removed = (
        {"remove": one.to_action()}
        for one in state.removed.values()
        if one.removed_ms >= removed_after_ms
    )
    rows = itertools.chain(first, added, removed)
    out, count = io.BytesIO(), 0
    schema = pa.schema(_checkpoint_fields())
    with pq.ParquetWriter(out, schema, compression="zstd", store_schema=False) as writer:
        while some := list(itertools.islice(rows, _CHECKPOINT_ROWS)):
            writer.write_batch(pa.RecordBatch.from_pylist(some, schema=schema))
            count += len(some)
    return out.getvalue(), count


def read_checkpoint(version: int, content: bytes, place: str) -> TableState:
    """Return the state that a checkpoint has.

    Raises:
        CorruptData: It is not a checkpoint that Penstock wrote.
    """
    state = TableState()
    state.apply_actions(version, _checkpoint_actions(content), place)
    return state


def _checkpoint_actions(content: bytes) -> Iterator[tuple[str, Json]]:
    """Yield the actions of a checkpoint. Raises ValueError if it is not one."""
    import pyarrow as pa  # noqa: PLC0415 - 40 MB
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        for some in pq.ParquetFile(io.BytesIO(content)).iter_batches(_CHECKPOINT_ROWS):
            for row in some.to_pylist(maps_as_pydicts="strict"):
                for kind, one in row.items():
                    if one is not None:
                        yield kind, {key: value for key, value in one.items() if value is not None}
    except (pa.ArrowException, OSError) as error:
        raise ValueError(str(error)) from error


def _action(line: bytes) -> tuple[str, Json]:
    """Return kind and fields of an action."""
    ((kind, fields),) = cast("dict[str, Json]", orjson.loads(line)).items()
    if kind not in {"add", "remove", "metaData", "protocol", "txn", "commitInfo"}:
        raise ValueError(f"it has the action {kind!r}")
    return kind, fields


def _checkpoint_fields() -> Mapping[str, object]:
    """Return the columns of a checkpoint with their types."""
    import pyarrow as pa  # noqa: PLC0415 - 40 MB

    texts = pa.map_(pa.string(), pa.string())
    return {
        "txn": pa.struct(
            {"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}.items()
        ),
        "add": pa.struct(
            {
                "path": pa.string(),
                "partitionValues": texts,
                "size": pa.int64(),
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "tags": texts,
            }.items()
        ),
        "remove": pa.struct(
            {
                "path": pa.string(),
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "partitionValues": texts,
                "size": pa.int64(),
            }.items()
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "name": pa.string(),
                "description": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": texts}.items()),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": texts,
                "createdTime": pa.int64(),
            }.items()
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }.items()
        ),
    }
