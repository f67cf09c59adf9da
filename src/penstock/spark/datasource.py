"""Spark data source `penstock`: reads the rows of a datasource, and writes rows into one.

`PenstockSource` owns Spark's data source API. `select` resolves the options to the visible
files and does not use Spark; `ask_router` requests them from a router. Reading the files
belongs to `penstock.spark.tables`. The options:

    datasource      its name
    url, token      the router's HTTP address, and its bearer token; and
    tlsCa           file of the authorities of its certificate, if it is https; or
    dataDir         the data folder of a Penstock on this host; or
    metadata, deepStorage   addresses of the metadata store and of the deep storage
    interval        only rows of this time, such as 2013-01-01/2013-02-01
    includeRunning  true: also unpublished rows that running tasks announce; not for streams

Options of streams (`datasource_stream`):

    replaced        fail (default), skip or changes: where rows went, or came back
    maxFilesPerTrigger, maxBytesPerTrigger   limits of a micro-batch
    startingRevision  read the changes after it, and not the rows of now
    cursor          name under which the router knows how far the query is behind

Spark's Python workers import these classes by name, so Penstock must be installed there, and
the files must have the same paths. Without a schema, rows have the columns of all files;
`.schema(...)` selects some of them and saves time, because Spark does not tell a Python data
source which columns a query needs.

Filters are not pushed down (`pushFilters`): Spark 4.3 caches the plan of a filtered read and
reuses it for other uses of the same DataFrame or view, which then lack rows. The option
`interval` excludes files instead.

`spark.sink` owns writing, and its options.

Invariant: the schema and the rows of a read come from one revision of the metadata.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.core.column_case import ColumnNames, case_variants_in
from penstock.core.errors import InvalidRequest, NotFound
from penstock.core.intervals import Interval
from penstock.spark.datasource_changes import ChangesPage, changes_after, files_at
from penstock.spark.datasource_stream import (
    CHANGE_COLUMNS,
    DatasourceStreamReader,
    Replaced,
    StreamOptions,
)
from penstock.spark.ddl import ddl
from penstock.spark.router_requests import RouterAddress
from penstock.spark.tables.parquet_reader import read_file
from penstock.spark.tables.table_columns import union_columns, wider
from penstock.spark.tables.table_files import Columns, TableFile
from penstock.storage.sqlite_urls import sqlite_url

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.segments.deep_storage import DeepStore
    from penstock.storage.metadata import MetadataStore


_OF_STREAMS: Final = (
    "replaced",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "startingRevision",
    "cursor",
)


def files_path(datasource: str) -> str:
    """Return the router's path for the files of a datasource."""
    return f"/penstock/v1/datasources/{quote(datasource, safe='')}/files"


def changes_path(datasource: str) -> str:
    """Return the router's path for the changes of the files of a datasource."""
    return f"/penstock/v1/datasources/{quote(datasource, safe='')}/changes"


def cursor_path(datasource: str, cursor: str) -> str:
    """Return the router's path for a cursor of a stream."""
    return f"/penstock/v1/datasources/{quote(datasource, safe='')}/cursors/{quote(cursor, safe='')}"


def ask_router(
    url: str,
    datasource: str,
    token: str | None = None,
    authorities: str | None = None,
    *,
    revision: int | None = None,
) -> tuple[TableFile, ...]:
    """Return the visible files of a datasource, including announced ones.

    Args:
        url: URL of the router, such as `http://127.0.0.1:8888`.
        datasource: Its name.
        token: Bearer token, if the router requires one.
        authorities: File of the authorities that sign the router's certificate, PEM.
        revision: Return the published files that were visible at this revision instead.

    Raises:
        InvalidRequest: The URL or the token is wrong, or the file cannot be used.
        NotFound: The datasource has no data.
        Unavailable: The router does not answer, or its answer has no files.
        PenstockError: Another error of the router.
    """
    query = "" if revision is None else f"?revision={revision}"
    router = RouterAddress(url, token, authorities)
    found = router.ask("GET", files_path(datasource) + query)
    try:
        return tuple(TableFile.from_json(file) for file in json.loads(found)["files"])
    except (ValueError, KeyError, TypeError):
        raise router.unexpected(found) from None


