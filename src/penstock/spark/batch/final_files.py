"""Final files of batch tasks: sorted Parquet files, compressed with zstd, durable in deep storage.

Owns a file's form, its name and its transfer to the target folder, on this host or behind fsspec.
Each attempt writes under its own name; only reported files count, and the engine removes the
others.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import fsspec
import pyarrow as pa

from penstock.core.errors import StorageUnavailable
from penstock.core.intervals import Granularity, Interval
from penstock.segments.local_files import folder_missing
from penstock.spark.chunk_files import FileForm, chunk_name, write_table
from penstock.spark.row_chunks import cut_sorted, in_order, times_ms
from penstock.spark.topic.row_shape import TIME_COLUMN
from penstock.storage.disk_errors import translate_error

SUFFIX: Final = ".parquet"
# A folder's name is durable when the folder above is synced: those of the task, of all attempts,
# of the datasource, and the root that holds its name (`segments.layout`).
_FOLDERS_ABOVE: Final = 4


@dataclass(frozen=True, slots=True)
class FinalFile:
    """A final file, as the worker that wrote it describes it.

    `chunk` is the number that the JVM gave to its time chunk, if it did.
    """

    name: str
    start_ms: int
    end_ms: int
    bucket: int
    rows: int
    bytes: int
    min_time_ms: int
    max_time_ms: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class BatchTarget:
    """Location and form of final files; `folder` is a path or a URL of fsspec."""

    folder: str
    granularity: Granularity
    columns: tuple[str, ...]
    form: FileForm

    def write(self, rows: pa.Table, bucket: int, number: int = 0) -> list[FinalFile]:
        """Sort the rows and write a file of each of their time chunks, mostly one.

        `number` is the number of the time chunk in the JVM.

        Raises:
            Unavailable: A file cannot be written.
        """
        return [
            self._write(in_order(part, self.form.sort_keys), chunk, bucket, number)
            for chunk, part in self._chunks(rows)
        ]

    def _chunks(self, rows: pa.Table) -> Iterator[tuple[Interval, pa.Table]]:
        times = times_ms(rows.column(TIME_COLUMN).combine_chunks())
        chunk = self.granularity.bucket(int(times.min()))
        if times.max() < chunk.end_ms:
            yield chunk, rows
        else:
            yield from cut_sorted(in_order(rows, (TIME_COLUMN,)), self.granularity)

    def _write(self, rows: pa.Table, chunk: Interval, bucket: int, number: int) -> FinalFile:
        times = times_ms(rows.column(TIME_COLUMN).combine_chunks())
        name = f"{chunk_name(chunk)}-{bucket}-{uuid.uuid4().hex}{SUFFIX}"
        if is_remote(self.folder):
            size = self._put(rows, name)
        else:
            size = _write_durably(rows, Path(self.folder), name, self.form)
        span = (int(times.min()), int(times.max()))
        interval = (chunk.start_ms, chunk.end_ms)
        return FinalFile(name, *interval, bucket, rows.num_rows, size, *span, number)

    def _put(self, rows: pa.Table, name: str) -> int:
        with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
            size = _write_durably(rows, Path(folder), name, self.form)
            url = f"{self.folder.rstrip('/')}/{name}"
            try:
                fs, path = fsspec.core.url_to_fs(url)
                fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
                fs.put_file(f"{folder}/{name}", path)
                fs.invalidate_cache()
                there = int(fs.info(path)["size"])
            except OSError as error:
                raise StorageUnavailable(f"{url} cannot be written ({error}): try again") from error
            if there != size:
                raise StorageUnavailable(f"{url} has {there} of {size} bytes: try again")
            return size


def is_remote(folder: str) -> bool:
    """Return whether a folder is behind fsspec."""
    return "://" in folder


def finalize(folder: str, names: Sequence[str]) -> None:
    """Remove files that no report names, and make the others' names durable.

    Raises:
        Unavailable: The folder cannot be read or synced.
    """
    kept = set(names)
    if is_remote(folder):
        try:
            fs, root = fsspec.core.url_to_fs(folder)
            fs.invalidate_cache()
            for path in fs.find(root) if fs.exists(root) else []:
                if path.rsplit("/", 1)[-1] not in kept:
                    fs.rm_file(path)
        except OSError as error:
            raise StorageUnavailable(f"{folder} does not answer ({error}): try again") from error
        return
    place = Path(folder)
    if not place.exists():
        return
    try:
        for path in place.iterdir():
            if path.name not in kept and path.is_file():
                path.unlink(missing_ok=True)
        for folder_made in (place, *list(place.parents)[:_FOLDERS_ABOVE]):
            _sync(folder_made)
    except OSError as error:
        raise translate_error(error, folder, "sync") from error


def _write_durably(rows: pa.Table, folder: Path, name: str, form: FileForm) -> int:
    temporary = folder / f".{name}.tmp"
    above = list(folder.parents)[:_FOLDERS_ABOVE]
    # The disk may have failed since the task checked it.
    if above and not above[-1].is_dir():
        raise StorageUnavailable(folder_missing(str(above[-1])))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_table(rows, temporary, form)
        _sync(temporary)
        temporary.rename(folder / name)
        return (folder / name).stat().st_size
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise translate_error(error, str(folder / name), "write") from error
        raise


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
