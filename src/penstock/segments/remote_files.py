"""Deep storage behind fsspec: object stores, HDFS and other file systems that it supports.

Object stores show a file when it is complete; for others it has a temporary name first. The only
module that uses fsspec; it translates exceptions of its file systems to errors of Penstock.
"""

from __future__ import annotations

import posixpath
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import fsspec
from fsspec.registry import known_implementations

from penstock.core.errors import InvalidRequest, NotFound, StorageUnavailable
from penstock.segments.layout import FILE_NAME, TEMPORARY_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# Stores that fsspec can ask to write a file only if it does not exist.
_WRITE_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "memory"})
_ATOMIC_PUT = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "memory"})
# Penstock's own extras with the package for a scheme.
_EXTRAS = {"s3": "penstock-io[s3]", "s3a": "penstock-io[s3]"}
_FETCHED_BYTES = 8 << 20
# Keys of the modification time in the file systems of fsspec.
_CHANGED_NAMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")


def require_file_system(what: str, url: str) -> None:
    """Check that the package for a URL is installed; nothing is requested from the store.

    Args:
        what: Name of the store, for the message.
        url: Its URL.

    Raises:
        InvalidRequest: It is not installed, or fsspec does not support the URL's scheme.
    """
    # A URL may chain file systems: simplecache::s3://bucket/folder.
    for part in url.split("::"):
        try:
            _require_package(part.partition("://")[0])
        except (ImportError, ValueError) as error:
            raise unusable_url(what, url, error) from error


def _require_package(scheme: str) -> None:
    """Check that the package for a scheme is installed, without its import, which is large.

    Raises:
        ImportError: It is not installed.
        ValueError: fsspec does not support the scheme.
    """
    known = known_implementations.get(scheme)
    package = "fsspec" if known is None else str(known["class"]).partition(".")[0]
    if package == "fsspec":
        # Its own modules import the package that they need.
        fsspec.get_filesystem_class(scheme)
    elif find_spec(package) is None:
        raise ImportError(str(known.get("err") or f"{package} is not installed") if known else "")


def unusable_url(what: str, url: str, error: Exception) -> InvalidRequest:
    """Return the error for a store whose URL fsspec refuses."""
    scheme = url.partition("://")[0].rpartition("::")[2]
    package = (
        f"pip install '{_EXTRAS[scheme]}'"
        if scheme in _EXTRAS
        else f"install the fsspec package for {scheme}://"
    )
    return InvalidRequest(f"cannot use {what} {url!r} ({error}): {package}, or correct the URL")


class _RemoteFileSystem(Protocol):
    """The methods of an fsspec file system that are used."""

    def info(self, path: str) -> Mapping[str, object]: ...
    def put_file(self, lpath: str, rpath: str) -> None: ...
    def pipe_file(self, path: str, value: bytes, mode: str) -> None: ...
    def cat_file(self, path: str) -> bytes: ...
    def mv(self, path1: str, path2: str) -> None: ...
    def rm_file(self, path: str) -> None: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...
    def find(self, path: str, *, detail: bool) -> Mapping[str, Mapping[str, object]]: ...
    def modified(self, path: str) -> datetime: ...
    def invalidate_cache(self) -> None: ...
    def open(self, path: str, mode: str, *, cache_type: str) -> BinaryIO: ...


