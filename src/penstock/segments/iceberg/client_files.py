"""Files that clients of the Iceberg catalog write: reading, taking over and deleting them.

    <deep storage>/~iceberg/<datasource>/data/…/<name>.parquet       rows
    <deep storage>/~iceberg/<datasource>/metadata/<name>.avro        manifests and their lists

Clients write there with access of their own, so everything below is hostile: names, links and
contents. Owns which places may be opened. A file is taken over by a move into the folder of the
task that reads it, so that it is never read for two commits, and the janitor deletes it later.

Invariant: no file outside these folders is opened or moved. On a local disk each folder on the way
is opened without following links, and a file with a second name is refused.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.printable import quoted
from penstock.segments.deep_storage import files_below
from penstock.segments.layout import attempt_folder, table_folder
from penstock.segments.local_files import folder_without_links
from penstock.storage.disk import OsFileSystem
from penstock.storage.disk_errors import translate_error

DATA: Final = "data"
METADATA: Final = "metadata"
ABANDONED_MS: Final = 24 * 3_600_000
"""Age from which files with rows that no commit has taken over are deleted."""

_PATH_CHARACTERS_MAX: Final = 1_000
_PARTS_MAX: Final = 20
_PART: Final = re.compile(r"[^\x00-\x1f\x7f/\\]{1,255}")
_LOCAL_SCHEMES: Final = ("file://", "file:")
_NO_LINKS: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class ClientFiles:
    """The files that clients write for a table. Any thread may call.

    Args:
        deep_storage: Root of the deep storage: a path or a URL.
        datasource: The datasource of the table.

    Raises:
        InvalidRequest: The deep storage cannot be used, or the name is not a valid one.
    """

    def __init__(self, deep_storage: str, datasource: str) -> None:
        self._fs = OsFileSystem()
        self._root, self._files = files_below(deep_storage, self._fs)
        self._is_local = "://" not in self._root
        self._datasource = datasource
        self._folder = table_folder(datasource)
        _, self._data = files_below(f"{self._root}/{self._folder}/{DATA}", self._fs)

    def place(self, uri: str, folder: str) -> str:
        """Return the path of a file below one of the folders, relative to the deep storage.

        Args:
            uri: The file, as the client names it.
            folder: `DATA` or `METADATA`.

        Raises:
            InvalidRequest: It is elsewhere.
        """
        path = uri
        if self._is_local:
            scheme = next((one for one in _LOCAL_SCHEMES if uri.startswith(one)), "")
            path = uri[len(scheme) :]
        prefix = f"{self._root}/{self._folder}/{folder}/"
        parts = path.removeprefix(prefix).split("/")
        is_plain = all(_PART.fullmatch(part) and part not in {".", ".."} for part in parts)
        if (
            not path.startswith(prefix)
            or not is_plain
            or len(path) > _PATH_CHARACTERS_MAX + len(prefix)
            or len(parts) > _PARTS_MAX
        ):
            raise InvalidRequest(
                f"{quoted(uri)} is not in the folder {prefix}, where the table is written: write"
                " into the location that the table names"
            )
        return path[len(self._root) + 1 :]

    def read(self, uri: str, bytes_max: int) -> bytes:
        """Return the content of a manifest, or of a list of manifests.

        Raises:
            InvalidRequest: It is elsewhere, too large, a link or no file.
            NotFound: It does not exist.
            Unavailable: The deep storage does not answer.
        """
        relative = self.place(uri, METADATA)
        if self._is_local:
            with self._opened_folder(relative) as (folder, name):
                _require_regular(folder, name, uri)
                try:
                    descriptor = os.open(name, os.O_RDONLY | _NO_LINKS, dir_fd=folder)
                except OSError as error:
                    raise translate_error(error, uri, "read") from error
                file: BinaryIO = os.fdopen(descriptor, "rb")
        else:
            file = self._files.open(relative)
        with file:
            content: bytes = file.read(bytes_max + 1)
        if len(content) > bytes_max:
            raise InvalidRequest(
                f"{quoted(uri)} has more than {bytes_max:,} bytes: commit fewer files at once"
            )
        return content

    def take(self, uri: str, task_id: str, attempt: str, name: str) -> None:
        """Move a file with rows into the folder of a task, durably.

        A file that was moved there before stays.

        Args:
            uri: The file, as the client names it.
            task_id: The task.
            attempt: The attempt of the task.
            name: Its name in that folder.

        Raises:
            InvalidRequest: It is elsewhere, a link or no file.
            NotFound: It does not exist.
            Unavailable: The deep storage does not answer.
        """
        relative = self.place(uri, DATA)
        target = f"{attempt_folder(self._datasource, task_id, attempt)}/{name}"
        try:
            if self._is_local:
                self._take_local(relative, target, uri)
            else:
                self._files.move(relative, target)
        except NotFound:
            if self._files.size(target) is None:
                raise NotFound(
                    f"{quoted(uri)} does not exist: another commit has taken it over, or it was"
                    " deleted; write the rows again"
                ) from None

    def delete_abandoned(self, changed_before_ms: int) -> int:
        """Delete files with rows that were last changed before a time; return how many.

        Raises:
            Unavailable: The deep storage does not answer.
        """
        if self._is_local:
            try:
                with folder_without_links(self._root, (*self._folder.split("/"), DATA)) as folder:
                    return _delete_old(folder, changed_before_ms)
            except NotFound:
                return 0
        old = [name for name, changed_ms in self._data.walk() if changed_ms < changed_before_ms]
        for name in old:
            self._data.delete(name)
        return len(old)

    def _take_local(self, relative: str, target: str, uri: str) -> None:
        place = f"{self._root}/{target}"
        with self._opened_folder(relative) as (folder, name):
            _require_regular(folder, name, uri)
            self._fs.mkdir(posixpath.dirname(place))
            # Its age counts from now on, as in object stores: a client may commit files of hours.
            with suppress(PermissionError):  # narrow: it belongs to another user of the host
                os.utime(name, dir_fd=folder, follow_symlinks=False)
            try:
                os.rename(name, place, src_dir_fd=folder)
            except OSError as error:
                raise translate_error(error, uri, "move") from error
        self._fs.fsync_folder(posixpath.dirname(place))

    @contextmanager
    def _opened_folder(self, relative: str) -> Iterator[tuple[int, str]]:
        """Open the folder of a local file without following links below the deep storage."""
        *folders, name = relative.split("/")
        with folder_without_links(self._root, folders) as descriptor:
            yield descriptor, name


def _delete_old(folder: int, changed_before_ms: int) -> int:
    """Delete the old files below an open folder, and old folders that are empty, with old links."""
    count = 0
    for _, folders, names, inside in os.fwalk(".", topdown=False, dir_fd=folder):
        for name in (*names, *folders):
            try:
                found = os.stat(name, dir_fd=inside, follow_symlinks=False)
                if found.st_mtime_ns // 1_000_000 >= changed_before_ms:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    os.rmdir(name, dir_fd=inside)
                else:
                    os.unlink(name, dir_fd=inside)
                    count += 1
            except OSError:  # narrow: a folder has files, or another process was first
                continue
    return count


def _require_regular(folder: int, name: str, uri: str) -> None:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        raise translate_error(error, uri, "read") from error
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise InvalidRequest(
            f"{quoted(uri)} is a link, a special file, or has a second name: write a file of its"
            " own"
        )
