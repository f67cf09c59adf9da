"""The suite `open-tables-kills`: engines read tables of a Penstock whose processes are killed.

make soak ARGS="open-tables-kills"

A case is a step of `tests/kits/open_tables_kit.py` on the metadata of a real Penstock, beside a
stream of events. After each step a role is killed with `kill -9`. Each answer of an engine must be
that of a revision, and soon that of the newest one: of PyIceberg and DuckDB over the catalog, of
deltalake over the Delta tables that the router writes, and of SQL. At the end of a block, each
event of the stream must be read once by all of them. `scripts/setup conformance` installs the
engines of others.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pyarrow as pa
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import RESTError

from penstock.broker.broker_client import BrokerClient
from penstock.core.errors import Conflict, NotFound, PenstockError
from penstock.services.host.data_folder import DataFolder
from penstock.services.sql_client import ask
from penstock.spark.ddl import quoted
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url
from tests.kits.open_tables_kit import ChangingTables
from tests.kits.open_tables_readers_kit import PlannedByClient, PlannedByServer
from tests.kits.open_tables_rows_kit import Answer, answer_of, rows_of
from tests.soak.open_tables_suite import DuckDb, OtherEngines, ReadError
from tests.system.load_kit import PARTITIONS, SUPERVISOR, TOPIC, Load, Rig, running_rig

if TYPE_CHECKING:
    from tests.kits.open_tables_readers_kit import Reader

VICTIMS: Final = ("router", "peon", "overlord", "worker", "broker", "spark", "flow", "launcher")
STEPS: Final = 400
RATE_PER_S: Final = 50
REVISIONS: Final = 20
"""Revisions whose rows an engine may still read."""
TIMEOUT_S: Final = 240
# What engines raise while a process is missing, or if a file was replaced after they planned.
_NOT_NOW: Final = (
    PenstockError,
    RESTError,
    requests.RequestException,
    ReadError,
    FileNotFoundError,
)
_SQL_TYPES: Final = frozenset({"string", "bigint", "int", "boolean"})


class WrongAnswer(Exception):
    """An engine read rows of no revision."""


class KilledTables:
    """Runs steps, and kills processes.

    Attributes:
        total: Number of steps of the suite.
    """

    total = STEPS

    def __init__(self, folder: Path, engines: OtherEngines) -> None:
        self._folder = folder
        self._engines = engines

    def __call__(self, seeds: range) -> tuple[list[str], dict[str, int]]:
        """Run steps on a Penstock of their own; return failures and counts."""
        failures: list[str] = []
        with tempfile.TemporaryDirectory(dir=self._folder) as name:
            folder = Path(name)
            data = DataFolder(folder / "data")
            with (
                running_rig(data.path) as rig,
                closing(MetadataStore.open(sqlite_url(data.metadata))) as store,
            ):
                tables = ChangingTables(
                    *(folder, store, seeds.start),
                    announces=False,
                    deep_storage=data.path / "segments",
                )
                block = _Block(rig, tables, self._engines)
                load = block.stream()
                try:
                    for number in seeds:
                        block.step(VICTIMS[number % len(VICTIMS)])
                except WrongAnswer as error:
                    failures.append(f"step {number}: {error}")
                finally:
                    load.stop()
                if not failures:
                    block.finish(load)
        return failures, dict(sorted((block.counts + tables.counts).items()))


class _Block:
    """One Penstock, with what engines read of it."""

    def __init__(self, rig: Rig, tables: ChangingTables, engines: OtherEngines) -> None:
        self._rig = rig
        self._tables = tables
        self._engines = engines
        # By name; the second ones are of Delta tables, which have other columns.
        self._recent, self._recent_delta = (
            defaultdict[str, deque[Answer | None]](lambda: deque([None], REVISIONS))
            for _ in range(2)
        )
        self.counts: Counter[str] = Counter()

    def stream(self) -> Load:
        """Start a stream of events."""
        with BrokerClient(self._rig.server.broker_http) as broker:
            broker.create_topic(TOPIC, PARTITIONS)
        self._rig.api.post("/druid/indexer/v1/supervisor", dict(SUPERVISOR))
        load = Load(self._rig, RATE_PER_S)
        load.start()
        return load

    def step(self, victim: str) -> None:
        """Change a datasource, kill a role, and wait until all engines read the change."""
        name, _ = self._tables.step()
        self._recent[name].append(self._expected(name, self._tables.iceberg_columns(name)))
        in_delta = self._expected(name, self._tables.delta_columns(name))
        self._recent_delta[name].append(in_delta if in_delta and in_delta.count else None)
        self._rig.kill(victim)
        self.counts[f"killed: {victim}"] += 1
        for number in range(5):
            agrees = partial(self._agrees, number, name)
            self._rig.until(f"the newest rows, read by {number}", agrees, TIMEOUT_S)
        self._rig.until("rows of the stream, each once", self._has_each_once, TIMEOUT_S)

    def finish(self, load: Load) -> None:
        """Wait until each event of the stream is read once, first by plans, then in snapshots."""
        rig, wanted = self._rig, load.sums()
        rig.until("all events in plans", lambda: self._sums(PlannedByServer) == wanted, 600)
        rig.until("all events in SQL", lambda: rig.sums() == wanted, 600)
        rig.hand_over()
        rig.until("all events published", rig.is_published, 600)
        rig.until("all events in snapshots", lambda: self._sums(PlannedByClient) == wanted, 600)
        rig.until("all events once more", lambda: self._sums(PlannedByServer) == wanted, 600)
        rig.until("all events in the Delta table", lambda: self._delta_sums() == wanted, 600)
        self.counts["events"] += wanted[0]

    def _expected(self, name: str, columns: frozenset[str]) -> Answer | None:
        if name not in self._tables.names():
            return None
        return answer_of(self._tables.visible_rows(name, has_announced=False), columns)

    def _agrees(self, number: int, name: str) -> bool:
        """Return whether an engine reads the newest rows.

        Raises:
            WrongAnswer: It reads rows of no revision.
        """
        if number == 3:
            return self._sql_agrees(name)
        if number == 4:
            return self._delta_agrees(name)
        catalog = f"{self._rig.server.http}/iceberg"
        try:
            reader: Reader
            if number == 2:
                reader = DuckDb(self._engines, catalog)
            else:
                kind = (PlannedByServer, PlannedByClient)[number]
                reader = kind(RestCatalog("penstock", uri=catalog))
            found = reader.read(name, None)
        except _NOT_NOW as error:
            self.counts[f"not now: {type(error).__name__}"] += 1
            return False
        if isinstance(found, str):
            return True
        answer = None if found is None else self._answer(name, found)
        return self._is_newest(answer, self._recent[name], f"{reader.name}, {name}")

    def _is_newest(self, answer: Answer | None, recent: deque[Answer | None], place: str) -> bool:
        """Return whether an answer is that of the newest revision.

        Raises:
            WrongAnswer: It is of no revision.
        """
        if answer not in recent:
            raise WrongAnswer(f"{place}: {answer} is of no revision")
        self.counts["answers"] += 1
        return answer == recent[-1]

    def _answer(self, name: str, found: pa.Table) -> Answer:
        is_exact = self._tables.is_exact(name)
        rows = rows_of(found, is_exact=is_exact)
        return answer_of(rows, [one if is_exact else one.lower() for one in found.column_names])

    def _sql_agrees(self, name: str) -> bool:
        if name not in self._tables.names():
            # SQL would read the datasource whose name differs in case alone.
            return True
        columns = sorted(
            column
            for column, types in self._tables.columns(name).items()
            if len(types) == 1 and types <= _SQL_TYPES
        )
        if not columns:
            return True
        selected = ", ".join(map(quoted, columns))
        try:
            rows = ask(self._rig.api, f"SELECT {selected} FROM {quoted(name)}").rows
        except PenstockError as error:
            self.counts[f"not now: {type(error).__name__}"] += 1
            return False
        wanted = answer_of(self._tables.visible_rows(name, has_announced=False), columns)
        given = [dict(zip(columns, row, strict=True)) for row in rows]
        return not answer_of(given, columns).difference(wanted)

    def _delta_agrees(self, name: str) -> bool:
        """Return whether deltalake reads the newest rows. Raises as `_agrees`."""
        try:
            found = self._delta_rows(name)
        except _NOT_NOW as error:
            self.counts[f"not now: {type(error).__name__}"] += 1
            return False
        if isinstance(found, str):
            kind = self._tables.kinds[name]
            if not (kind.has_case_variants or kind.swaps_case):
                raise WrongAnswer(f"the Delta table of {name} is refused: {found}")
            self.counts["Delta table refused"] += 1
            return True
        # The table stays if all segments are unused, without rows.
        answer = self._answer(name, found) if found is not None and found.num_rows else None
        return self._is_newest(answer, self._recent_delta[name], f"deltalake, {name}")

    def _delta_rows(self, name: str) -> pa.Table | str | None:
        """Return the rows of a Delta table, which is enabled if needed; a text: why it is not."""
        path = f"/penstock/v1/datasources/{quote(name, safe='')}/delta"
        try:
            status = self._rig.api.get(path)
            assert isinstance(status, dict)
            if status["state"] == "disabled":
                status = self._rig.api.post(path, {})
                assert isinstance(status, dict)
        except NotFound:
            return None  # neither data nor a table
        except Conflict as error:
            return str(error)
        if status["state"] == "refused":
            return str(status["reason"])
        return self._engines.read("write_delta", str(status["location"]), None)

    def _delta_sums(self) -> tuple[int, int, int] | None:
        """Return what `Rig.sums` does, as deltalake reads it; None: it cannot be read now."""
        try:
            found = self._delta_rows(TOPIC)
        except _NOT_NOW as error:
            self.counts[f"not now: {type(error).__name__}"] += 1
            return None
        return None if found is None or isinstance(found, str) else _sums_of(found)

    def _has_each_once(self) -> bool:
        found = self._sums(PlannedByServer)
        if found is None:
            return False
        count, distinct, _ = found
        if count != distinct:
            raise WrongAnswer(f"{count} rows of a stream have {distinct} numbers")
        return True

    def _sums(self, kind: type[PlannedByServer | PlannedByClient]) -> tuple[int, int, int] | None:
        """Return what `Rig.sums` does, as PyIceberg reads it; None: it cannot be read now."""
        try:
            catalog = RestCatalog("penstock", uri=f"{self._rig.server.http}/iceberg")
            found = kind(catalog).read(TOPIC, None)
        except _NOT_NOW as error:
            self.counts[f"not now: {type(error).__name__}"] += 1
            return None
        return None if found is None else _sums_of(found)


def _sums_of(found: pa.Table) -> tuple[int, int, int]:
    """Return how many rows there are, how many numbers, and the sum of what they carry."""
    numbers = found["seq"].to_pylist()
    return len(numbers), len(set(numbers)), sum(found["cents"].to_pylist())


@contextmanager
def open_tables_kills() -> Iterator[KilledTables]:
    """Give what runs steps."""
    with tempfile.TemporaryDirectory(prefix="penstock-soak-") as name:
        folder = Path(name)
        with OtherEngines(folder) as engines:
            yield KilledTables(folder, engines)
