"""Deep storage: the files of published segments, pushed once and never changed.

Owns the life of a file: pushed, or written by Spark into the folder of an attempt, before its
segment is published, killed after its segment is deleted, and found by `list_orphans` when its
publish never came. It does not know which segments exist. Invariants:

- a load spec names a whole file by its path below the root, so it stays valid when the root moves;
  one file has one load spec, so that segments that share a file are recognized;
- a push that is repeated with the same `unique` is the same push;
- nothing outside the root is ever touched.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol
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
from penstock.segments.localfiles import LocalFiles
from penstock.segments.remotefiles import RemoteFiles
from penstock.storage.filesystem import FileSystem, OsFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.segments.model import SegmentId

LOAD_SPEC_TYPE: Final = "deepStorage"
"""Type of a load spec whose `path` is relative to the root of the deep storage."""

_PROBED: Final = ".penstock-probe"
"""Name that no file has."""
# Spark and fsspec have names of their own for one store.
_SAME_STORE: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfss": "abfs"}


@dataclass(frozen=True, slots=True)
class Pushed:
    """Where a pushed file is: `load_spec` as kept in the segment, and its size."""

    load_spec: Mapping[str, object]
    size: int


class KnownFiles:
    """The names of very many files, of which only numbers are kept.

    A name that was never among them is taken for one of them once in 10^13 times a million: what is
    known is known, and a file that is not may be left for the next process to find.

    Args:
        names: The files, by their path from the root.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._numbers = np.unique(np.fromiter(map(hash, names), np.int64))

    def __contains__(self, name: str) -> bool:
        number = hash(name)
        at = int(np.searchsorted(self._numbers, number))
        return at < len(self._numbers) and int(self._numbers[at]) == number


