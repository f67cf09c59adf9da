"""The suite `open-tables`: after each of many steps, engines of others and SQL read the same rows.

make soak ARGS="open-tables"

A case is a step of `tests/kits/open_tables_kit.py`; a block of 100 steps has tables of its own.
PyIceberg plans by itself and by the catalog; DuckDB reads with its extension for Iceberg, and
deltalake the Delta table; Spark answers SQL. `scripts/setup conformance` installs the engines of
others.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import pyarrow.parquet as pq

from penstock.core.clock import SystemClock
from penstock.core.column_case import case_variants_in
from penstock.core.errors import Conflict
from penstock.segments.delta.delta_files import DeltaFiles
from penstock.segments.delta.delta_table import DeltaTable
from penstock.segments.visible_rows import VisibleRows
from penstock.services.api.published_rows import published_files, visible_files
from penstock.spark.connect.spark_server import SparkServer, SparkServerOptions
from penstock.spark.connect.spark_sessions import SparkSessionOptions, SparkSessions
from penstock.spark.tables.table_columns import union_columns
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.spark.views import table
from penstock.testing.clock import VirtualClock
from tests.conformance.clients_kit import ENGINES, PYTHON, Client, Refused
from tests.harness.metadata_kit import open_metadata
from tests.kits.fast_comparison_kit import SETTINGS, WITHOUT_CODE
from tests.kits.open_tables_kit import ChangingTables
from tests.kits.open_tables_readers_kit import Comparison, condition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.core.clock import Clock
    from penstock.core.intervals import Interval
    from penstock.spark.tables import TableSource

STEPS: Final = 10_000
PATIENCE_S: Final = 600.0
# A message of DuckDB about a table whose columns differ in case alone.
_CASE_VARIANTS: Final = "already exists"


class OtherEngines:
    """The process of the engines of others."""

    def __init__(self, folder: Path) -> None:
        if not PYTHON.exists():
            raise SystemExit("the engines are not installed: scripts/setup conformance")
        self._out = folder / "rows.parquet"
        self._client = Client("engines", str(ENGINES), patience_s=PATIENCE_S)

    def __enter__(self) -> Self:
        self._client.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.__exit__()

    def read(self, how: str, name: str, time: Interval | None, **more: str) -> pa.Table | None:
        """Return the rows that an engine reads: `write_iceberg` DuckDB, `write_delta` deltalake.

        Raises:
            ReadError: The engine raised an exception.
        """
        where = "" if time is None else condition(time)
        try:
            found = self._client.ask(how, name, where=where, out=str(self._out), **more)
        except Refused as error:
            raise ReadError(str(error)) from error
        return pq.read_table(self._out, partitioning=None) if found else None


class ReadError(Exception):
    """An engine raised an exception."""


class DuckDb:
    """DuckDB with its extension for Iceberg, which reads snapshots."""

    name = "DuckDB"
    has_announced = False

    def __init__(self, engines: OtherEngines, catalog: str) -> None:
        self._engines = engines
        self._catalog = catalog

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        return tables.iceberg_columns(datasource)

    def read(self, datasource: str, time: Interval | None) -> pa.Table | str | None:
        """Return the rows."""
        try:
            return self._engines.read("write_iceberg", datasource, time, catalog=self._catalog)
        except ReadError as error:
            if _CASE_VARIANTS in str(error):
                return "case variants"
            raise


class DeltaLake:
    """The library deltalake over Delta tables, which get an entry before each read."""

    name = "deltalake"
    has_announced = False

    def __init__(
        self, engines: OtherEngines, source: TableSource, deep_storage: Path, clock: Clock
    ) -> None:
        self._engines = engines
        self._source = source
        self._deep_storage = str(deep_storage)
        self._clock = clock
        self._tables: dict[str, DeltaTable] = {}

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        return tables.delta_columns(datasource)

    def read(self, datasource: str, time: Interval | None) -> pa.Table | str | None:
        """Return the rows."""
        tables = self._source.tables()
        files = published_files(tables.files.get(datasource, ()))
        in_files = list(dict.fromkeys(file.columns for file in files))
        rows = VisibleRows(tables.revision, visible_files(files), union_columns(files), in_files)
        log_files = DeltaFiles(self._deep_storage, datasource)
        try:
            if (known := self._tables.get(datasource)) is not None:
                known.update(rows)
            elif files:
                # As a router that starts: the table may exist.
                made = DeltaTable(
                    *(datasource, log_files, datasource, self._source.revision, self._clock)
                )
                made.create(rows)
                self._tables[datasource] = made
        except Conflict:
            return "case variants"
        if known is None and not files:
            return "no segments"
        found = self._engines.read("write_delta", log_files.location, time)
        if not files and found is not None and not found.num_rows:
            return "no segments"  # the table stays, without rows
        return found


class SparkSql:
    """Penstock's SQL, answered by Spark."""

    name = "SQL by Spark"
    has_announced = True

    def __init__(self, session: SparkSession, source: TableSource) -> None:
        self._session = session
        self._source = source

    def columns(self, tables: ChangingTables, datasource: str) -> frozenset[str]:
        """Return the columns that it reads."""
        return tables.sql_columns(datasource)

    def read(self, datasource: str, time: Interval | None) -> pa.Table | None:
        """Return the rows."""
        files = self._source.tables().files.get(datasource, ())
        if not files:
            return None
        columns = union_columns(files)
        has_variants = bool(case_variants_in(name for name, _ in columns))
        self._session.conf.set("spark.sql.caseSensitive", str(has_variants).lower())
        rows = table(self._session, files, columns)
        return (rows if time is None else rows.where(condition(time))).toArrow()


