"""Files of a Delta table in the deep storage: its log, and the copies of visible rows.

    <deep storage>/<datasource>/_delta_log/<name>      entries, checkpoints
    <deep storage>/<datasource>/_delta_rows/<name>     copies

Owns the two folders of one table, and the paths by which its log names files. Does not own the
content of the log (`table_log`).

Invariant: a file has its whole content or does not exist, and one of two writers that create an
entry succeeds.
"""

from __future__ import annotations

import posixpath
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Final

import fsspec

from penstock.core.errors import CorruptData, InvalidRequest, StorageUnavailable
from penstock.core.intervals import Interval
from penstock.core.uuids import RandomUuids
from penstock.segments.deep_storage import files_below
from penstock.segments.delta.log_actions import relative_uri
from penstock.segments.layout import DELTA_LOG, DELTA_ROWS, datasource_folder
from penstock.segments.visible_rows import TIME_COLUMN, are_hidden
from penstock.storage.disk import OsFileSystem
from penstock.storage.filesystem import FileSystem

TEMPORARY: Final = ".tmp"
"""End of the names of files that are not complete."""


class DeltaFiles:
    """The files of the Delta table of a datasource. Any thread may call.

    Args:
        deep_storage: Root of the deep storage: a path or a URL.
        datasource: The datasource.
        fs: File system for local files.
        token: Returns a text that is part of a file's name and was never returned before.

    Raises:
        InvalidRequest: The deep storage cannot be used, or the name is not a valid one.
    """

    def __init__(
        self,
        deep_storage: str,
        datasource: str,
        *,
        fs: FileSystem | None = None,
        token: Callable[[], str] | None = None,
    ) -> None:
        files_system = fs or OsFileSystem()
        self._root, self._files = files_below(deep_storage, files_system)
        self._folder = datasource_folder(datasource)
        _, self._log = files_below(f"{self._root}/{self._folder}/{DELTA_LOG}", files_system)
        _, self._rows = files_below(f"{self._root}/{self._folder}/{DELTA_ROWS}", files_system)
        self._token = token or RandomUuids()

    @property
    def location(self) -> str:
        """The folder of the table, as engines open it."""
        return f"{self._root}/{self._folder}"

    def creates_once(self) -> bool:
        """Return whether one of two writers that create a file fails, as a log needs.

        A file is created twice, because some object stores, and older packages for them, accept the
        condition and ignore it.

        Raises:
            Unavailable: The store does not answer.
            InvalidRequest: The disk has no second names of files.
        """
        if not self._files.writes_once:
            return False
        name = f"probe.{self._token()}{TEMPORARY}"
        try:
            return self.create(name, b"1") and not self.create(name, b"2")
        finally:
            self.delete(name)

    def log_place(self, name: str) -> str:
        """Return the place of a file of the log, for messages."""
        return f"{self.location}/{DELTA_LOG}/{name}"

    def log_names(self) -> Iterator[tuple[str, int]]:
        """Yield the name of each file of the log, and the time of its last change in epoch ms.

        Raises:
            Unavailable: The store does not answer.
        """
        # A folder that is not mounted must not look like a table that has no log.
        self._files.size(self._in_log(""))
        yield from self._log.walk()

    def read(self, name: str) -> bytes:
        """Return the content of a file of the log.

        Raises:
            NotFound: It does not exist.
            Unavailable: The store does not answer.
        """
        return self._files.read(self._in_log(name))

    def create(self, name: str, content: bytes) -> bool:
        """Write a file of the log, durably; return False if it exists.

        Raises:
            Unavailable: The store does not answer; it may have written the file nevertheless.
            InvalidRequest: The store cannot create a file only if it does not exist.
        """
        return self._write(name, content, replace=False)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file of the log, durably; it replaces an existing one. Raises as `create`."""
        self._write(name, content, replace=True)

    def delete(self, name: str) -> None:
        """Delete a file of the log; a missing one is ignored. Raises Unavailable as `read`."""
        self._files.delete(self._in_log(name))

    def path_of(self, location: str) -> str:
        """Return the path by which the log names a file of a segment.

        Raises:
            InvalidRequest: The file is not in the folder of the table.
        """
        prefix = f"{self.location}/"
        if not location.startswith(prefix):
            raise InvalidRequest(
                f"{location} is not in the folder {self.location}, and the paths in a Delta table"
                " begin there: compact its segment, which writes the rows into this folder"
            )
        return relative_uri(location.removeprefix(prefix))

    def copy_path(self, name: str) -> str:
        """Return the path by which the log names a copy."""
        return f"{DELTA_ROWS}/{name}"

    def has_copy(self, name: str, size_bytes: int) -> bool:
        """Return whether there is a copy of this name and size. Raises Unavailable as `read`."""
        return self._files.size(f"{self._folder}/{DELTA_ROWS}/{name}") == size_bytes

    def copy_names(self) -> Iterator[str]:
        """Yield the name of each copy. Raises Unavailable as `read`."""
        for name, _ in self._rows.walk():
            yield name

    def delete_copy(self, name: str) -> None:
        """Delete a copy; a missing one is ignored. Raises Unavailable as `read`."""
        self._files.delete(f"{self._folder}/{DELTA_ROWS}/{name}")

    def write_copy(
        self, name: str, location: str, visible: Sequence[Interval]
    ) -> tuple[int, int] | None:
        """Write the rows of a file inside intervals, one row group at a time.

        Args:
            name: Name of the copy.
            location: The file, as engines open it.
            visible: The intervals of its visible rows.

        Returns:
            The number of rows and the size of the copy in bytes; None, and no copy, if all rows of
            the file are visible.

        Raises:
            Unavailable: The file cannot be read now, or the store does not answer.
            CorruptData: The file is not a Parquet file, or has values that cannot be copied.
        """
        with _local_file() as local:
            rows = _copy_rows(location, visible, local.name)
            if rows is None:
                return None
            temporary = f".{name}.{self._token()}{TEMPORARY}"
            size = self._files.put(local.name, f"{self._folder}/{DELTA_ROWS}", name, temporary)
        return rows, size

    def _in_log(self, name: str) -> str:
        return posixpath.join(self._folder, DELTA_LOG, name)

    def _write(self, name: str, content: bytes, *, replace: bool) -> bool:
        temporary = f".{name}.{self._token()}{TEMPORARY}"
        return self._files.write(self._in_log(name), content, temporary, replace=replace)


@contextmanager
def _local_file() -> Iterator[IO[bytes]]:
    """Create a file for a block. Raises StorageUnavailable."""
    try:
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - the block below
    except OSError as error:
        raise StorageUnavailable(
            f"no file can be created in the folder of temporary files ({error}): free space there"
        ) from error
    with file:
        yield file


def _copy_rows(location: str, visible: Sequence[Interval], target: str) -> int | None:
    """Write the visible rows of a file to a local one, and return how many; None: all rows are."""
    # Processes that read no files would waste half a second and 40 MB.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    try:
        filesystem, inner = fsspec.core.url_to_fs(location)
        with filesystem.open(inner, "rb") as opened:
            source = pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")
            groups = range(source.num_row_groups)
            columns = (source.read_row_group(at, [TIME_COLUMN]).column(0) for at in groups)
            hidden = [are_hidden(column, visible) for column in columns]
            if not any(one.any() for one in hidden):
                return None
            with pq.ParquetWriter(
                target, source.schema_arrow, compression="zstd", store_schema=False
            ) as writer:
                rows = 0
                for at in groups:
                    if hidden[at].all():
                        continue
                    kept = source.read_row_group(at).filter(pa.array(~hidden[at]))
                    writer.write_table(kept)
                    rows += kept.num_rows
            return rows
    except pa.ArrowException as error:
        raise CorruptData(location, None, f"its rows cannot be copied ({error})") from error
    except OSError as error:
        raise StorageUnavailable(f"{location} cannot be read ({error}): try again") from error
