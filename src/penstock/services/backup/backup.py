"""`penstock backup`: a consistent copy of a Penstock, made while it runs.

Owns the order of copying, and the hold that prevents deletion. The order follows one rule: a record
of how far data was read is copied before that data. A restored Penstock may therefore repeat work
from the time of the backup, as it does after a crash, but it never skips data.

    1  hold           files that are deleted from now on are kept aside; segments are not killed
    2  progress       channels, cursors and options of topics
    3  journals       the flow and the journals of its FlowFiles, then the record of provenance
    4  metadata       one instant of the database: offsets, segments, supervisors, tasks
    5  content        swap files and content that the journals name
    6  topics         log files
    7  segments       the files that the metadata names, unless they are in an object store

Sealed secrets are copied without their key, and the authority of the certificates is not copied, so
that a backup reveals no secret.

Folders of running tasks are left out: rows that they have read but not published are after the
committed offsets, and are read again.
"""

from __future__ import annotations

import posixpath
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

import orjson

import penstock
from penstock.core.errors import (
    Conflict,
    CorruptData,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
    counted,
)
from penstock.core.instants import format_time
from penstock.core.threads import OnDeath, OwnedThread
from penstock.segments.deep_storage import DeepStore
from penstock.services.backup.manifest import (
    ACCESS_FILES,
    DATA,
    JOURNALS,
    METADATA,
    NAMED_BY_JOURNALS,
    PROVENANCE,
    PROVENANCE_POSITION,
    SEALED_SECRETS,
    SEGMENTS,
    SNAPSHOTS,
    UNFINISHED,
    BackedUpFile,
    BackupPart,
    Manifest,
    copy_file,
    folders_of,
    is_log,
    remove_tree,
    require_apart,
)
from penstock.services.host.data_folder import AUTHORITY_KEY
from penstock.services.options.resolution import CONFIG_FILE
from penstock.services.options.table import ACCESS_FOLDER, TLS_FOLDER
from penstock.storage.deletion_hold import HOLD_MS, DeletionHold
from penstock.storage.metadata.segment_deletion import BACKUP_SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.storage.filesystem import FileSystem
    from penstock.storage.metadata import MetadataStore

_RENEW_S: Final = HOLD_MS / 1000 / 6
_LEASE_MS: Final = 2 * HOLD_MS
_TEMPORARY: Final = ".tmp"
_TASK_LOGS: Final = "log/tasks"
_TOPIC_FILE: Final = "topic.json"
_TOPIC_ID: Final = "topic.id"
_PROVENANCE_PROGRESS: Final = (f"{PROVENANCE}/durable", PROVENANCE_POSITION)
_INDEX: Final = ".index"


class BackupProgress(Protocol):
    """Receives the progress of a backup or restore."""

    def stage(self, name: str, files: int | None) -> None:
        """Begin a stage with a number of files; None: it does not copy or read files."""
        ...

    def copied(self, size: int) -> None:
        """Record that a file was copied; `size` is in bytes."""
        ...

    def note(self, text: str) -> None:
        """Show a result."""
        ...


@dataclass(frozen=True, slots=True)
class BackupSource:
    """The parts of a Penstock that are backed up.

    Attributes:
        data_dir: The data folder, absolute.
        store: The metadata.
        deep_storage: URL of the deep storage.
        task_logs: Folder or URL of the logs and reports of ended tasks, without secrets; None for
            the data folder.
        access: Folder of access; None for the one in the data folder.
    """

    data_dir: str
    store: MetadataStore
    deep_storage: str
    task_logs: str | None = None
    access: str | None = None


@dataclass(slots=True)
class BackupReport:
    """Result of a backup.

    Attributes:
        manifest: The manifest.
        parts: Files and bytes of each part, in order.
        damaged: Files of topics that are in the backup and are not JSON.
    """

    manifest: Manifest
    parts: Mapping[BackupPart, tuple[int, int]] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()


