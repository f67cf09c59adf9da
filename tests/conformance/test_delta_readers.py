"""Two readers of Delta tables against a whole Penstock, whose SQL must find the same rows."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock.segments.delta import table_log
from penstock.testing.server import LocalPenstock
from tests.conformance.analysts_kit import ROWS, ingestion
from tests.conformance.clients_kit import ENGINES, Client, Refused
from tests.segments.delta_kit import CLICKS, KINDS, DeltaWorld, change

pytestmark = pytest.mark.conformance

STEPS = 40
NAME = "delta_edits"
COLUMNS = ["country", "city", "added", "share"]
PATH = f"/penstock/v1/datasources/{NAME}/delta"
DAY_ROWS = ROWS[:4]


@pytest.fixture(scope="module")
def readers() -> Iterator[Client]:
    with Client("engines", str(ENGINES)) as running:
        yield running


def test_engines_read_the_visible_rows_after_any_steps(
    readers: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 3)
    rng = random.Random(23)
    world = DeltaWorld(tmp_path)
    world.add(0)
    world.create()
    table = str(tmp_path / CLICKS)
    versions = {}
    for _ in range(STEPS):
        change(world, rng.choice(KINDS), rng.randrange(400))
        world.build()
        versions[world.table.state.version] = world.expected()
        for reader in ("deltalake", "duckdb"):
            found = readers.ask(reader, table, columns=["ms"])
            assert sorted(ms for _, ms in found) == world.expected(), reader
    for version, expected in versions.items():
        found = readers.ask("deltalake", table, columns=["ms"], version=version)
        assert sorted(ms for _, ms in found) == expected, version


class Table:
    """The Delta table of a datasource, and its rows by SQL."""

    def __init__(self, penstock: LocalPenstock, readers: Client) -> None:
        self.penstock, self.readers = penstock, readers
        self.location = ""

    def status(self) -> Any:
        return self.penstock.api.get(PATH)

    def by_sql(self) -> list[list[Any]]:
        cells = ", ".join(("__time", *COLUMNS))
        rows = self.penstock.sql(f"SELECT {cells} FROM {NAME}")
        return ordered([[_us(str(row["__time"])), *list(row.values())[1:]] for row in rows])

    def check(self) -> list[list[Any]]:
        """Wait until the table has the rows of SQL, and compare what engines read."""
        expected = self.by_sql()
        assert self.penstock.wait_until(
            lambda: (
                self.status()["state"] == "current"
                and self.status()["table"]["rows"] == len(expected)
            ),
            "the Delta table does not follow",
        )
        for reader in ("deltalake", "duckdb"):
            found = self.readers.ask(reader, self.location, columns=COLUMNS)
            assert ordered(found) == expected, reader
        assert self.readers.ask("newest", self.location) == max(row[0] for row in expected)
        return expected


def ordered(rows: list[list[Any]]) -> list[list[Any]]:
    return sorted(rows, key=lambda row: [str(cell) for cell in row])


def _us(time: str) -> int:
    moment = datetime.fromisoformat(time)
    return round(moment.timestamp() * 1_000_000)


def spec(rows: tuple[dict[str, object], ...], *, append: bool = False, hour: str = "") -> Any:
    found = copy.deepcopy(ingestion(NAME, *rows))
    found["spec"]["ioConfig"]["appendToExisting"] = append
    if hour:
        granularity = {"segmentGranularity": "HOUR", "intervals": [hour], "rollup": False}
        found["spec"]["dataSchema"]["granularitySpec"] = granularity
    return found


@pytest.mark.system
def test_engines_read_the_rows_of_sql_after_each_change(
    plain_penstock: LocalPenstock, readers: Client
) -> None:
    table = Table(plain_penstock, readers)
    plain_penstock.run_task(spec(DAY_ROWS))
    answer: Any = plain_penstock.api.post(PATH)
    assert Path(answer["location"]).name == NAME
    table.location = answer["location"]
    first = table.check()
    more = {"time": "2026-11-20T08:15:00Z", "country": "DE", "city": "Köln", "added": 1}
    plain_penstock.run_task(spec((more,), append=True))
    table.check()
    # A part of the day's segments is hidden then.
    replaced = {"time": "2026-11-20T08:59:00Z", "country": "AT", "city": "Graz", "added": 9}
    plain_penstock.run_task(spec((replaced,), hour="2026-11-20T08/2026-11-20T09"))
    after = table.check()
    assert [row[2] for row in after].count("Graz") == 1
    assert table.status()["table"]["copies"] > 0
    unused = {"interval": "2026-11-21/2026-11-22"}
    plain_penstock.api.post(f"/druid/indexer/v1/datasources/{NAME}/markUnused", unused)
    assert len(table.check()) == len(after) - 1
    old = readers.ask("deltalake", table.location, columns=COLUMNS, version=0)
    assert ordered(old) == first, "an earlier version stays readable"
    version = readers.ask("version", table.location)
    for how in ("delete", "optimize", "vacuum"):
        with pytest.raises(Refused, match="penstock"):
            readers.ask("change", table.location, how=how)
    assert readers.ask("version", table.location) == version
    table.check()
    plain_penstock.api.request("DELETE", PATH)
    with pytest.raises(Refused):
        readers.ask("version", table.location)


def test_engines_do_not_find_a_folder_whose_name_has_an_escape(
    readers: Client, tmp_path: Path
) -> None:
    """So such a table is refused: `tests/segments/test_delta_tables.py`."""
    world = DeltaWorld(tmp_path / "a%20b")
    world.folder.mkdir()
    world.add(0)
    world.create()
    for reader in ("deltalake", "duckdb"):
        with pytest.raises(Refused, match=r"a b|not found|No files|no such"):
            readers.ask(reader, str(world.folder / CLICKS), columns=["ms"])
