"""Files that a process of the embedded engine checks before it reads them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.fastpath import engine_process
from penstock.fastpath.engine_process import Engine
from penstock.fastpath.engine_protocol import EngineAnswer, EngineQuery, EngineSettings
from penstock.fastpath.snapshot_relations import relation_of
from penstock.spark.tables.table_files import Columns, TableFile
from tests.fastpath.engine_kit import COLUMNS, day_of_rows

FILES = 150


class Checks:
    """An engine of this process, and the files whose sizes it looked up."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.engine = Engine(EngineSettings((str(folder),), 256 << 20, 0, 1))
        self.looked_up: list[str] = []
        self.on_look_up: Callable[[], object] = lambda: None
        self.files = [day_of_rows(folder, day) for day in range(FILES)]
        self._numbers = iter(range(1, 100))
        real_stat = Path.stat

        def stat(path: Path, **more: bool) -> os.stat_result:
            self.looked_up.append(path.name)
            self.on_look_up()
            return real_stat(path, **more)

        monkeypatch.setattr(Path, "stat", stat)

    def ask(self, files: list[TableFile], read: Columns = COLUMNS) -> tuple[EngineAnswer, int]:
        """Return the answer to a query, and how many files were looked up."""
        number, before = next(self._numbers), len(self.looked_up)
        sql, relation = "SELECT count(*) AS n FROM rows", relation_of(read, files)
        query = EngineQuery(number, f"token {number}", sql, (), 10, relation)
        return self.engine.answer(query), len(self.looked_up) - before


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    return Checks(tmp_path, monkeypatch)


def test_files_are_checked_once(checks: Checks) -> None:
    for files, read, looked_up in (
        (checks.files[1:], COLUMNS, FILES - 1),
        (checks.files[1:-1], COLUMNS, 0),
        (checks.files, COLUMNS, 1),
        (checks.files, COLUMNS[1:], FILES),
    ):
        answer, count = checks.ask(files, read)
        assert (answer.reason, count) == ("", looked_up)


def test_a_file_of_another_size_stays_wrong(checks: Checks) -> None:
    path = Path(checks.files[3].path)
    path.write_bytes(path.read_bytes()[:-1])
    for _ in range(2):
        assert checks.ask(checks.files)[0].reason == "files"
    assert checks.ask(checks.files[4:])[0].reason == ""


def test_the_number_of_remembered_files_has_a_bound(
    checks: Checks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "_CHECKED_MAX", 10)
    assert checks.ask(checks.files)[1] == FILES
    # The files with the latest times are checked first.
    assert checks.ask(checks.files[:10])[1] == 0
    assert checks.ask(checks.files[:12])[1] == 2


def test_a_query_is_interrupted_while_its_files_are_checked(checks: Checks) -> None:
    threads: list[threading.Thread] = []

    def interrupt() -> None:
        if len(checks.looked_up) == 100:
            threads.append(threading.Thread(target=checks.engine.interrupt, args=(1,)))
            threads[0].start()
            while not checks.engine._interrupted:  # it interrupts until the query ends
                threads[0].join(0.01)

    checks.on_look_up = interrupt
    answer, first = checks.ask(checks.files)
    assert (answer.reason, answer.content) == ("interrupted", b"")
    assert 100 <= first < FILES
    threads[0].join(120)
    assert not threads[0].is_alive()
    # The files that were checked are known.
    answer, second = checks.ask(checks.files)
    assert answer.reason == ""
    assert second in {FILES - 64, FILES - 128}
