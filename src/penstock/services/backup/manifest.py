"""Manifest of a backup: every file with size and checksum, and the data outside of the backup.

Owns the form on disk and the copying of a file with its checksum. Invariants:

- A backup is complete if and only if it has a manifest, which is written last, durably.
- A changed or truncated manifest is detected: it contains a checksum of itself.
- A path in a manifest is below the folder that it is relative to, and belongs to a part that a
  backup writes. The checksum protects against damage, not against a forged manifest.
"""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import orjson

from penstock.core.errors import CorruptData, InvalidRequest, NotFound, Unavailable
from penstock.services.options.resolution import CONFIG_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.storage.filesystem import FileSystem

MANIFEST: Final = "manifest.json"
UNFINISHED: Final = "unfinished.json"
METADATA: Final = "metadata.db"
DATA: Final = "data"
SEGMENTS: Final = "segments"

JOURNALS: Final = "flow/flowfiles/journals"
SNAPSHOTS: Final = "flow/flowfiles/snapshots"
PROVENANCE: Final = "flow/provenance"
PROVENANCE_POSITION: Final = f"{PROVENANCE}/position.json"
NAMED_BY_JOURNALS: Final = ("flow/flowfiles/swap", "flow/content")

ACCESS_FILES: Final = ("access/access.toml", "access/credentials.json")
"""Files of access in a backup: rules, and hashes of passwords and tokens.

The token of the operator and the key of the processes are secrets in the clear, so a backup lacks
them. The restored Penstock makes others at its first start.
"""
SEALED_SECRETS: Final = "secrets/secrets.json"
"""File of the data folder with the sealed secrets; their key is never in a backup."""

_FORMAT: Final = 1
_PARTS: Final = (
    *(f"{DATA}/topics/", f"{DATA}/flow/", f"{DATA}/log/tasks/"),
    f"{SEGMENTS}/",
)
_SINGLE_FILES: Final = frozenset(
    f"{DATA}/{name}" for name in (CONFIG_FILE, *ACCESS_FILES, SEALED_SECRETS)
) | {METADATA}
_OTHER: Final = "restore another backup"
_COPY_BYTES: Final = 4 * 1024 * 1024


class BackupPart(StrEnum):
    """Part of a backup, as `penstock backup` and `penstock restore` name it, in copying order."""

    PROGRESS = "topics: progress"
    JOURNALS = "journals"
    PROVENANCE = "provenance"
    METADATA = "metadata"
    CONTENT = "flow content"
    MESSAGES = "topics: messages"
    SEGMENTS = "segments"
    OTHER = "options, access, sealed values, task logs"


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    """A file of a backup: its path from the backup's folder, size, and SHA-256."""

    path: str
    size: int
    sha256: str

    @property
    def part(self) -> BackupPart:
        """Return the part that the file belongs to."""
        if self.path == METADATA:
            return BackupPart.METADATA
        folder, _, name = self.path.partition("/")
        if folder == SEGMENTS:
            return BackupPart.SEGMENTS
        if name.startswith("topics/"):
            return BackupPart.MESSAGES if is_log(name) else BackupPart.PROGRESS
        if name.startswith(tuple(f"{one}/" for one in NAMED_BY_JOURNALS)):
            return BackupPart.CONTENT
        if name.startswith(f"{PROVENANCE}/"):
            return BackupPart.PROVENANCE
        return BackupPart.JOURNALS if name.startswith("flow/") else BackupPart.OTHER


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of a backup.

    Attributes:
        id: Id of this backup.
        created: When it began, as text.
        penstock: The release that made it.
        files: Its files.
        deep_storage: The URL of the deep storage.
        objects: Size by path of the segments' files that are not in the backup, because the deep
            storage is an object store; the operator must keep a copy of them.
        missing: Paths of segments' files that the deep storage did not have, or had in another
            size.
        advice: Data that the operator must copy, one sentence each.
    """

    id: str
    created: str
    penstock: str
    files: tuple[BackedUpFile, ...]
    deep_storage: str
    objects: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def write(self, fs: FileSystem, folder: str) -> None:
        """Write it into a backup's folder, durably, which completes the backup."""
        content = {
            "format": _FORMAT,
            "id": self.id,
            "created": self.created,
            "penstock": self.penstock,
            "deepStorage": self.deep_storage,
            "files": [{"path": f.path, "bytes": f.size, "sha256": f.sha256} for f in self.files],
            "objects": dict(self.objects),
            "missing": list(self.missing),
            "advice": list(self.advice),
        }
        whole = {**content, "checksum": _checksum(content)}
        text = orjson.dumps(whole, option=orjson.OPT_INDENT_2)
        fs.write_atomically(posixpath.join(folder, MANIFEST), text)

    @classmethod
    def read(cls, fs: FileSystem, folder: str) -> Manifest:
        """Read the manifest of a backup's folder.

        Raises:
            InvalidRequest: The folder is not a backup, not complete, or of an unknown format; or
                its manifest names files that a backup does not have, or lacks the metadata.
            CorruptData: The manifest was changed or damaged.
        """
        path = posixpath.join(folder, MANIFEST)
        try:
            raw = fs.read_bytes(path)
        except NotFound:
            if fs.exists(posixpath.join(folder, UNFINISHED)):
                raise InvalidRequest(
                    f"the backup {folder} is not complete: it was interrupted: restore another one"
                ) from None
            raise InvalidRequest(
                f"{folder} is not a backup: it has no {MANIFEST}: name a folder that"
                " `penstock backup` wrote"
            ) from None
        try:
            value = orjson.loads(raw)
            _require_format(value["format"], value.get("penstock"), folder)
            if value.pop("checksum") != _checksum(value):
                raise CorruptData(path, 0, "its checksum is wrong: restore another backup")
            return cls(
                id=str(value["id"]),
                created=str(value["created"]),
                penstock=str(value["penstock"]),
                files=_files(value["files"], path),
                deep_storage=str(value["deepStorage"]),
                objects={_inside(name, path): int(size) for name, size in value["objects"].items()},
                missing=tuple(map(str, value["missing"])),
                advice=tuple(map(str, value["advice"])),
            )
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptData(
                path, 0, f"not a manifest ({error!r}): restore another one"
            ) from error


