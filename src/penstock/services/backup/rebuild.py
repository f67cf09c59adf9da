"""`penstock restore --from-segments`: lost metadata from the names and footers of segments' files.

Owns the information in a file's name and footer. A file that a streaming task pushed is below its
datasource, interval, version and partition number, so its segment is known. A file of a batch task
is below the task's name: its version, its interval, and whether it replaced others are unknown.

Invariants: the database was empty, or has the result of an interrupted rebuild; no file is changed
or deleted; files that are left out are moved to `~left-out` in the deep storage, because the
janitor deletes files that no segment names; and unknown facts are reported. Supervisors are not
rebuilt: their committed offsets are lost, and a supervisor that starts again would index rows that
the segments have already.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import fsspec
import pyarrow as pa

from penstock.core.errors import InvalidRequest, NotFound, PenstockError, counted
from penstock.core.intervals import Interval, parse_time
from penstock.core.names import DATASOURCE, check_stored_name
from penstock.segments.deep_storage import LOAD_SPEC_TYPE, DeepStore
from penstock.segments.layout import FILE_NAME, is_attempt_file
from penstock.segments.parquet_footer import read_footer
from penstock.segments.segment import Segment, SegmentId
from penstock.segments.shard_spec import ShardSpec
from penstock.storage.metadata import MetadataStore, PublishRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.core.clock import Clock
    from penstock.services.backup.backup import BackupProgress

_SIGN: Final = re.compile(r"~([0-9a-f]+)~")
# Versions are times whose colons became underscores, with an S for each reuse of the time.
_TIME_VERSION: Final = re.compile(r"(\d{4,}-\d\d-\d\dT\d\d)_(\d\d)_(\d\d\.\d{3}ZS*)")
_TASK_ID: Final = "restored-from-segments"
_BATCH: Final = 500


@dataclass(slots=True)
class RebuiltDatasource:
    """Rebuilt segments of a datasource, and the number of files left out."""

    segments: int = 0
    rows: int = 0
    left_out: int = 0


@dataclass(slots=True)
class RebuildReport:
    """Result of a rebuild: datasources, files left out, and sentences about unknown facts."""

    datasources: dict[str, RebuiltDatasource] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """Parts of a pushed file's path; `relative` is the path from the deep storage's root."""

    relative: str
    datasource: str
    interval: Interval
    version: str
    partition_number: int
    modified_ms: int

    @property
    def id(self) -> SegmentId:
        """Return the id of the segment."""
        return SegmentId(self.datasource, self.interval, self.version, self.partition_number)


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Files of segments in a deep storage; the names of `nameless` ones do not name a segment."""

    store: DeepStore
    named: Sequence[NamedFile]
    nameless: Sequence[str]


def list_segment_files(
    deep_storage: str, progress: BackupProgress, *, skip_unknown: bool
) -> SegmentFiles:
    """Return the files of segments in a deep storage; creates and changes nothing.

    Args:
        deep_storage: URL of the deep storage.
        progress: Receives the progress.
        skip_unknown: Whether to leave out files whose segments are unknown.

    Raises:
        InvalidRequest: No files of segments exist; or the segments of some are unknown, and
            they must not be left out.
        Unavailable: The deep storage does not answer.
    """
    store = DeepStore(deep_storage)
    progress.stage("listing the deep storage", None)
    named: list[NamedFile] = []
    nameless: list[str] = []
    try:
        for relative, modified_ms in store.walk():
            found = named_file(relative, modified_ms)
            if found is not None:
                named.append(found)
            elif is_attempt_file(relative) and relative.endswith(".parquet"):
                nameless.append(relative)
    except NotFound as error:  # as object stores report a missing bucket
        raise _no_files_in(deep_storage) from error
    paths = [*nameless, *(one.relative for one in named)]
    if not paths:
        raise _no_files_in(deep_storage)
    folders = counted(len({path.split("/")[0] for path in paths}), "folder")
    progress.note(f"found {counted(len(paths), 'file')} of segments in {folders}")
    if nameless and not skip_unknown:
        raise InvalidRequest(
            f"{counted(len(nameless), 'file')} of batch tasks and compactions in {deep_storage}"
            f" (such as {nameless[0]}) cannot be rebuilt: their names contain neither version nor"
            " interval, nor whether they replaced others. Rows that only these files hold would be"
            " missing, and rows that they replaced would come back. Restore a backup, if"
            " available; or leave them out with --skip-unknown, and load them with a batch task"
        )
    return SegmentFiles(store, named, nameless)


