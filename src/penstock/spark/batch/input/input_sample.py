"""Sample of an input: its first rows as a task would read them, and a proposal for its spec.

Owns how much of an input is read, and the form of the answer. The rows come from the readers and
parsers of tasks (`input_work`), so a row that a task would refuse is refused here, for the same
reason. Guesses belong to `input_guesses`.

Data may be hostile, so this runs in a process of its own, with limits of memory and time. Its
reads are bounded, too: `HEAD_BYTES` of the first file for rows, and a few places for its times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.core.durations import DAY_MS, HOUR_MS
from penstock.core.errors import CorruptData, InvalidRequest, NotFound
from penstock.indexing.specs import TIME_COLUMN
from penstock.indexing.specs.data_schema import DataSchema, TimestampSpec
from penstock.indexing.specs.input_formats import InputFormat
from penstock.indexing.specs.input_sample import InputSampleRequest
from penstock.indexing.specs.inputs import HttpInput, input_sources
from penstock.indexing.specs.partitions import ROWS_DEFAULT
from penstock.indexing.specs.rows.dimensions import Dimension, DimensionsSpec
from penstock.spark.batch.input.columnar import groups_of
from penstock.spark.batch.input.delimited import header_of
from penstock.spark.batch.input.dimension_discovery import (
    Found,
    FoundType,
    columns_of_split,
    discovered,
    merge_found,
)
from penstock.spark.batch.input.documents import may_be_cut
from penstock.spark.batch.input.file_finder import FileFinder, source_of
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.input_guesses import (
    GUESS_BYTES,
    TimeGuess,
    guessed_format,
    guessed_times,
)
from penstock.spark.batch.input.input_work import InputWork, SplitReport
from penstock.spark.batch.input.open_files import opened_text
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.row_chunks import times_ms
from penstock.spark.schema_columns import row_shape
from penstock.spark.topic.row_shape import FieldType, RowShape

HEAD_BYTES: Final = 1 << 20
"""Bytes of the first file, unpacked, whose rows are parsed."""
PLACE_BYTES: Final = 128 << 10
"""Bytes at each further place that is read for its times only."""
FETCHED_BYTES_MAX: Final = 64 << 20
"""Bytes of a file from HTTP that are fetched."""
ROWS_SHOWN: Final = 100
ERRORS_SHOWN: Final = 20
COLUMNS_SHOWN: Final = 200
FILES_COUNTED: Final = 1_000
CANDIDATES_SHOWN: Final = 10
_ROWS_MAX: Final = 50_000
_FILES_READ: Final = 4
_PLACES: Final = 3
_CELL_CHARACTERS: Final = 200
_NOTES_MAX: Final = 10
_DATASOURCE: Final = "sample"
_GRANULARITIES: Final = ("HOUR", "DAY", "MONTH", "YEAR", "ALL")
# More time chunks than this cost more than they help.
_CHUNKS_USUAL: Final = 100
# Days with fewer rows are better months.
_CHUNK_ROWS_USUAL: Final = 1_000
_STREAM_MS: Final = 30 * DAY_MS
"""Time of a stream for which its time chunks are estimated."""
_STREAM_GRANULARITIES: Final = {"HOUR": HOUR_MS, "DAY": DAY_MS, "MONTH": _STREAM_MS}
_TYPES: Final = {"long": FieldType.LONG, "double": FieldType.DOUBLE}


@dataclass(frozen=True, slots=True)
class _Files:
    """The files of an input.

    Attributes:
        read: The first one, and up to `_FILES_READ` in all, spread over the others.
        count: Number of files, as far as they were counted.
        size: Bytes of the counted files.
        all_counted: Whether there are no others.
        is_cut: Whether only the beginning of the first one was fetched.
    """

    read: tuple[InputFile, ...]
    count: int
    size: int
    all_counted: bool
    is_cut: bool = False


class InputSampler:
    """Reads one sample. Use it once.

    Args:
        request: The input.
        options: Limits, the secrets and the uploads of this process.
        scratch: Folder for inline text and fetched files.
    """

    def __init__(
        self, request: InputSampleRequest, options: SparkBatchOptions, scratch: Path
    ) -> None:
        self._request = request
        most = min(options.fetch_bytes_max, FETCHED_BYTES_MAX)
        self._options = replace(options, fetch_bytes_max=most)
        self._scratch = scratch
        self._notes: list[str] = []

    def sample(self) -> dict[str, object]:
        """Return the sample as JSON.

        Raises:
            InvalidRequest: The input cannot be read, or is something else than rows.
            NotFound: No file exists.
            CorruptData: The first file is damaged, or has another format.
            InputUnavailable: A store or a server does not answer.
        """
        given = self._request
        format_ = given.input_format or self._guessed_format()
        plain = source_of(format_, RowShape((), None))
        is_text = plain.kind in {"json", "delimited"}
        files = self._files(is_text=is_text)
        first = files.read[0]
        if files.is_cut and not is_text:
            raise InvalidRequest(
                f"{first.shown} is larger than {self._options.fetch_bytes_max} bytes, and rows of"
                f" {plain.kind} can be read only from a whole file: download it, and upload it"
            )
        columns = header_of(first, plain) if plain.header else None
        if columns is not None:
            first = replace(first, columns=columns)
        split = self._head_of(first, plain)
        found = self._found(split, plain)
        typed = self._rows(split, replace(plain, shape=_typed(found)))
        guesses = guessed_times(_joined(typed[0])) if given.timestamp_spec is None else []
        time = given.timestamp_spec or _time_spec(guesses)
        schema = self._schema(time, found)
        if time is None:
            rows, report = typed
            rows = [batch.select([d.name for d in schema.dimensions]) for batch in rows]
        else:
            rows, report = self._rows(split, replace(plain, shape=row_shape(schema)))
            numbers = _numbers_in(rows, found) if plain.kind == "delimited" and report.bad else {}
            if numbers and given.dimensions is None:
                schema = self._schema(time, {**found, **numbers})
                rows, report = self._rows(split, replace(plain, shape=row_shape(schema)))
        is_whole = self._is_whole(first, plain, report) and files.count == 1 and not files.is_cut
        return {
            "inputFormat": _json(format_),
            "timestampSpec": None if time is None else _json(time),
            "timeCandidates": [_candidate(one) for one in guesses[:CANDIDATES_SHOWN]],
            "dimensions": [{"name": d.name, "type": d.type} for d in schema.dimensions],
            "files": {
                "count": files.count,
                "bytes": files.size,
                "first": first.shown[:_CELL_CHARACTERS],
                "allCounted": files.all_counted,
            },
            "rows": _shown(rows),
            "errors": _errors(report),
            "read": {"rows": report.rows, "bad": report.bad, "whole": is_whole},
            "notes": self._notes[:_NOTES_MAX],
            "time": None
            if time is None
            else self._times(files, plain, row_shape(schema), split, rows, report, is_whole),
        }

    def _guessed_format(self) -> InputFormat:
        files = self._files(is_text=True)
        with opened_text(files.read[0]) as text:
            head = text.read(GUESS_BYTES)
        return guessed_format(head, files.read[0].shown)

    def _files(self, *, is_text: bool) -> _Files:
        finder = FileFinder(None, self._scratch, self._options, check=lambda: None, only_heads=True)
        found: list[InputFile] = []
        all_counted, is_cut = True, False
        for single in input_sources(self._request.input_source):
            # Each file from HTTP is fetched when it is listed.
            most = 1 if isinstance(single, HttpInput) else FILES_COUNTED - len(found)
            listed = finder.each(single, is_text=is_text)
            found += islice(listed, most)
            if isinstance(single, HttpInput):
                all_counted = all_counted and len(single.uris) == 1
                is_cut = is_cut or found[-1].size >= self._options.fetch_bytes_max
            elif next(listed, None) is not None:
                all_counted = False
            if len(found) >= FILES_COUNTED:
                break
        filled = [one for one in found if one.size]
        if not filled:
            what = "all its files are empty" if found else "it has no files"
            raise NotFound(f"the input cannot be shown, because {what}: correct its paths")
        step = max(1, len(filled) // _FILES_READ)
        read = filled[::step][:_FILES_READ]
        size = sum(one.size for one in found)
        return _Files(tuple(read), len(found), size, all_counted, is_cut)

    def _head_of(self, file: InputFile, source: Source) -> Split:
        if source.kind in {"parquet", "orc"}:
            return Split(file, 0, min(1, groups_of(file, source)))
        if source.kind == "avro" or not may_be_cut(file, source):
            return Split(file)
        return Split(file, 0, HEAD_BYTES)

    def _found(self, split: Split, source: Source) -> Found:
        found: Found = {}
        # A task examines all rows; here the first block is enough.
        for _, columns in islice(columns_of_split(split, source, self._line_bytes), 100):
            merge_found(found, columns)
        return found

    def _rows(self, split: Split, source: Source) -> tuple[list[pa.RecordBatch], SplitReport]:
        work = InputWork(
            ((split,),), (source,), str(self._scratch), ERRORS_SHOWN, None, self._line_bytes
        )
        return work.head(split, _ROWS_MAX)

    @property
    def _line_bytes(self) -> int:
        return self._options.line_bytes_max

    def _schema(self, time: TimestampSpec | None, found: Found) -> DataSchema:
        given = self._request.dimensions
        spec = time or TimestampSpec(column=TIME_COLUMN)
        dimensions = DimensionsSpec(dimensions=given or (), use_schema_discovery=not given)
        schema = DataSchema(datasource=_DATASOURCE, timestamp_spec=spec, dimensions_spec=dimensions)
        if given is not None:
            return schema
        made = discovered(schema, found, lenient=True, warn=self._note)
        return made.model_copy(
            update={"dimensions_spec": DimensionsSpec(dimensions=_explicit(made.dimensions))}
        )

    def _note(self, text: str, /, *values: object) -> None:
        note = (text % values).removeprefix(f"datasource {_DATASOURCE}: ")
        if note not in self._notes:
            self._notes.append(note)

    def _is_whole(self, file: InputFile, source: Source, report: SplitReport) -> bool:
        """Return whether the rows that were read are all of the file."""
        if report.rows + report.bad >= _ROWS_MAX:
            return False
        if source.kind in {"parquet", "orc"}:
            return groups_of(file, source) <= 1
        if file.codec is None:
            return file.size <= HEAD_BYTES or not may_be_cut(file, source)
        with opened_text(file) as text:
            return len(text.read(HEAD_BYTES + 1)) <= HEAD_BYTES

    def _times(
        self,
        files: _Files,
        source: Source,
        shape: RowShape,
        split: Split,
        rows: Sequence[pa.RecordBatch],
        report: SplitReport,
        is_whole: bool,
    ) -> dict[str, object]:
        """Return the range of the times, and what each granularity would make of the rows."""
        times = [times_ms(batch.column(TIME_COLUMN)) for batch in rows]
        shaped = replace(source, shape=shape)
        if not is_whole:
            for other in self._places(files, shaped, split):
                try:
                    batches, _ = self._rows(other, shaped)
                except CorruptData as error:
                    self._notes.append(f"{error}")  # a task would fail at it
                    continue
                times += [times_ms(batch.column(TIME_COLUMN)) for batch in batches]
        every = np.concatenate(times) if times else np.zeros(0, np.int64)
        total = report.rows if is_whole else self._estimated_rows(files, source, report)
        if not len(every):
            return {"rows": total, "exact": is_whole, "granularities": []}
        is_stream = self._request.stream
        return {
            "start": _iso(int(every.min())),
            "end": _iso(int(every.max())),
            "rows": total,
            "exact": is_whole and not is_stream,
            **(
                _stream_granularities(every)
                if is_stream
                else _granularities(every, total, is_whole=is_whole)
            ),
        }

    def _places(self, files: _Files, source: Source, head: Split) -> list[Split]:
        first = head.file
        found: list[Split] = []
        if source.kind in {"parquet", "orc"}:
            groups = groups_of(first, source)
            found = [Split(first, groups - 1, groups)] if groups > 1 else []
        elif head.end >= 0 and first.codec is None and first.size > HEAD_BYTES:
            step = (first.size - PLACE_BYTES) // _PLACES
            starts = [step * (n + 1) for n in range(_PLACES)]
            found = [Split(first, start, start + PLACE_BYTES) for start in starts]
        for other in files.read[1:]:
            named = other
            if source.header:
                columns = header_of(other, source)
                if columns is None:
                    continue
                named = replace(other, columns=columns)
            split = self._head_of(named, source)
            found.append(replace(split, end=PLACE_BYTES) if split.end == HEAD_BYTES else split)
        return found

    def _estimated_rows(self, files: _Files, source: Source, report: SplitReport) -> int | None:
        """Return about how many rows all files have; None: only a task that reads them knows."""
        first = files.read[0]
        if source.kind == "parquet":
            import pyarrow.parquet as pq  # noqa: PLC0415

            with opened_text(first) as stored:
                rows = int(pq.ParquetFile(stored).metadata.num_rows)
            return rows * files.size // max(first.size, 1)
        if source.kind not in {"json", "delimited"} or files.is_cut:
            return None
        if first.codec is not None or any(one.codec is not None for one in files.read):
            return None
        read = min(first.size, HEAD_BYTES)
        return report.rows * files.size // max(read, 1)


def _numbers_in(rows: Sequence[pa.RecordBatch], found: Found) -> Found:
    """Return the columns that have text only in rows that cannot be parsed, and their types.

    Otherwise a single line such as a total at the end would make text of a column of numbers.
    """
    table = pa.Table.from_batches(rows) if rows else pa.table({})
    numbers: Found = {}
    for name in table.column_names:
        column = table.column(name)
        if found.get(name) != "string" or column.null_count == len(column):
            continue
        kinds: tuple[tuple[FoundType, pa.DataType], ...] = (
            ("long", pa.int64()),
            ("double", pa.float64()),
        )
        for kind, type_ in kinds:
            try:
                pc.cast(column.cast(pa.string()), type_)
            except pa.ArrowInvalid:
                continue
            numbers[name] = kind
            break
    return numbers


def _typed(found: Found) -> RowShape:
    fields = [(name, _TYPES.get(type_, FieldType.STRING)) for name, type_ in found.items()]
    return RowShape(tuple(fields), None)


def _joined(rows: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the first rows as one batch."""
    return rows[0] if rows else pa.RecordBatch.from_arrays([], names=[])


