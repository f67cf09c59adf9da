"""Versions of a datasource as an Iceberg table: snapshots of its visible files.

Owns the metadata file of a table, the comparison with the version before, and the removal of files
that no snapshot needs. Each build continues the version that the pointer names, in one step: the
files of the new version are written first, then the pointer is exchanged if it is unchanged. Does
not own where the pointer is stored, nor when a build is worth its cost.

    pointer             in the metadata store: name of the metadata file, ids of columns
    metadata file       schema, snapshots; lists one manifest list for each snapshot
    manifest list       manifests; most of them are those of the snapshot before
    manifest            files of rows, or of positions of hidden rows

The pointer of a table whose files were deleted, as it has no rows, has an empty name and the ids.

Invariants:

- a snapshot has exactly the visible rows of one revision of the metadata, which is its id, and each
  snapshot is of a later revision than the one before;
- its time is that of the change that led to these rows, not of the build: an engine that began to
  read in between would look for an earlier snapshot. Times are in the order of snapshots;
- no snapshot is shown whose files a kill may have deleted: a kill first raises the oldest revision
  of the datasource, and snapshots before it are left out;
- a file is in a snapshot once, even if its visible rows are in several intervals;
- files are never changed. One is removed only after no snapshot has needed it for an hour;
- a crash at any point leaves the version before, or the new one, and unused files that the next
  removal finds.
"""

from __future__ import annotations

import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias, cast

import orjson

