"""Reads tables with engines of others; runs in their environment (`scripts/setup engines`).

One line of JSON asks, one answers. A request names the engine, the table, a condition in SQL or an
empty text, and a file into which the rows are written as Parquet.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

EXTENSIONS = ("avro", "httpfs", "iceberg")


def connection() -> duckdb.DuckDBPyConnection:
    """Return a DuckDB with the extensions of the environment."""
    made = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in EXTENSIONS:
        spec = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert spec is not None
        assert spec.origin is not None
        (file,) = Path(spec.origin).parent.rglob("*.duckdb_extension")
        made.execute(f"LOAD '{file}'")
    made.execute("SET TimeZone = 'UTC'")
    return made


DUCK = connection()


def read_with_duckdb(asked: Mapping[str, str]) -> bool:
    """Write the rows of a table of an Iceberg catalog; return whether there is one."""
    name = '"' + asked["table"].replace('"', '""') + '"'
    # A catalog that stays attached would remember the metadata of tables.
    DUCK.execute(
        "ATTACH OR REPLACE 'penstock' AS catalog"
        f" (TYPE iceberg, ENDPOINT '{asked['catalog']}', AUTHORIZATION_TYPE 'none')"
    )
    where = f" WHERE {asked['where']}" if asked["where"] else ""
    query = f"SELECT * FROM catalog.penstock.{name}{where}"
    try:
        DUCK.execute(f"COPY ({query}) TO '{asked['out']}' (FORMAT parquet)")
    except duckdb.CatalogException as error:
        if "does not exist" in str(error):
            return False
        raise
    finally:
        DUCK.execute("DETACH catalog")
    return True


def read_with_deltalake(asked: Mapping[str, str]) -> bool:
    """Write the rows of a Delta table; return whether there is one."""
    # Only this environment has it, so the check of types does not know it.
    deltalake = importlib.import_module("deltalake")
    if not deltalake.DeltaTable.is_deltatable(asked["table"]):
        return False
    table = deltalake.DeltaTable(asked["table"])
    rows = table.to_pyarrow_table()
    if asked["where"]:
        rows = DUCK.execute(f"SELECT * FROM rows WHERE {asked['where']}").to_arrow_table()
    pq.write_table(rows, asked["out"])
    return True


ENGINES: Mapping[str, Callable[[Mapping[str, str]], bool]] = {
    "duckdb": read_with_duckdb,
    "deltalake": read_with_deltalake,
}


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"found": ENGINES[asked["engine"]](asked), "error": ""}
        except Exception as error:  # noqa: BLE001 - the soak reports what an engine raises
            answer = {"found": False, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
