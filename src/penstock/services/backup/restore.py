"""`penstock restore`: an empty data folder receives the content of a backup.

Owns the steps and the mark of an unfinished restore. Invariants:

- The mark is durable before anything else is in the folder, and is deleted last: a folder with the
  mark never starts, and the same restore may be repeated, which starts over.
- Every file has the size and the checksum of the manifest when the mark is deleted, except that the
  events of provenance have another producer.
- Nothing is deleted except the remains of an interrupted restore.
"""

from __future__ import annotations

import os
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
import orjson

from penstock.core.errors import InvalidRequest, NotFound, Unavailable
from penstock.segments.deep_storage import DeepStore
from penstock.services.backup.manifest import (
    DATA,
    METADATA,
    PROVENANCE_POSITION,
    SEGMENTS,
    BackedUpFile,
    BackupPart,
    Manifest,
    checked,
    copy_file,
    folders_of,
    remove_tree,
    require_apart,
    require_room,
)
from penstock.services.host.audit_files import AuditPosition
from penstock.services.host.data_folder import FORMAT, FORMAT_FILE, RESTORING_FILE
from penstock.services.options.resolution import CONFIG_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.services.backup.backup import BackupProgress
    from penstock.storage.filesystem import FileSystem

OPTIONS_ASIDE: Final = f"{CONFIG_FILE}.of-the-backup"
"""Name of restored options, which may name paths of another host, so they are not used as such."""


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """Target of a restore.

    Attributes:
        data_dir: The data folder, absolute.
        deep_storage: URL of the deep storage.
        import_metadata: Imports the metadata of a file into a remote database; None: the file
            becomes the metadata of the data folder.
    """

    data_dir: str
    deep_storage: str
    import_metadata: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore: files and bytes by part; objects of segments that the store lacks."""

    manifest: Manifest
    parts: Mapping[BackupPart, tuple[int, int]]
    absent: tuple[str, ...]
    options_aside: bool


class Restore:
    """One restore. One thread.

    Args:
        folder: The backup, an absolute path.
        target: The target.
        fs: The file system.
        progress: Receives the progress.
    """

    def __init__(
        self, folder: str, target: RestoreTarget, fs: FileSystem, progress: BackupProgress
    ) -> None:
        self._folder = folder
        self._target = target
        self._fs = fs
        self._progress = progress
        self._deep_store = DeepStore(target.deep_storage, fs=fs)

    def run(self) -> RestoreReport:
        """Restore the backup.

        Raises:
            InvalidRequest: The backup is not complete, its manifest names files that backups do not
                have, something in it is a symbolic link, or the data folder is not empty.
            Conflict: Another restore works in the data folder.
            CorruptData: A file of the backup is damaged.
            Unavailable: A disk, the database or the deep storage does not answer.
        """
        manifest = Manifest.read(self._fs, self._folder)
        self._require_segments_fit(manifest)
        root = self._target.data_dir
        self._require_apart()
        self._require_own_files(manifest)
        self._fs.mkdir(root)
        lock = self._fs.lock_folder(root)
        try:
            return self._restore(manifest, root)
        finally:
            lock.release()

    def _restore(self, manifest: Manifest, root: str) -> RestoreReport:
        begin_restoring(self._fs, root, {"backup": manifest.id, "from": self._folder})
        self._require_empty_segments(manifest)
        self._progress.stage("checking the free space", None)
        require_room(self._fs, root, sum(file.size for file in manifest.files), "the restore")
        parts: dict[BackupPart, tuple[int, int]] = {}
        by_part: dict[BackupPart, list[BackedUpFile]] = {}
        for file in manifest.files:
            by_part.setdefault(file.part, []).append(file)
        for part in BackupPart:
            files = by_part.get(part)
            if files is None:
                continue
            self._progress.stage(part.value, len(files))
            for file in files:
                self._copy(file)
            parts[part] = (len(files), sum(file.size for file in files))
        if any(file.path == f"{DATA}/{PROVENANCE_POSITION}" for file in manifest.files):
            self._rename_producer(posixpath.join(root, PROVENANCE_POSITION))
        for folder in {self._place(f.path)[0] for f in manifest.files} | {root}:
            self._sync(folder, [f.path for f in manifest.files])
        self._deep_store.make_root()
        absent = self._absent(manifest)
        if self._target.import_metadata is not None:
            self._progress.stage("filling the database", None)
            copied = posixpath.join(root, METADATA)
            self._target.import_metadata(copied)
            self._fs.unlink(copied)
        end_restoring(self._fs, root)
        aside = any(file.path == f"{DATA}/{CONFIG_FILE}" for file in manifest.files)
        return RestoreReport(manifest, parts, tuple(absent), aside)

    def _place(self, path: str) -> tuple[str, str]:
        """Return the root folder of a backup's file, and its path from there."""
        root = self._target.data_dir
        if path == f"{DATA}/{CONFIG_FILE}":
            return root, OPTIONS_ASIDE
        if path.startswith(f"{SEGMENTS}/"):
            return self._deep_store.root, path.removeprefix(f"{SEGMENTS}/")
        return root, path.removeprefix(f"{DATA}/")

    def _copy(self, file: BackedUpFile) -> None:
        root, relative = self._place(file.path)
        source, target = posixpath.join(self._folder, file.path), posixpath.join(root, relative)
        self._fs.mkdir(posixpath.dirname(target))
        made = copy_file(self._fs, source, target, file.path, replace=True)
        checked(made, file, source)
        self._progress.copied(file.size)

    def _rename_producer(self, path: str) -> None:
        """Let the events of provenance have another producer from now on.

        Topics are copied after the flow, so they may have events of later commits. The next commits
        of the restored flow have the same numbers, and the broker would drop their events as
        repeated ones.
        """
        try:
            position = msgspec.json.decode(self._fs.read_bytes(path), type=AuditPosition)
        except msgspec.MsgspecError:  # narrow: the start writes it again, with another producer
            return
        producer = f"provenance-{os.urandom(8).hex()}"
        renamed = msgspec.structs.replace(position, producer=producer, sending=0)
        self._fs.write_atomically(path, msgspec.json.encode(renamed))

    def _sync(self, root: str, paths: list[str]) -> None:
        mine = [relative for where, relative in map(self._place, paths) if where == root]
        for folder in (*folders_of(mine), ""):
            self._fs.fsync_folder(posixpath.join(root, folder).rstrip("/"))

    def _require_apart(self) -> None:
        """Refuse to restore into the backup, or over it: a second attempt would delete it."""
        targets = [self._target.data_dir]
        if self._deep_store.is_local:
            targets.append(self._deep_store.root)
        advice = " that is restored: move the backup, or name another folder with --data-dir"
        for target in targets:
            require_apart(self._fs, target, [self._folder], "the restored folder", advice)

    def _require_own_files(self, manifest: Manifest) -> None:
        """Refuse a backup that lacks files, or whose files are links to others."""
        real = self._fs.resolve(self._folder)
        for file in manifest.files:
            source = posixpath.join(self._folder, file.path)
            if self._fs.resolve(source) != posixpath.join(real, file.path):
                raise InvalidRequest(
                    f"{source} is a symbolic link or is inside a linked folder, which a backup "
                    "never contains: replace the link by the file, or restore another backup"
                )
            try:
                self._fs.open_read(source).close()
            except NotFound as error:
                raise InvalidRequest(
                    f"the backup {self._folder} lacks {file.path}, which its manifest names:"
                    " restore another one"
                ) from error

    def _require_segments_fit(self, manifest: Manifest) -> None:
        included = any(file.path.startswith(f"{SEGMENTS}/") for file in manifest.files)
        if included and not self._deep_store.is_local:
            raise InvalidRequest(
                f"the backup contains its segments as files, and {self._target.deep_storage} is "
                "not a folder: restore without --deep-storage, or copy the backup's folder"
                f" {SEGMENTS} there and give the URL to penstock up"
            )

    def _require_empty_segments(self, manifest: Manifest) -> None:
        """Refuse a deep storage outside of the data folder that is not empty."""
        root = self._deep_store.root
        inside = f"{root}/".startswith(f"{self._target.data_dir}/")
        included = [f for f in manifest.files if f.path.startswith(f"{SEGMENTS}/")]
        if inside or not included or not self._fs.exists(root):
            return
        wanted = {f.path.split("/")[1] for f in included}
        others = [name for name in self._fs.listdir(root) if name not in wanted]
        if others:
            raise InvalidRequest(
                f"the deep storage {root} is not empty (it has {others[0]!r}): name a new folder"
                " with --deep-storage"
            )

    def _absent(self, manifest: Manifest) -> list[str]:
        """Return the objects of segments that the store lacks, or has with another size."""
        self._progress.stage("segments in the object store", len(manifest.objects))
        absent = []
        for path, size in manifest.objects.items():
            if self._deep_store.size(path) != size:
                absent.append(path)
            self._progress.copied(0)
        return absent


