"""Files of large answers: Spark's Python workers write them, the router reads them batch by batch.

Owns the folder, its layout and limits, the workers' writes, and the reads. Does not decide which
answers are large (`fetcher`).

    tmp/answers/                    one folder of each router
    tmp/answers/NAME/lock           locked while that router runs
    tmp/answers/NAME/ANSWER/P-ID    Arrow stream, compressed with LZ4, of Spark's partition P
    tmp/answers/NAME/ANSWER/P.ROWS  mark that partition P is complete, with its number of rows

Invariants:

- The files of an answer are deleted when its last row was sent, when its client disconnects, or
  when no reference to the answer is left. A killed router leaves its folder, which the next router
  of this data folder deletes.
- The files of all answers together have at most `TOTAL_BYTES_MAX`, plus the bytes written between
  two checks, and leave `FREE_BYTES_MIN` of the disk free.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import uuid
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from penstock.core.errors import Unavailable
from penstock.indexing.engine import EngineFailure, EngineUnavailable
from penstock.spark.pieces import reported
from penstock.storage.process_folder import ProcessFolder

logger = logging.getLogger(__name__)

ANSWER_BYTES_MAX: Final = 2 << 30
"""Size limit of one answer's files, compressed."""
TOTAL_BYTES_MAX: Final = 8 << 30
FREE_BYTES_MIN: Final = 1 << 30
BATCH_BYTES: Final = 1 << 20
"""Approximate size of a record batch, which a reader holds in memory."""

CHECKED_EVERY_BYTES: Final = 16 << 20
_ONLY: Final = "rows"  # the file of an answer that the router itself wrote
_FOLDER_MODE: Final = 0o700
_COMPLETE: Final = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class SpillTarget:
    """Target of one answer's workers, and its limits.

    Attributes:
        folder: The folder of the answer, which exists if the worker shares the router's disk.
        root: The folder of all answers.
        rows_max: Row limit of the answer; later rows are not needed.
        bytes_max: Size limit of this answer's files.
        total_bytes_max: Size limit of the files of all answers.
        free_bytes_min: Free space that must remain on the disk.
        checked_every_bytes: Bytes written between two checks of the limits.
    """

    folder: str
    root: str
    rows_max: int
    bytes_max: int = ANSWER_BYTES_MAX
    total_bytes_max: int = TOTAL_BYTES_MAX
    free_bytes_min: int = FREE_BYTES_MIN
    checked_every_bytes: int = CHECKED_EVERY_BYTES


@dataclass(frozen=True, slots=True)
class SpillReport:
    """Report of a worker: the name of its file, its rows, and why it stopped early, if it did.

    `problem` is one of `UNSHARED`, `TOO_LARGE` and `FULL`. `row_bytes_max` is the approximate size
    of the longest row.
    """

    file: str
    rows: int
    problem: str = ""
    row_bytes_max: int = 0


UNSHARED: Final = "unshared"
TOO_LARGE: Final = "too large"
FULL: Final = "full"


class AnswersFull(EngineUnavailable):
    """The files of other answers leave no room until their clients have read them."""


def check_written(problem: str) -> None:
    """Refuse an answer whose workers stopped early, because rows are missing.

    Raises:
        EngineFailure: The answer exceeds the size limit of its files.
        AnswersFull: The files of other answers leave no room.
    """
    if problem == TOO_LARGE:
        raise EngineFailure(
            f"the answer has more than {ANSWER_BYTES_MAX >> 20} MiB, compressed, the limit of an"
            " answer: select fewer rows or columns, or query parts of it"
        )
    if problem == FULL:
        raise AnswersFull(
            "answers that clients have not read yet leave no room for this one: the limit of all is"
            f" {TOTAL_BYTES_MAX >> 20} MiB, and 1 GiB of the disk must stay free. Try again"
            " later, or select fewer rows"
        )


