"""Rows of a lookup, from its map or from its files, checked.

Owns which rows a lookup may have: each has a key, no two share one, numbers are finite, and all
together are within the bounds of the spec. The rows of files come from the readers and parsers of
tasks (`input_work`); a row that a task could not parse is refused.

Files may be hostile: they are read in a process of their own (`services.sampler_process`).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.printable import quoted
from penstock.indexing.specs.inputs import input_sources
from penstock.indexing.specs.lookup_spec import LookupSpec
from penstock.spark.batch.input.columnar import schema_of
from penstock.spark.batch.input.delimited import header_of
from penstock.spark.batch.input.file_finder import FileFinder, source_of
from penstock.spark.batch.input.file_splits import InputFile, Source, Split
from penstock.spark.batch.input.input_work import InputWork, SplitReport
from penstock.spark.batch.options import SparkBatchOptions
from penstock.spark.topic.row_shape import FieldType, RowShape

FETCHED_BYTES_MAX: Final = 64 << 20
"""Size of a file from HTTP."""
FILES_MAX: Final = 1_000
KEY_BYTES_MAX: Final = 4_096
"""Size of a key; names in JSON, by which LOOKUP gets them, have a limit, too."""
_TYPES: Final = {
    "string": FieldType.STRING,
    "long": FieldType.LONG,
    "double": FieldType.DOUBLE,
}


def rows_of_map(spec: LookupSpec) -> pa.Table:
    """Return the rows of a spec with a map.

    Raises:
        InvalidRequest: There are too many, or they are too large.
    """
    schema = pa.schema([(name, pa.string()) for name in spec.column_names])
    rows = pa.Table.from_batches([], schema)
    if spec.map:
        # Not from Python lists: Arrow would import pandas, which takes the router 0.4 s and 40 MB.
        pairs = (dict(zip(spec.column_names, one, strict=True)) for one in spec.map.items())
        text = b"\n".join(map(orjson.dumps, pairs))
        whole = pa_json.ReadOptions(block_size=len(text) + 1, use_threads=False)
        parsed = pa_json.ParseOptions(explicit_schema=schema)
        rows = pa_json.read_json(io.BytesIO(text), whole, parsed)
    return checked_rows(rows, spec)


class LookupReader:
    """Reads the files of one lookup. Use it once.

    Args:
        spec: The spec, with an input.
        options: Limits and the secrets of this process.
        scratch: Folder for inline text and fetched files.
    """

    def __init__(self, spec: LookupSpec, options: SparkBatchOptions, scratch: Path) -> None:
        most = min(options.fetch_bytes_max, FETCHED_BYTES_MAX)
        self._spec = spec
        self._options = replace(options, fetch_bytes_max=most)
        self._scratch = scratch
        fields = [(spec.key, FieldType.STRING)]
        fields += [(one.name, _TYPES[one.type]) for one in spec.columns]
        self._shape = RowShape(tuple(fields), None)

    def read(self) -> pa.Table:
        """Return the rows.

        Raises:
            InvalidRequest: A file cannot be read, has not all columns, or a row is not accepted.
            NotFound: No file exists.
            CorruptData: A file is damaged, or has another format.
            InputUnavailable: A store or a server does not answer.
        """
        spec = self._spec
        assert spec.input_source is not None
        assert spec.input_format is not None
        source = source_of(spec.input_format, self._shape)
        finder = FileFinder(None, self._scratch, self._options, check=lambda: None)
        is_text = source.kind in {"json", "delimited"}
        batches: list[pa.RecordBatch] = []
        count = 0
        for single in input_sources(spec.input_source):
            for file in finder.each(single, is_text=is_text):
                count += 1
                if count > FILES_MAX:
                    raise InvalidRequest(
                        f"the input has more than {FILES_MAX} files: name fewer",
                        place="inputSource",
                    )
                batches += self._rows(file, source, sum(one.num_rows for one in batches))
        if not count:
            raise NotFound("the input has no files: correct its paths")
        schema = pa.schema([(name, kind.arrow) for name, kind in self._shape.fields])
        return checked_rows(pa.Table.from_batches(batches, schema), spec)

    def _rows(self, file: InputFile, source: Source, before: int) -> list[pa.RecordBatch]:
        """Return the rows of a file that follows some rows of other files."""
        if not file.size:
            return []
        columns: Sequence[str] | None = source.columns
        if source.header:
            columns = header_of(file, source)
            if columns is None:
                return []
            file = replace(file, columns=tuple(columns))
        elif source.kind in {"parquet", "orc"}:
            columns = schema_of(file, source).names
        elif source.kind != "delimited":
            columns = None  # a record may leave out what is null
        if columns is not None:
            absent = [one for one in self._spec.column_names if one not in columns]
            if absent:
                raise InvalidRequest(
                    f"{file.shown} has no column {quoted(absent[0])}: its columns are"
                    f" {', '.join(map(quoted, columns[:20]))}"
                )
        work = InputWork(
            ((),), (source,), str(self._scratch), 1, None, self._options.line_bytes_max
        )
        # One more than allowed, so that too many are noticed.
        rows, report = work.head(Split(file), self._spec.max_rows - before + 1)
        if report.bad:
            raise _bad_row(file, report)
        return rows


def checked_rows(rows: pa.Table, spec: LookupSpec) -> pa.Table:
    """Return the rows of a lookup, without those that later ones with the same key replace.

    Raises:
        InvalidRequest: A row has no key, or one that is too long; two have the same key, unless the
            spec keeps the last one; a number is not finite; or the rows exceed a bound.
    """
    keys = rows.column(0)
    if keys.null_count:
        number = pc.index(pc.is_null(keys), value=True).as_py()
        raise InvalidRequest(
            f"row {number + 1:,} has no {quoted(spec.key)}: each row needs a key", place="key"
        )
    if rows.num_rows and (longest := pc.max(pc.binary_length(keys)).as_py()) > KEY_BYTES_MAX:
        raise InvalidRequest(
            f"a key has {longest:,} bytes, more than {KEY_BYTES_MAX:,}: use a shorter one",
            place="key",
        )
    if rows.num_rows > spec.max_rows:
        raise InvalidRequest(
            f"there are more than {spec.max_rows:,} rows: raise maxRows, or load a large table as a"
            " datasource and join that",
            place="maxRows",
        )
    for name in rows.schema.names[1:]:
        if pa.types.is_floating(rows.schema.field(name).type):
            _check_finite(rows, name, spec)
    rows = _without_duplicates(rows, spec).combine_chunks()
    if rows.nbytes > spec.max_bytes:
        raise InvalidRequest(
            f"the rows have {rows.nbytes:,} bytes, more than {spec.max_bytes:,}: raise maxBytes, or"
            " load a large table as a datasource and join that",
            place="maxBytes",
        )
    return rows


def _without_duplicates(rows: pa.Table, spec: LookupSpec) -> pa.Table:
    # In Python: grouping by Arrow would import pandas, which takes the router 0.4 s and 40 MB.
    keys = rows.column(0).to_pylist()
    last = {key: number for number, key in enumerate(keys)}
    if len(last) == len(keys):
        return rows
    if spec.duplicates == "refuse":
        number = next(n for n, key in enumerate(keys) if last[key] != n)
        key = keys[number]
        raise InvalidRequest(
            f"row {number + 1:,} has the key {quoted(key)}, which a later row has, too: remove"
            ' one, or set duplicates to "last", so that later rows replace earlier ones',
            place="duplicates",
        )
    kept = np.fromiter(sorted(last.values()), np.int64, len(last))
    return rows.take(pa.Array.from_buffers(pa.int64(), len(kept), [None, pa.py_buffer(kept)]))


def _check_finite(rows: pa.Table, name: str, spec: LookupSpec) -> None:
    found = pc.index(pc.fill_null(pc.is_finite(rows.column(name)), fill_value=True), value=False)
    number = found.as_py()
    if number >= 0:
        raise InvalidRequest(
            f"row {number + 1:,}, key {quoted(rows.column(0)[number].as_py())}, has no finite"
            f" number as {quoted(name)}: correct the row, or use the type string",
            place=f"columns[{spec.column_names.index(name) - 1}]",
        )


def _bad_row(file: InputFile, report: SplitReport) -> InvalidRequest:
    (bad,) = report.samples[:1]
    what = "line" if report.is_text else "row"
    return InvalidRequest(
        f"{file.shown}, {what} {bad.number + 1:,}: {bad.reason[:500]}; correct the file, or the"
        " types of columns"
    )