class RemoteFiles:
    """The files below a URL.

    Args:
        url: A URL such as ``s3://bucket/folder``. fsspec reads secrets from the environment.

    Attributes:
        writes_once: Whether `write` can create a file only if it does not exist.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        scheme = url.partition("://")[0]
        self._atomic_put = scheme in _ATOMIC_PUT
        self.writes_once = scheme in _WRITE_ONCE
        try:
            fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise unusable_url("the deep storage", url, error) from error
        self._fs = cast("_RemoteFileSystem", fs)
        self._root = str(root).rstrip("/")

    def size(self, relative: str) -> int | None:
        """Return a file's size, None if it does not exist."""
        try:
            with self._translated("look for", relative):
                self._fs.invalidate_cache()
                return cast("int", self._fs.info(self._path(relative))["size"])
        except NotFound:
            return None

    def changed_ms(self, relative: str) -> int:
        """Return when a file was last changed, in epoch milliseconds. Raises NotFound."""
        with self._translated("look for", relative):
            self._fs.invalidate_cache()
            found = _changed_ms(self._fs.info(self._path(relative)))
            if found is None:
                found = _instant_ms(self._fs.modified(self._path(relative)))
            return found

    def open(self, relative: str) -> BinaryIO:
        """Open a file to read; a few requests read a footer, or a column.

        Raises:
            NotFound: It does not exist.
            Unavailable: The store does not answer.
        """
        with self._translated("read", relative):
            return self._fs.open(self._path(relative), "rb", cache_type="readahead")

    def put(self, local_file: str, folder: str, name: str = FILE_NAME, temporary: str = "") -> int:
        """Copy a file to its place in a folder and return its size there.

        Args:
            local_file: The file to copy.
            folder: The target folder, relative to the root.
            name: The target name.
            temporary: The name until the copy is complete, if partial files are visible; each
                writer needs another one.

        Raises:
            NotFound: The local file does not exist.
            Unavailable: The store does not answer, or did not store the whole file.
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
                f"{self._url}/{place}: missing after it was written: push it again"
            )
        return size

    def read(self, relative: str) -> bytes:
        """Return the content of a small file.

        Raises:
            NotFound: It does not exist.
            Unavailable: The store does not answer.
        """
        with self._translated("read", relative):
            self._fs.invalidate_cache()
            return self._fs.cat_file(self._path(relative))

    def write(self, relative: str, content: bytes, temporary: str, *, replace: bool) -> bool:
        """Write a small file in one step.

        Args:
            relative: The file.
            content: Its content.
            temporary: Not used: object stores show a file when it is complete.
            replace: Whether to replace a file of this name.

        Returns:
            Whether it was written: False if it exists and is not to be replaced.

        Raises:
            InvalidRequest: The store cannot write a file in this way (see `writes_once`).
            Unavailable: The store does not answer; it may have written the file nevertheless.
        """
        del temporary
        if not self.writes_once:
            raise InvalidRequest(
                f"{self._url} cannot create a file only if it does not exist: use a folder, or a"
                " store of S3, Google Cloud or Azure"
            )
        with self._translated("write", relative):
            mode = "overwrite" if replace else "create"
            try:
                self._fs.pipe_file(self._path(relative), content, mode=mode)
            except FileExistsError:
                return False
        return True

    def fetch(self, relative: str, write: Callable[[bytes], object]) -> str:
        """Pass the content of a file on piece by piece, and return its ETag, "" if it has none.

        Args:
            relative: The file.
            write: Called with each piece; an exception ends the transfer.

        Raises:
            NotFound: The file does not exist.
            Unavailable: The store does not answer.
        """
        path = self._path(relative)
        with self._translated("read", relative):
            etag = self._fs.info(path).get("ETag")
            # Each read is one request for its bytes.
            file = self._fs.open(path, "rb", cache_type="none")
        with closing(file):
            while True:
                with self._translated("read", relative):
                    data = file.read(_FETCHED_BYTES)
                if not data:
                    return etag if isinstance(etag, str) else ""
                write(data)

    def sync_names(self, folder: str) -> None:
        """Do nothing: visible files of a remote store are durable."""

    def delete(self, relative: str) -> None:
        """Delete a file; a missing one is ignored. Object stores have no folders to delete."""
        try:
            with self._translated("delete", relative):
                self._fs.rm_file(self._path(relative))
        except NotFound:
            pass

    def move(self, relative: str, target: str) -> None:
        """Rename a file. Raises as the store does; both names may exist after a crash."""
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
                f"{place}: cannot {doing}: grant this process access ({error})"
            ) from error
        except NotImplementedError as error:
            raise InvalidRequest(f"{place}: cannot {doing}: not supported by the store") from error
        except Exception as error:
            # Other exceptions of the packages of stores have no common class: botocore, aiohttp and
            # google.auth each have their own, both for a network failure and for expired
            # credentials.
            what = str(error) or type(error).__name__
            raise StorageUnavailable(f"{place}: cannot {doing}: {what}: try again later") from error


def _changed_ms(details: Mapping[str, object]) -> int | None:
    """Return the time of the last change from a listing, if it has one.

    A listing costs one request per thousand files; requesting the time of each file costs one per
    file.
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