def write_spill(target: SpillTarget, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a Spark task to a file of its own; for `mapInArrow`."""
    # Imported here: only a Spark worker runs this.
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    assert context is not None
    yield reported(spill(target, context.partitionId(), batches))


def spill(target: SpillTarget, partition: int, batches: Iterable[pa.RecordBatch]) -> SpillReport:
    """Write the rows of one partition, as far as the answer needs them.

    Partitions are in the order of the answer. Spark could limit it only by moving all rows to one
    partition, which loses their order on a cluster. Therefore each task stops at the limit, and
    writes nothing once earlier partitions, which Spark starts first, have enough rows.
    """
    folder = Path(target.folder)
    if not folder.is_dir():
        return SpillReport("", 0, UNSHARED)
    if _rows_before(folder, partition) >= target.rows_max:
        return SpillReport("", 0)
    # A failed attempt of a task leaves a file of another name.
    name = f"{partition}-{uuid.uuid4().hex}"
    longest = 0

    def measured() -> Iterator[pa.RecordBatch]:
        nonlocal longest
        for batch in batches:
            longest = max(longest, _row_bytes_max(batch))
            yield batch

    rows, problem = _write(target, folder / name, measured(), partition)
    if not rows:
        (folder / name).unlink(missing_ok=True)
        return SpillReport("", 0, problem)
    if not problem:
        (folder / f"{partition}.{rows}").touch()
    return SpillReport(name, rows, problem, longest)


def _row_bytes_max(batch: pa.RecordBatch) -> int:
    # Imported here: only a Spark worker runs this.
    import pyarrow.compute as pc  # noqa: PLC0415

    from penstock.core.row_bytes import bytes_of_rows  # noqa: PLC0415

    return int(pc.max(bytes_of_rows(batch)).as_py() or 0)


def _rows_before(folder: Path, partition: int) -> int:
    """Return the number of rows of all complete earlier partitions."""
    found = (_COMPLETE.fullmatch(path.name) for path in folder.iterdir())
    rows = {int(one[1]): int(one[2]) for one in found if one}
    return sum(count for before, count in rows.items() if before < partition)


def _write(
    target: SpillTarget, path: Path, batches: Iterable[pa.RecordBatch], partition: int = 0
) -> tuple[int, str]:
    """Write rows; return their number and the reason for an early stop."""
    rows, checked, writer = 0, 0, None
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with path.open("xb") as file:
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_stream(file, batch.schema, options=options)
            part = batch.slice(0, target.rows_max - rows)
            for piece in pieces(part, BATCH_BYTES):
                writer.write_batch(piece)
            rows += part.num_rows
            size = file.tell()
            if size > target.bytes_max:
                return rows, TOO_LARGE
            if size - checked >= target.checked_every_bytes:
                checked = size
                if _rows_before(path.parent, partition) >= target.rows_max:
                    return 0, ""
                if problem := _limit_reached(target):
                    return rows, problem
            if rows >= target.rows_max:
                break
        if writer is not None:
            writer.close()
    return rows, ""


def pieces(batch: pa.RecordBatch, size_bytes: int, most_rows: int = 0) -> Iterator[pa.RecordBatch]:
    """Divide a batch into pieces of about this size and at least one row, without copying."""
    rows = max(1, batch.num_rows * size_bytes // max(1, batch.nbytes))
    if most_rows:
        rows = min(rows, most_rows)
    for begin in range(0, batch.num_rows, rows):
        yield batch.slice(begin, rows)


def _limit_reached(target: SpillTarget) -> str:
    """Return the limit that the files have reached, empty if none."""
    if used_bytes(Path(target.folder), depth=1) > target.bytes_max:
        return TOO_LARGE
    disk = os.statvfs(target.root)
    if disk.f_bavail * disk.f_frsize < target.free_bytes_min:
        return FULL
    return FULL if used_bytes(Path(target.root)) > target.total_bytes_max else ""


def used_bytes(folder: Path, depth: int = 3) -> int:
    """Return the size of the files some levels below a folder; 3: of the folder of all answers."""
    total = 0
    # Answers end meanwhile. `Path.glob` would raise for a folder that is deleted before its turn.
    with contextlib.suppress(FileNotFoundError, PermissionError), os.scandir(folder) as entries:
        for entry in entries:
            if depth == 1:
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
            elif entry.is_dir():
                total += used_bytes(Path(entry.path), depth - 1)
    return total


class SpilledRows:
    """Rows of an answer in files, read by `to_batches` as those of a table.

    Args:
        schema: Names and types of the columns.
        folder: The folder of the answer; deleted by `close` and by this object's finalizer.
        files: The files in the order of their rows.
        num_rows: Number of rows to read; the files may have more.
        row_bytes_max: Approximate size of the longest row.
    """

    def __init__(
        self,
        schema: pa.Schema,
        folder: Path,
        files: Sequence[str],
        num_rows: int,
        row_bytes_max: int = 0,
    ) -> None:
        self.schema = schema
        self.num_rows = num_rows
        self.row_bytes_max = row_bytes_max
        self._paths = [folder / name for name in files]
        self._end = weakref.finalize(self, delete_answer, folder)

    @property
    def nbytes(self) -> int:
        """Return the size of the files, compressed."""
        return sum(path.stat().st_size for path in self._paths)

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Read the rows, one batch of about `BATCH_BYTES` at a time."""
        left = self.num_rows
        for path in self._paths:
            if left <= 0:
                return
            with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as reader:
                for batch in reader:
                    part = batch.slice(0, left)
                    yield from as_schema(part, self.schema).to_batches()
                    left -= part.num_rows
                    if left <= 0:
                        break

    def close(self) -> None:
        """Delete the files."""
        self._end()


def delete_answer(folder: Path) -> None:
    """Delete the files of an answer, even if a worker still writes one of them."""
    shutil.rmtree(folder, ignore_errors=True)


def as_schema(part: pa.RecordBatch | pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the names and types of a schema, column by column."""
    table = pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
    columns = [
        column if column.type == field.type else column.cast(field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


class AnswerFolder:
    """Folder in which one router keeps large answers; thread-safe.

    Args:
        root: Folder of all routers' answers.
    """

    def __init__(self, root: Path) -> None:
        self._folder = ProcessFolder(root)
        self.root = self._folder.root

    def open(self) -> None:
        """Delete the folders of killed routers, and create this router's folder.

        A failure is logged, because small answers need no folder; a large one tries again.
        """
        try:
            self._opened()
        except Unavailable as error:
            logger.warning("%s", error)

    def new_answer(self) -> Path:
        """Create the folder of one answer.

        Raises:
            Unavailable: The folder cannot be written.
        """
        folder = self._opened() / uuid.uuid4().hex
        try:
            folder.mkdir(_FOLDER_MODE)
        except OSError as error:
            raise self._unwritten(error) from error
        return folder

    def write(self, table: pa.Table) -> SpilledRows:
        """Write the rows of a table to files.

        Raises:
            EngineFailure: The answer exceeds the size limit of its files.
            AnswersFull: The files of other answers leave no room.
            Unavailable: The folder cannot be written.
        """
        folder = self.new_answer()
        try:
            target = SpillTarget(str(folder), str(self.root), table.num_rows)
            _, problem = _write(target, folder / _ONLY, table.to_batches())
            check_written(problem)
            return SpilledRows(table.schema, folder, (_ONLY,), table.num_rows)
        except OSError as error:
            delete_answer(folder)
            raise self._unwritten(error) from error
        except BaseException:
            delete_answer(folder)
            raise

    @contextlib.contextmanager
    def write_errors(self) -> Iterator[None]:
        """Translate errors of the disk in a block that writes files of an answer.

        Raises:
            Unavailable: A file cannot be written.
        """
        try:
            yield
        except OSError as error:
            raise self._unwritten(error) from error

    def check_room(self, answer: Path) -> None:
        """Refuse an answer whose files are too large now, or leave too little room.

        Raises:
            EngineFailure: The answer exceeds the size limit of its files.
            AnswersFull: The files of other answers leave no room.
        """
        check_written(_limit_reached(SpillTarget(str(answer), str(self.root), 0)))

    def close(self) -> None:
        """Delete this router's folder."""
        self._folder.close()

    def _opened(self) -> Path:
        try:
            return self._folder.opened()
        except OSError as error:
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"large answers cannot be written to {self.root}: {error}. Make the folder writable for"
            " Penstock's user and free its disk, restart Penstock if the folder was deleted, or"
            " select fewer rows"
        )
