"""The first read by DuckDB after each change of a datasource, with times of a real clock.

DuckDB reads no snapshot of a time after the start of its transaction, and the catalog writes a
snapshot when DuckDB loads the table, which is later.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.services.api.iceberg import catalog_tables
from penstock.spark.tables.visible_files import VisibleFiles
from tests.conformance.clients_kit import command
from tests.harness.metadata_kit import open_metadata
from tests.kits.open_tables_kit import ChangingTables
from tests.kits.open_tables_readers_kit import difference, served_catalog
from tests.soak.open_tables_suite import DuckDb, OtherEngines

pytestmark = pytest.mark.conformance

STEPS = 40
SEED = 3


def test_the_first_read_after_a_change_has_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("engines")  # which skips the test if they are not installed
    # However slow this machine is, a load builds the version of what is visible.
    monkeypatch.setattr(catalog_tables, "REST_S", 0.0)
    monkeypatch.setattr(catalog_tables, "SLOW_S", math.inf)
    clock = SystemClock()
    read = 0
    with open_metadata(tmp_path, clock) as store, OtherEngines(tmp_path) as engines:
        tables = ChangingTables(tmp_path, store, SEED, announces=False)
        source = VisibleFiles(store, str(tables.deep_storage), clock)
        with served_catalog(source, store, tables.deep_storage, clock) as address:
            duckdb = DuckDb(engines, address)
            for number in range(STEPS):
                name, step = tables.step()
                found = difference(duckdb, tables, name)
                if not found.startswith("skipped: "):
                    assert not found, f"step {number}, {step} of {name}: {found}"
                    read += 1
    assert read > STEPS / 2
    assert {"publish", "append", "mark_unused", "kill"} <= tables.counts.keys()
