"""Read pieces of input in a Spark worker: rows, and a report of rows that were not accepted.

A report is a file in the scratch folder, because the rows may be passed to the JVM. Invariants: it
exists only after the whole piece was read, and a repeated attempt writes the same report, so that
nothing is counted twice.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.row_bytes import bytes_of_rows, may_have_long_rows
from penstock.spark.batch.input.columnar import read_columns
from penstock.spark.batch.input.delimited import DelimitedParser
from penstock.spark.batch.input.documents import read_text
from penstock.spark.batch.input.file_splits import Piece, Source, Split
from penstock.spark.batch.input.open_files import translated
from penstock.spark.batch.input.schema_casts import conformed
from penstock.spark.batch.input.text_lines import Lines
from penstock.spark.row_chunks import times_ms
from penstock.spark.topic.parse import MessageParser, ParsedRows
from penstock.spark.topic.row_shape import TIME_COLUMN
from penstock.storage.disk_errors import translate_error

ROW_SHOWN: Final = 1_000
# Bookkeeping of a line, and of a bad one, takes many times the bytes of the shortest lines.
LINES_MAX: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class BadRow:
    """A bad row: its number, its text, and the reason.

    Attributes:
        number: Counted from 0: of a line, in the split; of another row, as `read_columns` counts.
        row: Its text.
        reason: Why it is bad.
    """

    number: int
    row: str
    reason: str


@dataclass(slots=True)
class SplitReport:
    """Rows of one split; `lines` counts all of its rows: good, bad and empty."""

    path: str
    shown: str
    start: int
    is_text: bool
    lines: int = 0
    rows: int = 0
    bad: int = 0
    samples: list[BadRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InputWork:
    """Pieces to read, one for each piece of Spark's work.

    `errors_max`: a piece with more bad rows is not read to its end, because the request fails.
    """

    pieces: tuple[Piece, ...]
    sources: tuple[Source, ...]
    scratch: str
    errors_saved: int
    errors_max: int | None
    line_bytes_max: int

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one piece, then write its report.

        Raises:
            PenstockError: A file cannot be read.
        """
        reports: list[SplitReport] = []
        for split in self.pieces[number]:
            source = self.sources[split.file.source]
            is_text = source.kind in {"json", "delimited"}
            report = SplitReport(split.file.path, split.file.shown, split.start, is_text)
            reports.append(report)
            with translated(split.file):
                if is_text:
                    yield from self._read_text(split, source, report)
                else:
                    yield from self._read_columns(split, source, report)
            if self._too_many(report):
                break
        _leave(reports, Path(self.scratch), number)

    def head(self, split: Split, rows_max: int) -> tuple[list[pa.RecordBatch], SplitReport]:
        """Return the first rows of a split, as `read` would yield them, and their report.

        Raises:
            PenstockError: The file cannot be read.
        """
        source = self.sources[split.file.source]
        is_text = source.kind in {"json", "delimited"}
        report = SplitReport(split.file.path, split.file.shown, split.start, is_text)
        rows: list[pa.RecordBatch] = []
        with translated(split.file):
            read = self._read_text if is_text else self._read_columns
            for batch in read(split, source, report):
                rows.append(batch)
                if report.rows + report.bad >= rows_max:
                    break
        return rows, report

    def _read_text(
        self, split: Split, source: Source, report: SplitReport
    ) -> Iterator[pa.RecordBatch]:
        json_parser = MessageParser(source.shape)
        columns = split.file.columns or source.columns
        delimited = DelimitedParser(source.shape, columns, source.separator, source.list_delimiter)
        skip = 0 if split.start else source.skip
        for block in read_text(split, source, line_bytes_max=self.line_bytes_max):
            for kept in block.without_first(skip).parts(LINES_MAX):
                if source.kind == "json":
                    parsed = json_parser.parse_lines(kept.text, kept.starts, kept.ends)
                else:
                    parsed = delimited.parse(kept)
                self._note(report, kept, parsed)
                if parsed.rows.num_rows:
                    yield parsed.rows
                if self._too_many(report):
                    return

    def _note(self, report: SplitReport, lines: Lines, parsed: ParsedRows) -> None:
        text = memoryview(lines.text)
        for number in lines.too_long:
            self._add(report, number, "", self._too_long)
        report.rows += parsed.rows.num_rows
        report.bad += len(parsed.bad)
        for bad in parsed.bad[: self.errors_saved - len(report.samples)]:
            row = bytes(text[int(lines.starts[bad.index]) : int(lines.ends[bad.index])])
            shown = row[: ROW_SHOWN * 4].decode(errors="replace")[:ROW_SHOWN]
            number = int(lines.numbers[bad.index])
            report.samples.append(BadRow(number, shown, bad.reason))
        report.lines = lines.ended

    def _read_columns(
        self, split: Split, source: Source, report: SplitReport
    ) -> Iterator[pa.RecordBatch]:
        for at, batch in read_columns(split, source):
            offered = batch if split.file.clip is None else _clipped(batch, split.file.clip)
            report.lines += offered.num_rows
            numbers: npt.NDArray[np.int64] | None = None
            if may_have_long_rows(offered, self.line_bytes_max):
                offered, numbers = self._without_long_rows(offered, at, report)
            rows, bad = conformed(offered, source.shape, binary_as_string=source.binary_as_string)
            report.rows += rows.num_rows
            report.bad += len(bad)
            for index, reason in bad[: self.errors_saved - len(report.samples)]:
                number = at + (index if numbers is None else int(numbers[index]))
                report.samples.append(BadRow(number, _shown(offered.slice(index, 1)), reason))
            if rows.num_rows:
                yield rows
            if self._too_many(report):
                return

    def _without_long_rows(
        self, batch: pa.RecordBatch, at: int, report: SplitReport
    ) -> tuple[pa.RecordBatch, npt.NDArray[np.int64] | None]:
        """Report the rows that are too long; return the others, and their indexes."""
        sizes = bytes_of_rows(batch).to_numpy()
        long = sizes > self.line_bytes_max
        if not long.any():
            return batch, None
        for index in np.flatnonzero(long).tolist():
            self._add(report, at + index, "", self._too_long)
        return batch.filter(pa.array(~long)), np.flatnonzero(~long)

    @property
    def _too_long(self) -> str:
        return f"longer than {self.line_bytes_max} bytes"

    def _add(self, report: SplitReport, number: int, row: str, reason: str) -> None:
        report.bad += 1
        if len(report.samples) < self.errors_saved:
            report.samples.append(BadRow(number, row, reason))

    def _too_many(self, report: SplitReport) -> bool:
        return self.errors_max is not None and report.bad > self.errors_max


