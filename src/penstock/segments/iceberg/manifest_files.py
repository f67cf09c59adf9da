"""Manifests and manifest lists of Iceberg tables, in Avro. Pure: bytes in, bytes out.

Owns the records of the files of a snapshot and their schemas. Source of the fields and their ids:
the Iceberg table specification, version 2, "Manifests" and "Manifest Lists".
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from enum import IntEnum
from typing import Final

import fastavro
import orjson
from fastavro.schema import SchemaParseException

FORMAT_VERSION: Final = 2
POSITION_DELETES: Final = 1
"""Content of a file with the positions of hidden rows; 0: rows."""
PATH_ID: Final = 2147483546
"""Id of the column with the path of the file that such a file cuts."""


_COUNT: Final = "penstock.records"
"""Key of the number of records, in the head of a file."""

# Exceptions of the reader of Avro for truncated and changed files, found by changing each byte.
_DAMAGE: Final = (
    *(EOFError, LookupError, OverflowError, TypeError, ValueError, struct.error, zlib.error),
    SchemaParseException,
)


class Status(IntEnum):
    """Status of a file in a manifest."""

    EXISTING = 0
    ADDED = 1


@dataclass(frozen=True, slots=True)
class PartitionField:
    """The field of a partition spec.

    Attributes:
        source_id: Id of the column.
        name: Name of the partition.
        transform: Iceberg's name of the transform, such as `day`.
    """

    source_id: int
    name: str
    transform: str


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """A partition spec with one field or none."""

    id: int
    field: PartitionField | None = None

    def to_json(self) -> dict[str, object]:
        """Return the spec in Iceberg's JSON form."""
        return {"spec-id": self.id, "fields": self.fields_json()}

    def fields_json(self) -> list[dict[str, object]]:
        """Return the fields in Iceberg's JSON form."""
        if self.field is None:
            return []
        one = self.field
        return [
            {
                "source-id": one.source_id,
                "field-id": PARTITION_FIELD_ID,
                "name": one.name,
                "transform": one.transform,
            }
        ]