def rebuild_metadata(
    files: SegmentFiles, metadata_url: str, clock: Clock, progress: BackupProgress
) -> RebuildReport:
    """Create the metadata of the segments in a deep storage.

    Args:
        files: The files in the deep storage; the nameless ones are left out.
        metadata_url: The database; it is empty, or an interrupted rebuild began to fill it.
        clock: Time.
        progress: Receives the progress.

    Raises:
        InvalidRequest: The database has other metadata.
        Unavailable: The deep storage or the database does not answer.
    """
    store, nameless = files.store, files.nameless
    places = _by_place(files.named)
    rebuilt = RebuildReport()
    for relative in nameless:
        _of(rebuilt, decoded(relative.split("/")[0])).left_out += 1
    with MetadataStore.open(metadata_url, clock=clock) as metadata:
        present = _present(metadata, metadata_url, frozenset(same[0].id for same in places))
        not_needed = _publish(metadata, store, places, present, rebuilt, progress)
    for relative in (*nameless, *rebuilt.left_out):
        store.put_aside(relative)
    _explain(rebuilt, len(nameless), not_needed)
    return rebuilt


def _no_files_in(deep_storage: str) -> InvalidRequest:
    return InvalidRequest(
        f"the deep storage {deep_storage} does not exist or has no files of segments: expected"
        f" DATASOURCE/INTERVAL/VERSION/PARTITION/…/{FILE_NAME} there. Name the folder or URL that"
        " has them with --deep-storage"
    )


def named_file(relative: str, modified_ms: int) -> NamedFile | None:
    """Return the parts of a pushed file's path; None if it is not one.

    Penstock pushes no file of a datasource with an invalid name.
    """
    parts = relative.split("/")
    if len(parts) != 6 or parts[5] != FILE_NAME or not parts[3].isdecimal():
        return None
    times = parts[1].replace("_", ":").split(":")
    # Each time has two colons: hours, minutes and seconds.
    if len(times) != 6:
        return None
    try:
        interval = Interval(parse_time(":".join(times[:3])), parse_time(":".join(times[3:])))
    except (InvalidRequest, ValueError):
        return None
    datasource = decoded(parts[0])
    try:
        check_stored_name(datasource, DATASOURCE)
    except InvalidRequest:
        return None
    version = _TIME_VERSION.sub(r"\1:\2:\3", decoded(parts[2]))
    return NamedFile(*(relative, datasource, interval, version, int(parts[3])), modified_ms)


def decoded(element: str) -> str:
    """Return the text that became a name of deep storage; an underscore may have been a colon."""
    return _SIGN.sub(lambda found: chr(int(found[1], 16)), element)


def _by_place(named: Iterable[NamedFile]) -> list[list[NamedFile]]:
    """Return the files of each segment, oldest first.

    If two replicas pushed the same rows, one published, and the other's file was deleted unless its
    process ended just then.
    """
    places: dict[SegmentId, list[NamedFile]] = {}
    for one in sorted(named, key=lambda file: (file.modified_ms, file.relative)):
        places.setdefault(one.id, []).append(one)
    return [files for _, files in sorted(places.items())]


def _present(
    metadata: MetadataStore, url: str, rebuilt: frozenset[SegmentId]
) -> frozenset[SegmentId]:
    """Return the segments that an interrupted rebuild has put into the database.

    Raises:
        InvalidRequest: The database has other metadata.
    """
    present = frozenset(Segment.from_row(row).id for row in metadata.segments.every())
    if metadata.supervisors.list() or not present <= rebuilt:
        raise InvalidRequest(
            f"the metadata database {url.rpartition('@')[2]} is not empty: --from-segments creates"
            " lost metadata, and does not merge it with existing metadata"
        )
    return present


