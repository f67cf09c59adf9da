"""Folders for reading and writing files: on this machine, or at any URL of fsspec.

Owns the translation between users' paths and fsspec, and of the errors of its file systems. Does
not own the selection of files, nor the record of files that were taken (`list_source`).

Invariants: all errors that leave this module are Penstock errors without options, and so without
secrets. A listing holds one folder at a time in memory.
"""

from __future__ import annotations

import errno
import json
import os
import posixpath
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol, cast

import fsspec
from fsspec.implementations.local import LocalFileSystem

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.core.guarded_connections import NETWORK_GUARD
from penstock.core.read_guard import READ_GUARD
from penstock.core.store_urls import LOCAL_SCHEMES, check_store_url, store_destinations
from penstock.flow.processor import Problem
from penstock.flow.write_guard import WRITE_GUARD

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES: Final = 1 << 20
_OPTIONS_MAX: Final = 64
# Names that file systems of fsspec use for the time of the last change.
_CHANGED_NAMES: Final = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")
# Errors of a path itself: a retry would fail in the same way.
_WRONG_PATHS: Final = frozenset({errno.ENAMETOOLONG, errno.ELOOP})
# Exceptions of these packages are not a store's; those of stores are not all OSErrors.
_OWN_PACKAGES: Final = frozenset({"builtins", "penstock"})
_PACKAGES: Final = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs"}


class _FileSystem(Protocol):
    """Methods of an fsspec file system that are used here."""

    def info(self, path: str) -> Mapping[str, object]: ...
    def ls(self, path: str, *, detail: bool) -> list[Mapping[str, object]]: ...
    def open(self, path: str, mode: str) -> BinaryIO: ...
    def exists(self, path: str) -> bool: ...
    def isfile(self, path: str) -> bool: ...
    def rm_file(self, path: str) -> None: ...
    def mv(self, path1: str, path2: str) -> None: ...
    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...
    def invalidate_cache(self) -> None: ...
    def unstrip_protocol(self, name: str) -> str: ...


