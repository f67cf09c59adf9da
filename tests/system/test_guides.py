"""The tour and the guides to one Penstock, typed in order at a running one, with their kill -9."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving_kit import serving
from walking_kit import FLOW_GUIDE, Walk, first_flow, in_a_process, steps_of

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


def test_the_tour(served: Served, tmp_path: Path) -> None:
    walk = Walk(tmp_path, served.variables, TOUR, run=in_a_process)
    steps = steps_of("tour.md")
    assert len(steps) > 8
    for step in steps:
        walk.type(step.command, step.shown)


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
