"""Deep storage behind fsspec: object stores, HDFS and what else it reaches.

Object stores show a file when all of it has arrived; elsewhere it goes under a temporary name
first. The one place that knows fsspec; what its file systems raise leaves as errors of Penstock.
"""

from __future__ import annotations

import posixpath
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol, cast

import fsspec

from penstock.core.errors import InvalidRequest, NotFound, StorageUnavailable
from penstock.segments.layout import FILE_NAME, TEMPORARY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ATOMIC_PUT = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "memory"})
# What the file systems of fsspec call the time of the last change.
_CHANGED_NAMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


class _RemoteFileSystem(Protocol):
    """What is used of an fsspec file system."""

    def info(self, path: str) -> Mapping[str, object]: ...
    def put_file(self, lpath: str, rpath: str) -> None: ...
    def mv(self, path1: str, path2: str) -> None: ...
    def rm_file(self, path: str) -> None: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...
    def find(self, path: str, *, detail: bool) -> Mapping[str, Mapping[str, object]]: ...
    def modified(self, path: str) -> datetime: ...
    def invalidate_cache(self) -> None: ...


class RemoteFiles:
    """The files below a URL.

    Args:
        url: Such as ``s3://bucket/folder``; secrets come from the environment, as fsspec has it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        scheme = url.partition("://")[0]
        self._atomic_put = scheme in _ATOMIC_PUT
        try:
            fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidRequest(
                f"deep storage {url!r} cannot be used ({error}): install the fsspec package for "
                f"{scheme}://, or correct the URL"
            ) from error
        self._fs = cast("_RemoteFileSystem", fs)
        self._root = str(root).rstrip("/")

    def size(self, relative: str) -> int | None:
        """Return a file's size, None if there is none."""
        try:
            with self._translated("look for", relative):
                self._fs.invalidate_cache()
                return cast("int", self._fs.info(self._path(relative))["size"])
        except NotFound:
            return None

    def put(self, local_file: str, folder: str, name: str = FILE_NAME, temporary: str = "") -> int:
        """Copy a file to its place in a folder and return its size there.

        Args:
            local_file: What to copy.
            folder: Where to, from the root.
            name: What it is called there.
            temporary: What it is called there until it is whole, where that shows; no two writers
                have one name.

        Raises:
            NotFound: There is no such local file.
            Unavailable: The store does not answer, or did not keep all of it.
        """
        place = posixpath.join(folder, name)
        with self._translated("write", place):
            if self._atomic_put:
                self._fs.put_file(local_file, self._path(place))
            else:
                begun = self._path(posixpath.join(folder, temporary or TEMPORARY_NAME))
                self._fs.makedirs(self._path(folder), exist_ok=True)
                self._fs.put_file(local_file, begun)
                self._fs.mv(begun, self._path(place))
        size = self.size(place)
        if size is None:
            raise StorageUnavailable(
                f"{self._url}/{place}: not there after it was written: push it again"
            )
        return size

    def settle(self, folder: str) -> None:
        """Do nothing: what a remote store shows is durable."""

    def delete(self, relative: str) -> None:
        """Delete a file; none is fine. Object stores have no folders to clear up."""
        try:
            with self._translated("delete", relative):
                self._fs.rm_file(self._path(relative))
        except NotFound:
            pass

    def move(self, relative: str, target: str) -> None:
        """Give a file another path. Raises as the store does; both may exist after a crash."""
        with self._translated("move", relative):
            self._fs.mv(self._path(relative), self._path(target))

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield every file with the time of its last change."""
        with self._translated("list", ""):
            self._fs.invalidate_cache()
            listed = self._fs.find(self._root, detail=True)
        for path, details in listed.items():
            relative = path[len(self._root) :].lstrip("/")
            changed_ms = _changed_ms(details)
            if changed_ms is None:
                try:
                    with self._translated("look for", relative):
                        changed_ms = _instant_ms(self._fs.modified(path))
                except NotFound:
                    continue
            yield relative, changed_ms

    def _path(self, relative: str) -> str:
        return f"{self._root}/{relative}"

    @contextmanager
    def _translated(self, doing: str, relative: str) -> Iterator[None]:
        place = f"{self._url.rstrip('/')}/{relative}"
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"{place}: cannot {doing}: no such file ({error})") from error
        except PermissionError as error:
            raise InvalidRequest(
                f"{place}: cannot {doing}: give this process the rights to it ({error})"
            ) from error
        except NotImplementedError as error:
            raise InvalidRequest(f"{place}: cannot {doing}: the store has no such call") from error
        except Exception as error:
            # What the packages of stores raise beyond this has no class in common: botocore,
            # aiohttp and google.auth each have their own, for a network that is down as well as
            # for credentials that expired.
            what = str(error) or type(error).__name__
            raise StorageUnavailable(f"{place}: cannot {doing}: {what}: try again later") from error


def _changed_ms(details: Mapping[str, object]) -> int | None:
    """Return the time of the last change from a listing, where it says.

    A listing costs a request for a thousand files, to ask for the time of each costs one a file.
    """
    for name in _CHANGED_NAMES:
        value = details.get(name)
        if isinstance(value, datetime):
            return _instant_ms(value)
        if isinstance(value, int | float):
            return int(value * 1000)
    return None


def _instant_ms(time: datetime) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)