def read_pieces(work: InputWork, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the pieces whose numbers Spark passes in, for the JVM."""
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from work.read(number)


def reports_of(scratch: Path, pieces: int) -> list[SplitReport]:
    """Return the reports of all pieces, ordered by file and position.

    Raises:
        FileNotFoundError: A piece was not read.
    """
    found = []
    for number in range(pieces):
        for raw in json.loads(_report_path(scratch, number).read_bytes()):
            samples = [BadRow(**sample) for sample in raw.pop("samples")]
            found.append(SplitReport(**raw, samples=samples))
    order: dict[str, int] = {}
    for report in found:
        order.setdefault(report.path, len(order))
    return sorted(found, key=lambda report: (order[report.path], report.start))


class InputTally:
    """Sums of the reports that pieces have left, while others are still read.

    Args:
        work: The pieces.
    """

    def __init__(self, work: InputWork) -> None:
        self._scratch = Path(work.scratch)
        self._unread = {
            _report_path(self._scratch, number).name: {split.file.path for split in piece}
            for number, piece in enumerate(work.pieces)
        }
        self._pieces_of = Counter(path for paths in self._unread.values() for path in paths)
        self.files_total = len(self._pieces_of)
        self.rows = self.files = 0

    def update(self) -> None:
        """Add the reports that are new. They are small, and each is read once."""
        if not self._unread:
            return
        try:
            names = [one.name for one in self._scratch.iterdir() if one.name in self._unread]
        except FileNotFoundError:  # narrow: no piece has been read yet
            return
        for name in names:
            for raw in json.loads((self._scratch / name).read_bytes()):
                self.rows += raw["rows"] + raw["bad"]
            for path in self._unread.pop(name):
                self._pieces_of[path] -= 1
                self.files += not self._pieces_of[path]


def _shown(row: pa.RecordBatch) -> str:
    try:
        text = str(row.to_pylist()[0])
    except OverflowError:
        text = row.to_string()  # a time that Python cannot represent
    return text[:ROW_SHOWN]


def _clipped(batch: pa.RecordBatch, clip: tuple[int, int]) -> pa.RecordBatch:
    times = times_ms(batch.column(TIME_COLUMN))
    visible = (times >= clip[0]) & (times < clip[1])
    return batch if visible.all() else batch.filter(pa.array(np.asarray(visible)))


def _leave(reports: Sequence[SplitReport], scratch: Path, number: int) -> None:
    target = _report_path(scratch, number)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        scratch.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps([asdict(report) for report in reports]))
        temporary.replace(target)
    except OSError as error:
        raise translate_error(error, str(target), "write") from error


def _report_path(scratch: Path, number: int) -> Path:
    return scratch / f"piece-{number}.json"