class StoredFiles(Protocol):
    """Files below a root, by their path from there; `localfiles` and `remotefiles` have them."""

    def size(self, relative: str) -> int | None:
        """Return a file's size, None if there is none."""
        ...

    def put(self, local_file: str, folder: str, name: str = FILE_NAME, temporary: str = "") -> int:
        """Copy a file to its place in a folder, durably, and return its size there."""
        ...

    def settle(self, folder: str) -> None:
        """Make the names on the way to a file durable."""
        ...

    def delete(self, relative: str) -> None:
        """Delete a file; none is fine."""
        ...

    def move(self, relative: str, target: str) -> None:
        """Give a file another path."""
        ...

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield every file with the time of its last change, in epoch milliseconds."""
        ...


def files_below(url: str, fs: FileSystem) -> tuple[str, StoredFiles]:
    """Return a root in the form that engines open, and the files below it.

    Raises:
        InvalidRequest: The URL cannot be used; the message says what is missing.
    """
    path = _local_path(url)
    if path is not None:
        return path, LocalFiles(path, fs)
    root = url.rstrip("/")
    return root, RemoteFiles(root)


class DeepStore:
    """A folder or a bucket for segment files. Any thread may call.

    Args:
        url: An absolute path, ``file:///path``, or a URL that fsspec knows.
        fs: The file system that local files are read from and, for a path, pushed to.

    Raises:
        InvalidRequest: The URL cannot be used; the message says what is missing.
    """

    def __init__(self, url: str, *, fs: FileSystem | None = None) -> None:
        self._fs = fs or OsFileSystem()
        self._root, self._files = files_below(url, self._fs)
        self._is_local = "://" not in self._root

    def push(self, local_file: str, segment_id: SegmentId, unique: str) -> Pushed:
        """Copy a file to its place, durably and at once or not at all.

        Args:
            local_file: A file that does not change any more.
            segment_id: Whose it is.
            unique: Tells this content from others of the same id, such as a replica's.

        Raises:
            NotFound: There is no such local file.
            Conflict: A file of another size was pushed with this `unique`.
            Unavailable: The store is full, does not answer, or its folder is missing; push again.
        """
        folder = relative_folder(segment_id, unique)
        place = posixpath.join(folder, FILE_NAME)
        size = self._fs.stat(local_file).size
        present = self._files.size(place)
        if present is not None and present != size:
            raise Conflict(
                f"{self._location(place)} is there with {present} bytes, not {size}: "
                "push other content with another unique name"
            )
        if present is not None:
            self._files.settle(folder)
        elif (written := self._files.put(local_file, folder)) != size:
            raise StorageUnavailable(
                f"{self._location(place)} has {written} of {size} bytes: push the file again"
            )
        return Pushed(self._load_spec(place), size)

    def make_root(self) -> None:
        """Make the folder of a local store; called at the start of Penstock only.

        Raises:
            InvalidRequest: It cannot be made there.
            Conflict: A file has its name.
            Unavailable: The disk does not answer.
        """
        if self._is_local:
            self._fs.mkdir(self._root)

    def probe(self) -> None:
        """Return if the store answers; reads and writes nothing.

        Raises:
            Unavailable: The store does not answer, or its folder is missing.
            InvalidRequest: It refuses the credentials of this process.
        """
        self._files.size(_PROBED)

    def attempt_folder(self, datasource: str, task_id: str, attempt: str) -> str:
        """Return where one call of an engine writes, in the form that `location` has.

        Whoever writes there makes the folder, and makes the files durable before they are
        published. Nobody else writes there.

        Args:
            datasource: What the files are of.
            task_id: Whose they are.
            attempt: Tells this call from all others of the task.

        Raises:
            InvalidRequest: A part cannot be a name.
        """
        return self._location(attempt_folder(datasource, task_id, attempt))

    def load_spec_of(self, uri: str) -> Mapping[str, object]:
        """Return the load spec of a file that was written into an attempt's folder.

        Args:
            uri: The folder and the file's name, or how Spark calls the file.

        Raises:
            InvalidRequest: It is not in an attempt's folder of this store.
        """
        relative = self._below(_unquoted(uri, self._root))
        if relative is None or not is_attempt_file(relative):
            raise InvalidRequest(
                f"{uri} is not a file of a batch task in the deep storage {self._root}: write into"
                " the folder that `attempt_folder` gives"
            )
        return self._load_spec(relative)

    def rebased(self, location: str) -> str:
        """Return where a file is now whose location was written down earlier.

        The deep storage may have moved since: the end of the location that has the shape of a
        segment's file decides. A location without such an end is returned as it is.
        """
        relative = segment_file_of(location)
        return location if relative is None else self._location(relative)

    def current(self, load_spec: Mapping[str, object]) -> Mapping[str, object]:
        """Return a load spec in the form that is written today.

        Earlier releases wrote absolute locations, which become invalid when the deep storage moves.
        A task that was interrupted then may still have one in its folder.
        """
        if load_spec.get("type") not in {"local", "fsspec"}:
            return load_spec
        relative = segment_file_of(str(load_spec.get("path", load_spec.get("url"))))
        return load_spec if relative is None else self._load_spec(relative)

    def kill(self, load_spec: Mapping[str, object]) -> None:
        """Delete a file and the folders that are empty then; one that is gone is fine.

        Two segments may name one file: whoever asks must know that no segment does any more.

        Raises:
            InvalidRequest: The load spec is not of this store.
            Unavailable: The store does not answer.
        """
        relative = self._relative(load_spec)
        self._files.delete(relative)
        if self._is_local and is_attempt_file(relative):
            self._files.delete(checksum_file(relative))

    def location(self, load_spec: Mapping[str, object]) -> str:
        """Return what an engine opens: a path on this host, or a URL. Raises as `kill`."""
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
        """Return the path of a file from the root. Raises InvalidRequest as `kill`."""
        return self._relative(load_spec)

    def size(self, relative: str) -> int | None:
        """Return the size of a file by its path from the root, None if there is none.

        Raises:
            Unavailable: The store does not answer.
        """
        return self._files.size(relative)

    def put_aside(self, relative: str) -> None:
        """Move a file to where neither queries nor the search for orphans find it.

        Raises:
            NotFound: There is no such file.
            Unavailable: The store does not answer.
        """
        self._files.move(relative, f"{LEFT_OUT}/{relative}")

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield the path of every file from the root, and when it changed, in epoch milliseconds.

        Raises:
            Unavailable: The store does not answer.
        """
        yield from self._files.walk()

    def known(self, load_specs: Iterable[Mapping[str, object]]) -> KnownFiles:
        """Return which files of this store load specs name, in eight bytes each."""
        return KnownFiles(self._named(load_specs))

    def list_orphans(
        self, known: Iterable[Mapping[str, object]] | KnownFiles, *, modified_before_ms: int
    ) -> list[Mapping[str, object]]:
        """Return what to kill: files of no segment, left by tasks that were cut.

        That are pushes without a publish and, of the attempts of batch tasks, all that no segment
        names: halves, and what Spark keeps beside. Files that no task can have made are left
        alone; those of another Penstock below the same root are not, so that each needs a root of
        its own.

        Args:
            known: The load specs of all segments, used and unused, read after the time below, or
                the files that they name; those of other stores do not matter.
            modified_before_ms: Leaves files alone whose publish may still come. Take a time longer
                ago than a task goes on trying to publish.

        Raises:
            Unavailable: The store does not answer.
        """
        kept = known if isinstance(known, KnownFiles) else self.known(known)
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
        """Return the path of a location from the root, None if it is elsewhere."""
        prefix = f"{self._root}/"
        relative = location.removeprefix(prefix)
        return relative if location.startswith(prefix) and _is_inside(relative) else None


def _is_inside(relative: str) -> bool:
    """Whether a path stays below the folder that it is relative to."""
    normal = relative != "" and posixpath.normpath(relative) == relative
    return normal and not relative.startswith(("../", "/")) and relative not in {"..", "."}


def _unquoted(uri: str, root: str) -> str:
    """Return a URI as the store would write it: a plain path, or with the scheme of its root."""
    if uri.startswith("file:"):
        return unquote(urlsplit(uri).path)
    scheme, separator, rest = uri.partition("://")
    root_scheme = root.partition("://")[0]
    if separator and _SAME_STORE.get(scheme, scheme) == _SAME_STORE.get(root_scheme, root_scheme):
        return f"{root_scheme}://{rest}"
    return uri


def _local_path(url: str) -> str | None:
    """Return the path that a URL without a scheme, or of a file, stands for."""
    if url.startswith("file://"):
        parts = urlsplit(url)
        if parts.netloc not in {"", "localhost"}:
            raise InvalidRequest(
                f"deep storage {url!r} names the host {parts.netloc}: write file:// and the whole"
                " path, file:///path"
            )
        url = unquote(parts.path)
    elif "://" in url:
        return None
    if not url.startswith("/"):
        raise InvalidRequest(f"deep storage {url!r} is no absolute path: write the whole path")
    # Two slashes at the start would stay, and load specs with one be of another store.
    return "/" + posixpath.normpath(url).lstrip("/")
