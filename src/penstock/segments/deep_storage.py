"""Deep storage: the files of published segments, pushed once and never changed.

Owns the life of a file: it is pushed, or written by Spark into the folder of an attempt, before its
segment is published; it is killed after its segment is deleted; `list_orphans` finds it if its
publish failed. It does not know which segments exist. Invariants:

- a load spec names a whole file by its path below the root, so it stays valid when the root moves;
  one file has one load spec, so that segments that share a file are recognized;
- a push that is repeated with the same `unique` is the same push;
- nothing outside the root is changed.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np

from penstock.core.errors import Conflict, InvalidRequest, StorageUnavailable
from penstock.segments.layout import (
    FILE_NAME,
    LEFT_OUT,
    attempt_folder,
    checksum_file,
    is_attempt_file,
    is_segment_file,
    relative_folder,
    segment_file_of,
)
from penstock.segments.local_files import LocalFiles
from penstock.segments.remote_files import RemoteFiles
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.segments.segment import SegmentId

LOAD_SPEC_TYPE: Final = "deepStorage"
"""Type of a load spec whose `path` is relative to the root of the deep storage."""

_PROBED: Final = ".penstock-probe"
"""A name that no file has."""
# Schemes that Spark and fsspec name differently.
_SAME_STORE: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}


@dataclass(frozen=True, slots=True)
class PushedFile:
    """Location of a pushed file: `load_spec` as stored in the segment, and its size."""

    load_spec: Mapping[str, object]
    size: int


class KnownFiles:
    """A set of very many file names, stored as hashes.

    With a million names, one in 10^13 unknown names is reported as known. A known name is always
    recognized. So this process may miss an unknown file, which a later process then finds.

    Args:
        names: The files, by their path relative to the root.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers = np.unique(np.fromiter(map(hash, names), np.int64))

    def __contains__(self, name: str) -> bool:
        number = hash(name)
        at = int(np.searchsorted(self._numbers, number))
        return at < len(self._numbers) and int(self._numbers[at]) == number


