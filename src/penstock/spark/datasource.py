"""The Spark data source `penstock`: the rows of a datasource.

Owns the options and Spark's data source API; which files are visible and how they are read is the
affair of `penstock.spark.tables`. Its classes travel to Spark's Python workers by name, so Penstock
must be installed there, and the files must be reachable under their paths.

Options:

    datasource      its name
    url, token      the router's HTTP address, and its bearer token; or
    dataDir         the data folder of a Penstock on this host; or
    metadata, deepStorage   addresses of the metadata store and of the deep storage
    interval        only rows of this time, such as 2013-01-01/2013-02-01
    includeRunning  true: also rows that running tasks show and did not publish yet

Without a schema the rows have the columns of all files together; `.schema(…)` picks some of them,
which is worth doing, as Spark does not tell a Python data source which columns a query needs.

Conditions of a query are not looked at (`pushFilters`): Spark 4.3 keeps the plan of a read that saw
them, and gives it to every other use of the same DataFrame or view, which then lacks rows. The
option `interval` is what leaves files out.

Invariant: schema and rows of a read are of one revision of the metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.spark.schematext import ddl
from penstock.spark.tables.columns import union_columns, wider
from penstock.spark.tables.model import TableFile
from penstock.spark.tables.reading import read_file
from penstock.spark.tables.remote import ask_router

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
        files = self._visible()
        _check_columns(files, schema)
        interval = self.options.get("interval")
        if interval:
            files = tuple(within(files, Interval.parse(interval)))
        return TableReader(files, schema)

    def _visible(self) -> tuple[TableFile, ...]:
        # Spark carries this object from the schema to the reader: both see the same revision.
        if self._files is None:
            self._files = visible_files(self.options)
        return self._files


class TableReader(DataSourceReader):
    """Reads the files that a datasource has at one revision."""

    def __init__(self, files: Sequence[TableFile], schema: StructType) -> None:
        self._files = files
        self._schema = to_arrow_schema(schema, timezone="UTC")

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition for each file."""
        return [TablePartition(file) for file in self._files]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file."""
        # Spark stands in an empty partition when there are no files at all.
        if not isinstance(partition, TablePartition):
            return iter(())
        return read_file(partition.file, self._schema)


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


def within(files: Iterable[TableFile], interval: Interval) -> Iterator[TableFile]:
    """Yield the files that may have rows of the interval, clipped to it."""
    for file in files:
        part = (file.clip or file.interval).intersection(interval)
        if part is not None:
            yield file if part == file.interval else replace(file, clip=part)


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