def is_log(name: str) -> bool:
    """Return whether a path is a log file of a stream partition: topics/TOPIC/NUMBER/OFFSET.log."""
    parts = name.split("/")
    return len(parts) == 4 and parts[2].isdecimal() and parts[3].endswith(".log")


def copy_file(
    fs: FileSystem,
    source: str,
    target: str,
    path: str,
    *,
    replace: bool = False,
    moved: Callable[[int], None] = lambda _bytes: None,
) -> BackedUpFile:
    """Copy a file durably, up to its size when the copy begins; its name is not synced.

    Args:
        fs: The file system.
        source: The file to copy; something may append to it meanwhile.
        target: Path of the copy.
        path: Its name in the manifest.
        replace: Whether the target may exist.
        moved: Called with the number of bytes of each piece.

    Raises:
        NotFound: The source does not exist.
        Unavailable: The disk is full or fails.
    """
    digest = hashlib.sha256()
    reader = fs.open_read(source)
    try:
        end, position = reader.size(), 0
        writer = fs.create(target, replace=replace)
        try:
            while position < end:
                block = reader.pread(min(_COPY_BYTES, end - position), position)
                if not block:
                    break  # truncated meanwhile
                writer.writev([block])
                digest.update(block)
                position += len(block)
                moved(len(block))
            writer.sync()
        finally:
            writer.close()
    finally:
        reader.close()
    return BackedUpFile(path, position, digest.hexdigest())


def checked(made: BackedUpFile, wanted: BackedUpFile, source: str) -> None:
    """Check that a copy matches the manifest.

    Raises:
        CorruptData: The copy differs; the message names the file.
    """
    if (made.size, made.sha256) != (wanted.size, wanted.sha256):
        reason = (
            f"{made.size} bytes with the checksum {made.sha256[:12]}…, and the manifest has"
            f" {wanted.size} bytes with {wanted.sha256[:12]}…: the backup is damaged, restore"
            " another one"
        )
        raise CorruptData(source, 0, reason)