class StoredFiles(Protocol):
    """Files below a root, by relative path; implemented by `local_files` and `remote_files`."""

    def size(self, relative: str) -> int | None:
        """Return a file's size, None if it does not exist."""
        ...

    def changed_ms(self, relative: str) -> int:
        """Return when a file was last changed, in epoch milliseconds. Raises NotFound."""
        ...

    def open(self, relative: str) -> BinaryIO:
        """Open a file to read."""
        ...

    def put(self, local_file: str, folder: str, name: str = FILE_NAME, temporary: str = "") -> int:
        """Copy a file to its place in a folder, durably, and return its size there."""
        ...

    @property
    def writes_once(self) -> bool:
        """Whether `write` can create a file only if it does not exist."""
        ...

    def read(self, relative: str) -> bytes:
        """Return the content of a small file; raises NotFound if it does not exist."""
        ...

    def write(self, relative: str, content: bytes, temporary: str, *, replace: bool) -> bool:
        """Write a small file in one step; return False if it exists and is not to be replaced."""
        ...

    def sync_names(self, folder: str) -> None:
        """Make the names on the path to a file durable."""
        ...

    def delete(self, relative: str) -> None:
        """Delete a file; a missing one is ignored."""
        ...

    def move(self, relative: str, target: str) -> None:
        """Rename a file."""
        ...

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield every file with the time of its last change, in epoch milliseconds."""
        ...


def files_below(url: str, fs: FileSystem) -> tuple[str, StoredFiles]:
    """Return a root in the form that engines open, and the files below it.

    Raises:
        InvalidRequest: The URL cannot be used; the message has the reason.
    """
    path = _local_path(url)
    if path is not None:
        return path, LocalFiles(path, fs)
    root = url.rstrip("/")
    return root, RemoteFiles(root)


class DeepStore:
    """A folder or a bucket for segment files. Any thread may call.

    Args:
        url: An absolute path, ``file:///path``, or a URL that fsspec supports.
        fs: The file system that local files are read from and, for a path, pushed to.

    Raises:
        InvalidRequest: The URL cannot be used; the message has the reason.
    """

    def __init__(self, url: str, *, fs: FileSystem | None = None) -> None:
        self._fs = fs or OsFileSystem()
        self._root, self._files = files_below(url, self._fs)
        self._is_local = "://" not in self._root

    def push(self, local_file: str, segment_id: SegmentId, unique: str) -> PushedFile:
        """Copy a file to its place, durably and atomically.

        Args:
            local_file: A file that no longer changes.
            segment_id: The segment of the file.
            unique: Distinguishes this content from others of the same id, such as a replica's.

        Raises:
            NotFound: The local file does not exist.
            Conflict: A file of another size was pushed with this `unique`.
            Unavailable: The store is full, does not answer, or its folder is missing; push again.
        """
        folder = relative_folder(segment_id, unique)
        place = posixpath.join(folder, FILE_NAME)
        size = self._fs.stat(local_file).size
        present = self._files.size(place)
        if present is not None and present != size:
            raise Conflict(
                f"{self._location(place)} exists with {present} bytes, not {size}: "
                "push other content with another unique name"
            )
        if present is not None:
            self._files.sync_names(folder)
        elif (written := self._files.put(local_file, folder)) != size:
            raise StorageUnavailable(
                f"{self._location(place)} has {written} of {size} bytes: push the file again"
            )
        return PushedFile(self._load_spec(place), size)

    def make_root(self) -> None:
        """Create the folder of a local store; called only at the start of Penstock.

        Raises:
            InvalidRequest: It cannot be created there.
            Conflict: A file has its name.
            Unavailable: The disk does not answer.
        """
        if self._is_local:
            self._fs.mkdir(self._root)

    def probe(self) -> None:
        """Check that the store answers; reads and writes nothing.

        Raises:
            Unavailable: The store does not answer, or its folder is missing.
            InvalidRequest: It refuses the credentials of this process.
        """
        self._files.size(_PROBED)

    def attempt_folder(self, datasource: str, task_id: str, attempt: str) -> str:
        """Return the output folder of one call of an engine, in the form of `location`.

        The engine creates the folder, and makes the files durable before they are published. No
        other call writes there.

        Args:
            datasource: The datasource of the files.
            task_id: The task.
            attempt: Distinguishes this call from all others of the task.

        Raises:
            InvalidRequest: A part is not a valid name.
        """
        return self._location(attempt_folder(datasource, task_id, attempt))

    def load_spec_of(self, uri: str) -> Mapping[str, object]:
        """Return the load spec of a file that was written into an attempt's folder.

        Args:
            uri: The folder and the file's name, or Spark's name of the file.

        Raises:
            InvalidRequest: It is not in an attempt's folder of this store.
        """
        relative = self._below(_unquoted(uri, self._root))
        if relative is None or not is_attempt_file(relative):
            raise InvalidRequest(
                f"{uri} is not a file of a batch task in the deep storage {self._root}: write into"
                " the folder that `attempt_folder` returns"
            )
        return self._load_spec(relative)

    def rebased(self, location: str) -> str:
        """Return the current location of a file from its location as stored earlier.

        The deep storage may have moved since: the end of the location that has the form of a
        segment's file is used. A location without such an end is returned unchanged.
        """
        relative = segment_file_of(location)
        return location if relative is None else self._location(relative)

    def current(self, load_spec: Mapping[str, object]) -> Mapping[str, object]:
        """Return a load spec in the current form.

        Earlier releases wrote absolute locations, which become invalid when the deep storage moves.
        A task that was interrupted then may still have one in its folder.
        """
        if load_spec.get("type") not in {"local", "fsspec"}:
            return load_spec
        relative = segment_file_of(str(load_spec.get("path", load_spec.get("url"))))
        return load_spec if relative is None else self._load_spec(relative)

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file and its parent folders that are then empty; a missing one is ignored.

        Two segments may name one file: the caller must know that no segment names it any longer.

        Raises:
            InvalidRequest: The load spec is not of this store.
            Unavailable: The store does not answer.
        """
        relative = self._relative(load_spec)
        self._files.delete(relative)
        if self._is_local and is_attempt_file(relative):
            self._files.delete(checksum_file(relative))

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return the location that an engine opens: a local path or a URL. Raises as `kill`."""
        return self._location(self._relative(load_spec))

    @property
    def root(self) -> str:
        """The root, in the form that engines open."""
        return self._root

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder of this host."""
        return self._is_local

    def relative(self, load_spec: Mapping[str, object]) -> str:
        """Return the path of a file relative to the root. Raises InvalidRequest as `kill`."""
        return self._relative(load_spec)

    def size(self, relative: str) -> int | None:
        """Return the size of a file by its path relative to the root, None if it does not exist.

        Raises:
            Unavailable: The store does not answer.
        """
        return self._files.size(relative)

    def put_in_attempt(
        self, local_file: str, datasource: str, task_id: str, attempt: str, name: str
    ) -> int:
        """Copy a file into the folder of an attempt, durably, and return its size there.

        Args:
            local_file: A file that no longer changes.
            datasource: The datasource of the file.
            task_id: The task.
            attempt: The attempt of the task.
            name: A name that no other file of the attempt gets.

        Raises:
            InvalidRequest: A part is not a valid name.
            NotFound: The local file does not exist.
            Unavailable: The store is full, does not answer, or its folder is missing.
        """
        folder = attempt_folder(datasource, task_id, attempt)
        return self._files.put(local_file, folder, name, f".{name}.tmp")

    def sync_attempt(self, datasource: str, task_id: str, attempt: str) -> None:
        """Make the names of an attempt's files durable; another process may have written them.

        Raises:
            NotFound: The folder does not exist.
            Unavailable: The store does not answer.
        """
        self._files.sync_names(attempt_folder(datasource, task_id, attempt))

    def open(self, load_spec: Mapping[str, object]) -> tuple[BinaryIO, int]:
        """Open a file to read, and return when it was last changed, in epoch milliseconds.

        Raises:
            InvalidRequest: The load spec is not of this store.
            NotFound: The file does not exist.
            Unavailable: The store does not answer.
        """
        relative = self._relative(load_spec)
        return self._files.open(relative), self._files.changed_ms(relative)

    def put_aside(self, relative: str) -> None:
        """Move a file to a place that neither queries nor the search for orphans use.

        Raises:
            NotFound: The file does not exist.
            Unavailable: The store does not answer.
        """
        self._files.move(relative, f"{LEFT_OUT}/{relative}")

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield the relative path of every file, and the time of its last change in epoch ms.

        Raises:
            Unavailable: The store does not answer.
        """
        yield from self._files.walk()

    def known_files(self, load_specs: Iterable[Mapping[str, object]]) -> KnownFiles:
        """Return the files of this store that load specs name, in eight bytes each."""
        return KnownFiles(self._named(load_specs))

    def list_orphans(
        self, known: Iterable[Mapping[str, object]] | KnownFiles, *, modified_before_ms: int
    ) -> list[Mapping[str, object]]:
        """Return the files to kill: those of no segment, left by interrupted tasks.

        These are pushes without a publish and, in the attempts of batch tasks, all files that no
        segment names, such as partial ones and Spark's own. Files that no task can have created are
        not returned. Files of another Penstock below the same root are, so each needs its own root.

        Args:
            known: The load specs of all segments, used and unused, read after the time below, or
                the files that they name; those of other stores are ignored.
            modified_before_ms: Excludes files that may still be published. Choose a time longer ago
                than a task keeps trying to publish.

        Raises:
            Unavailable: The store does not answer.
        """
        kept = known if isinstance(known, KnownFiles) else self.known_files(known)
        return [
            self._load_spec(relative)
            for relative, modified_ms in self._files.walk()
            if modified_ms < modified_before_ms
            and relative not in kept
            and is_segment_file(relative)
        ]

    def _named(self, load_specs: Iterable[Mapping[str, object]]) -> Iterator[str]:
        for load_spec in load_specs:
            if (relative := self._find(load_spec)) is not None:
                yield relative
                if is_attempt_file(relative):
                    yield checksum_file(relative)

    def _load_spec(self, relative: str) -> dict[str, object]:
        return {"type": LOAD_SPEC_TYPE, "path": relative}

    def _location(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    def _relative(self, load_spec: Mapping[str, object]) -> str:
        relative = self._find(load_spec)
        if relative is None:
            raise InvalidRequest(
                f"load spec {dict(load_spec)} is not of the deep storage {self._root}: "
                "name the store that it was pushed to with --deep-storage"
            )
        return relative

    def _find(self, load_spec: Mapping[str, object]) -> str | None:
        kind, path = load_spec.get("type"), load_spec.get("path")
        if kind == LOAD_SPEC_TYPE:
            return path if isinstance(path, str) and _is_inside(path) else None
        # Written by an earlier release.
        if kind == ("local" if self._is_local else "fsspec"):
            location = path if self._is_local else load_spec.get("url")
            return self._below(location) if isinstance(location, str) else None
        return None

    def _below(self, location: str) -> str | None:
        """Return the path of a location relative to the root, None if it is outside."""
        prefix = f"{self._root}/"
        relative = location.removeprefix(prefix)
        return relative if location.startswith(prefix) and _is_inside(relative) else None


def _is_inside(relative: str) -> bool:
    """Return whether a path stays below the folder that it is relative to."""
    normal = relative != "" and posixpath.normpath(relative) == relative
    return normal and not relative.startswith(("../", "/")) and relative not in {"..", "."}


def _unquoted(uri: str, root: str) -> str:
    """Return a URI in the store's form: a plain path, or with the scheme of its root."""
    if uri.startswith("file:"):
        return unquote(urlsplit(uri).path)
    scheme, separator, rest = uri.partition("://")
    root_scheme = root.partition("://")[0]
    if separator and _SAME_STORE.get(scheme, scheme) == _SAME_STORE.get(root_scheme, root_scheme):
        return f"{root_scheme}://{rest}"
    return uri


def _local_path(url: str) -> str | None:
    """Return the path of a URL without a scheme, or with the scheme file."""
    if url.startswith("file://"):
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"}:
            raise InvalidRequest(
                f"deep storage {url!r} names the host {parts.netloc}: write file:// and the"
                " absolute path, file:///path"
            )
        url = unquote(parts.path)
    elif "://" in url:
        return None
    if not url.startswith("/"):
        raise InvalidRequest(f"deep storage {url!r} is not an absolute path: write it from / on")
    # Two leading slashes would be kept, and load specs with one would belong to another store.
    return "/" + posixpath.normpath(url).lstrip("/")