class OpenTables:
    """Runs steps, and compares what the engines read.

    Attributes:
        total: Number of steps of the suite.
    """

    total = STEPS

    def __init__(self, folder: Path, session: SparkSession, engines: OtherEngines) -> None:
        self._folder = folder
        self._session = session
        self._engines = engines

    def __call__(self, seeds: range) -> tuple[list[str], dict[str, int]]:
        """Run steps; return failures and counts."""
        clock = VirtualClock()
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            deep_storage = folder / ("deep 100% #é" if seeds.start % 200 else "deep")
            with open_metadata(folder, clock) as store:
                tables = ChangingTables(folder, store, seeds.start, deep_storage=deep_storage)
                source = VisibleFiles(store, str(deep_storage), clock)
                spark = SparkSql(self._session, source)
                comparison = Comparison(
                    *(tables, store, clock, folder),
                    more=lambda catalog: (
                        DuckDb(self._engines, catalog),
                        DeltaLake(self._engines, source, deep_storage, clock),
                        spark,
                    ),
                )
                failures = list(comparison.failures(seeds))
        return failures, dict(sorted((comparison.counts + tables.counts).items()))


@contextmanager
def open_tables() -> Iterator[OpenTables]:
    """Give what runs steps."""
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
        folder = Path(name)
        options = SparkServerOptions(
            folder / "run", folder / "log", folder / "tmp", folder / "cache",
            master="local[2]", driver_memory="1g", token="secret",
            java_options=("-XX:TieredStopAtLevel=1",),
        )  # fmt: skip
        server = SparkServer(options, SystemClock(), dict(os.environ))
        with OtherEngines(folder) as engines:
            server.start()
            sessions = SparkSessions(SparkSessionOptions(server.wait_ready(240)))
            try:
                session = sessions.get()
                for key, value in {**SETTINGS, **WITHOUT_CODE}.items():
                    session.conf.set(key, value)
                session.conf.set("spark.sql.parquet.filterPushdown", "false")
                yield OpenTables(folder, session, engines)
            finally:
                sessions.close()
                server.stop()
