"""Files of an Iceberg table's metadata in the deep storage: written once, read, deleted.

    <deep storage>/~iceberg/<datasource>/metadata/<name>

Owns the folder of one table, and the files with the positions of hidden rows (position deletes),
which engines read with the file that they cut: rows of segments of which newer segments cover a
part of the time. Source of their columns and ids: the Iceberg table specification, "Position Delete
Files". Does not own the content of manifests and metadata (`manifest_files`, `table_versions`).

Invariant: a file has its whole content or does not exist, and its content never changes, because
each name is used once.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Final

import fsspec
import numpy as np

from penstock.core.errors import CorruptData, NotFound, StorageUnavailable
from penstock.core.intervals import Interval
from penstock.segments.deep_storage import files_below
from penstock.segments.iceberg.manifest_files import PATH_ID
from penstock.segments.layout import table_folder
from penstock.segments.local_files import folder_without_links
from penstock.segments.visible_rows import TIME_COLUMN, are_hidden
from penstock.storage.disk import OsFileSystem
from penstock.storage.disk_errors import translate_error
from penstock.storage.filesystem import FileSystem

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FOLDER: Final = "metadata"
_PLAIN_PATH: Final = re.compile(r"[A-Za-z0-9/._~=+@-]+")
_POSITION_ID: Final = 2147483545


class TableFiles:
    """The metadata files of the Iceberg table of a datasource. Any thread may call.

    Args:
        deep_storage: Root of the deep storage: a path or a URL.
        datasource: The datasource.
        fs: File system for local files.

    Raises:
        InvalidRequest: The deep storage cannot be used, or the name is not a valid one.
    """

    def __init__(self, deep_storage: str, datasource: str, *, fs: FileSystem | None = None) -> None:
        files_system = fs or OsFileSystem()
        self._root, self._files = files_below(deep_storage, files_system)
        self._folder = posixpath.join(table_folder(datasource), _FOLDER)
        self._is_local = "://" not in self._root
        _, self._below = files_below(f"{self._root}/{self._folder}", files_system)

    @property
    def location(self) -> str:
        """URI of the table."""
        return uri_of(f"{self._root}/{posixpath.dirname(self._folder)}")

    def uri(self, name: str) -> str:
        """Return the URI of a file."""
        return uri_of(f"{self._root}/{self._folder}/{name}")

    def name(self, uri: str) -> str:
        """Return the name of a file of this table from its URI, also from an earlier root."""
        return uri.rpartition("/")[2]

    def write(self, name: str, content: bytes) -> None:
        """Write a file, durably.

        Raises:
            Unavailable: The store is full or does not answer.
        """
        with tempfile.NamedTemporaryFile() as local:
            local.write(content)
            local.flush()
            temporary = f".{name}.{posixpath.basename(local.name)}.tmp"
            written = self._files.put(local.name, self._folder, name, temporary)
        if written != len(content):
            raise StorageUnavailable(
                f"{self.uri(name)} has {written} of {len(content)} bytes: try again"
            )

    def has(self, name: str, size_bytes: int) -> bool:
        """Return whether there is a file of this name and size.

        Raises:
            Unavailable: The store does not answer.
        """
        return self._files.size(f"{self._folder}/{name}") == size_bytes

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotFound: It does not exist.
            Unavailable: The store does not answer.
        """
        if not self._is_local:
            return self._files.read(f"{self._folder}/{name}")
        # A client may have replaced it by a link.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        place = self.uri(name)
        try:
            with (
                self._opened() as folder,
                os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file,
            ):
                return file.read()
        except (FileNotFoundError, IsADirectoryError) as error:
            raise NotFound(f"{place} does not exist, or is not a file") from error
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise NotFound(f"{place} is a link, and not a file") from error
            raise StorageUnavailable(f"{place} cannot be read ({error}): try again") from error

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is ignored.

        Raises:
            Unavailable: The store does not answer.
        """
        if not self._is_local:
            self._files.delete(f"{self._folder}/{name}")
            return
        with self._opened() as folder, suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=folder)
            except OSError as error:
                if isinstance(error, FileNotFoundError):
                    raise
                raise translate_error(error, self.uri(name), "delete") from error

    def names(self) -> Iterator[str]:
        """Yield the name of each file.

        Raises:
            Unavailable: The store does not answer.
        """
        if not self._is_local:
            yield from (name for name, _ in self._below.walk())
            return
        # Clients write here, too: a link would lead to files of the host.
        with suppress(NotFound), self._opened() as folder, os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield entry.name

    def _opened(self) -> AbstractContextManager[int]:
        return folder_without_links(self._root, self._folder.split("/"))


def uri_of(location: str) -> str:
    """Return the name of a file in a table from its location in the form that engines open.

    A local path with characters that mean something in a URI stays a path: engines read a URI in
    different ways, some with its escapes and some without.
    """
    if "://" in location or not _PLAIN_PATH.fullmatch(location):
        return location
    return f"file://{location}"


def delete_file_key(uri: str, visible: Sequence[Interval]) -> str:
    """Return a digest of a segment's file and its visible intervals."""
    parts = "\n".join((uri, *map(str, visible)))
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def delete_file_name(key: str, token: str) -> str:
    """Return a name for a file with hidden rows; the token is not used for another file."""
    return f"hidden-{key}-{token}.parquet"


def key_of(delete_file: str) -> str:
    """Return the key in a name that `delete_file_name` returned."""
    return delete_file.split("-")[1]


def write_delete_file(
    files: TableFiles, name: str, location: str, uri: str, visible: Sequence[Interval]
) -> tuple[int, int]:
    """Write the positions of the rows of a file outside intervals, if it has such rows.

    Args:
        files: The files of the table.
        name: Name of the new file.
        location: The segment's file, as engines open it.
        uri: Its URI in the table.
        visible: The intervals of its visible rows.

    Returns:
        The number of hidden rows, and the size of the new file in bytes; both 0 if no row is hidden
        and no file was written.

    Raises:
        Unavailable: The segment's file cannot be read now, or the store does not answer.
        CorruptData: The segment's file is not a Parquet file.
    """
    # Processes that read no files would waste half a second and 40 MB.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    positions = _hidden_positions(location, visible)
    if not len(positions):
        return 0, 0
    schema = pa.schema(
        [
            pa.field("file_path", pa.string(), nullable=False, metadata=_id(PATH_ID)),
            pa.field("pos", pa.int64(), nullable=False, metadata=_id(_POSITION_ID)),
        ]
    )
    paths = pa.repeat(pa.scalar(uri), len(positions))
    out = io.BytesIO()
    pq.write_table(pa.table([paths, pa.array(positions)], schema=schema), out, compression="zstd")
    content = out.getvalue()
    files.write(name, content)
    return len(positions), len(content)


def _hidden_positions(location: str, visible: Sequence[Interval]) -> NDArray[np.int64]:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        filesystem, inner = fsspec.core.url_to_fs(location)
        table = pq.read_table(
            inner,
            columns=[TIME_COLUMN],
            filesystem=filesystem,
            coerce_int96_timestamp_unit="us",
        )
    except pa.ArrowInvalid as error:
        raise CorruptData(location, None, f"it is not a Parquet file ({error})") from error
    except OSError as error:
        raise StorageUnavailable(f"{location} cannot be read ({error}): try again") from error
    return np.flatnonzero(are_hidden(table.column(0), visible)).astype(np.int64)


def _id(id_: int) -> dict[bytes | str, bytes | str]:
    return {"PARQUET:field_id": str(id_)}
