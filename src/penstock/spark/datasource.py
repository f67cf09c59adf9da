"""The Spark data source `penstock`: the rows of a datasource.

Owns Spark's data source API; `penstock.spark.tables` owns the options, which files are visible, and
how they are read. Spark's Python workers import its classes by name, so Penstock must be installed
there, and the files must be reachable under their paths.

Without a schema the rows have the columns of all files together. With `.schema(…)` only some of
them are read, which is faster, because Spark does not tell a Python data source which columns a
query needs.

Conditions of a query are ignored (`pushFilters`): Spark 4.3 caches the plan of a read with
conditions, and uses it for every other use of the same DataFrame or view, which then lacks rows.
Use the option `interval` to leave files out.

Invariant: schema and rows of a read are of one revision of the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core.column_case import ColumnNames, twins_in
from penstock.core.errors import InvalidRequest
from penstock.spark.schema_text import ddl
from penstock.spark.tables.columns import wider
from penstock.spark.tables.model import Columns, TableFile
from penstock.spark.tables.options import Selection, select
from penstock.spark.tables.parquet_reader import read_file

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "penstock"


class TablePartition(InputPartition):
    """The file that one Spark task reads."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(None)
        self.file = file


class PenstockSource(DataSource):
    """`spark.read.format("penstock")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._selection: Selection | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of the whole datasource."""
        return ddl(self._selected().columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query."""
        selection = self._selected()
        _check_columns(selection.columns, schema)
        exact = bool(twins_in(name for name, _ in selection.columns))
        return TableReader(selection.files, schema, exact=exact)

    def _selected(self) -> Selection:
        # Spark passes this object from the schema to the reader, so both use the same revision.
        if self._selection is None:
            self._selection = select(self.options)
        return self._selection


class TableReader(DataSourceReader):
    """Reads the files of a datasource at one revision."""

    def __init__(self, files: Sequence[TableFile], schema: StructType, *, exact: bool) -> None:
        self._files = files
        self._exact = exact
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each file."""
        return [TablePartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        # If there are no files, Spark passes in an empty partition.
        if not isinstance(partition, TablePartition):
            return iter(())
        return read_file(partition.file, self._schema, exact=self._exact)


def _check_columns(columns: Columns, schema: StructType) -> None:
    known = ColumnNames(dict(columns))
    for field in schema.fields:
        type_ = known.get(field.name)
        asked = field.dataType.simpleString()
        if type_ is None:
            names = ", ".join(name for name, _ in columns)
            raise InvalidRequest(f"there is no column {field.name!r}: there are {names}")
        if wider(type_, asked) != asked:
            raise InvalidRequest(
                f"column {field.name!r} is {type_}: read it as that, and cast it to {asked}"
            )
