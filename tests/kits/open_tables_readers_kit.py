"""Engines that read the datasources of `open_tables_kit`, and their comparison.

To add an engine, write a class with the form of `Reader` and put it into the list in
`Comparison.failures`, or into that of the soak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table import StaticTable

from penstock.core.clock import Clock
from penstock.core.errors import Unavailable
from penstock.core.instants import format_time
from penstock.core.intervals import Interval
from penstock.core.sql.checked_query import checked_query
from penstock.fastpath.compiled_query import NotCompiled
from penstock.fastpath.compiler import compile_query
from penstock.fastpath.engine_pool import typed_rows
from penstock.fastpath.engine_process import Engine
from penstock.fastpath.engine_protocol import EngineQuery, EngineSettings
from penstock.fastpath.snapshot_relations import SnapshotRelations, answer_schema, engine_type
from penstock.services.api.iceberg.catalog_commits import CatalogCommits
from penstock.services.api.iceberg.catalog_routes import CatalogRoutes
from penstock.services.api.iceberg.catalog_tables import CatalogTables
from penstock.services.json_client import JsonClient
from penstock.spark.ddl import quoted
from penstock.spark.tables import TableSource
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.storage.metadata import MetadataStore
from penstock.testing.clock import VirtualClock
from tests.kits.open_tables_kit import ChangingTables
from tests.kits.open_tables_rows_kit import answer_of, is_within, rows_of
from tests.spark.servers_kit import Served

ROUTER_STEPS: Final = 20
"""Steps of a router."""
ALL_STEPS: Final = 7
"""After this many steps all datasources are read, otherwise the changed one."""
_MEMORY_BYTES: Final = 256 << 20
_ROWS_MAX: Final = 1_000_000


class Reader(Protocol):
    """An engine.

    Attributes:
        name: Its name in failures.
        has_announced: Whether it reads the rows of running tasks.
    """

    name: str
    has_announced: bool

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        ...

    def read(self, datasource: str, time: Interval | None) -> pa.Table | str | None:
        """Return all rows, or those of some time.

        Returns:
            None if there is no such table; a text if the engine does not read such a table.
        """
        ...


def condition(time: Interval) -> str:
    """Return the condition of a time in SQL."""
    start, end = (timestamp_text(at_ms) for at_ms in (time.start_ms, time.end_ms))
    return f"__time >= TIMESTAMP '{start}' AND __time < TIMESTAMP '{end}'"


def difference(
    reader: Reader, tables: ChangingTables, datasource: str, time: Interval | None = None
) -> str:
    """Return how an engine's answer differs from the model's; `skipped: …` if it has none."""
    found = reader.read(datasource, time)
    if isinstance(found, str):
        return f"skipped: {found}"
    if (found is None) != (datasource not in tables.names()):
        return f"the table exists: {found is not None}, which the model denies"
    if found is None:
        return ""
    rows = rows_of(found, is_exact=tables.is_exact(datasource))
    names = found.column_names
    if not tables.is_exact(datasource):
        names = [name.lower() for name in names]
    columns = reader.columns(tables, datasource)
    wanted = tables.visible_rows(datasource, has_announced=reader.has_announced)
    if time is not None:
        wanted = [row for row in wanted if is_within(row, time)]
    return answer_of(rows, names).difference(answer_of(wanted, columns))


class PlannedByServer:
    """PyIceberg, whose plans the catalog makes."""

    name = "PyIceberg by plans of the catalog"
    has_announced = True

    def __init__(self, catalog: RestCatalog) -> None:
        self._catalog = catalog

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        return tables.iceberg_columns(datasource)

    def read(self, datasource: str, time: Interval | None) -> pa.Table | None:
        """Return the rows."""
        try:
            table = self._catalog.load_table(("penstock", datasource))
        except NoSuchTableError:
            return None
        return table.scan(row_filter=_row_filter(time)).to_arrow()


class PlannedByClient:
    """PyIceberg, which reads the snapshot and its manifests itself."""

    name = "PyIceberg by its own plans"
    has_announced = False

    def __init__(self, catalog: RestCatalog) -> None:
        self._catalog = catalog

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        return tables.iceberg_columns(datasource)

    def read(self, datasource: str, time: Interval | None) -> pa.Table | None:
        """Return the rows."""
        try:
            table = self._catalog.load_table(("penstock", datasource))
        except NoSuchTableError:
            return None
        itself = StaticTable.from_metadata(table.metadata_location)
        return itself.scan(row_filter=_row_filter(time)).to_arrow()


def _row_filter(time: Interval | None) -> str | BooleanExpression:
    if time is None:
        return AlwaysTrue()
    start, end = (timestamp_text(at_ms) for at_ms in (time.start_ms, time.end_ms))
    return f"__time >= '{start}' and __time < '{end}'"


def timestamp_text(at_ms: int) -> str:
    """Return a time as engines read it."""
    return format_time(at_ms).replace("Z", "+00:00")


class FastSql:
    """Penstock's SQL, answered by the embedded engine.

    It does not answer statements about some names and types: those columns are left out.
    """

    name = "SQL"
    has_announced = True

    def __init__(self, source: TableSource, folders: Sequence[Path]) -> None:
        self._source = source
        texts = tuple(str(folder) for folder in folders)
        self._engine = Engine(EngineSettings(texts, _MEMORY_BYTES, _MEMORY_BYTES, 1))
        self._relations = SnapshotRelations()

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        return tables.sql_columns(datasource)

    def read(self, datasource: str, time: Interval | None) -> pa.Table | str | None:
        """Return the rows."""
        files = self._source.tables().files.get(datasource, ())
        if not files:
            return None
        columns = union_columns(files)
        if any(engine_type(type_) is None for _, type_ in columns):
            return "type of a column"
        names = ", ".join(quoted(name) for name, _ in columns)
        where = "" if time is None else f" WHERE {condition(time)}"
        checked = checked_query(f"SELECT {names} FROM {quoted(datasource)}{where}")
        try:
            compiled = compile_query(checked.root, datasource, columns)
            token, relation = self._relations.of(compiled, files)
            schema = answer_schema(compiled.columns)
        except NotCompiled as error:
            return error.reason
        query = EngineQuery(1, token, compiled.sql, compiled.parameters, _ROWS_MAX, relation)
        answer = self._engine.answer(query)
        if answer.reason:
            return answer.reason
        return typed_rows(pa.ipc.open_stream(answer.content).read_all(), schema)


def _no_overlord() -> JsonClient:
    raise Unavailable("nothing is appended here")


@contextmanager
def served_catalog(
    source: TableSource, store: MetadataStore, deep_storage: Path, clock: Clock
) -> Iterator[str]:
    """Give the address of a catalog of its own."""
    tables = CatalogTables(source, store, str(deep_storage), clock)
    tables.start()
    commits = CatalogCommits(tables, store, str(deep_storage), _no_overlord, clock)
    with Served(CatalogRoutes(tables, commits).routes()) as served:
        yield f"{served.url}/iceberg"
    tables.stop()


@dataclass
class Comparison:
    """All engines over datasources that change.

    Attributes:
        tables: The datasources.
        store: Their metadata store.
        clock: The clock of the catalog.
        more: Engines beside those of this process, from the address of a catalog.
    """

    tables: ChangingTables
    store: MetadataStore
    clock: VirtualClock
    folder: Path
    more: Callable[[str], Sequence[Reader]] = lambda _: ()
    counts: Counter[str] = field(default_factory=Counter)

    def failures(self, steps: range) -> Iterator[str]:
        """Yield how an engine differs after each of some steps, or instead of one, nothing."""
        source = VisibleFiles(self.store, str(self.tables.deep_storage), self.clock)
        sql = FastSql(source, (self.folder, self.tables.deep_storage))
        for first in range(steps.start, steps.stop, ROUTER_STEPS):
            # A router that starts has nothing in memory of the tables.
            catalog = served_catalog(source, self.store, self.tables.deep_storage, self.clock)
            with catalog as address:
                client = RestCatalog("penstock", uri=address)
                readers: list[Reader] = [PlannedByServer(client), PlannedByClient(client), sql]
                readers += self.more(address)
                for number in range(first, min(first + ROUTER_STEPS, steps.stop)):
                    yield from self._step(number, readers)

    def _step(self, number: int, readers: Sequence[Reader]) -> Iterator[str]:
        changed, step = self.tables.step()
        # Builds, files that no snapshot needs, and snapshots that expire depend on the time.
        self.clock.advance((1, 1, 1, 700, 4_000)[number % 5])
        reads: list[tuple[str, Interval | None]] = [(changed, None)]
        if number % 2:
            reads.append((changed, self.tables.some_time(changed)))
        if number % ALL_STEPS == 0:
            reads += [(name, None) for name in self.tables.kinds if name != changed]
        for name, time in reads:
            for reader in readers:
                found = difference(reader, self.tables, name, time)
                if found.startswith("skipped: "):
                    self.counts[f"{reader.name} {found}"] += 1
                elif found:
                    which = name if time is None else f"{name}, {time}"
                    yield f"step {number}, {step} of {changed}: {reader.name}, {which}: {found}"
                else:
                    self.counts[f"equal: {reader.name}"] += 1