class NotAllowed(InvalidRequest):
    """The file exists, but this user has no permission for it."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """File that a listing found.

    Attributes:
        place: Its path or URL.
        folder: Its folder relative to the listed one, such as ``a/b``; empty: the listed one.
        name: Its name without folders.
        size: Its size in bytes.
        modified_ms: Time of its last change, epoch milliseconds; None: unknown.
        mark: Marker that changes with the content, if the file system has one.
    """

    place: str
    folder: str
    name: str
    size: int
    modified_ms: int | None
    mark: str = ""


class OpenFolder:
    """Path on a file system, as specified by a user. Created by `open_folder`."""

    def __init__(self, fs: _FileSystem, path: str, *, is_local: bool) -> None:
        self._fs = fs
        self.path = path
        self.is_local = is_local

    def walk(
        self, *, recurse: bool, skipped: Callable[[InvalidRequest], object]
    ) -> Iterator[FoundFile]:
        """Yield the files below, folder by folder, names in order.

        Links to files are followed. Links to folders are not, because they may form cycles.

        Args:
            recurse: Whether files in subfolders are included.
            skipped: Called for a subfolder that cannot be listed, such as one without permission.

        Raises:
            NotFound: The folder does not exist on this machine; on other file systems the result is
                empty.
            InvalidRequest: Flows must not read the folder.
            Unavailable: The folder cannot be read now.
        """
        waiting = [(self.path, "")]
        while waiting:
            path, below = waiting.pop()
            is_root = path == self.path
            try:
                entries = self._entries(path, is_root=is_root)
            except InvalidRequest as error:  # narrow: another error concerns the whole folder
                if is_root:
                    raise
                skipped(error)
                continue
            folders = []
            for entry in sorted(entries, key=lambda entry: str(entry["name"])):
                full = str(entry["name"]).rstrip("/")
                if full == path.rstrip("/"):
                    continue  # object stores also list the folder itself
                name = posixpath.basename(full)
                if entry.get("type") == "directory":
                    folders.append((full, posixpath.join(below, name)))
                elif (found := self._found(entry, full, below, name)) is not None:
                    yield found
            if recurse:
                waiting += reversed(folders)

    def inspect(self) -> FoundFile:
        """Return the properties of the file at this path.

        Raises:
            NotFound: The file does not exist.
            InvalidRequest: The path is not a file, or flows must not read it.
            Unavailable: The file cannot be read now.
        """
        self._check_readable(self.path)
        with _translated(self.path, "inspect"):
            self._fs.invalidate_cache()
            entry = self._fs.info(self.path)
        found = self._found(entry, self.path, "", posixpath.basename(self.path))
        if found is None:
            raise InvalidRequest(f"{self.path}: is not a file; correct the path")
        return found

    def pieces(self) -> Iterator[Buffer]:
        """Yield the bytes of the file at this path.

        Raises:
            NotFound: The file does not exist.
            NotAllowed: This user has no permission to read it.
            InvalidRequest: The path is not a file, or flows must not read it.
            Unavailable: The file cannot be read now.
        """
        with _translated(self.path, "open"):
            stream = self._opened()
        with stream:
            while True:
                with _translated(self.path, "read"):
                    piece = stream.read(PIECE_BYTES)
                if not piece:
                    return
                yield piece

    def _opened(self) -> BinaryIO:
        if not self.is_local:
            return self._fs.open(self.path, "rb")
        # The path may have become a pipe since it was inspected, whose opening would wait.
        reads = READ_GUARD.now()
        reads.path(self.path)
        fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            reads.opened(fd, self.path)
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
            stream = os.fdopen(fd, "rb")
        except BaseException:
            os.close(fd)
            raise
        if not is_file:
            stream.close()
            raise InvalidRequest(f"{self.path}: is not a file; correct the path")
        return stream

    def write(self, pieces: Iterator[Buffer], temporary: str) -> None:
        """Write the file, first under a temporary path, so that it is complete or unchanged.

        Raises:
            InvalidRequest: A flow must not change files there.
            Unavailable: The file cannot be written now; it is unchanged.
        """
        self.check_changeable()
        with _translated(self.path, "write"):
            self._fs.makedirs(posixpath.dirname(self.path), exist_ok=True)
            with self._fs.open(temporary, "wb") as stream:
                for piece in pieces:
                    stream.write(piece)
            self._fs.mv(temporary, self.path)

    def exists(self) -> bool:
        """Return whether the path exists."""
        with _translated(self.path, "look for"):
            self._fs.invalidate_cache()
            return self._fs.exists(self.path)

    def delete(self) -> None:
        """Delete the file at this path; a missing file is not an error.

        Raises:
            InvalidRequest: A flow must not change files there.
            NotAllowed: This user has no permission to delete it.
            Unavailable: The file cannot be deleted now.
        """
        path = self.check_changeable()
        try:
            with _translated(self.path, "delete"):
                self._fs.rm_file(path)
        except NotFound:
            return

    def move(self, target: str) -> None:
        """Rename the file on its file system; `target` is replaced.

        Raises:
            InvalidRequest: A flow must not change files at one of the paths.
            NotFound: The file does not exist.
            Unavailable: The file cannot be moved now.
        """
        source, to = self.check_changeable(), self.at(target).check_changeable()
        with _translated(self.path, f"move to {target}"):
            self._fs.makedirs(posixpath.dirname(to), exist_ok=True)
            self._fs.mv(source, to)

    def check_changeable(self) -> str:
        """Return the path that a change affects, with symbolic links of its folder resolved.

        Raises:
            InvalidRequest: A flow must not change it.
        """
        return WRITE_GUARD.check(self.path) if self.is_local else self.path

    def at(self, path: str) -> OpenFolder:
        """Return another path on the same file system."""
        return OpenFolder(self._fs, path, is_local=self.is_local)

    def shown(self, path: str) -> str:
        """Return a path as users write it: a path of this machine, or a URL."""
        return path if self.is_local else self._fs.unstrip_protocol(path)

    def _check_readable(self, path: str) -> None:
        if self.is_local:
            READ_GUARD.now().path(path)

    def _entries(self, path: str, *, is_root: bool) -> list[Mapping[str, object]]:
        self._check_readable(path)
        try:
            with _translated(path, "list"):
                self._fs.invalidate_cache()
                return self._fs.ls(path, detail=True)
        except NotFound:
            # Object stores have no empty folders, and a subfolder may be deleted during the
            # listing.
            if is_root and self.is_local:
                raise
            return []

    def _found(
        self, entry: Mapping[str, object], path: str, below: str, name: str
    ) -> FoundFile | None:
        kind = entry.get("type")
        if kind != "file" and not (kind == "other" and entry.get("islink")):
            return None  # pipes and devices have no end
        if entry.get("islink"):
            try:
                with _translated(path, "inspect"):
                    if not self._fs.isfile(path):
                        return None
                    entry = self._fs.info(path)  # of the file, not of the link
            except NotFound:
                return None  # deleted meanwhile
        size = entry.get("size")
        mark = next((str(entry[key]) for key in ("ETag", "etag", "md5Hash") if key in entry), "")
        return FoundFile(
            place=self.shown(path),
            folder=below,
            name=name,
            size=size if isinstance(size, int) else 0,
            modified_ms=_changed_ms(entry),
            mark=mark,
        )


def open_folder(where: str, options: Mapping[str, object] | None = None) -> OpenFolder:
    """Open a path of this machine, or a URL such as ``s3://bucket/folder``.

    Args:
        where: Path or URL.
        options: Options of the file system, as fsspec defines them.

    Raises:
        InvalidRequest: The file system is unknown, a flow must not use it, or a package for it is
            missing.
        Unavailable: The libraries of the file system cannot be loaded, or it does not answer.
    """
    if not where or "\0" in where:
        raise InvalidRequest(f"invalid path {where!r}: write a path or a URL")
    scheme, separator, _ = where.partition("://")
    # A path from the root is not a URL: a file may be named a::b.
    is_path = where.startswith("/") and not separator
    if not is_path:
        check_store_url(where, options or {})
        for destination in store_destinations(where, options):
            NETWORK_GUARD.check(destination)
    try:
        if is_path:
            fs, path = LocalFileSystem(**(options or {})), where
        else:
            fs, path = fsspec.core.url_to_fs(where, **(options or {}))
    except ImportError as error:
        package = _PACKAGES.get(scheme, scheme)
        raise InvalidRequest(
            f"{scheme}:// needs a package that is not installed: pip install {package}"
        ) from error
    except (ValueError, TypeError) as error:
        # The message of the error may contain options, so it is not shown.
        raise InvalidRequest(
            f"{where!r} cannot be opened ({type(error).__name__}): correct the URL or the options"
        ) from None
    except OSError as error:
        raise Unavailable(
            f"{where!r} cannot be opened ({type(error).__name__}): check the URL, and install the "
            f"libraries for {scheme}:// on this machine"
        ) from error
    except Exception as error:  # narrow: of a library of a store; file systems connect here already
        raise _of_store(where, "open", error) from error
    is_local = isinstance(fs, LocalFileSystem)
    if not is_local and not separator:
        raise InvalidRequest(f"{where!r} cannot be opened: write a path, or a URL with ://")
    # Normalize the folder's name, because taken files are remembered by it.
    path = posixpath.normpath(str(path)) if is_local else str(path).rstrip("/")
    return OpenFolder(cast("_FileSystem", fs), path, is_local=is_local)


def change_problems(name: str, folder: str) -> Iterator[Problem]:
    """Yield reasons why a flow must not change files of a folder; skips texts with expressions.

    Args:
        name: Name of the property.
        folder: Text of the property.
    """
    if not folder or "${" in folder:
        return
    scheme, separator, _ = folder.partition("://")
    try:
        if separator and scheme not in LOCAL_SCHEMES:
            check_store_url(folder)
        else:  # as at run time: `file:/path` is a local path, too
            place = open_folder(folder)
            place.at(posixpath.join(place.path, "file")).check_changeable()
    except InvalidRequest as error:
        yield Problem(name, str(error))


def read_problems(name: str, place: str) -> Iterator[Problem]:
    """Yield reasons why a flow must not read a file or folder; skips texts with expressions.

    Args:
        name: Name of the property.
        place: Text of the property.
    """
    scheme, separator, _ = place.partition("://")
    if not place or "${" in place or (separator and scheme not in LOCAL_SCHEMES):
        return
    try:
        path = open_folder(place).path
    except InvalidRequest:
        return  # a mistake that the start of the processor reports
    try:
        READ_GUARD.now().path(path)
    except InvalidRequest as error:
        yield Problem(name, str(error))


def read_options(text: str) -> Mapping[str, object]:
    """Return the options of a file system, written as a JSON object.

    Raises:
        InvalidRequest: The text is not a JSON object; the message does not repeat it.
    """
    if not text.strip():
        return {}
    try:
        options: object = json.loads(text)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict) or len(options) > _OPTIONS_MAX:
        raise InvalidRequest('the options are not a JSON object: write one such as {"anon": true}')
    return {str(name): value for name, value in options.items()}


@contextmanager
def _translated(path: str, doing: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"{path}: cannot {doing}: no such file or folder") from None
    except FileExistsError:
        raise Conflict(f"{path}: cannot {doing}: it already exists") from None
    except PermissionError:
        text = f"{path}: cannot {doing}: permission denied; grant this user access"
        raise NotAllowed(text) from None
    except (NotADirectoryError, IsADirectoryError) as error:
        text = f"{path}: cannot {doing}: {error.strerror or error}; correct the path"
        raise InvalidRequest(text) from None
    except OSError as error:
        if error.errno in _WRONG_PATHS:
            text = f"{path}: cannot {doing}: {error.strerror}; correct the path"
            raise InvalidRequest(text) from None
        text = f"{path}: cannot {doing}: {error.strerror or type(error).__name__}; try again"
        raise Unavailable(text) from error
    except (ValueError, NotImplementedError) as error:
        # fsspec describes invalid URLs, and operations that a store does not support.
        raise InvalidRequest(f"{path}: cannot {doing}: {error}") from None
    except Exception as error:  # narrow: of a library of a store
        raise _of_store(path, doing, error) from error


def _of_store(path: str, doing: str, error: Exception) -> Unavailable:
    """Return the error for an exception of a store's library; raise any other exception again."""
    if type(error).__module__.partition(".")[0] in _OWN_PACKAGES:
        raise error
    # The message may contain a signed URL.
    return Unavailable(
        f"{path}: cannot {doing}: {type(error).__name__}; check the URL and the credentials, in "
        "the options or on this machine"
    )


def _changed_ms(entry: Mapping[str, object]) -> int | None:
    for name in _CHANGED_NAMES:
        value = entry.get(name)
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return int(aware.timestamp() * 1000)
        if isinstance(value, int | float):
            return int(value * 1000)
        if isinstance(value, str):
            try:
                return int(datetime.fromisoformat(value).timestamp() * 1000)
            except ValueError:
                continue
    return None