def ask_changes(
    options: Mapping[str, str], datasource: str, after: int | None, limit: int
) -> ChangesPage:
    """Return the changes of a datasource after a revision, from the router in the options.

    Without a revision, the page has only the current one. Raises as `ask_router`.
    """
    router = RouterAddress(options["url"], options.get("token"), options.get("tlsCa"))
    query = "" if after is None else f"&revision={after}"
    found = router.ask("GET", f"{changes_path(datasource)}?limit={limit}{query}")
    try:
        return ChangesPage.from_json(json.loads(found))
    except (ValueError, InvalidRequest):
        raise router.unexpected(found) from None


@dataclass(frozen=True, slots=True)
class ReaderSelection:
    """The selection: columns of the whole datasource, and its files, possibly none, clipped."""

    columns: Columns
    files: tuple[TableFile, ...]


def select(options: Mapping[str, str]) -> ReaderSelection:
    """Return the selection of the options, from one revision of the metadata.

    Raises:
        InvalidRequest: The options do not specify what to read.
        NotFound: The datasource has no data.
        Unavailable: The router or the metadata store does not answer.
    """
    name = _datasource_of(options)
    running = options.get("includeRunning", "false").strip().lower()
    if running not in {"true", "false"}:
        raise InvalidRequest(f"option includeRunning must be true or false, not {running!r}")
    interval = Interval.parse(options["interval"]) if options.get("interval") else None
    url = options.get("url")
    files = (
        ask_router(url, name, options.get("token"), options.get("tlsCa"))
        if url
        else _from_metadata(options, name)
    )
    chosen = tuple(file for file in files if running == "true" or not file.announced)
    if not chosen:
        raise NotFound(
            f'datasource "{name}" has no published segment yet:'
            ' set option("includeRunning", "true") to read rows of running tasks'
        )
    clipped = chosen if interval is None else tuple(_within(chosen, interval))
    return ReaderSelection(union_columns(chosen), clipped)


def _datasource_of(options: Mapping[str, str]) -> str:
    name = options.get("datasource")
    if not name:
        raise InvalidRequest('set option("datasource", …) to the name of a datasource')
    return name


def _within(files: Iterable[TableFile], interval: Interval) -> Iterator[TableFile]:
    """Yield the files that may have rows of the interval, clipped to it."""
    for file in files:
        part = (file.clip or file.interval).intersection(interval)
        if part is not None:
            yield file if part == file.interval else replace(file, clip=part)


def _from_metadata(options: Mapping[str, str], name: str) -> tuple[TableFile, ...]:
    # Imported here: with a router, the SQL drivers need not be installed.
    from penstock.spark.tables.visible_files import VisibleFiles  # noqa: PLC0415
    from penstock.storage.metadata import MetadataStore  # noqa: PLC0415

    address, deep_storage = _addresses(options)
    with MetadataStore.open(address) as store:
        return VisibleFiles(store, deep_storage).tables().of(name)


def _addresses(options: Mapping[str, str]) -> tuple[str, str]:
    folder = options.get("dataDir")
    metadata = options.get("metadata")
    deep_storage = options.get("deepStorage")
    if folder:
        base = Path(folder)
        if not (base / "metadata.db").is_file() and not metadata:
            raise InvalidRequest(
                f"{folder} has no metadata.db: use the absolute path of Penstock's data folder,"
                ' or set option("url", …) to its router'
            )
        metadata = metadata or sqlite_url(base / "metadata.db")
        deep_storage = deep_storage or str(base / "segments")
    if not metadata or not deep_storage:
        raise InvalidRequest(
            'set option("url", "http://127.0.0.1:8888"), or option("dataDir", …),'
            ' or option("metadata", …) and option("deepStorage", …)'
        )
    return metadata, deep_storage