from penstock.core.clock import Clock
from penstock.core.errors import CorruptData, NotFound, Unavailable
from penstock.core.intervals import ETERNITY, Interval
from penstock.core.uuids import RandomUuids
from penstock.segments.iceberg.column_bounds import COLUMNS_PER_FILE_MAX, FooterBounds
from penstock.segments.iceberg.manifest_files import (
    FORMAT_VERSION,
    PARTITION_FIELD_ID,
    PATH_ID,
    POSITION_DELETES,
    ManifestEntry,
    ManifestFile,
    PartitionField,
    PartitionSpec,
    Status,
    decoded_long,
    encoded_long,
    manifest_of,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from penstock.segments.iceberg.partitions import (
    UNPARTITIONED,
    chosen_spec,
    manifest_groups,
    may_have_rows,
    value_of,
)
from penstock.segments.iceberg.table_files import (
    TableFiles,
    delete_file_key,
    delete_file_name,
    key_of,
    uri_of,
    write_delete_file,
)
from penstock.segments.iceberg.table_schema import ColumnIds, TableSchema, table_schema
from penstock.segments.visible_rows import VisibleFile, VisibleRows

_log = logging.getLogger(__name__)

SNAPSHOTS_NEWEST: Final = 50
"""The newest snapshots are shown, and of older ones the last one of each hour."""
SNAPSHOT_AGE_MAX_MS: Final = 24 * 3_600_000
"""Older snapshots are not shown."""
UNNEEDED_S: Final = 3_600.0
"""Time from when a file is seen to be unneeded until it is deleted.

Readers may have an older version of the table, and a snapshot that another process builds needs
files that the pointer does not lead to yet.
"""
HIDDEN_REUSED_S: Final = 1_200.0
"""Time in which a file with hidden rows is used again after it was written or in a snapshot.

Less than `UNNEEDED_S`, so that no other process deletes it while a client reads it.
"""

BOUNDS_READ_S: Final = 0.5
"""Longest time for which a build reads footers of files; the others have no bounds of columns."""

_CONFIRM_S: Final = 60.0
_HOUR_MS: Final = 3_600_000
_TRIES_MAX: Final = 5
_BRANCH: Final = "main"
Json: TypeAlias = "dict[str, object]"


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A version of a table.

    Attributes:
        location: URI of its metadata file.
        metadata: The content of this file.
    """

    location: str
    metadata: Mapping[str, object]

    @property
    def snapshot_id(self) -> int | None:
        """Id of the current snapshot; None: there is none."""
        found = self.metadata.get("current-snapshot-id")
        return found if isinstance(found, int) else None

    def since(self, oldest: int) -> TableVersion:
        """Return this version without the snapshots before a revision, except the current one."""
        shown = [one for one in _snapshots(self.metadata) if self._stays(one, oldest)]
        if len(shown) == len(_snapshots(self.metadata)):
            return self
        ids = {one["snapshot-id"] for one in shown}
        log = cast("list[Json]", self.metadata["snapshot-log"])
        times = [one for one in log if one["snapshot-id"] in ids]
        return replace(self, metadata={**self.metadata, "snapshots": shown, "snapshot-log": times})

    def _stays(self, snapshot: Json, oldest: int) -> bool:
        id_ = cast("int", snapshot["snapshot-id"])
        return id_ >= oldest or id_ == self.snapshot_id


class Pointer(Protocol):
    """Where the current version of a table is stored."""

    def get(self) -> bytes | None:
        """Return the stored value, None before the first."""
        ...

    def compare_and_set(self, old: bytes | None, new: bytes) -> bool:
        """Exchange the value if it is still `old`; return whether it was."""
        ...


class TableVersions:
    """The versions of one table. Several processes may have it.

    One thread at a time builds and removes; meanwhile others may plan.

    Args:
        files: Its metadata files.
        pointer: Its pointer.
        clock: Dates versions, and measures for how long files are unneeded.
        token: Returns a text that is part of a file's name and was never returned before.
        footers: The bounds of columns that were read before.
    """

    def __init__(
        self,
        files: TableFiles,
        pointer: Pointer,
        clock: Clock,
        token: Callable[[], str] | None = None,
        footers: FooterBounds | None = None,
    ) -> None:
        self._files = files
        self._pointer = pointer
        self._clock = clock
        self._token = token or RandomUuids()
        self._footers = footers or FooterBounds(clock)
        self._version: TableVersion | None = None
        self._lists: dict[str, Sequence[ManifestFile]] = {}
        # Files with hidden rows by their keys. Found again or written again if forgotten.
        self._hidden: dict[str, _HiddenRows] = {}
        self._confirmed_s: float | None = None
        # Since when a file was seen to be unneeded, by its name.
        self._unneeded: dict[str, float] = {}

    def build(
        self, rows: VisibleRows, oldest: int = 0, changed_ms: int | None = None
    ) -> TableVersion:
        """Return the version with these rows, which becomes the current one if it is not yet.

        If another process has built a version of a later revision, this one is returned.

        Args:
            rows: The rows.
            oldest: Revision before which files of segments may be deleted.
            changed_ms: When the segments became these, in milliseconds since 1970; None: unknown.

        Raises:
            Unavailable: The deep storage or the metadata store does not answer, or other processes
                build versions all the time.
            CorruptData: A segment's file is damaged.
        """
        for attempt in range(_TRIES_MAX):
            stored = self._pointer.get()
            base, manifests, ids = self._continued(stored)
            if base is not None and _revision(stored) > rows.revision:
                self._version = base
                return base
            ids = ids.extended(rows.columns)
            if base is None and attempt:
                self._hidden = {}  # another process may have deleted them just now
            next_version = _NextVersion(
                self._tools(), base, manifests, rows, ids, oldest, changed_ms
            )
            if base is not None and not next_version.differs():
                self._version = base
                return base
            cuts = self._cuts(manifests)
            self._keep_hidden(cuts)
            made = next_version.write(cuts, self._entries_left)
            pointer = {
                "metadata": self._files.name(made.location),
                "revision": rows.revision,
                "ids": ids.to_json(),
            }
            new = orjson.dumps(pointer)
            if self._pointer.compare_and_set(stored, new):
                self._version = made
                return made
        raise Unavailable(
            f"the Iceberg table {self._files.location} changed {_TRIES_MAX} times while a version"
            " was built: try again"
        )

    def entries(self, snapshot_id: int, time: Interval = ETERNITY) -> Sequence[ManifestEntry]:
        """Return the files of a snapshot of the current version.

        Args:
            snapshot_id: The snapshot.
            time: Files whose rows are all outside are left out.

        Raises:
            NotFound: It has no such snapshot.
            Unavailable: The deep storage does not answer.
            CorruptData: A metadata file is damaged.
        """
        stored = self._pointer.get()
        base = self._base(stored)
        for snapshot in _snapshots(base.metadata) if base else ():
            if snapshot["snapshot-id"] == snapshot_id:
                spec = _stored_spec(base) or UNPARTITIONED
                listed = self._list(str(snapshot["manifest-list"]))
                time_id = _ids(stored).columns.get("__time")
                entries = (
                    entry
                    for one in listed
                    if one.partitions is None or may_have_rows(spec, one.partitions, time)
                    for entry in self._entries(one)
                )
                return [entry for entry in entries if _may_have_rows(entry, time, time_id)]
        raise NotFound(f"the table has no snapshot {snapshot_id}: it has expired, or never existed")

    def hidden_rows(self, file: VisibleFile, snapshot_id: int, number: int) -> ManifestEntry | None:
        """Return the file with the hidden rows of a file, written if needed; None: it has none.

        Args:
            file: A file of which a part is visible.
            snapshot_id: The snapshot that adds it.
            number: The sequence number of this snapshot.

        Raises:
            Unavailable: The deep storage does not answer.
            CorruptData: The file is not a Parquet file.
        """
        if not file.visible:
            return None
        uri = uri_of(file.location)
        key = delete_file_key(uri, file.visible)
        known = self._fresh_hidden(key)
        if known is None:
            name = delete_file_name(key, self._token())
            written = write_delete_file(self._files, name, file.location, uri, file.visible)
            known = self._hidden[key] = _HiddenRows(name, *written, self._clock.monotonic_s())
        if not known.rows:
            return None
        path = uri.encode()
        return ManifestEntry(
            self._files.uri(known.name),
            *(known.rows, known.size_bytes, snapshot_id, number),
            content=POSITION_DELETES,
            bounds={PATH_ID: (path, path)},
            status=Status.ADDED,
        )

    def remove_unneeded(self) -> int:
        """Delete files that no snapshot has needed for `UNNEEDED_S`; return how many.

        The time counts from the first call that finds the file unneeded.

        Raises:
            Unavailable: The deep storage does not answer.
            CorruptData: A metadata file is damaged.
        """
        base = self._base(self._pointer.get())
        if base is None:
            return 0
        needed = {self._files.name(base.location)}
        for snapshot in _snapshots(base.metadata):
            uri = str(snapshot["manifest-list"])
            needed.add(self._files.name(uri))
            for manifest in self._list_left(uri):
                if (name := self._files.name(manifest.path)) in needed:
                    continue
                needed.add(name)
                deletes = self._cuts([manifest])
                needed.update(self._files.name(entry.path) for entry in deletes)
        kept = {str(one["manifest-list"]) for one in _snapshots(base.metadata)}
        self._lists = {uri: found for uri, found in self._lists.copy().items() if uri in kept}
        now_s = self._clock.monotonic_s()
        self._unneeded = {
            name: self._unneeded.get(name, now_s)
            for name in self._files.names()
            if name not in needed
        }
        old = [name for name, since_s in self._unneeded.items() if now_s >= since_s + UNNEEDED_S]
        for name in old:
            self._files.delete(name)
        return len(old)

    def remove_all(self) -> int:
        """Delete all files of a table without rows; return how many. Ids of columns are kept.

        A version that another process builds meanwhile stays complete: either it is in the pointer
        first, and nothing is deleted, or this process is, and the other one begins again without
        the old files.

        Raises:
            Unavailable: The deep storage or the metadata store does not answer.
        """
        stored = self._pointer.get()
        names = list(self._files.names())
        if stored is not None:
            pointer = orjson.dumps({**orjson.loads(stored), "metadata": ""})
            if pointer != stored and not self._pointer.compare_and_set(stored, pointer):
                return 0
        for name in names:
            self._files.delete(name)
        self._version, self._lists, self._hidden, self._unneeded = None, {}, {}, {}
        return len(names)

    def _tools(self) -> _Tools:
        return _Tools(self._files, self._clock, self._token, self.hidden_rows, self._footers)

    def _fresh_hidden(self, key: str) -> _HiddenRows | None:
        """Return a file with hidden rows that no process deletes soon, None if none is known."""
        now_s = self._clock.monotonic_s()
        known = self._hidden.get(key)
        if known is not None and now_s < known.needed_s + HIDDEN_REUSED_S:
            return known
        if self._confirmed_s is None or now_s >= self._confirmed_s + _CONFIRM_S:
            _, manifests, _ = self._continued(self._pointer.get())
            self._keep_hidden(self._cuts(manifests))
        known = self._hidden.get(key)
        return known if known and now_s < known.needed_s + HIDDEN_REUSED_S else None

    def _keep_hidden(self, current: Iterable[ManifestEntry]) -> None:
        """Remember the files with hidden rows of the current snapshot, and forget old ones."""
        now_s = self._clock.monotonic_s()
        kept = {
            key: one
            for key, one in self._hidden.copy().items()
            if now_s < one.needed_s + HIDDEN_REUSED_S
        }
        for entry in current:
            name = self._files.name(entry.path)
            known = self._hidden.get(key_of(name))
            if (known and known.name == name) or self._files.has(name, entry.size_bytes):
                kept[key_of(name)] = _HiddenRows(name, entry.rows, entry.size_bytes, now_s)
        self._hidden = kept
        self._confirmed_s = now_s

    def _cuts(self, manifests: Iterable[ManifestFile]) -> Sequence[ManifestEntry]:
        """Return the files with hidden rows in manifests."""
        of_deletes = (one for one in manifests if one.content)
        return [entry for one in of_deletes for entry in self._entries_left(one)]

    def _base(self, stored: bytes | None) -> TableVersion | None:
        """Return the version of a pointer. Raises NotFound or CorruptData if it is lost."""
        name = "" if stored is None else str(orjson.loads(stored)["metadata"])
        if not name:
            return None
        location = self._files.uri(name)
        if self._version is not None and self._version.location == location:
            return self._version
        try:
            return TableVersion(location, orjson.loads(self._files.read(name)))
        except ValueError as error:
            raise CorruptData(location, None, f"it is not JSON ({error})") from error

    def _continued(
        self, stored: bytes | None
    ) -> tuple[TableVersion | None, Sequence[ManifestFile], ColumnIds]:
        """Return the version of a pointer with its manifests; none if a file of it is lost.

        Metadata can be written again: only older snapshots are lost then.
        """
        ids = _ids(stored)
        try:
            base = self._base(stored)
            current = _current(base)
            manifests = self._list(str(current["manifest-list"])) if current else ()
            if self._version is None:
                self._check_present(manifests)
        except (NotFound, CorruptData) as error:  # narrow: rebuilds
            _log.warning("the metadata of an Iceberg table is lost and written again: %s", error)
            return None, (), ids
        return base, manifests, ids

    def _check_present(self, manifests: Sequence[ManifestFile]) -> None:
        """Return if all manifests and files with hidden rows are stored.

        Raises:
            NotFound: One does not exist.
            CorruptData: A manifest is damaged.
        """
        stored = set(self._files.names()) if manifests else set()
        paths = [one.path for one in manifests]
        paths += [entry.path for one in manifests if one.content for entry in self._entries(one)]
        for path in paths:
            if self._files.name(path) not in stored:
                raise NotFound(f"{path} does not exist, or is not a file")

    def _list(self, uri: str) -> Sequence[ManifestFile]:
        if (known := self._lists.get(uri)) is not None:
            return known
        try:
            found = read_manifest_list(self._files.read(self._files.name(uri)))
        except ValueError as error:
            raise CorruptData(uri, None, f"it is not a manifest list ({error})") from error
        self._lists[uri] = found
        return found

    def _list_left(self, uri: str) -> Sequence[ManifestFile]:
        """Return the manifests of a list; none if it is lost: its snapshot cannot be read."""
        try:
            return self._list(uri)
        except (NotFound, CorruptData) as error:  # narrow: the other snapshots are intact
            _log.warning("an older snapshot of an Iceberg table is lost: %s", error)
            return ()

    def _entries(self, manifest: ManifestFile) -> Sequence[ManifestEntry]:
        try:
            return read_manifest(self._files.read(self._files.name(manifest.path)))
        except ValueError as error:
            raise CorruptData(manifest.path, None, f"it is not a manifest ({error})") from error

    def _entries_left(self, manifest: ManifestFile) -> Sequence[ManifestEntry]:
        """Return the files of a manifest; none if it is lost: they count as new then."""
        try:
            return self._entries(manifest)
        except (NotFound, CorruptData) as error:  # narrow: rebuilds
            _log.warning("a manifest of an Iceberg table is lost and written again: %s", error)
            return ()


@dataclass(frozen=True, slots=True)
class _HiddenRows:
    """A file with hidden rows, and when it was written or was last in the current snapshot."""

    name: str
    rows: int
    size_bytes: int
    needed_s: float


_Read: TypeAlias = Callable[[ManifestFile], Sequence[ManifestEntry]]


@dataclass(frozen=True, slots=True)
class _Tools:
    """Parts of `TableVersions` that write a version."""

    files: TableFiles
    clock: Clock
    token: Callable[[], str]
    hidden: Callable[[VisibleFile, int, int], ManifestEntry | None]
    footers: FooterBounds


class _NextVersion:
    """The version that follows another one.

    Args:
        tools: Parts of `TableVersions`.
        base: The version before.
        manifests: The manifests of its current snapshot.
        rows: The rows of the version.
        ids: Ids of all columns.
        oldest: Revision before which it shows no snapshots.
        changed_ms: The time of the rows; None: unknown.
    """

    def __init__(
        self,
        tools: _Tools,
        base: TableVersion | None,
        manifests: Sequence[ManifestFile],
        rows: VisibleRows,
        ids: ColumnIds,
        oldest: int,
        changed_ms: int | None,
    ) -> None:
        self._files = tools.files
        self._base = base and base.since(oldest)
        self._shows_deleted = base is not self._base
        self._oldest = oldest
        self._manifests = manifests
        self._hidden = tools.hidden
        self._rows = rows
        self._changed_ms = changed_ms
        self._clock = tools.clock
        self._token = tools.token
        self._schema = table_schema(rows.columns, rows.in_files, ids)
        self._spec = _stored_spec(base) or chosen_spec(
            [file.interval for file in rows.files], ids.columns.get("__time", 1)
        )
        self._time_id = self._schema_id("__time")
        self._bounds = _EntryBounds(self._schema, tools.footers)
        self._groups = self._grouped()

    def differs(self) -> bool:
        """Return whether rows, schema or earlier snapshots differ from those of the base."""
        assert self._base is not None
        return (
            self._shows_deleted
            or self._has_other_rows()
            or not _has_schema(self._base.metadata, self._schema)
        )

    def _has_other_rows(self) -> bool:
        there = {
            _group_of(self._files.name(one.path)) for one in self._manifests if not one.content
        }
        return there != {f"{key}-{digest}" for key, (digest, _) in self._groups.items()}

    def write(self, cuts: Iterable[ManifestEntry], read: _Read) -> TableVersion:
        """Write the files of the version and return it.

        Args:
            cuts: The files with hidden rows in the manifests of the base.
            read: Reads a manifest.
        """
        number = _sequence_number(self._base) + 1
        metadata = self._metadata()
        # Otherwise only the schema changed, by columns of rows that are not published yet.
        if self._base is None or self._has_other_rows():
            cut_before = {entry.path for entry in cuts}
            self._write_snapshot(metadata, number, cut_before, read)
        name = f"{number:08d}-{self._rows.revision}-{self._token()}.metadata.json"
        self._files.write(name, orjson.dumps(metadata))
        return TableVersion(self._files.uri(name), metadata)

    def _write_snapshot(
        self,
        metadata: Json,
        number: int,
        cut_before: Collection[str],
        read: _Read,
    ) -> None:
        before = [one for one in self._manifests if not one.content]
        named = {_group_of(self._files.name(one.path)): one for one in before}
        wanted = {f"{key}-{digest}" for key, (digest, _) in self._groups.items()}
        changed = [one for group, one in named.items() if group not in wanted]
        known = {entry.path: entry for one in changed for entry in read(one)}
        listed: list[ManifestFile] = []
        counts = {"added": 0, "kept": 0}
        for key, (digest, members) in self._groups.items():
            if (same := named.get(f"{key}-{digest}")) is not None:
                listed.append(same)
                counts["kept"] += same.files
                continue
            entries = [
                self._bounds.added_to(
                    self._kept_entry(known.get(uri_of(file.location)), file)
                    or self._new_entry(file, number),
                    file,
                )
                for file in members
            ]
            counts["added"] += sum(one.status is Status.ADDED for one in entries)
            counts["kept"] += sum(one.status is Status.EXISTING for one in entries)
            listed.append(self._written(f"rows-{key}-{digest}", entries, metadata))
        deletes = self._delete_entries(number)
        for spec, cuts in deletes.items():
            listed.append(self._written(f"hidden-{spec.id}s", cuts, metadata, spec))
        counts["removed"] = sum(one.files for one in before) - counts["kept"]
        hides_same = cut_before == {cut.path for cuts in deletes.values() for cut in cuts}
        self._add_snapshot(
            metadata, listed, number, counts, is_append=hides_same and not counts["removed"]
        )

    def _grouped(self) -> dict[str, tuple[str, Sequence[VisibleFile]]]:
        """Return the files of each manifest, and the digest of their names, by its key."""
        files = self._rows.files
        before = {
            # Without the number of the spec and the digest.
            _group_of(self._files.name(one.path)).partition("s")[2].rpartition("-")[0]
            for one in self._manifests
            if not one.content
        }
        places = manifest_groups(
            self._spec,
            [file.interval for file in files],
            [file.location for file in files],
            before,
        )
        groups = {key: [files[at] for at in members] for key, members in places.items()}
        return {key: (_digest(members), members) for key, members in groups.items()}

    def _spec_of(self, file: VisibleFile) -> PartitionSpec:
        return UNPARTITIONED if value_of(self._spec, file.interval) is None else self._spec

    def _kept_entry(self, entry: ManifestEntry | None, file: VisibleFile) -> ManifestEntry | None:
        """Return an entry of the base with its partition, which another release may have chosen."""
        return entry and replace(entry, partition=value_of(self._spec, file.interval))

    def _new_entry(self, file: VisibleFile, number: int) -> ManifestEntry:
        bounds = (
            encoded_long(file.interval.start_ms * 1000),
            encoded_long(file.interval.end_ms * 1000 - 1),
        )
        return ManifestEntry(
            uri_of(file.location),
            file.rows,
            file.size_bytes,
            self._rows.revision,
            number,
            partition=value_of(self._spec, file.interval),
            bounds={} if self._time_id is None else {self._time_id: bounds},
            status=Status.ADDED,
        )

    def _schema_id(self, column: str) -> int | None:
        for field in self._schema.fields:
            if field["name"] == column:
                return cast("int", field["id"])
        return None

    def _delete_entries(self, number: int) -> Mapping[PartitionSpec, Sequence[ManifestEntry]]:
        """Return the files with hidden rows: all again, as they must not be older than the others.

        An engine ignores positions that are older than the file that they cut.
        """
        of_specs: defaultdict[PartitionSpec, list[ManifestEntry]] = defaultdict(list)
        for file in self._rows.files:
            if not file.visible:
                continue
            entry = self._hidden(file, self._rows.revision, number)
            if entry is not None:
                value = value_of(self._spec, file.interval)
                of_specs[self._spec_of(file)].append(replace(entry, partition=value))
        return of_specs

    def _written(
        self,
        name: str,
        entries: Sequence[ManifestEntry],
        metadata: Json,
        spec: PartitionSpec | None = None,
    ) -> ManifestFile:
        if spec is None:
            spec = UNPARTITIONED if entries[0].partition is None else self._spec
        content = write_manifest(entries, spec, _schema_of(metadata))
        full_name = f"{name}-{self._token()}.avro"
        self._files.write(full_name, content)
        return manifest_of(self._files.uri(full_name), content, entries, spec)

    def _metadata(self) -> Json:
        """Return the metadata of the base with this schema."""
        base = self._base
        found: Json = dict(base.metadata) if base else self._first_metadata()
        last_ms = cast("int", found["last-updated-ms"]) if base else 0
        found["last-updated-ms"] = max(self._clock.now_ms(), last_ms + 1)
        if found["location"] != self._files.location:
            # The deep storage has moved, and older snapshots name files at its earlier place.
            found.update(location=self._files.location, snapshots=[])
            found["snapshot-log"] = []
        specs = [UNPARTITIONED] if self._spec == UNPARTITIONED else [UNPARTITIONED, self._spec]
        found["partition-specs"] = [spec.to_json() for spec in specs]
        found["default-spec-id"] = self._spec.id
        found["last-partition-id"] = PARTITION_FIELD_ID - (self._spec == UNPARTITIONED)
        found["last-column-id"] = self._schema.last_id
        found["properties"] = self._properties()
        schemas = cast("list[Json]", found["schemas"])
        fields = list(self._schema.fields)
        current = next((one for one in schemas if one["fields"] == fields), None)
        if current is None:
            id_ = max((cast("int", one["schema-id"]) for one in schemas), default=-1) + 1
            current = {"type": "struct", "schema-id": id_, "fields": fields}
        # Columns may come and go with the rows of tasks, so earlier schemas are not kept for ever.
        used = {one["schema-id"] for one in _snapshots(found)}
        found["schemas"] = [
            *(one for one in schemas if one is not current and one["schema-id"] in used),
            current,
        ]
        found["current-schema-id"] = current["schema-id"]
        return found

    def _first_metadata(self) -> Json:
        return {
            "format-version": FORMAT_VERSION,
            "table-uuid": self._token(),
            "location": self._files.location,
            "last-sequence-number": 0,
            "schemas": [],
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "snapshots": [],
            "snapshot-log": [],
            "metadata-log": [],
            "refs": {},
        }

    def _properties(self) -> dict[str, str]:
        found = {
            "schema.name-mapping.default": orjson.dumps(list(self._schema.mapping)).decode(),
            "history.expire.max-snapshot-age-ms": str(SNAPSHOT_AGE_MAX_MS),
            "history.expire.min-snapshots-to-keep": str(SNAPSHOTS_NEWEST),
        }
        if self._schema.left_out:
            left_out = orjson.dumps(dict(self._schema.left_out)).decode()
            found["penstock.columns-left-out"] = left_out
        return found

    def _add_snapshot(
        self,
        metadata: Json,
        listed: Sequence[ManifestFile],
        number: int,
        counts: Mapping[str, int],
        *,
        is_append: bool,
    ) -> None:
        time_ms, before = self._dated(_snapshots(metadata))
        # A snapshot of the same revision, which another release has written, is replaced.
        others = [
            one
            for one in before
            if self._oldest <= cast("int", one["snapshot-id"]) != self._rows.revision
        ]
        parent_id = cast("int", others[-1]["snapshot-id"]) if others else None
        content = write_manifest_list(
            listed,
            snapshot_id=self._rows.revision,
            parent_id=parent_id,
            sequence_number=number,
        )
        name = f"snap-{self._rows.revision}-{self._token()}.avro"
        self._files.write(name, content)
        snapshot: Json = {
            "snapshot-id": self._rows.revision,
            "sequence-number": number,
            "timestamp-ms": time_ms,
            "manifest-list": self._files.uri(name),
            "summary": {
                "operation": "append" if is_append else "overwrite",
                "added-data-files": str(counts["added"]),
                "deleted-data-files": str(counts["removed"]),
                "total-data-files": str(counts["added"] + counts["kept"]),
                "total-records": str(sum(one.rows for one in listed if not one.content)),
                "total-position-deletes": str(sum(one.rows for one in listed if one.content)),
            },
            "schema-id": metadata["current-schema-id"],
        }
        if parent_id is not None:
            snapshot["parent-snapshot-id"] = parent_id
        snapshots = _kept([*others, snapshot], self._clock.now_ms())
        metadata["last-sequence-number"] = number
        metadata["snapshots"] = snapshots
        metadata["current-snapshot-id"] = self._rows.revision
        metadata["refs"] = {_BRANCH: {"snapshot-id": self._rows.revision, "type": "branch"}}
        metadata["snapshot-log"] = [
            {"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]}
            for one in snapshots
        ]

    def _dated(self, before: Sequence[Json]) -> tuple[int, list[Json]]:
        """Return the time of the next snapshot, and the ones before with times before it.

        It is after the last one, unless that is in the future: then a clock went back, and those
        before are dated back, so that engines find the new one now.
        """
        now_ms = self._clock.now_ms()
        changed_ms = now_ms if self._changed_ms is None else self._changed_ms
        last_ms = cast("int", before[-1]["timestamp-ms"]) if before else 0
        time_ms = max(changed_ms, last_ms + 1)
        if time_ms > now_ms:
            time_ms = min(changed_ms, now_ms)
        end_ms, dated = time_ms, list[Json]()
        for one in reversed(before):
            end_ms = min(end_ms - 1, cast("int", one["timestamp-ms"]))
            dated.append({**one, "timestamp-ms": end_ms})
        return time_ms, dated[::-1]


class _EntryBounds:
    """Bounds of columns for the entries of manifests, read for a limited time."""

    def __init__(self, schema: TableSchema, footers: FooterBounds) -> None:
        self._footers = footers
        self._deadline_s = footers.deadline(BOUNDS_READ_S)
        # Id, type and names in files of each column.
        self._columns = [
            (cast("int", field["id"]), field["type"], cast("list[str]", mapping["names"]))
            for field, mapping in zip(schema.fields, schema.mapping, strict=True)
            if field["name"] != "__time"
        ][:COLUMNS_PER_FILE_MAX]
        self._names = frozenset(name for _, _, names in self._columns for name in names)

    def added_to(self, entry: ManifestEntry, file: VisibleFile) -> ManifestEntry:
        """Return an entry with bounds and counts, unless it has them or they cannot be read now."""
        if entry.counts or not self._names:
            return entry
        found = self._footers.of(file.location, self._names, self._deadline_s)
        if found is None:
            return entry
        bounds, counts = dict(entry.bounds or {}), {}
        for id_, type_, names in self._columns:
            there = [name for name in names if found.names.has(name)]
            if len(there) != 1 or len(found.names.variants(there[0])) != 1:
                continue  # Engines differ in which of the columns they read.
            column = found.columns.get(there[0])
            if column is None:
                continue
            if (encoded := column.encoded(type_)) is not None:
                bounds[id_] = encoded
            if column.nulls is not None:
                counts[id_] = (column.values, column.nulls)
        return replace(entry, bounds=bounds, counts=counts)


def _ids(stored: bytes | None) -> ColumnIds:
    return ColumnIds.none() if stored is None else ColumnIds.from_json(orjson.loads(stored)["ids"])


def _revision(stored: bytes | None) -> int:
    """Return the revision of the version that a pointer names."""
    return 0 if stored is None else cast("int", orjson.loads(stored).get("revision", 0))


def _may_have_rows(entry: ManifestEntry, time: Interval, time_id: int | None) -> bool:
    """Return whether an entry has rows in an interval; files with hidden rows always count."""
    if entry.content or time_id is None or time_id not in (entry.bounds or {}):
        return True
    assert entry.bounds is not None
    low, high = entry.bounds[time_id]
    return decoded_long(high) >= time.start_ms * 1000 and decoded_long(low) < time.end_ms * 1000


def _digest(files: Sequence[VisibleFile]) -> str:
    names = "\n".join(
        " ".join((one.location, *map(str, one.visible))) if one.visible else one.location
        for one in files
    )
    return hashlib.sha256(names.encode()).hexdigest()[:24]


def _group_of(name: str) -> str:
    """Return key and digest from the name of a manifest of rows."""
    return name.removeprefix("rows-").split("-")[0] + "-" + name.split("-")[2]


def _snapshots(metadata: Mapping[str, object]) -> list[Json]:
    return cast("list[Json]", metadata["snapshots"])


def _current(base: TableVersion | None) -> Json | None:
    if base is None:
        return None
    found = (s for s in _snapshots(base.metadata) if s["snapshot-id"] == base.snapshot_id)
    return next(found, None)


def _sequence_number(base: TableVersion | None) -> int:
    return cast("int", base.metadata["last-sequence-number"]) if base else 0


def _stored_spec(base: TableVersion | None) -> PartitionSpec | None:
    """Return the spec of a table; None: it is chosen by the files of the next version."""
    if base is None:
        return None
    id_ = base.metadata["default-spec-id"]
    for spec in cast("list[Json]", base.metadata["partition-specs"]):
        fields = cast("list[Json]", spec["fields"])
        if spec["spec-id"] == id_ and fields:
            one = fields[0]
            return PartitionSpec(
                cast("int", id_),
                PartitionField(
                    cast("int", one["source-id"]), str(one["name"]), str(one["transform"])
                ),
            )
    # A table that was first read when only tasks had rows of it has had no files to choose by.
    has_files = any(
        cast("Mapping[str, str]", one["summary"])["total-data-files"] != "0"
        for one in _snapshots(base.metadata)
    )
    return UNPARTITIONED if has_files else None


def _schema_of(metadata: Mapping[str, object]) -> Json:
    """Return the current schema: the last one."""
    return cast("list[Json]", metadata["schemas"])[-1]


def _has_schema(metadata: Mapping[str, object], schema: TableSchema) -> bool:
    properties = cast("Mapping[str, str]", metadata["properties"])
    mapping = orjson.dumps(list(schema.mapping)).decode()
    return (
        _schema_of(metadata)["fields"] == list(schema.fields)
        and properties.get("schema.name-mapping.default") == mapping
    )


def _kept(snapshots: Sequence[Json], now_ms: int) -> list[Json]:
    """Return the snapshots that stay shown: the newest, and of older ones the last of each hour."""
    newest = list(snapshots[-SNAPSHOTS_NEWEST:])
    of_hours: dict[int, Json] = {}
    for one in snapshots[:-SNAPSHOTS_NEWEST]:
        time_ms = cast("int", one["timestamp-ms"])
        if time_ms >= now_ms - SNAPSHOT_AGE_MAX_MS:
            of_hours[time_ms // _HOUR_MS] = one
    return [*of_hours.values(), *newest]
