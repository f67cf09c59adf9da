"""The tour, and guides to streams, batches and retention, typed in order at a running Penstock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from serving import serving
from walking import ROOT, Walk, commands_of, write_files

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

# What a command's output comes to hold, where that is the point of the command.
TOUR = {
    "penstock topic stats clicks": r"\b2\b",
    "penstock supervisor status": r"(?i)running",
    "penstock sql": r"/docs.*\b1\b",
    "penstock segment list": r"2026-11-21[\s\S]*2026-11-22",
    "penstock topic peek clicks --max": r"/docs",
    "penstock topic peek clicks.dead-letter": r"not JSON",
}
STREAM = {
    "penstock sql 'SELECT shop": r"Basel +1 +400\nBern +2 +1650",
    "penstock supervisor status orders": r"(?i)running|suspended",
    "penstock topic peek orders.broken": r"yesterday|time",
    "penstock segment list orders": r"2026-11-20[\s\S]*2026-11-21",
    "penstock task list --datasource orders": r"(RUNNING[\s\S]*){2}",
    "penstock sql 'SELECT count(*) AS orders, min": r"4 +2026-11-20",
}

BATCH = {
    "penstock sql 'SELECT count(*) AS sales, sum(cents) AS cents FROM sales'": r"2 +1000399",
    "penstock segment list sales": r"2026-11-20[\s\S]*2026-11-21",
    "penstock sql 'SELECT year": r"2025 +3 +1030\n2026 +2 +1000399",
    "penstock sql 'SELECT date": r"2026-11-20 +1 +999\n2026-11-21 +2 +500",
    "penstock sql 'SELECT sum(sales)": r"\d +\d",
    "penstock sql --file returns.sql": r"succeeded",
    "penstock sql 'SELECT shop, cents, sold": r"Basel +300 +300\nBern +80 +380",
    "penstock task list --datasource sales": r"index_parallel",
}
COMPACTION = {
    "penstock segment list visits": r"visits_",
    # The one that was written anew and the one that stays, both under the new version.
    "penstock segment timeline visits": r"(2025-11-20T\S+ +2\d{3}-\S+ +[01] [\s\S]*){2}",
    "penstock sql 'SELECT count(*) AS visits, sum": r"3 +50",
    "penstock rule list": r"dropByInterval[\s\S]*loadForever",
    "penstock sql 'SELECT count(*) AS visits, min": r"2 +2025-11-20",
}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("guides") / "data"
    with serving(folder):
        yield folder


def walk(page: str, data_folder: Path, folder: Path, expected: Mapping[str, str]) -> None:
    names = write_files(page, folder)
    assert names
    for name in names:
        # Where the reader's files are is the one thing that a page cannot know.
        (folder / name).write_text((folder / name).read_text().replace("$FOLDER", str(folder)))
    typed = Walk(folder, {"PENSTOCK_DATA_DIR": str(data_folder)}, expected)
    commands = commands_of(page)
    assert len(commands) > 8
    for command in commands:
        typed.type(command)


def test_the_tour(data_folder: Path) -> None:
    walk = Walk(ROOT, {"PENSTOCK_DATA_DIR": str(data_folder)}, TOUR)
    commands = commands_of("tour.md")
    assert len(commands) > 8
    for command in commands:
        walk.type(command)


def test_streams(data_folder: Path, tmp_path: Path) -> None:
    walk("guides/stream-into-a-datasource.md", data_folder, tmp_path, STREAM)


def test_batches(data_folder: Path, tmp_path: Path) -> None:
    walk("guides/batch-and-backfill.md", data_folder, tmp_path, BATCH)


def test_compaction_and_retention(data_folder: Path, tmp_path: Path) -> None:
    walk("guides/compaction-and-retention.md", data_folder, tmp_path, COMPACTION)