PARTITION_FIELD_ID: Final = 1000
"""Id of the first partition field of a table, as the specification has it."""


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """One file of a snapshot.

    Attributes:
        path: Its URI.
        rows: Number of its rows.
        size_bytes: Its size.
        snapshot_id: The snapshot that added it.
        sequence_number: The sequence number of that snapshot.
        content: 0, or `POSITION_DELETES`.
        partition: Value of the partition field; None: the spec has none.
        bounds: Least and greatest value of a column, as Iceberg encodes them, by the column's id.
        status: Whether this snapshot added it.
        counts: Numbers of values, with nulls, and of nulls of a column, by the column's id.
    """

    path: str
    rows: int
    size_bytes: int
    snapshot_id: int
    sequence_number: int
    content: int = 0
    partition: int | None = None
    bounds: Mapping[int, tuple[bytes, bytes]] | None = None
    status: Status = Status.EXISTING
    counts: Mapping[int, tuple[int, int]] | None = None

    @property
    def referenced(self) -> str:
        """The file whose rows a file with positions hides; empty: this is a file with rows."""
        found = (self.bounds or {}).get(PATH_ID)
        return found[0].decode() if found and self.content == POSITION_DELETES else ""

    def to_record(self, spec: PartitionSpec) -> dict[str, object]:
        """Return the Avro record."""
        bounds, counts = self.bounds or {}, self.counts or {}
        partition = {} if spec.field is None else {spec.field.name: self.partition}
        return {
            "status": int(self.status),
            "snapshot_id": self.snapshot_id,
            "sequence_number": self.sequence_number,
            "file_sequence_number": self.sequence_number,
            "data_file": {
                "content": self.content,
                "file_path": self.path,
                "file_format": "PARQUET",
                "partition": partition,
                "record_count": self.rows,
                "file_size_in_bytes": self.size_bytes,
                "value_counts": [{"key": id_, "value": all_} for id_, (all_, _) in counts.items()],
                "null_value_counts": [{"key": id_, "value": n} for id_, (_, n) in counts.items()],
                "lower_bounds": [{"key": id_, "value": low} for id_, (low, _) in bounds.items()],
                "upper_bounds": [{"key": id_, "value": high} for id_, (_, high) in bounds.items()],
            },
        }


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A manifest as its list names it.

    Attributes:
        path: Its URI.
        size_bytes: Its size.
        spec_id: Id of the partition spec of its files.
        content: 0, or 1 for deletes.
        sequence_number: Sequence number of the snapshot that wrote it.
        sequence_number_min: The smallest one of its files.
        snapshot_id: The snapshot that wrote it.
        added: Numbers of files and rows that this snapshot added.
        existing: Numbers of the others.
        partitions: Least and greatest value of the partition field; None: the spec has none.
    """

    path: str
    size_bytes: int
    spec_id: int
    content: int
    sequence_number: int
    sequence_number_min: int
    snapshot_id: int
    added: tuple[int, int]
    existing: tuple[int, int]
    partitions: tuple[int, int] | None = None

    def to_record(self) -> dict[str, object]:
        """Return the Avro record."""
        partitions = []
        if self.partitions is not None:
            low, high = self.partitions
            partitions.append(
                {
                    "contains_null": False,
                    "contains_nan": False,
                    "lower_bound": encoded_int(low),
                    "upper_bound": encoded_int(high),
                }
            )
        return {
            "manifest_path": self.path,
            "manifest_length": self.size_bytes,
            "partition_spec_id": self.spec_id,
            "content": self.content,
            "sequence_number": self.sequence_number,
            "min_sequence_number": self.sequence_number_min,
            "added_snapshot_id": self.snapshot_id,
            "added_files_count": self.added[0],
            "existing_files_count": self.existing[0],
            "deleted_files_count": 0,
            "added_rows_count": self.added[1],
            "existing_rows_count": self.existing[1],
            "deleted_rows_count": 0,
            "partitions": partitions,
        }

    @property
    def files(self) -> int:
        """Number of its files."""
        return self.added[0] + self.existing[0]

    @property
    def rows(self) -> int:
        """Number of rows of its files."""
        return self.added[1] + self.existing[1]


def encoded_int(value: int) -> bytes:
    """Return an int as Iceberg encodes it in bounds: four bytes, little-endian."""
    return struct.pack("<i", value)


def encoded_long(value: int) -> bytes:
    """Return a long, or a time in microseconds, as Iceberg encodes it in bounds."""
    return struct.pack("<q", value)


def decoded_long(value: bytes) -> int:
    """Return a long, or a time in microseconds, from a bound."""
    found: int = struct.unpack("<q", value)[0]
    return found


@contextmanager
def damage_is_value_error() -> Iterator[None]:
    """Raise the errors of the reader of Avro for damaged content as ValueError."""
    try:
        yield
    except _DAMAGE as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def write_manifest(
    entries: Sequence[ManifestEntry], spec: PartitionSpec, schema: Mapping[str, object]
) -> bytes:
    """Return the content of a manifest.

    Args:
        entries: Its files, all of one kind of content.
        spec: Their partition spec.
        schema: The schema of the table in Iceberg's JSON form.
    """
    is_deletes = bool(entries and entries[0].content)
    metadata = {
        "schema": orjson.dumps(schema).decode(),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": orjson.dumps(spec.fields_json()).decode(),
        "partition-spec-id": str(spec.id),
        "format-version": str(FORMAT_VERSION),
        "content": "deletes" if is_deletes else "data",
    }
    return _avro(_entry_schema(spec), [entry.to_record(spec) for entry in entries], metadata)


@damage_is_value_error()
def read_manifest(content: bytes) -> list[ManifestEntry]:
    """Return the files of a manifest that `write_manifest` wrote, as existing ones.

    Raises:
        ValueError: The content is not such a manifest.
    """
    found = []
    reader = fastavro.reader(io.BytesIO(content))
    for record in reader:
        if not isinstance(record, dict):
            raise ValueError("it has records of another form")  # noqa: TRY004 - of the content
        file = record["data_file"]
        lows = {one["key"]: one["value"] for one in file["lower_bounds"] or ()}
        highs = {one["key"]: one["value"] for one in file["upper_bounds"] or ()}
        # Earlier releases wrote no counts.
        values = {one["key"]: one["value"] for one in file.get("value_counts") or ()}
        nulls = {one["key"]: one["value"] for one in file.get("null_value_counts") or ()}
        found.append(
            ManifestEntry(
                file["file_path"],
                file["record_count"],
                file["file_size_in_bytes"],
                record["snapshot_id"],
                record["sequence_number"],
                file["content"],
                next((_as_int(value) for value in file["partition"].values()), None),
                {key: (low, highs[key]) for key, low in lows.items()},
                counts={key: (count, nulls[key]) for key, count in values.items()},
            )
        )
    _require_all(reader.metadata, len(found))
    return found


def write_manifest_list(
    manifests: Iterable[ManifestFile],
    *,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
) -> bytes:
    """Return the content of a manifest list."""
    metadata = {
        "snapshot-id": str(snapshot_id),
        "parent-snapshot-id": "null" if parent_id is None else str(parent_id),
        "sequence-number": str(sequence_number),
        "format-version": str(FORMAT_VERSION),
    }
    return _avro(_LIST_SCHEMA, [one.to_record() for one in manifests], metadata)


@damage_is_value_error()
def read_manifest_list(content: bytes) -> list[ManifestFile]:
    """Return the manifests of a list that `write_manifest_list` wrote.

    Raises:
        ValueError: The content is not such a list.
    """
    found = []
    reader = fastavro.reader(io.BytesIO(content))
    for record in reader:
        if not isinstance(record, dict):
            raise ValueError("it has records of another form")  # noqa: TRY004 - of the content
        partitions = record["partitions"] or ()
        found.append(
            ManifestFile(
                record["manifest_path"],
                record["manifest_length"],
                record["partition_spec_id"],
                record["content"],
                record["sequence_number"],
                record["min_sequence_number"],
                record["added_snapshot_id"],
                (record["added_files_count"], record["added_rows_count"]),
                (record["existing_files_count"], record["existing_rows_count"]),
                (
                    struct.unpack("<i", partitions[0]["lower_bound"])[0],
                    struct.unpack("<i", partitions[0]["upper_bound"])[0],
                )
                if partitions
                else None,
            )
        )
    _require_all(reader.metadata, len(found))
    return found


def manifest_of(
    path: str, content: bytes, entries: Sequence[ManifestEntry], spec: PartitionSpec
) -> ManifestFile:
    """Return the entry of a manifest list for a manifest with these files.

    The newest snapshot among its files is the one that wrote it.
    """
    newest = max(entries, key=lambda one: one.sequence_number)
    new = [one for one in entries if one.status is Status.ADDED]
    old = [one for one in entries if one.status is Status.EXISTING]
    values = [one.partition for one in entries if one.partition is not None]
    return ManifestFile(
        path,
        len(content),
        spec.id,
        1 if entries[0].content else 0,
        newest.sequence_number,
        min(one.sequence_number for one in entries),
        newest.snapshot_id,
        (len(new), sum(one.rows for one in new)),
        (len(old), sum(one.rows for one in old)),
        (min(values), max(values)) if values else None,
    )


def _avro(
    schema: Mapping[str, object],
    records: Sequence[Mapping[str, object]],
    metadata: Mapping[str, str],
) -> bytes:
    out = io.BytesIO()
    head = {**metadata, _COUNT: str(len(records))}
    parsed = fastavro.parse_schema(dict(schema))
    fastavro.writer(out, parsed, records, codec="deflate", metadata=head)
    return out.getvalue()


def _require_all(metadata: Mapping[str, str], count: int) -> None:
    """Check that a file has all its records.

    A file that ends after a block of Avro is a valid one with fewer records.
    """
    expected = metadata.get(_COUNT)
    if expected is not None and expected != str(count):
        raise ValueError(f"it has {count} of {expected} records")


def _as_int(value: object) -> int | None:
    """Return the value of a partition: the Avro reader makes days dates."""
    if isinstance(value, date):
        return (value - date(1970, 1, 1)).days
    return value if isinstance(value, int) else None


def _field(id_: int, name: str, type_: object, *, optional: bool = False) -> dict[str, object]:
    if optional:
        return {"name": name, "type": ["null", type_], "default": None, "field-id": id_}
    return {"name": name, "type": type_, "field-id": id_}


def _by_column(id_: int, name: str, ids: tuple[int, int], type_: str) -> dict[str, object]:
    """Return the field of a map by the ids of columns: Avro's maps have keys of text only."""
    key, value = ids
    pair = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_field(key, "key", "int"), _field(value, "value", type_)],
    }
    return _field(id_, name, {"type": "array", "items": pair, "logicalType": "map"}, optional=True)


