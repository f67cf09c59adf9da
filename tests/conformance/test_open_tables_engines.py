"""DuckDB over the Iceberg catalog, and deltalake over Delta tables, after each of many changes.

A sample of the suite `open-tables`; `tests/services/test_open_tables.py` has the engines that need
no environment of their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.services.api.iceberg import catalog_tables
from penstock.spark.tables.visible_files import VisibleFiles
from penstock.testing.clock import VirtualClock
from tests.conformance.clients_kit import command
from tests.harness.metadata_kit import open_metadata
from tests.kits.open_tables_kit import ChangingTables
from tests.kits.open_tables_readers_kit import Comparison, difference, served_catalog
from tests.soak.open_tables_suite import DeltaLake, DuckDb, OtherEngines

pytestmark = pytest.mark.conformance

STEPS = 100
FIRST_READS = 40
SEED = 8  # which makes every kind of step


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[OtherEngines]:
    command("engines")  # which skips the test if they are not installed
    with OtherEngines(tmp_path) as running:
        yield running


def test_engines_agree_after_each_step(tmp_path: Path, engines: OtherEngines) -> None:
    clock = VirtualClock()
    with open_metadata(tmp_path, clock) as store:
        tables = ChangingTables(tmp_path, store, SEED)
        source = VisibleFiles(store, str(tables.deep_storage), clock)
        delta = DeltaLake(engines, source, tables.deep_storage, clock)
        comparison = Comparison(
            *(tables, store, clock, tmp_path),
            more=lambda catalog: (DuckDb(engines, catalog), delta),
        )
        assert list(comparison.failures(range(STEPS))) == []
    equal = [comparison.counts[f"equal: {one.name}"] for one in (DuckDb, DeltaLake)]
    assert min(equal) > STEPS / 2, comparison.counts


def test_the_first_read_by_duckdb_after_a_change_has_its_rows(
    tmp_path: Path, engines: OtherEngines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB ignores snapshots of times after the start of its transaction, which is real time.

    The catalog writes a snapshot when DuckDB loads the table, which is later.
    """
    # However slow this machine is, a load builds the version of what is visible.
    monkeypatch.setattr(catalog_tables, "REST_S", 0.0)
    monkeypatch.setattr(catalog_tables, "SLOW_S", math.inf)
    clock = SystemClock()
    read = 0
    with open_metadata(tmp_path, clock) as store:
        tables = ChangingTables(tmp_path, store, SEED, announces=False)
        source = VisibleFiles(store, str(tables.deep_storage), clock)
        with served_catalog(source, store, tables.deep_storage, clock) as address:
            duckdb = DuckDb(engines, address)
            for number in range(FIRST_READS):
                name, step = tables.step()
                found = difference(duckdb, tables, name)
                if not found.startswith("skipped: "):
                    assert not found, f"step {number}, {step} of {name}: {found}"
                    read += 1
    assert read > FIRST_READS / 2
    assert {"publish", "append", "mark_unused", "kill"} <= tables.counts.keys()
