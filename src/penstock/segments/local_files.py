"""Deep storage in a folder of this host, or of a network file system that it mounts.

A file is copied under a temporary name in the same folder, synced, and renamed: it exists
completely and durably, or not at all. It is copied and not linked, because its source folder
belongs to a task, and because the time of the new file records how long it has been in deep
storage.

The root is created when Penstock starts, and never here: if it is missing, its disk is not mounted
or it was moved, and no other host would find a file that is written then.
"""

from __future__ import annotations

import os
import posixpath
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

from penstock.core.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    PenstockError,
    StorageUnavailable,
    Unavailable,
)
from penstock.segments.layout import FILE_NAME, PROJECTIONS, TEMPORARY_NAME
from penstock.storage.disk_errors import translate_error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.storage.filesystem import FileSystem

_COPY_BYTES = 8 * 1024 * 1024
# A cleanup may remove a folder between its creation and its first file.
_TRIES = 5


class LocalFiles:
    """The files below a root folder.

    Every method but `walk` raises `StorageUnavailable` while the root is missing.

    Args:
        root: An absolute path.
        fs: The file system.
    """

    writes_once = True
    """`write` can create a file only if it does not exist."""

    def __init__(self, root: str, fs: FileSystem) -> None:
        self._root = root
        # The process that writes the first projection creates their folder.
        self._deep_storage = root.removesuffix(f"/{PROJECTIONS}")
        self._fs = fs

    def size(self, relative: str) -> int | None:
        """Return a file's size, None if it does not exist."""
        try:
            found = self._fs.stat(posixpath.join(self._root, relative))
        except NotFound:
            self._require(self._deep_storage)
            return None
        except InvalidRequest:  # narrow: translates
            self._require_way(relative)
            raise
        return None if found.is_folder else found.size

    def changed_ms(self, relative: str) -> int:
        """Return when a file was last changed, in epoch milliseconds. Raises NotFound."""
        return self._fs.stat(posixpath.join(self._root, relative)).modified_ms

    def open(self, relative: str) -> BinaryIO:
        """Open a file to read; a symbolic link, which no task creates, is refused.

        Raises:
            NotFound: It does not exist.
            Unavailable: I/O error.
        """
        path = posixpath.join(self._root, relative)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return os.fdopen(os.open(path, flags), "rb")
        except OSError as error:
            raise translate_error(error, path, "read") from error

    def put(self, local_file: str, folder: str, name: str = FILE_NAME, temporary: str = "") -> int:
        """Copy a file to its place in a folder, durably, and return its size.

        Args:
            local_file: The file to copy.
            folder: The target folder, relative to the root.
            name: The target name.
            temporary: The name until the copy is complete; each writer needs another one.

        Raises:
            NotFound: The local file does not exist.
            Unavailable: Disk full or I/O error; no file was created.
        """
        source = self._fs.open_read(local_file)
        source.close()
        absolute = posixpath.join(self._root, folder)
        for attempt in range(1, _TRIES + 1):
            try:
                self._require(self._deep_storage)
                self._fs.mkdir(absolute)
                size = self._copy(local_file, absolute, name, temporary or TEMPORARY_NAME)
                break
            except NotFound:
                if attempt == _TRIES:
                    raise
        self.sync_names(folder)
        return size

    def read(self, relative: str) -> bytes:
        """Return the content of a small file.

        Raises:
            NotFound: It does not exist.
            Unavailable: I/O error.
        """
        try:
            return self._fs.read_bytes(posixpath.join(self._root, relative))
        except NotFound:  # narrow: the root may be missing
            self._require(self._deep_storage)
            raise
        except InvalidRequest as error:  # narrow: a folder has this name
            self._require_way(relative)
            raise NotFound(str(error)) from error

    def write(self, relative: str, content: bytes, temporary: str, *, replace: bool) -> bool:
        """Write a small file in one step, durably.

        Args:
            relative: The file.
            content: Its content.
            temporary: Its name until it is complete; each writer needs another one.
            replace: Whether to replace a file of this name.

        Returns:
            Whether it was written: False if it exists and is not to be replaced.

        Raises:
            Unavailable: Disk full, an I/O error, or a disk without second names of files. The file
                may have been written nevertheless if only its name could not be made durable.
        """
        place = posixpath.join(self._root, relative)
        for attempt in range(1, _TRIES + 1):
            try:
                self._require(self._deep_storage)
                self._fs.mkdir(posixpath.dirname(place))
                written = self._put_content(place, content, temporary, replace=replace)
                self.sync_names(posixpath.dirname(relative))
                break
            except NotFound:
                if attempt == _TRIES:
                    raise
        return written

    def _put_content(self, place: str, content: bytes, temporary: str, *, replace: bool) -> bool:
        begun = posixpath.join(posixpath.dirname(place), temporary)
        try:
            file = self._fs.create(begun, replace=True)
            try:
                file.writev([content])
                file.sync()
            finally:
                file.close()
            if replace:
                self._fs.rename(begun, place)
                return True
            try:
                self._fs.link(begun, place)
            except Conflict:
                return False
            except InvalidRequest as error:  # narrow: as disks without second names report it
                raise InvalidRequest(
                    f"{error}, or use a disk with second names of files (hard links)"
                ) from error
        finally:
            with suppress(PenstockError):  # renamed, or found by a later cleanup
                self._fs.unlink(begun)
        return True

    def sync_names(self, folder: str) -> None:
        """Make the names on the path to a file durable: an interrupted writer may not have."""
        absolute = posixpath.join(self._root, folder)
        self._fs.fsync_folder(absolute)
        while absolute != self._root:
            absolute = posixpath.dirname(absolute)
            self._fs.fsync_folder(absolute)

    def delete(self, relative: str) -> None:
        """Delete a file, and its parent folders that are then empty. A missing file is ignored."""
        path = posixpath.join(self._root, relative)
        try:
            self._fs.unlink(path)
            self._fs.fsync_folder(posixpath.dirname(path))
        except NotFound:
            self._require(self._deep_storage)
        except InvalidRequest:  # narrow: translates
            self._require_way(relative)
            raise
        folder = posixpath.dirname(path)
        while folder != self._root:
            try:
                if self._fs.listdir(folder):
                    return
                self._fs.rmdir(folder)
            except NotFound:
                pass
            except Unavailable:
                return  # another process has added a file meanwhile
            folder = posixpath.dirname(folder)

    def move(self, relative: str, target: str) -> None:
        """Rename a file, durably.

        Raises:
            NotFound: The file does not exist.
            Unavailable: I/O error.
        """
        self._require(self._deep_storage)
        absolute = posixpath.join(self._root, target)
        self._fs.mkdir(posixpath.dirname(absolute))
        self._fs.rename(posixpath.join(self._root, relative), absolute)
        self._fs.fsync_folder(posixpath.dirname(absolute))
        self._fs.fsync_folder(posixpath.dirname(posixpath.join(self._root, relative)))

    def walk(self) -> Iterator[tuple[str, int]]:
        """Yield every file with the time of its last change."""
        folders = [""]
        while folders:
            folder = folders.pop()
            try:
                names = self._fs.listdir(posixpath.join(self._root, folder))
            except NotFound:
                continue
            for name in names:
                relative = posixpath.join(folder, name)
                try:
                    found = self._fs.stat(posixpath.join(self._root, relative))
                except NotFound:
                    continue
                if found.is_folder:
                    folders.append(relative)
                else:
                    yield relative, found.modified_ms

    def _require_way(self, relative: str) -> None:
        """Raise StorageUnavailable if a parent folder of a file is missing, or is a file."""
        folders = posixpath.dirname(relative).split("/")
        self._require(self._deep_storage)
        for count in range(1, len(folders) + 1):
            folder = posixpath.join(self._root, *folders[:count])
            with suppress(NotFound):
                if not self._fs.stat(folder).is_folder:
                    raise StorageUnavailable(_blocked(folder))

    def _require(self, root: str) -> None:
        try:
            found = self._fs.stat(root)
        except NotFound as error:
            raise StorageUnavailable(folder_missing(root)) from error
        except InvalidRequest as error:  # a parent of the root is not a folder
            raise StorageUnavailable(f"the deep storage {root} is missing ({error})") from error
        if not found.is_folder:
            raise StorageUnavailable(_blocked(root))

    def _copy(self, local_file: str, folder: str, name: str, temporary: str) -> int:
        temporary = posixpath.join(folder, temporary)
        try:
            size = self._copy_to(temporary, local_file)
            self._fs.rename(temporary, posixpath.join(folder, name))
        except BaseException:
            with suppress(PenstockError):  # a full disk needs the space
                self._fs.unlink(temporary)
            raise
        return size

    def _copy_to(self, temporary: str, local_file: str) -> int:
        source = self._fs.open_read(local_file)
        try:
            target = self._fs.create(temporary, replace=True)
            try:
                while block := source.pread(_COPY_BYTES, target.size):
                    target.writev([block])
                target.sync()
                size = target.size
            finally:
                target.close()
            if size != source.size():
                raise StorageUnavailable(
                    f"{local_file}: it changed while it was copied: push it again"
                )
        finally:
            source.close()
        return size


@contextmanager
def folder_without_links(root: str, folders: Sequence[str]) -> Iterator[int]:
    """Open a folder below a root, for a block, without following links below the root.

    For folders in which others than Penstock write: a link would lead to files of the host. Use the
    descriptor for files of this folder, as a path could lead elsewhere by then.

    Raises:
        InvalidRequest: A folder on the way is a link, or a file.
        NotFound: One does not exist.
        Unavailable: I/O error.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    shown = root
    try:
        descriptor = os.open(root, flags)
        for folder in folders:
            shown = f"{shown}/{folder}"
            try:
                following = os.open(folder, flags | os.O_NOFOLLOW, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = following
    except NotADirectoryError as error:
        raise InvalidRequest(
            f"{shown} is a link, or not a folder: write files into folders"
        ) from error
    except OSError as error:
        raise translate_error(error, shown, "open") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def folder_missing(root: str) -> str:
    """Return the message for a deep storage whose folder is missing, with the remedy."""
    return f"the deep storage folder {root} is missing: mount it, or restore it"


def _blocked(folder: str) -> str:
    return (
        f"{folder} is a file, but must be a folder of the deep storage: move the file away, and"
        " restore the folder"
    )