class Backup:
    """One backup. One thread.

    Args:
        source: The Penstock to back up.
        target: An absolute path; it does not exist, is empty, or has an unfinished backup.
        fs: The file system.
        clock: Time.
        backup_id: An id that no other backup has.
        progress: Receives the progress.
    """

    def __init__(
        self,
        source: BackupSource,
        target: str,
        fs: FileSystem,
        clock: Clock,
        backup_id: str,
        progress: BackupProgress,
    ) -> None:
        self._source = source
        self._target = target
        self._fs = fs
        self._clock = clock
        self._id = backup_id
        self._progress = progress
        self._hold = DeletionHold(source.data_dir, clock)
        self._deep_store = DeepStore(source.deep_storage, fs=fs)
        self._files: dict[str, BackedUpFile] = {}
        self._parts: dict[BackupPart, tuple[int, int]] = {}
        self._damaged: list[str] = []
        self._check: Callable[[], None] = lambda: None

    def run(self) -> BackupReport:
        """Make the backup.

        Raises:
            InvalidRequest: The target is not empty, is part of the backed-up data, or contains it;
                or that data contains a symbolic link.
            CorruptData: A folder has the name of a file with messages.
            Conflict: Another backup is running, of this Penstock or into this target.
            Unavailable: A disk, the metadata or the deep storage does not answer; the target holds
                an unfinished backup, which another attempt replaces.
        """
        created = format_time(self._clock.now_ms())
        with ExitStack() as locked:
            self._prepare_target(locked)
            return self._fill_target(created)

    def _fill_target(self, created: str) -> BackupReport:
        with ExitStack() as stack:
            stack.callback(self._hold.end)
            self._hold.begin()
            renewer = _HoldRenewer(self._hold, self._source.store, self._clock, self._id)
            stack.callback(renewer.stop)
            renewer.start()
            self._check = renewer.require
            topics = self._copy_progress()
            self._copy(BackupPart.JOURNALS, self._journal_files())
            self._copy(BackupPart.PROVENANCE, self._provenance_files())
            segments = self._copy_metadata()
            named = (f for part in NAMED_BY_JOURNALS for f in self._walk(part))
            self._copy(BackupPart.CONTENT, list(named))
            self._copy_logs(topics)
            missing, objects = self._copy_segments(segments)
            single = [one for one in (CONFIG_FILE, *ACCESS_FILES, SEALED_SECRETS) if self._has(one)]
            self._copy(BackupPart.OTHER, [*single, *self._walk(_TASK_LOGS)])
            for folder in ("", *folders_of(list(self._files))):
                self._fs.fsync_folder(posixpath.join(self._target, folder).rstrip("/"))
            # If the hold lasted until now, nothing that the backup needs was deleted.
            renewer.renew()
        manifest = Manifest(
            id=self._id,
            created=created,
            penstock=penstock.__version__,
            files=tuple(self._files[name] for name in sorted(self._files)),
            deep_storage=self._source.deep_storage,
            objects=objects,
            missing=tuple(missing),
            advice=self._advice(objects),
        )
        manifest.write(self._fs, self._target)
        self._fs.unlink(posixpath.join(self._target, UNFINISHED))
        return BackupReport(manifest, self._parts, tuple(self._damaged))

    def _prepare_target(self, stack: ExitStack) -> None:
        """Mark the target as an unfinished backup, locked by this backup until the stack ends."""
        fs, target = self._fs, self._target
        data_dir = self._source.data_dir
        roots = [data_dir, *(posixpath.join(data_dir, name) for name in fs.listdir(data_dir))]
        if self._deep_store.is_local:
            roots.append(self._deep_store.root)
        advice = " that it backs up: name a folder elsewhere, preferably on another disk"
        require_apart(fs, target, roots, "the backup", advice)
        fs.mkdir(target)
        try:
            lock = fs.lock_folder(target)
        except Conflict:
            raise Conflict(
                f"another backup into {target} is running: wait until it has ended, or name another"
                " folder"
            ) from None
        stack.callback(lock.release)
        names = fs.listdir(target)
        if names and UNFINISHED not in names:
            raise InvalidRequest(
                f"{target} is not empty (it has {names[0]!r}): name a new folder for each backup"
            )
        marker = posixpath.join(target, UNFINISHED)
        fs.write_atomically(marker, b'{"id": "%b"}' % self._id.encode())
        remove_tree(fs, target, keep=(UNFINISHED,))

    # Files of the data folder

    def _copy_progress(self) -> list[str]:
        """Copy the topics except their log files; return the topics."""
        names = [name for name in self._walk("topics") if not is_log(name)]
        copied = self._copy(BackupPart.PROGRESS, names)
        found = [name for name in copied if name.endswith(f"/{_TOPIC_FILE}")]
        for name in found:
            try:
                orjson.loads(self._read(f"{DATA}/{name}") or b"")
            except orjson.JSONDecodeError:
                self._damaged.append(name)
        return sorted({name.split("/")[1] for name in found})

    def _journal_files(self) -> list[str]:
        """Return the flow's files that record which FlowFiles exist, in the order to copy."""
        rest = (JOURNALS, SNAPSHOTS, PROVENANCE, *NAMED_BY_JOURNALS)
        plain = [n for n in self._walk("flow") if not n.startswith(tuple(f"{r}/" for r in rest))]
        # How far commits were durable, and published: a later number than that of the journals
        # would belong to another repository.
        plain += [name for name in _PROVENANCE_PROGRESS if self._has(name)]
        # A snapshot that appears later would replace journals that are not in the backup. The
        # newest journal is copied first: earlier ones do not change before its first commit.
        snapshots = sorted(self._walk(SNAPSHOTS))
        return [*plain, *snapshots, *sorted(self._walk(JOURNALS), reverse=True)]

    def _provenance_files(self) -> list[str]:
        """Return the files of the record of provenance, without those that are derived.

        They are copied after the journals, so that they contain all commits before them.
        """
        return [
            name
            for name in self._walk(PROVENANCE)
            if name not in _PROVENANCE_PROGRESS and not name.endswith(_INDEX)
        ]

    def _copy_logs(self, topics: Iterable[str]) -> None:
        names: list[str] = []
        for topic in topics:
            # A topic that was recreated under its name is another topic, with other messages.
            only_held = self._id_of(topic) != self._read(f"{DATA}/topics/{topic}/{_TOPIC_ID}")
            logs = [n for n in self._walk(f"topics/{topic}", live=not only_held) if is_log(n)]
            # Copy the newest first: the others are full, and no longer change.
            names += sorted(logs, reverse=True)
        self._copy(BackupPart.MESSAGES, names)

    def _live(self, name: str) -> str:
        return posixpath.join(self._source.data_dir, name)

    def _has(self, name: str) -> bool:
        """Return whether a file exists; one of access must not be a link."""
        path = self._live(name)
        if not self._fs.exists(path):
            return False
        if name in ACCESS_FILES:
            self._require_no_link(posixpath.dirname(path), posixpath.basename(path))
        return True

    def _id_of(self, topic: str) -> bytes | None:
        path = self._live(f"topics/{topic}/{_TOPIC_ID}")
        return self._fs.read_bytes(path) if self._fs.exists(path) else None

    def _read(self, path: str) -> bytes | None:
        copied = posixpath.join(self._target, path)
        return self._fs.read_bytes(copied) if path in self._files else None

    def _walk(self, folder: str, *, live: bool = True) -> Iterator[str]:
        """Yield the files below a folder, including those deleted since the hold began."""
        # A file that is deleted between the two listings is only in the second one.
        roots = [*([self._source.data_dir] if live else []), self._hold.held]
        names: dict[str, bool] = {}
        for root in roots:
            place = posixpath.join(root, folder)
            listed: Sequence[str] = ()
            with suppress(NotFound):
                listed = self._fs.listdir(place)
            for name in listed:
                inner = posixpath.join(place, name)
                if posixpath.join(folder, name) not in NAMED_BY_JOURNALS:
                    self._require_no_link(place, name)
                with suppress(NotFound):  # deleted meanwhile; the others still exist
                    names[name] = names.get(name, False) or self._fs.stat(inner).is_folder
        for name, is_folder in sorted(names.items()):
            inner = posixpath.join(folder, name)
            if is_folder and is_log(inner):
                raise CorruptData(
                    self._live(inner), 0, "it is a folder, and the messages of a topic are a file"
                )
            if is_folder:
                yield from self._walk(inner, live=live)
            elif not name.endswith(_TEMPORARY):
                yield inner

    def _require_no_link(self, folder: str, relative: str) -> None:
        """Refuse a link below a folder, because it may lead to files of others.

        The folder itself may be a link, with which the operator placed it on another disk.
        """
        path = posixpath.join(folder, relative)
        if self._fs.resolve(path) != posixpath.join(self._fs.resolve(folder), relative):
            raise InvalidRequest(
                f"{path} is a symbolic link or is inside a linked folder, which a backup never"
                " contains: replace the link by the file"
            )

    def _copy(self, part: BackupPart, names: list[str]) -> list[str]:
        """Copy files of the data folder; return those that existed."""
        self._progress.stage(part.value, len(names))
        copied = []
        for name in names:
            # A file deleted since the hold began has priority: its name may have been reused.
            for root in (self._hold.held, self._source.data_dir, self._hold.held):
                try:
                    self._copy_one(posixpath.join(root, name), f"{DATA}/{name}")
                except NotFound:
                    continue
                copied.append(name)
                break
        return copied

    def _copy_one(self, source: str, path: str) -> None:
        self._check()
        self._fs.stat(source)  # before anything is created in the target
        target = posixpath.join(self._target, path)
        self._fs.mkdir(posixpath.dirname(target))
        made = copy_file(self._fs, source, target, path, replace=True)
        self._note(made)

    def _note(self, made: BackedUpFile) -> None:
        self._files[made.path] = made
        count, size = self._parts.get(made.part, (0, 0))
        self._parts[made.part] = (count + 1, size + made.size)
        self._progress.copied(made.size)

    # Metadata

    def _copy_metadata(self) -> list[tuple[dict[str, object], int]]:
        self._progress.stage(BackupPart.METADATA.value, 1)
        made = posixpath.join(self._target, METADATA)
        # Copied to another name, so that it is read like any other file.
        written = f"{made}.new"
        segments = self._source.store.write_copy(written, self._clock)
        self._note(copy_file(self._fs, written, made, METADATA))
        self._fs.unlink(written)
        return segments

    def _copy_segments(
        self, segments: list[tuple[dict[str, object], int]]
    ) -> tuple[list[str], dict[str, int]]:
        store = self._deep_store
        sizes: dict[str, int] = {}
        missing: list[str] = []
        for load_spec, size in segments:
            try:
                sizes[store.relative(load_spec)] = size
            except InvalidRequest:
                if load_spec.get("type") != "tombstone":
                    missing.append(str(load_spec.get("path", load_spec.get("url"))))
        if not store.is_local:
            return missing, sizes
        self._progress.stage(BackupPart.SEGMENTS.value, len(sizes))
        for relative in sorted(sizes):
            source = posixpath.join(store.root, relative)
            self._require_no_link(store.root, relative)
            try:
                self._copy_one(source, f"{SEGMENTS}/{relative}")
            except NotFound:
                missing.append(relative)
                continue
            if self._files[f"{SEGMENTS}/{relative}"].size != sizes[relative]:
                missing.append(relative)
        return missing, {}

    def _advice(self, objects: dict[str, int]) -> tuple[str, ...]:
        """Return a sentence for each part that the operator must copy."""
        advice = []
        if objects:
            count = counted(len(objects), "object")
            size = counted(sum(objects.values()), "byte")
            advice.append(
                f"Copy {count} with {size} below {self._source.deep_storage}, or keep their"
                " versions: the segments are not in this backup, whose manifest lists them."
            )
        task_logs = self._source.task_logs
        if task_logs is not None and task_logs.removeprefix("file://") != self._live(_TASK_LOGS):
            advice.append(
                f"Copy {task_logs}, or keep its versions: it holds the logs and reports of tasks"
                " that ended (--task-logs), which are not in this backup."
            )
        access = self._source.access
        if access is not None and access != self._live(ACCESS_FOLDER):
            advice.append(
                f"Copy access.toml and credentials.json of {access}: the users, tokens and roles"
                " (--access-folder) are not in this backup."
            )
        if self._fs.exists(self._live(f"{TLS_FOLDER}/{AUTHORITY_KEY}")):
            advice.append(
                f"Copy {self._live(TLS_FOLDER)} to a safe place: the authority of the certificates"
                " and its key are not in this backup, because they are secrets in the clear."
            )
        return tuple(advice)