def _entry_schema(spec: PartitionSpec) -> dict[str, object]:
    partition: list[dict[str, object]] = []
    if spec.field is not None:
        one = {"type": "int", "logicalType": "date"} if spec.field.transform == "day" else "int"
        partition.append(_field(PARTITION_FIELD_ID, spec.field.name, one, optional=True))
    data_file = {
        "type": "record",
        "name": "r2",
        "fields": [
            _field(134, "content", "int"),
            _field(100, "file_path", "string"),
            _field(101, "file_format", "string"),
            _field(102, "partition", {"type": "record", "name": "r102", "fields": partition}),
            _field(103, "record_count", "long"),
            _field(104, "file_size_in_bytes", "long"),
            _by_column(109, "value_counts", (119, 120), "long"),
            _by_column(110, "null_value_counts", (121, 122), "long"),
            _by_column(125, "lower_bounds", (126, 127), "bytes"),
            _by_column(128, "upper_bounds", (129, 130), "bytes"),
        ],
    }
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field(0, "status", "int"),
            _field(1, "snapshot_id", "long", optional=True),
            _field(3, "sequence_number", "long", optional=True),
            _field(4, "file_sequence_number", "long", optional=True),
            _field(2, "data_file", data_file),
        ],
    }


_LIST_SCHEMA: Final = {
    "type": "record",
    "name": "manifest_file",
    "fields": [
        _field(500, "manifest_path", "string"),
        _field(501, "manifest_length", "long"),
        _field(502, "partition_spec_id", "int"),
        _field(517, "content", "int"),
        _field(515, "sequence_number", "long"),
        _field(516, "min_sequence_number", "long"),
        _field(503, "added_snapshot_id", "long"),
        _field(504, "added_files_count", "int"),
        _field(505, "existing_files_count", "int"),
        _field(506, "deleted_files_count", "int"),
        _field(512, "added_rows_count", "long"),
        _field(513, "existing_rows_count", "long"),
        _field(514, "deleted_rows_count", "long"),
        _field(
            507,
            "partitions",
            {
                "type": "array",
                "element-id": 508,
                "items": {
                    "type": "record",
                    "name": "r508",
                    "fields": [
                        _field(509, "contains_null", "boolean"),
                        _field(518, "contains_nan", "boolean", optional=True),
                        _field(510, "lower_bound", "bytes", optional=True),
                        _field(511, "upper_bound", "bytes", optional=True),
                    ],
                },
            },
            optional=True,
        ),
    ],
}