def _publish(
    metadata: MetadataStore,
    store: DeepStore,
    places: list[list[NamedFile]],
    present: frozenset[SegmentId],
    rebuilt: RebuildReport,
    progress: BackupProgress,
) -> int:
    """Publish the oldest readable file of each segment; return the number of unneeded files."""
    progress.stage("reading footers", len(places))
    waiting: dict[str, list[Segment]] = {}
    not_needed = 0
    for files in places:
        progress.copied(0)
        datasource = files[0].datasource
        for tried, file in enumerate(files, 1):
            try:
                segment = _segment(store, file)
            except (OSError, pa.ArrowException, PenstockError) as error:
                _of(rebuilt, datasource).left_out += 1
                rebuilt.left_out.append(file.relative)
                rebuilt.unknown.append(f"{file.relative} cannot be read and is left out: {error}")
                continue
            not_needed += len(files) - tried
            one = _of(rebuilt, datasource)
            one.segments, one.rows = one.segments + 1, one.rows + segment.total_rows
            if segment.id not in present:
                batch = waiting.setdefault(datasource, [])
                batch.append(segment)
                if len(batch) == _BATCH:
                    _put(metadata, datasource, waiting.pop(datasource))
            break
    for datasource, batch in waiting.items():
        _put(metadata, datasource, batch)
    return not_needed


def _put(metadata: MetadataStore, datasource: str, segments: list[Segment]) -> None:
    rows = tuple(segment.to_row() for segment in segments)
    metadata.publish(PublishRequest(_TASK_ID, datasource, rows))


def _segment(store: DeepStore, file: NamedFile) -> Segment:
    load_spec = {"type": LOAD_SPEC_TYPE, "path": file.relative}
    location = store.location(load_spec)
    footer = read_footer(location)
    with fsspec.open(location) as opened:
        size = opened.seek(0, 2)
    schema = footer.schema.to_arrow_schema()
    columns = tuple((one.name, spark_type(one.type)) for one in schema)
    return Segment(
        datasource=file.datasource,
        interval=file.interval,
        version=file.version,
        load_spec=load_spec,
        # The core count of a set is unknown: each segment is visible by itself.
        shard_spec=ShardSpec(file.partition_number, 0),
        size=size,
        total_rows=footer.num_rows,
        dimensions=tuple(name for name, _ in columns[1:]),
        columns=columns,
    )


def spark_type(kind: pa.DataType) -> str:
    """Return the Spark SQL type of a column's Arrow type.

    Raises:
        InvalidRequest: A segment cannot have such a column.
    """
    plain = {
        pa.int64(): "bigint",
        pa.int32(): "int",
        pa.float64(): "double",
        pa.float32(): "float",
        pa.string(): "string",
        pa.large_string(): "string",
        pa.bool_(): "boolean",
        pa.binary(): "binary",
        pa.large_binary(): "binary",
        pa.date32(): "date",
    }
    if pa.types.is_timestamp(kind):
        return "timestamp"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_type(kind.value_type)}>"
    if kind not in plain:
        raise InvalidRequest(f"segments cannot have a column of the type {kind}")
    return plain[kind]


def _of(rebuilt: RebuildReport, datasource: str) -> RebuiltDatasource:
    return rebuilt.datasources.setdefault(datasource, RebuiltDatasource())


def _explain(rebuilt: RebuildReport, nameless: int, not_needed: int) -> None:
    """Report what names and footers do not contain."""
    add = rebuilt.unknown.append
    add(
        "supervisors are not rebuilt, because their committed offsets are lost: one that begins at "
        "the earliest message would index the rows of the segments again. Submit each again with"
        " useEarliestOffset false, or set its offsets with penstock supervisor reset"
    )
    add(
        "segments that were marked unused, by a user or by retention rules, are used again, and"
        " rules, tasks, locks and the audit log are empty"
    )
    add(
        "segments that were appended while a replacement of their time was running were carried"
        " over to its version; here the replacement hides them"
    )
    if nameless:
        add(
            f"{counted(nameless, 'file')} of batch tasks and compactions were left out; they are in"
            " ~left-out in the deep storage: load those that are needed with a batch task"
        )
    if not_needed:
        add(f"{counted(not_needed, 'file')} not used: an older file has the same segment")