def _explicit(dimensions: Sequence[Dimension]) -> tuple[Dimension, ...]:
    """Return dimensions that a person can change: with the types of the console."""
    return tuple(
        Dimension(name=one.name, type="string" if one.type == "auto" else one.type)
        for one in dimensions
    )


def _time_spec(guesses: Sequence[TimeGuess]) -> TimestampSpec | None:
    if not guesses:
        return None
    return TimestampSpec(column=guesses[0].column, format=guesses[0].format)


def _candidate(guess: TimeGuess) -> dict[str, object]:
    return {
        "column": guess.column,
        "format": guess.format,
        "share": round(guess.share, 3),
        "also": guess.also,
    }


def _json(model: InputFormat | TimestampSpec) -> dict[str, object]:
    found: dict[str, object] = model.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude_none=True
    )
    if isinstance(model, TimestampSpec):
        return {"column": model.column, "format": model.format, **found}
    return {"type": model.type, **found}


def _shown(rows: Sequence[pa.RecordBatch]) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for batch in rows:
        part = batch.slice(0, ROWS_SHOWN - len(found))
        names = part.schema.names[:COLUMNS_SHOWN]
        columns = [_cells(name, part.column(at)) for at, name in enumerate(names)]
        found += [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        if len(found) >= ROWS_SHOWN:
            break
    return found


def _cells(name: str, column: pa.Array) -> list[object]:
    if name == TIME_COLUMN:
        return [_iso(ms) for ms in times_ms(column).tolist()]
    return [_cell(value) for value in column.to_pylist()]


def _cell(value: object) -> object:
    if isinstance(value, str) and len(value) > _CELL_CHARACTERS:
        return f"{value[:_CELL_CHARACTERS]}…"
    if isinstance(value, int) and abs(value) > 2**53:
        return str(value)  # more digits than a number has in a browser
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return _cell(str(value))


def _errors(report: SplitReport) -> list[dict[str, object]]:
    return [
        {
            "place": f"line {bad.number + 1}" if report.is_text else f"row {bad.number + 1}",
            "reason": bad.reason[: 2 * _CELL_CHARACTERS],
            "row": bad.row[:_CELL_CHARACTERS],
        }
        for bad in report.samples
    ]


def _iso(ms: int) -> str:
    return np.datetime_as_string(np.datetime64(ms, "ms"), unit="ms").item() + "Z"


def _granularities(
    times: npt.NDArray[np.int64], rows: int | None, *, is_whole: bool
) -> dict[str, object]:
    """Return the time chunks of each granularity, and the one that is usual for such rows."""
    found: list[dict[str, object]] = []
    usual = "ALL"
    for name in _GRANULARITIES:
        buckets = _buckets(times, name)
        seen = len(np.unique(buckets))
        span = int(buckets.max() - buckets.min()) + 1
        chunks = seen if is_whole else max(seen, min(span, rows or span))
        each = None if rows is None else -(-rows // chunks)
        segments = None if each is None else chunks * max(1, -(-each // ROWS_DEFAULT))
        found.append({"name": name, "chunks": chunks, "segments": segments, "rowsEach": each})
        is_fine = name == "DAY" and each is not None and each < _CHUNK_ROWS_USUAL
        if usual == "ALL" and name not in {"HOUR", "ALL"} and chunks <= _CHUNKS_USUAL:
            usual = "MONTH" if is_fine else name
    return {"granularities": found, "usualGranularity": usual}


def _stream_granularities(times: npt.NDArray[np.int64]) -> dict[str, object]:
    """Return the time chunks of 30 days of a stream whose rows keep arriving as in its sample.

    A sample covers a short time, so its own time chunks would be too small. Days are usual, or
    hours if a day has more rows than a segment.
    """
    span_ms = int(times.max()) - int(times.min())
    found: list[dict[str, object]] = []
    usual = "DAY"
    for name, length_ms in _STREAM_GRANULARITIES.items():
        chunks = _STREAM_MS // length_ms
        each = max(1, (len(times) - 1) * length_ms // span_ms) if span_ms else None
        segments = None if each is None else chunks * -(-each // ROWS_DEFAULT)
        found.append({"name": name, "chunks": chunks, "segments": segments, "rowsEach": each})
        if name == "DAY" and each is not None and each > ROWS_DEFAULT:
            usual = "HOUR"
    return {"granularities": found, "usualGranularity": usual}


def _buckets(times: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
    if name == "HOUR":
        return times // HOUR_MS
    if name == "DAY":
        return times // DAY_MS
    if name == "ALL":
        return np.zeros(len(times), np.int64)
    unit = "M" if name == "MONTH" else "Y"
    return times.astype("datetime64[ms]").astype(f"datetime64[{unit}]").astype(np.int64)
