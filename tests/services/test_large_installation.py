"""The generated installation has the metadata that publishes would have written."""

from __future__ import annotations

from pathlib import Path

from penstock.storage.metadata import SegmentRow
from penstock.testing.clock import VirtualClock
from tests.harness.metadata_kit import open_metadata
from tests.services.large_installation_kit import publish_hours, repeat_hours

HOURS = 60
PERIOD = 20


def test_repeated_segments_are_those_that_publishes_write(tmp_path: Path) -> None:
    assert stored(tmp_path / "repeated", PERIOD) == stored(tmp_path / "published", HOURS)


def stored(folder: Path, published: int) -> list[SegmentRow]:
    """The segments of all hours, of which the first ones were published."""
    folder.mkdir()
    store = open_metadata(folder, VirtualClock())
    publish_hours(store, "d", published)
    store.close()
    repeat_hours(folder / "metadata.db", published, HOURS)
    store = open_metadata(folder, VirtualClock())
    rows = list(store.snapshot("d").segments)
    store.close()
    return rows