def begin_restoring(fs: FileSystem, root: str, mark: Mapping[str, object]) -> None:
    """Mark an empty folder as one that does not start yet.

    Raises:
        InvalidRequest: The folder has files that no restore left there.
        Unavailable: The disk does not answer.
    """
    fs.mkdir(root)
    names = [name for name in fs.listdir(root) if name != f"{RESTORING_FILE}.tmp"]
    if names and RESTORING_FILE not in names:
        raise InvalidRequest(
            f"{root} is not empty (it has {names[0]!r}), and a restore would mix both: name a new"
            " folder with --data-dir"
        )
    fs.write_atomically(posixpath.join(root, RESTORING_FILE), orjson.dumps(dict(mark)))
    remove_tree(fs, root, keep=(RESTORING_FILE,))


def end_restoring(fs: FileSystem, root: str) -> None:
    """Make a restored, durable folder startable.

    Raises:
        Unavailable: The disk does not answer; the folder does not start then.
    """
    fs.write_atomically(posixpath.join(root, FORMAT_FILE), orjson.dumps({"format": FORMAT}))
    mark = posixpath.join(root, RESTORING_FILE)
    if not fs.exists(mark):
        raise Unavailable(f"{mark} has disappeared during the restore: restore again")
    fs.unlink(mark)
    fs.fsync_folder(root)
