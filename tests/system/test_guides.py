"""The tour and the guides to one Penstock, typed in order at a running one, with their kill -9."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving_kit import serving
from walking_kit import FLOW_GUIDE, Walk, first_flow, in_a_process, steps_of, write_files

from penstock.services.demo.demo_run import processes_of
from penstock.testing.server import LocalPenstock

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


FLOW = {
    "penstock flow validate": r"flow flights is valid",
    "penstock flow apply first.yaml": r"\+ processor Read[\s\S]*no component runs yet",
    "penstock flow queue list": r"Validate.valid → Enrich +(?:0|12) ",
    "penstock flow queue count 'Validate.valid": r"27004 +1\n24951 +1",
    "penstock flow queue count 'Validate.invalid": r"4 invalid records: record 28835: .*'late'",
    "penstock flow diff": r"type: 'LogAttribute' → 'SparkSQL'",
    "penstock flow apply examples": r"revision 2, 7 added",
    "penstock topic peek flights.rejected": r'"dep_delay":"late"(.*\n){4}',
    "penstock sql": r"United Air Lines Inc. +58665\nJetBlue Airways +54635\nExpressJet .* 54173",
    "penstock flow status Enrich": r"stopped",
    "penstock flow bulletins": r"no bulletins",
}


@dataclass(frozen=True)
class Served:
    """What runs: its data folder, and the variables that it and the reader have."""

    server: LocalPenstock
    data_folder: Path
    variables: Mapping[str, str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, shared_spark: str) -> Iterator[Served]:
    """One Penstock for all pages: each has topics and datasources of its own."""
    folder = tmp_path_factory.mktemp("guides")
    variables = {
        "PENSTOCK_DATA_DIR": str(folder / "data"),
        "FLIGHTS_FOLDER": str(folder / "flights-2013"),
    }
    with serving(folder / "data", variables | {"PENSTOCK_SPARK_CONNECT": shared_spark}) as server:
        yield Served(server, folder / "data", variables)


def walk(page: str, served: Served, folder: Path, expected: Mapping[str, str]) -> None:
    names = write_files(page, folder)
    assert names
    for name in names:
        # Where the reader's files are is the one thing that a page cannot know.
        (folder / name).write_text((folder / name).read_text().replace("$FOLDER", str(folder)))
    typed = Walk(folder, served.variables, expected)
    steps = steps_of(page)
    assert len(steps) > 8
    for step in steps:
        typed.type(step.command, step.shown)


def test_the_tour(served: Served, tmp_path: Path) -> None:
    walk = Walk(tmp_path, served.variables, TOUR, run=in_a_process)
    steps = steps_of("tour.md")
    assert len(steps) > 8
    for step in steps:
        walk.type(step.command, step.shown)


def test_streams(served: Served, tmp_path: Path) -> None:
    walk("guides/stream-into-a-datasource.md", served, tmp_path, STREAM)


def test_batches(served: Served, tmp_path: Path) -> None:
    walk("guides/batch-and-backfill.md", served, tmp_path, BATCH)


def test_compaction_and_retention(served: Served, tmp_path: Path) -> None:
    walk("guides/compaction-and-retention.md", served, tmp_path, COMPACTION)


def test_a_flow(served: Served, tmp_path: Path) -> None:
    (tmp_path / "first.yaml").write_text(first_flow())

    def kill() -> None:
        assert served.server.pid is not None
        [victim] = [one for one in processes_of(served.server.pid) if one.name == "flow"]
        os.kill(victim.pid, signal.SIGKILL)

    walk = Walk(tmp_path, served.variables, FLOW, {"kill": kill})
    steps = steps_of(FLOW_GUIDE)
    assert len(steps) > 15
    for step in steps:
        walk.type(step.command, step.shown)
    assert not list((served.data_folder / "tmp" / "flow").glob("*/*"))