def remove_tree(fs: FileSystem, path: str, keep: Sequence[str] = ()) -> None:
    """Delete the content of a folder, except the names to keep in it; then the folder, if empty.

    Raises:
        Unavailable: Something cannot be deleted.
    """
    real = fs.resolve(path)
    for name in fs.listdir(path):
        if name in keep:
            continue
        inner = posixpath.join(path, name)
        # A symbolic link is deleted, but not its target.
        is_link = fs.resolve(inner) != posixpath.join(real, name)
        if not is_link and fs.stat(inner).is_folder:
            remove_tree(fs, inner)
        else:
            fs.unlink(inner)
    if not keep:
        fs.rmdir(path)
    else:
        fs.fsync_folder(path)


def folders_of(paths: Sequence[str]) -> list[str]:
    """Return all folders above relative paths, the innermost first."""
    found: set[str] = set()
    for path in paths:
        folder = posixpath.dirname(path)
        while folder and folder not in found:
            found.add(folder)
            folder = posixpath.dirname(folder)
    return sorted(found, key=lambda one: -one.count("/"))


def require_apart(
    fs: FileSystem, folder: str, others: Sequence[str], subject: str, advice: str
) -> None:
    """Refuse a folder that is within another one, or contains it, even through symbolic links.

    Args:
        fs: The file system.
        folder: The folder that will be used.
        others: Folders that it must not overlap.
        subject: Name of the folder in the message, such as "the backup".
        advice: The remedy, as the end of the message.

    Raises:
        InvalidRequest: The folders overlap.
    """
    real = fs.resolve(folder)
    leads = f" (which is {real})" if real != folder else ""
    for other in others:
        there = fs.resolve(other)
        for inner, outer, how in ((real, there, "would be in"), (there, real, "would contain")):
            if f"{inner}/".startswith(f"{outer.rstrip('/')}/"):
                raise InvalidRequest(f"{subject} {folder}{leads} {how} the folder {other}{advice}")


def require_room(fs: FileSystem, folder: str, needed: int, what: str) -> None:
    """Refuse a copy that will not fit.

    Raises:
        Unavailable: The disk has less room.
    """
    free = fs.free_bytes(folder)
    if free < needed:
        raise Unavailable(
            f"{folder} has {free:,} bytes of free space, and {what} needs {needed:,}: free some, or"
            " name a folder on another disk"
        )


def _require_format(number: object, release: object, folder: str) -> None:
    if type(number) is int and number > _FORMAT:
        raise InvalidRequest(
            f"the backup {folder} has format {number}, and this release reads up to {_FORMAT}:"
            f" restore it with the release that made it, {release}"
        )
    if type(number) is not int or number != _FORMAT:
        raise InvalidRequest(
            f"the backup {folder} has format {number!r} in its {MANIFEST}, which no release of"
            f" Penstock writes: {_OTHER}"
        )


def _files(listed: Sequence[Mapping[str, object]], source: str) -> tuple[BackedUpFile, ...]:
    """Return the files of a manifest, after a check that a backup may have each of them."""
    files: dict[str, BackedUpFile] = {}
    for one in listed:
        path, size = _inside(one["path"], source), one["bytes"]
        if type(size) is not int or size < 0:
            raise InvalidRequest(f"{source} has {size!r} bytes for the file {path!r}: {_OTHER}")
        known = path in _SINGLE_FILES or path.startswith(_PARTS)
        if not known:
            raise InvalidRequest(
                f"{source} names the file {path!r}, which is of no part that a backup has: {_OTHER}"
            )
        if path in files:
            raise InvalidRequest(f"{source} names the file {path!r} twice: {_OTHER}")
        files[path] = BackedUpFile(path, size, str(one["sha256"]))
    for folder in folders_of(list(files)):
        if folder in files:
            raise InvalidRequest(f"{source} names {folder!r} as a file and as a folder: {_OTHER}")
    if METADATA not in files:
        raise InvalidRequest(f"{source} lacks {METADATA}, which every backup has: {_OTHER}")
    return tuple(files.values())


def _inside(path: object, source: str) -> str:
    text = str(path)
    if "\0" in text:
        raise InvalidRequest(f"{source} has the path {text!r}, which no file can have: {_OTHER}")
    normal = text != "" and posixpath.normpath(text) == text
    if not normal or text.startswith(("/", "../")) or text in {".", ".."}:
        raise InvalidRequest(f"the path {text!r} in {source} leads out of the backup: {_OTHER}")
    return text


def _checksum(content: Mapping[str, object]) -> str:
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
