"""CSV records.

Owns names, types and nested columns of CSV. Arrow does the parsing and the quoting.

Without a schema, a column has the narrowest type that preserves every value: integers, numbers,
booleans, otherwise text; so ``007`` stays text. For that the content is read twice. A field that is
empty and not quoted is null.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv

from penstock.flow.processors.records.formats.casts import fitted
from penstock.flow.processors.records.formats.format_protocols import (
    CHUNK_BYTES,
    BadRecords,
    ReadingOptions,
    RecordBatches,
    RecordOutput,
    RecordSink,
    RecordSource,
    WritingOptions,
    translated,
)
from penstock.flow.processors.records.formats.json_text import (
    base64_text,
    is_binary,
    json_text,
)

_DOING: Final = "the content is not CSV"
COLUMNS_MAX: Final = 10_000
"""Maximum number of columns: 100,000 take 2 GB and a minute for each 6 MB."""
# From the narrowest; the fallback is text. The number of digits is the number that the type
# preserves.
_NARROW: Final = (
    (r"^-?(?:0|[1-9]\d{0,17})$", pa.int64()),
    (r"^-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?(?:[eE][+-]?\d{1,2})?$", pa.float64()),
    (r"^(?:true|false)$", pa.bool_()),
)


def read_csv(source: RecordSource, options: ReadingOptions) -> RecordBatches:
    """Read records.

    Raises:
        BadRecords: The content is not CSV, or does not fit the schema.
    """
    names = csv_names(source, options)
    schema = options.schema
    if schema is None and not options.infer_types:
        schema = pa.schema([(name, pa.string()) for name in names])
    if schema is None:
        schema = _inferred(source, options, names)
    if options.refuse_others and (others := [n for n in names if n not in schema.names]):
        raise BadRecords(f"the schema has no column {others[0]!r}: add it, or allow other fields")

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in csv_texts(source, options, names):
            yield fitted(batch, schema)

    return RecordBatches(schema, batches())


class CsvWriter:
    """Writer of CSV; nested columns are written as JSON text.

    Args:
        out: Output for the bytes.
        schema: Schema of the records.
        options: Options for writing.
    """

    def __init__(self, out: RecordOutput, schema: pa.Schema, options: WritingOptions) -> None:
        self._changed = {
            number: text
            for number, field in enumerate(schema)
            if (text := _text_of(field.type)) is not None
        }
        for number in self._changed:
            schema = schema.set(number, pa.field(schema.field(number).name, pa.string()))
        self._schema = schema
        with translated("the records cannot be written as CSV"):
            self._writer = pcsv.CSVWriter(
                pa.PythonFile(RecordSink(out), mode="w"),
                schema,
                write_options=pcsv.WriteOptions(
                    include_header=options.csv_header,
                    delimiter=options.csv_separator,
                    quoting_style="needed",
                ),
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Write a batch.

        Raises:
            BadRecords: CSV does not support the type of a column.
        """
        with translated("the records cannot be written as CSV"):
            columns = list(batch.columns)
            for number, text in self._changed.items():
                columns[number] = text(columns[number])
            self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        """Write the header if there were no records."""
        with translated("the records cannot be written as CSV"):
            self._writer.close()


def _text_of(type_: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """Return the function that converts a column to text if CSV does not support its type."""
    if pa.types.is_nested(type_):
        return _as_json
    return base64_text if is_binary(type_) else None


def _as_json(column: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), json_text(column), pa.scalar(None, pa.string()))


def csv_names(source: RecordSource, options: ReadingOptions) -> list[str]:
    """Return the names of the columns.

    Raises:
        BadRecords: The content is not CSV.
    """
    if not source.size:
        raise BadRecords("the content is empty: CSV needs a header or a record")
    if not options.csv_header and options.schema is not None:
        return list(options.schema.names)
    with source.open() as stream:
        head = stream.read(CHUNK_BYTES)
        if len(head) == CHUNK_BYTES and b"\n" not in head and b"\r" not in head:
            raise _no_end(1)
        # Each column takes a kilobyte in the parser, even if it is empty.
        if head.partition(b"\n")[0].count(options.csv_separator.encode()) >= COLUMNS_MAX:
            raise BadRecords(
                f"the first line has more than {COLUMNS_MAX:,} columns: check the separator"
            )
    with source.open() as stream, translated(_DOING), _with_place(1):
        reader = pcsv.open_csv(
            pa.PythonFile(stream, mode="r"),
            read_options=pcsv.ReadOptions(
                block_size=CHUNK_BYTES,
                use_threads=False,
                autogenerate_column_names=not options.csv_header,
            ),
            # Only the names are needed here; rows are checked when they are read.
            parse_options=_parsing(options, lambda _row: "skip"),
        )
        names: list[str] = reader.schema.names
        reader.close()
    for name, count in Counter(names).items():
        if count > 1:
            raise BadRecords(f"duplicate column name {name!r}: names must be unique")
    return names


def csv_texts(
    source: RecordSource,
    options: ReadingOptions,
    names: Sequence[str],
    on_odd_row: Callable[[pcsv.InvalidRow], str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the records with all columns as text.

    Args:
        source: The content.
        options: Options for reading.
        names: Names of the columns.
        on_odd_row: Called with a row that has another number of fields; returns `skip` or `error`.

    Raises:
        BadRecords: The content is not CSV.
    """
    record = 1
    with source.open() as stream:
        with translated(_DOING), _with_place(record):
            reader = pcsv.open_csv(
                pa.PythonFile(stream, mode="r"),
                read_options=pcsv.ReadOptions(
                    block_size=CHUNK_BYTES,
                    use_threads=False,
                    column_names=names,
                    skip_rows=1 if options.csv_header else 0,
                ),
                parse_options=_parsing(options, on_odd_row),
                convert_options=pcsv.ConvertOptions(
                    column_types={name: pa.string() for name in names},
                    null_values=[""],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        while True:
            with translated(_DOING), _with_place(record):
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    break
            record += batch.num_rows
            yield batch


@contextlib.contextmanager
def _with_place(record: int) -> Iterator[None]:
    """Context that names the first record that may be the cause if one does not fit in a block."""
    try:
        yield
    except pa.ArrowInvalid as error:
        if "straddling object" not in str(error):
            raise
        raise _no_end(record) from None


def _no_end(record: int) -> BadRecords:
    return BadRecords(
        f"record {record:,} of the CSV, or one of the next, is longer than {CHUNK_BYTES:,} bytes, "
        "or a quote in it is not closed: close the quote, or check the line ends"
    )


def _inferred(source: RecordSource, options: ReadingOptions, names: Sequence[str]) -> pa.Schema:
    fits = [list(_NARROW) for _ in names]
    any_value = [False] * len(names)
    for batch in csv_texts(source, options, names):
        for number, column in enumerate(batch.columns):
            any_value[number] = any_value[number] or column.null_count < len(column)
            fits[number] = [fit for fit in fits[number] if _all_match(column, fit[0])]
    return pa.schema(
        [
            (name, types[0][1] if known and types else pa.string())
            for name, types, known in zip(names, fits, any_value, strict=True)
        ]
    )


def _all_match(column: pa.Array, pattern: str) -> bool:
    matched = pc.all(pc.match_substring_regex(column, pattern), min_count=0).as_py()
    return bool(matched)


def _parsing(
    options: ReadingOptions, on_odd_row: Callable[[pcsv.InvalidRow], str] | None = None
) -> pcsv.ParseOptions:
    return pcsv.ParseOptions(
        delimiter=options.csv_separator,
        newlines_in_values=True,
        invalid_row_handler=on_odd_row,
    )
