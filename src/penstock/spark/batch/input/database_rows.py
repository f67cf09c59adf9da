"""Rows of a database, copied to this host before they are read: a Parquet file for each statement.

Owns the Arrow type of each column of the database. Numbers, booleans and times keep their types;
numbers of any length become text, so that no digit is lost; JSON becomes text that is marked as
JSON; lists remain lists. For other types it is the database's own text. Rows arrive as CSV in
blocks, and each block is converted as a whole. The task's own process reads the rows, so no worker
of Spark has the password. Only inputs of databases load this module, because its driver takes 9 MB.

Invariant: a value that does not fit the type of its column fails the request with the column's
name; a value that is not null never becomes null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.json as pj

from penstock.core.errors import InvalidRequest, Unavailable
from penstock.indexing.engine import InputUnavailable
from penstock.spark.batch.input.columnar import FOUND_AS
from penstock.spark.batch.input.text_lines import BOM
from penstock.spark.chunk_files import write_groups
from penstock.storage.databases.postgres_reader import opened

if TYPE_CHECKING:
    from penstock.indexing.specs.sources.databases import DatabaseInput
    from penstock.storage.databases.postgres_reader import Column, Kind, PostgresReader

_TYPES: Final[dict[Kind, pa.DataType]] = {
    "boolean": pa.bool_(),
    "whole": pa.int64(),
    "double": pa.float64(),
    "number": pa.string(),
    "date": pa.date32(),
    "time": pa.timestamp("us"),
    "instant": pa.timestamp("us", "UTC"),
    "text": pa.string(),
    "json": pa.string(),
    "booleans": pa.list_(pa.bool_()),
    "wholes": pa.list_(pa.int64()),
    "doubles": pa.list_(pa.float64()),
    "texts": pa.list_(pa.string()),
}
_COLUMN_AT: Final = re.compile(r"CSV column #(\d+)")
_REMEDY: Final = "cast it in the statement, such as to text, or leave such rows out"


@dataclass(frozen=True, slots=True)
class StatementRows:
    """The rows of one statement: its name in messages, and the file."""

    shown: str
    path: Path
    size: int


def fetch_rows(
    wanted: DatabaseInput,
    password: str,
    new_file: Callable[[str], Path],
    *,
    bytes_max: int,
    row_bytes_max: int,
    check: Callable[[], None],
) -> Iterator[StatementRows]:
    """Copy the results of an input's statements into files, one after the other.

    All of them see one state of the database.

    Args:
        wanted: The input.
        password: Password of the database's user.
        new_file: Returns a path for a file of a name.
        bytes_max: Maximum size of a statement's rows, as text.
        row_bytes_max: Maximum size of one row.
        check: Called periodically; raises when the copy must end.

    Raises:
        InvalidRequest: The database refuses the user or a statement, or a statement returns too
            much, or a value that no column can hold.
        InputUnavailable: The database does not answer, or breaks off.
    """
    connector = wanted.database.connector_config
    try:
        with opened(connector.address, connector.user, password, check) as reader:
            for number, sql in enumerate(wanted.sqls):
                copying = _Copying(
                    f"sqls[{number}] of the database {connector.address.shown}",
                    bytes_max,
                    row_bytes_max,
                    wanted.fold_case,
                )
                path = new_file("rows.parquet")
                copying.copy(reader, sql, path)
                yield StatementRows(copying.place, path, path.stat().st_size)
    except Unavailable as error:
        raise InputUnavailable(str(error)) from None


@dataclass(frozen=True, slots=True)
class _Copying:
    """One statement on its way into a file."""

    place: str
    bytes_max: int
    row_bytes_max: int
    fold_case: bool

    def copy(self, reader: PostgresReader, sql: str, path: Path) -> None:
        columns = reader.columns(sql, self.place)
        schema = self._schema(columns)
        blocks = reader.blocks(sql, columns, self.place, row_bytes_max=self.row_bytes_max)
        write_groups(self._batches(blocks, columns, schema), schema, path)

    def _schema(self, columns: Sequence[Column]) -> pa.Schema:
        fields: dict[str, pa.Field] = {}
        for column in columns:
            name = column.name.lower() if self.fold_case else column.name
            if name in fields:
                raise InvalidRequest(
                    f"{self.place}: two columns are named {name!r}: give them names with AS"
                )
            fields[name] = pa.field(name, _TYPES[column.kind], metadata=_type_metadata(column))
        return pa.schema(list(fields.values()))

    def _batches(
        self, blocks: Iterable[bytearray], columns: Sequence[Column], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        size = 0
        for block in blocks:
            size += len(block)
            if size > self.bytes_max:
                raise InvalidRequest(
                    f"{self.place}: its rows have more than {self.bytes_max} bytes: split the"
                    " statement, or select less"
                )
            yield from self._table(block, columns, schema).to_batches()

    def _table(self, block: bytearray, columns: Sequence[Column], schema: pa.Schema) -> pa.Table:
        names = [f"c{number}" for number in range(len(columns))]
        plain = [pa.string() if pa.types.is_list(field.type) else field.type for field in schema]
        if block.startswith(BOM):
            # Arrow removes a byte order mark at the start of a text, but here it belongs to the
            # value.
            block = bytearray(BOM) + block
        try:
            read = pv.read_csv(
                pa.BufferReader(block),
                pv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names),
                # A row of one null is an empty line.
                pv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
                pv.ConvertOptions(
                    column_types=dict(zip(names, plain, strict=True)),
                    null_values=[""],
                    true_values=["t"],
                    false_values=["f"],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            raise self._refused(error, columns) from None
        found = [
            self._lists(column, field) if pa.types.is_list(field.type) else column
            for column, field in zip(read.columns, schema, strict=True)
        ]
        return pa.table(found, schema=schema)

    def _lists(self, column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
        """Turn JSON into lists; lines of it are read as a whole, as the rows were."""
        lines = pc.binary_join_element_wise('{"v":', column.fill_null("null"), "}", "")
        whole = pa.ListArray.from_arrays([0, len(lines)], lines.combine_chunks())
        text = pc.binary_join(whole, "\n")[0].as_buffer()
        try:
            return pj.read_json(
                pa.BufferReader(text),
                pj.ReadOptions(use_threads=False, block_size=text.size + 1),
                pj.ParseOptions(explicit_schema=pa.schema([("v", field.type)])),
            ).column("v")
        except pa.ArrowInvalid as error:
            raise InvalidRequest(
                f"{self.place}: the column {field.name!r} has a list that is none of plain values"
                f" ({_line(error)}): select to_json of it"
            ) from None

    def _refused(self, error: pa.ArrowInvalid, columns: Sequence[Column]) -> InvalidRequest:
        at = _COLUMN_AT.search(str(error))
        name = f"the column {columns[int(at[1])].name!r}" if at else "a row"
        why = _line(error).rpartition("conversion error ")[2]
        return InvalidRequest(
            f"{self.place}: {name} has a value that cannot be read ({why}): {_REMEDY}"
        )


def _type_metadata(column: Column) -> dict[bytes, bytes] | None:
    """Return the metadata by which discovery recognizes the type of a text column."""
    if column.kind == "json":
        return {FOUND_AS: b"json"}
    if column.kind == "number":
        return {FOUND_AS: b"long" if column.is_exact else b"double"}
    return None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
