"""The tour's commands, typed in order at a running Penstock: each works and says what it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import serving
from walking import ROOT, Walk, commands_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

COMMANDS = commands_of("tour.md")

# What a command's output comes to hold, where that is the point of the command.
EXPECTED = {
    "penstock topic stats clicks": r"\b2\b",
    "penstock supervisor status": r"(?i)running",
    "penstock sql": r"/docs.*\b1\b",
    "penstock segment list": r"2026-11-21[\s\S]*2026-11-22",
    "penstock topic peek clicks --max": r"/docs",
    "penstock topic peek clicks.dead-letter": r"not JSON",
}


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tour") / "data"
    with serving(folder):
        yield folder


def test_the_tour_has_commands() -> None:
    assert len(COMMANDS) > 8


def test_the_tour_works_as_it_is_written(data_folder: Path) -> None:
    walk = Walk(ROOT, {"PENSTOCK_DATA_DIR": str(data_folder)}, EXPECTED)
    for command in COMMANDS:
        walk.type(command)