class StreamSource:
    """Where a stream of a datasource finds files: the router or the metadata of the options.

    Args:
        options: Options of the data source.

    Raises:
        InvalidRequest: They do not specify what to read.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = options
        self._name = _datasource_of(options)
        if not options.get("url"):
            _addresses(options)
            if options.get("cursor"):
                raise InvalidRequest('option cursor needs option("url", …): the router stores it')

    def follow(self, cursor: str, revision: int, rows_left: int) -> None:
        """Set a cursor at the router.

        Raises:
            Conflict: The cursor belongs to another principal.
            PenstockError: As `ask_router`.
        """
        options = self._options
        router = RouterAddress(options["url"], options.get("token"), options.get("tlsCa"))
        body = json.dumps({"revision": revision, "rowsLeft": rows_left}).encode()
        router.ask("PUT", cursor_path(self._name, cursor), body)

    def now(self) -> int:
        """Return the current revision. Raises as `ask_router`."""
        if self._options.get("url"):
            return ask_changes(self._options, self._name, None, 1).revision
        with self._metadata() as (store, _):
            return store.revision()

    def files(self, revision: int) -> Sequence[TableFile]:
        """Return the published files that were visible at a revision. Raises as `ask_router`."""
        options = self._options
        if url := options.get("url"):
            token, authorities = options.get("token"), options.get("tlsCa")
            return ask_router(url, self._name, token, authorities, revision=revision)
        with self._metadata() as (store, deep_store):
            return files_at(store, deep_store, self._name, revision)

    def changes(self, after: int, limit: int) -> ChangesPage:
        """Return the changes after a revision. Raises as `ask_router`."""
        if self._options.get("url"):
            return ask_changes(self._options, self._name, after, limit)
        with self._metadata() as (store, deep_store):
            return changes_after(store, deep_store, self._name, after, limit)

    @contextlib.contextmanager
    def _metadata(self) -> Iterator[tuple[MetadataStore, DeepStore]]:
        # Imported here, as in `_from_metadata`.
        from penstock.segments.deep_storage import DeepStore  # noqa: PLC0415
        from penstock.storage.metadata import MetadataStore  # noqa: PLC0415

        address, deep_storage = _addresses(self._options)
        with MetadataStore.open(address) as store:
            yield store, DeepStore(deep_storage)


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
        self._selection: ReaderSelection | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name that `format` takes."""
        return FORMAT

    def schema(self) -> str:
        """Return the columns of the whole datasource."""
        return ddl((*self._selected().columns, *_change_columns(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a query."""
        if given := sorted(name for name in _OF_STREAMS if name in self.options):
            raise InvalidRequest(f"option {given[0]} is for streams: use spark.readStream")
        selection = self._selected()
        _check_columns(selection.columns, schema)
        exact = bool(case_variants_in(name for name, _ in selection.columns))
        return TableReader(selection.files, schema, exact=exact)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a streaming query."""

        def check() -> None:
            found = select(self.options)
            _check_columns((*found.columns, *_change_columns(self.options)), schema)

        return DatasourceStreamReader(
            StreamOptions.of(self.options), schema, StreamSource(self.options), check
        )

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame, from `df.write.format("penstock")`."""
        # Imported here: reads do without the models of specs, which take long to import.
        from penstock.spark.sink.write_plan import plan_write  # noqa: PLC0415
        from penstock.spark.sink.writers import TableWriter  # noqa: PLC0415

        plan = plan_write(self.options, schema, overwrite=overwrite, is_stream=False)
        return TableWriter(plan)

    def streamWriter(  # noqa: N802 - Spark's
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """Return the writer of a batch of a streaming query."""
        # Imported here, as in `writer`.
        from penstock.spark.sink.write_plan import plan_write  # noqa: PLC0415
        from penstock.spark.sink.writers import BatchWriter  # noqa: PLC0415

        plan = plan_write(self.options, schema, overwrite=overwrite, is_stream=True)
        return BatchWriter(plan)

    def _selected(self) -> ReaderSelection:
        # Spark passes this object from the schema to the reader, so both use the same revision.
        if self._selection is None:
            self._selection = select(self.options)
        return self._selection


def _change_columns(options: Mapping[str, str]) -> Columns:
    """Return the columns that a stream adds."""
    return CHANGE_COLUMNS if Replaced.of(options) is Replaced.CHANGES else ()


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
