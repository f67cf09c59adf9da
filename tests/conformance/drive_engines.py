"""Drives engines that read tables: delta-rs, and DuckDB with its extensions for Delta and Iceberg.

The extensions come from packages, as nothing is downloaded here.
"""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from tests.conformance.lines_kit import serve

EXTENSIONS = ("avro", "httpfs", "iceberg", "delta")


def connection() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB with the extensions of the environment."""
    made = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in EXTENSIONS:
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.origin is not None
        (file,) = Path(spec.origin).parent.rglob("*.duckdb_extension")
        made.load_extension(str(file))
    made.execute("SET TimeZone = 'UTC'")
    return made


class Driver:
    def __init__(self) -> None:
        self._duckdb = connection()

    async def deltalake(self, name: str, columns: list[str], version: int | None = None) -> Any:
        """Return the rows of a Delta table, with times in microseconds since 1970."""
        table = DeltaTable(name, version=version)
        cells = ["arrow_cast(__time, 'Int64') AS __time", *columns]
        sql = f"SELECT {', '.join(cells)} FROM rows"
        found = QueryBuilder().register("rows", table).execute(sql).read_all()
        return [list(row.values()) for row in found.to_struct_array().to_pylist()]

    async def duckdb(self, name: str, columns: list[str]) -> Any:
        """Return the rows of a Delta table, with times in microseconds since 1970."""
        cells = ["epoch_us(__time)", *columns]
        found = self._duckdb.execute(f"SELECT {', '.join(cells)} FROM delta_scan(?)", [name])
        return [list(row) for row in found.fetchall()]

    async def newest(self, name: str) -> Any:
        """Return the newest time, which engines may take from the statistics of files."""
        found = QueryBuilder().register("rows", DeltaTable(name))
        sql = "SELECT arrow_cast(max(__time), 'Int64') AS newest FROM rows"
        return found.execute(sql).read_all().to_struct_array().to_pylist()[0]["newest"]

    async def version(self, name: str) -> int:
        return DeltaTable(name).version()

    async def change(self, name: str, how: str) -> Any:
        """Try to change a table."""
        table = DeltaTable(name)
        if how == "delete":
            return table.delete("added = 1")
        if how == "optimize":
            return table.optimize.compact()
        return table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    async def statements(self, name: str) -> Any:
        """Carry out the statements of a text in DuckDB, and return the rows of the last one."""
        cursor = connection()
        with cursor:
            for statement in cursor.extract_statements(name):
                found = cursor.execute(statement)
            return [list(row) for row in found.fetchall()]

    async def write_iceberg(self, name: str, catalog: str, where: str, out: str) -> bool:
        """Write the rows of a table of an Iceberg catalog; return whether there is one."""
        quoted = '"' + name.replace('"', '""') + '"'
        # A catalog that stays attached would remember the metadata of tables.
        self._duckdb.execute(
            "ATTACH OR REPLACE 'penstock' AS catalog"
            f" (TYPE iceberg, ENDPOINT '{catalog}', AUTHORIZATION_TYPE 'none')"
        )
        condition = f" WHERE {where}" if where else ""
        query = f"SELECT * FROM catalog.penstock.{quoted}{condition}"
        try:
            # A dictionary of DuckDB has one entry for 0.0 and -0.0.
            options = "FORMAT parquet, DICTIONARY_SIZE_LIMIT 0"
            self._duckdb.execute(f"COPY ({query}) TO '{out}' ({options})")
        except duckdb.CatalogException as error:
            if "does not exist" in str(error):
                return False
            raise
        finally:
            self._duckdb.execute("DETACH catalog")
        return True

    async def write_delta(self, name: str, where: str, out: str) -> bool:
        """Write the rows of a Delta table; return whether there is one."""
        if not DeltaTable.is_deltatable(name):
            return False
        rows = DeltaTable(name).to_pyarrow_table()
        if where:
            rows = self._duckdb.execute(f"SELECT * FROM rows WHERE {where}").to_arrow_table()
        pq.write_table(rows, out)
        return True


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
