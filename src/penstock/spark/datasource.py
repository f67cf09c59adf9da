"""The Spark data source `penstock`: the rows of a datasource.

Owns the options and Spark's data source API; which files are visible and how they are read is the
affair of `penstock.spark.tables`. Its classes travel to Spark's Python workers by name, so Penstock
must be installed there, and the files must be reachable under their paths.

Options:

    datasource      its name
    url, token      the router's HTTP address, and its bearer token; or
    dataDir         the data folder of a Penstock on this host; or
    metadata, deepStorage   addresses of the metadata store and of the deep storage
    includeRunning  true: also rows that running tasks show and did not publish yet

A query sees one revision of the metadata, the one when it was planned. Without a schema the rows
have the columns of all files together; `.schema(…)` picks some of them, which is worth doing, as
Spark does not tell a Python data source which columns a query needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core.errors import InvalidRequest, NotFound
from penstock.spark.schematext import ddl
from penstock.spark.tables.columns import union_columns, wider
from penstock.spark.tables.model import TableFile
from penstock.spark.tables.reading import Condition, may_hold, read_file
from penstock.spark.tables.remote import ask_router

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "penstock"

_COMPARISONS: Final[Mapping[type[Filter], str]] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


class TablePartition(InputPartition):
    """The file that one Spark task reads."""

    def __init__(self, file: TableFile) -> None:
        super().__init__(None)
        self.file = file


class PenstockSource(DataSource):
    """`spark.read.format("penstock")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._files: tuple[TableFile, ...] | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of all visible files together."""
        return ddl(union_columns(self._visible()))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query."""
        return TableReader(self._visible(), schema)

    def _visible(self) -> tuple[TableFile, ...]:
        # Spark carries this object from the schema to the reader: both see the same revision.
        if self._files is None:
            self._files = visible_files(self.options)
        return self._files


class TableReader(DataSourceReader):
    """Reads the files that a datasource had at one revision."""

    def __init__(self, files: Sequence[TableFile], schema: StructType) -> None:
        _check_columns(files, schema)
        self._files = files
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._conditions: list[Condition] = []

    def pushFilters(self, filters: list[Filter]) -> Sequence[Filter]:  # noqa: N802
        """Remember what helps to read less. Spark tests all filters again."""
        self._conditions = [found for found in map(_condition, filters) if found is not None]
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files whose time the filters leave."""
        return [TablePartition(file) for file in self._files if may_hold(file, self._conditions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        # Spark stands in an empty partition when there are no files at all.
        if not isinstance(partition, TablePartition):
            return iter(())
        return read_file(partition.file, self._schema, self._conditions)


def visible_files(options: Mapping[str, str]) -> tuple[TableFile, ...]:
    """Return the files that the options name, at least one.

    Raises:
        InvalidRequest: The options do not say what to read.
        NotFound: The datasource has no data.
        Unavailable: The router or the metadata store does not answer.
    """
    name = options.get("datasource")
    if not name:
        raise InvalidRequest(f'{FORMAT}: set option("datasource", …) to the name of a datasource')
    running = options.get("includeRunning", "false").strip().lower()
    if running not in {"true", "false"}:
        raise InvalidRequest(f"option includeRunning must be true or false, not {running!r}")
    url = options.get("url")
    files = ask_router(url, name, options.get("token")) if url else _from_metadata(options, name)
    chosen = tuple(file for file in files if running == "true" or not file.announced)
    if not chosen:
        raise NotFound(
            f'datasource "{name}" has no published segment yet:'
            ' set option("includeRunning", "true") to read what running tasks show'
        )
    return chosen


def _from_metadata(options: Mapping[str, str], name: str) -> tuple[TableFile, ...]:
    # Imported here: with a router the SQL drivers need not be installed.
    from penstock.spark.tables.metadata import MetadataTables  # noqa: PLC0415
    from penstock.storage.metadata import MetadataStore  # noqa: PLC0415

    address, deep_storage = _addresses(options)
    with MetadataStore.open(address) as store:
        return MetadataTables(store, deep_storage).tables().of(name)


def _addresses(options: Mapping[str, str]) -> tuple[str, str]:
    folder = options.get("dataDir")
    metadata = options.get("metadata")
    deep_storage = options.get("deepStorage")
    if folder:
        base = Path(folder)
        if not (base / "metadata.db").is_file() and not metadata:
            raise InvalidRequest(
                f"{folder} has no metadata.db: name Penstock's data folder with an absolute path,"
                ' or set option("url", …) to its router'
            )
        metadata = metadata or f"sqlite:///{base / 'metadata.db'}"
        deep_storage = deep_storage or str(base / "segments")
    if not metadata or not deep_storage:
        raise InvalidRequest(
            f'{FORMAT}: set option("url", "http://127.0.0.1:8888"), or option("dataDir", …),'
            ' or option("metadata", …) and option("deepStorage", …)'
        )
    return metadata, deep_storage


def _check_columns(files: Sequence[TableFile], schema: StructType) -> None:
    known = {name.lower(): type_ for name, type_ in union_columns(files)}
    for field in schema.fields:
        type_ = known.get(field.name.lower())
        asked = field.dataType.simpleString()
        if type_ is None:
            raise InvalidRequest(f"there is no column {field.name!r}: there are {', '.join(known)}")
        if wider(type_, asked) != asked:
            raise InvalidRequest(
                f"column {field.name!r} is {type_}: read it as that, and cast it to {asked}"
            )


def _condition(node: Filter) -> Condition | None:
    comparison = _COMPARISONS.get(type(node))
    attribute: tuple[str, ...] = getattr(node, "attribute", ())
    value: object = getattr(node, "value", None)
    # Not of float and double: to Spark, NaN is the largest number.
    if comparison is None or len(attribute) != 1 or not isinstance(value, str | int | datetime):
        return None
    return Condition(attribute[0], comparison, value)
