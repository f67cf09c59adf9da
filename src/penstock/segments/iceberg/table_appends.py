"""Appends of clients to an Iceberg table: commits, and the files that they add.

Owns the reading of commits in the JSON form of the Iceberg REST catalog specification, the reading
of the manifests that clients write, and the refusals: every change but an append is refused,
because a datasource has its own rules for the others. Reads manifests with bounds; each is only
read after its place was checked (`client_files`).
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import fastavro

from penstock.core.avro_bounds import AvroBlocks, bounded_blocks, gathered_records
from penstock.core.errors import Conflict, InvalidRequest
from penstock.core.printable import quoted
from penstock.core.whole_numbers import is_int64
from penstock.segments.iceberg.manifest_files import damage_is_value_error
from penstock.segments.json_fields import JsonFields

LIST_BYTES_MAX: Final = 64 << 20
MANIFEST_BYTES_MAX: Final = 32 << 20
MANIFESTS_MAX: Final = 200
"""Manifests that one commit may add."""
FILES_MAX: Final = 5_000
"""Files that one commit may add."""

_BLOCK_BYTES_MAX: Final = 16 << 20
_RECORDS_MAX: Final = 1_000_000
_RECORDS_AT_ONCE: Final = 10_000
_BRANCH: Final = "main"
_ADDED, _DELETED = 1, 2
_IGNORED: Final = frozenset({"assign-uuid", "set-current-schema", "upgrade-format-version"})
_NAMES: Final = "schema.name-mapping.default"
_ASSERTED: Final[Mapping[str, tuple[str, str]]] = {
    "assert-table-uuid": ("uuid", "table-uuid"),
    "assert-current-schema-id": ("current-schema-id", "current-schema-id"),
    "assert-last-assigned-field-id": ("last-assigned-field-id", "last-column-id"),
    "assert-last-assigned-partition-id": ("last-assigned-partition-id", "last-partition-id"),
    "assert-default-spec-id": ("default-spec-id", "default-spec-id"),
    "assert-default-sort-order-id": ("default-sort-order-id", "default-sort-order-id"),
}
"""Field of a requirement and field of the metadata that must be equal, by the requirement."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class TableAppend:
    """An append to a table.

    Attributes:
        snapshot_id: The id that the client gives to the snapshot.
        manifest_list: URI of its manifest list.
        requirements: Requirements on the table, in the form of the specification.
        fields: The fields of the schema of the rows, if the commit adds columns; None: it does not.
    """

    snapshot_id: int
    manifest_list: str
    requirements: Sequence[Json]
    fields: Sequence[Json] | None

    @classmethod
    def from_json(cls, value: Json) -> TableAppend:
        """Parse a commit.

        Raises:
            InvalidRequest: It is not an append, or changes more of the table than columns.
        """
        commit = JsonFields(value, "commit")
        updates = [_mapping(one, "updates") for one in commit.items("updates") or ()]
        requirements = [_mapping(one, "requirements") for one in commit.items("requirements") or ()]
        snapshot: Json | None = None
        fields: Sequence[Json] | None = None
        for update in updates:
            action = update.get("action")
            if action == "add-snapshot" and snapshot is None:
                snapshot = _mapping(update.get("snapshot"), "snapshot")
            elif action == "add-schema" and fields is None:
                fields = _fields(_mapping(update.get("schema"), "schema"))
            elif action == "set-snapshot-ref":
                _check_reference(update)
            elif action not in _IGNORED and not _sets_names(update):
                raise InvalidRequest(
                    f"the table cannot be changed by {quoted(str(action))}: the catalog accepts"
                    " appends of rows, with new columns; for other changes use Penstock"
                )
        if snapshot is None:
            raise InvalidRequest(
                "the commit adds no rows: a column appears with the first rows that have it, so"
                " add both in one transaction"
            )
        return cls(*_snapshot(snapshot, updates), requirements, fields)

    def check(self, metadata: Json) -> None:
        """Check what the client requires of the table.

        Raises:
            Conflict: The table has changed since the client read it.
            InvalidRequest: A requirement is unknown.
        """
        for one in self.requirements:
            kind = one.get("type")
            if kind == "assert-ref-snapshot-id":
                if one.get("ref") != _BRANCH:
                    raise InvalidRequest(f"the table has the branch {_BRANCH} only")
                wanted, found = one.get("snapshot-id"), metadata.get("current-snapshot-id")
            elif isinstance(kind, str) and kind in _ASSERTED:
                name, stored = _ASSERTED[kind]
                wanted, found = one.get(name), metadata.get(stored)
            elif kind == "assert-create":
                raise Conflict("the table exists already")
            else:
                raise InvalidRequest(f"unknown requirement {quoted(str(kind))} of a commit")
            if wanted != found:
                raise Conflict(
                    f"the table has changed since it was read ({kind}: {wanted}, now {found}):"
                    " load it again and repeat the commit"
                )

    def added_columns(self, metadata: Json) -> dict[str, object]:
        """Return the new columns of the rows, with Iceberg's types.

        Raises:
            InvalidRequest: A column of the table is missing or has another type.
        """
        if self.fields is None:
            return {}
        current = cast("Sequence[Json]", metadata["schemas"])[-1]
        found = {str(one.get("name")): one.get("type") for one in self.fields}
        for field in cast("Sequence[Json]", current["fields"]):
            if found.pop(str(field["name"]), None) != field["type"]:
                raise InvalidRequest(
                    f"column {field['name']} of the table is dropped, renamed or has another type"
                    " in the new schema: only columns can be added"
                )
        return found


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that an append adds: its URI, and what the client says about it."""

    uri: str
    rows: int
    size_bytes: int


def added_files(append: TableAppend, read: Callable[[str, int], bytes]) -> list[AddedFile]:
    """Return the files that an append adds.

    Args:
        append: The append.
        read: Checks the place of a manifest and returns its content, up to a number of bytes.

    Raises:
        InvalidRequest: A manifest is damaged, deletes rows, or has more than the bounds.
        PenstockError: As `read`.
    """
    files: dict[str, AddedFile] = {}
    manifests = 0
    listed = _records(read(append.manifest_list, LIST_BYTES_MAX), append.manifest_list)
    for record in listed:
        uri = _text(record, "manifest_path", append.manifest_list)
        if record.get("added_snapshot_id") not in (None, append.snapshot_id):
            continue  # a manifest of the table, which the client lists again
        manifests += 1
        if manifests > MANIFESTS_MAX:
            raise InvalidRequest(
                f"the commit adds more than {MANIFESTS_MAX} manifests: commit fewer files at once"
            )
        if record.get("content") not in (None, 0):
            raise InvalidRequest(f"{quoted(uri)} deletes rows: only appends are accepted")
        for file in _added_in(_records(read(uri, MANIFEST_BYTES_MAX), uri), append, uri):
            if file.uri in files:
                raise InvalidRequest(f"the commit adds {quoted(file.uri)} twice")
            files[file.uri] = file
            if len(files) > FILES_MAX:
                raise InvalidRequest(
                    f"the commit adds more than {FILES_MAX:,} files: commit fewer at once"
                )
    if not files:
        raise InvalidRequest("the commit adds no files")
    return list(files.values())


def _added_in(records: Iterator[Json], append: TableAppend, uri: str) -> Iterator[AddedFile]:
    for record in records:
        status, snapshot_id = record.get("status"), record.get("snapshot_id")
        if status == _DELETED:
            raise InvalidRequest(f"{quoted(uri)} removes files: only appends are accepted")
        if status != _ADDED:
            continue  # a file of an earlier snapshot, in manifests that the client has merged
        if snapshot_id not in (None, append.snapshot_id):
            raise InvalidRequest(f"{quoted(uri)} adds files of another snapshot, {snapshot_id}")
        file = _mapping(record.get("data_file"), uri)
        if file.get("content") not in (None, 0):
            raise InvalidRequest(f"{quoted(uri)} deletes rows: only appends are accepted")
        if str(file.get("file_format")).upper() != "PARQUET":
            raise InvalidRequest(f"{quoted(uri)} adds a file that is not Parquet: write Parquet")
        rows, size = file.get("record_count"), file.get("file_size_in_bytes")
        if not is_int64(rows) or not is_int64(size) or rows < 0 or size <= 0:
            raise InvalidRequest(f"{quoted(uri)} has a file without its rows and size")
        if rows:
            yield AddedFile(_text(file, "file_path", uri), rows, size)


def _records(content: bytes, uri: str) -> Iterator[Json]:
    """Yield the records of an Avro file of a client, within bounds."""
    stored = io.BytesIO(content)
    count = 0
    try:
        with damage_is_value_error():
            blocks = cast("AvroBlocks", fastavro.block_reader(stored))
            parts = gathered_records(
                bounded_blocks(stored, blocks, uri, _BLOCK_BYTES_MAX), _RECORDS_AT_ONCE
            )
            for part in parts:
                count += len(part)
                if count > _RECORDS_MAX:
                    raise InvalidRequest(
                        f"{quoted(uri)} has more than {_RECORDS_MAX:,} records: commit fewer files"
                    )
                yield from (_mapping(one, uri) for one in part)
    except ValueError as error:
        raise InvalidRequest(f"{quoted(uri)} is not a manifest in Avro ({error})") from error


def _mapping(value: object, where: str) -> Json:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{quoted(where)}: expected an object")
    return value


def _text(record: Json, name: str, uri: str) -> str:
    found = record.get(name)
    if not isinstance(found, str):
        raise InvalidRequest(f"{quoted(uri)} has an entry without {name}")
    return found


def _fields(schema: Json) -> Sequence[Json]:
    found = schema.get("fields")
    if not isinstance(found, list):
        raise InvalidRequest("a schema must have fields", place="updates")
    return [_mapping(one, "fields") for one in found]


def _sets_names(update: Json) -> bool:
    """Return whether an update only sets the names of columns in files, which follow from them."""
    found = update.get("updates")
    is_set = update.get("action") == "set-properties" and isinstance(found, Mapping)
    return is_set and set(cast("Json", found)) == {_NAMES}


def _check_reference(update: Json) -> None:
    if update.get("ref-name") != _BRANCH or update.get("type") != "branch":
        raise InvalidRequest(f"the table has the branch {_BRANCH} only, and no tags")


def _snapshot(snapshot: Json, updates: Sequence[Json]) -> tuple[int, str]:
    """Return the id and the manifest list of an added snapshot."""
    summary = _mapping(snapshot.get("summary"), "summary")
    if summary.get("operation") != "append":
        raise InvalidRequest(
            f"the operation {quoted(str(summary.get('operation')))} is not accepted: the catalog"
            " accepts appends; delete and replace rows with Penstock"
        )
    id_, manifest_list = snapshot.get("snapshot-id"), snapshot.get("manifest-list")
    if not is_int64(id_) or not isinstance(manifest_list, str):
        raise InvalidRequest("the snapshot must have an id and a manifest list")
    for update in updates:
        if update.get("action") == "set-snapshot-ref" and update.get("snapshot-id") != id_:
            raise InvalidRequest("the branch can only be set to the snapshot that is added")
    return id_, manifest_list