class _HoldRenewer:
    """Renews the hold and the lease of a backup from a thread of its own.

    The condition's mutex guards the failure that the backup's thread reads.
    """

    def __init__(
        self, hold: DeletionHold, store: MetadataStore, clock: Clock, backup_id: str
    ) -> None:
        self._hold = hold
        self._store = store
        self._clock = clock
        self._id = backup_id
        self._changed = threading.Condition()
        self._failure: PenstockError | None = None
        self._thread = OwnedThread("backup hold", self._keep, on_death=OnDeath.REPORT)

    def start(self) -> None:
        """Take the lease, and renew it and the hold periodically.

        Raises:
            Conflict: Another host makes a backup with this metadata.
            Unavailable: The metadata does not answer.
        """
        others = self._store.leases.list(BACKUP_SERVICE)
        if others:
            raise Conflict(
                f"another backup is running (at {others[0].host}): wait until it has ended, or for"
                f" {_LEASE_MS // 1000} s if it has died"
            )
        self._take_lease()
        self._thread.start()

    def require(self) -> None:
        """Raise the error of a failed renewal."""
        with self._changed:
            if self._failure is not None:
                raise self._failure

    def renew(self) -> None:
        """Renew both now. Raises as `DeletionHold.renew`, and Unavailable."""
        self.require()
        self._hold.renew()
        self._take_lease()

    def stop(self) -> None:
        """End the thread and drop the lease, which expires if that fails."""
        self._thread.end(self._changed)
        try:
            self._store.leases.drop(BACKUP_SERVICE, self._id)
        except PenstockError:
            return

    def _take_lease(self) -> None:
        name = socket.gethostname()
        leases = self._store.leases
        leases.renew(BACKUP_SERVICE, self._id, host=name, port=0, ttl_ms=_LEASE_MS)

    def _keep(self) -> None:
        while True:
            with self._changed:
                if not self._thread.is_end_expected:
                    self._clock.wait(self._changed, _RENEW_S)
                if self._thread.is_end_expected:
                    return
            try:
                self._hold.renew()
                self._take_lease()
            except PenstockError as error:
                self._fail(error)
                return
            except BaseException as error:
                # Without the hold, the backup may lack files that were deleted meanwhile.
                self._fail(Unavailable(f"the hold of the backup was not renewed: {error!r}"))
                raise

    def _fail(self, error: PenstockError) -> None:
        with self._changed:
            self._failure = error
