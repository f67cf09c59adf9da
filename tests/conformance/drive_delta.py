"""Drives two readers of Delta tables: delta-rs, and DuckDB with its extension."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import duckdb
from deltalake import DeltaTable, QueryBuilder

from tests.conformance.lines_kit import serve


class Driver:
    def __init__(self) -> None:
        self._duckdb = duckdb.connect(config={"allow_unsigned_extensions": "true"})
        spec = importlib.util.find_spec("duckdb_extension_delta")
        assert spec is not None
        assert spec.origin is not None
        (extension,) = Path(spec.origin).parent.rglob("*.duckdb_extension")
        self._duckdb.load_extension(str(extension))

    async def deltalake(self, name: str, columns: list[str], version: int | None = None) -> Any:
        """Return the rows of a table, with times in microseconds since 1970."""
        table = DeltaTable(name, version=version)
        cells = ["arrow_cast(__time, 'Int64') AS __time", *columns]
        sql = f"SELECT {', '.join(cells)} FROM rows"
        found = QueryBuilder().register("rows", table).execute(sql).read_all()
        return [list(row.values()) for row in found.to_struct_array().to_pylist()]

    async def duckdb(self, name: str, columns: list[str]) -> Any:
        """Return the rows of a table, with times in microseconds since 1970."""
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


if __name__ == "__main__":
    asyncio.run(serve(Driver()))
