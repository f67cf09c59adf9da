"""Engines agree on the rows of datasources after each of many steps that change them."""

from __future__ import annotations

from pathlib import Path

from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata
from tests.kits.open_tables_kit import ChangingTables
from tests.kits.open_tables_readers_kit import Comparison

STEPS = 100
SEED = 8  # which makes every kind of step
KINDS_OF_STEPS = 16


def test_engines_agree_after_each_step(tmp_path: Path) -> None:
    clock = VirtualClock()
    with open_metadata(tmp_path, clock) as store:
        # Signs that mean something in a URL.
        deep_storage = tmp_path / "deep 100% #é"
        tables = ChangingTables(tmp_path, store, SEED, deep_storage=deep_storage)
        comparison = Comparison(tables, store, clock, tmp_path)
        assert list(comparison.failures(range(STEPS))) == []
    equal = {key: count for key, count in comparison.counts.items() if key.startswith("equal: ")}
    assert min(equal.values()) > STEPS / 2, comparison.counts
    assert len(tables.counts) == KINDS_OF_STEPS, tables.counts
