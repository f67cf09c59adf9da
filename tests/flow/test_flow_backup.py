"""A backup of a flow that runs: the copy drains, with each FlowFile and its content once."""

from __future__ import annotations

from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.flow.controller.controller import ControllerOptions
from penstock.flow.repository.options import RepositoryOptions
from penstock.services.backup.backup import Backup, BackupSource
from penstock.storage.deletion_hold import HoldingFileSystem
from penstock.storage.disk import OsFileSystem, OsReadFile
from penstock.storage.metadata import MetadataStore
from penstock.storage.sqlite_urls import sqlite_url
from tests.flow.controller_kit import ControllerWorld, apply, number_in, state_of, wait_counted

TOTAL = 8_000
LINE = f"""
name: line
processors:
  Make: {{type: Numbers, properties: {{total: {TOTAL}, batch: 25, with_content: true}}}}
  Pass: {{type: Pass}}
  End: {{type: Tally, properties: {{with_content: true}}}}
connections:
  - {{from: Make.success, to: Pass, swap_threshold: 20, back_pressure_count: 120}}
  - {{from: Pass.success, to: End}}
"""
# Snapshots, which replace journals, are written many times while a backup copies.
OPTIONS = ControllerOptions(
    stop_limit_s=10.0, repository=RepositoryOptions(snapshot_bytes=64 * 1024)
)


class Silent:
    def stage(self, name: str, files: int | None) -> None:
        del name, files

    def copied(self, size: int) -> None:
        del size

    def note(self, text: str) -> None:
        del text


def test_a_copy_of_a_running_flow_drains_exactly(tmp_path: Path) -> None:
    data, clock = tmp_path / "data", SystemClock()
    world = ControllerWorld(
        HoldingFileSystem(str(data), clock), str(data / "flow"), options=OPTIONS
    )
    (data / "flow").mkdir(parents=True)
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        source = BackupSource(str(data), metadata, str(data / "segments"))
        controller = world.open()
        copies: list[tuple[Path, int]] = []
        try:
            apply(controller, LINE)
            controller.start()
            for number in range(3):
                wait_counted(controller, TOTAL * (2 * number + 1) // 8)
                target = tmp_path / f"backup-{number}"
                counted = number_in(state_of(controller, "End"), "count")
                Backup(source, str(target), OsFileSystem(), clock, "id", Silent()).run()
                copies.append((target, counted))
            wait_counted(controller, TOTAL)
        finally:
            world.close()
    for target, counted in copies:
        copy = ControllerWorld(OsFileSystem(), str(target / "data" / "flow"), options=OPTIONS)
        controller = copy.open()
        try:
            assert number_in(state_of(controller, "End"), "count") >= counted
            wait_counted(controller, TOTAL)
            end = state_of(controller, "End")
            assert number_in(end, "count") == TOTAL
            assert number_in(end, "sum") == TOTAL * (TOTAL - 1) // 2
        finally:
            copy.close()


class Vanishing(OsFileSystem):
    """A file of the flow is listed, and deleted before it is inspected."""

    def listdir(self, folder: str) -> list[str]:
        names = super().listdir(folder)
        return ["vanished", *names] if folder.endswith("/flow") else names


def test_a_file_that_is_deleted_after_it_was_listed_leaves_no_other_out(tmp_path: Path) -> None:
    data, clock = tmp_path / "data", SystemClock()
    (data / "flow").mkdir(parents=True)
    (data / "flow/flow.json").write_text("{}")
    store = MetadataStore.open(sqlite_url(f"{data}/metadata.db"), clock=clock)
    source = BackupSource(str(data), store, str(data / "segments"))
    Backup(source, str(tmp_path / "backup"), Vanishing(), clock, "id", Silent()).run()
    store.close()
    assert (tmp_path / "backup/data/flow/flow.json").read_text() == "{}"


class Deleting(OsFileSystem):
    """The flow deletes a journal between the two listings of its folder."""

    def __init__(self, journal: Path, live: HoldingFileSystem) -> None:
        super().__init__()
        self._journal = journal
        self._live = live
        self._listings = 0

    def listdir(self, folder: str) -> list[str]:
        try:
            return super().listdir(folder)
        finally:
            self._listings += folder.endswith("/journals/1")
            # All files of the flow are listed first, and then its journals.
            if self._listings == 3 and self._journal.exists():
                self._live.unlink(str(self._journal))


def test_a_journal_that_is_deleted_while_its_folder_is_listed_is_copied(tmp_path: Path) -> None:
    data, clock = tmp_path / "data", SystemClock()
    journal = data / "flow/flowfiles/journals/1/0.log"
    journal.parent.mkdir(parents=True)
    journal.write_text("{}")
    store = MetadataStore.open(sqlite_url(f"{data}/metadata.db"), clock=clock)
    source = BackupSource(str(data), store, str(data / "segments"))
    deleting = Deleting(journal, HoldingFileSystem(str(data), clock))
    Backup(source, str(tmp_path / "backup"), deleting, clock, "id", Silent()).run()
    store.close()
    assert not journal.exists()
    assert (tmp_path / "backup" / journal.relative_to(tmp_path)).read_text() == "{}"


class Advancing(OsFileSystem):
    """The flow goes on while its journal is copied."""

    def open_read(self, path: str) -> OsReadFile:
        if "/flowfiles/journals/" in path:
            folder = Path(path).parents[3] / "provenance"
            for name in ("1.spool", "durable", "withdrawn.json"):
                (folder / name).write_text("after")
        return super().open_read(path)


def test_the_record_of_provenance_is_copied_after_the_journals_and_its_number_before(
    tmp_path: Path,
) -> None:
    data, clock = tmp_path / "data", SystemClock()
    journal = data / "flow/flowfiles/journals/1/0.log"
    provenance = data / "flow/provenance"
    for folder in (journal.parent, provenance):
        folder.mkdir(parents=True)
    journal.write_text("{}")
    for name in ("1.spool", "1.index", "durable", "position.json", "withdrawn.json"):
        (provenance / name).write_text("before")
    store = MetadataStore.open(sqlite_url(f"{data}/metadata.db"), clock=clock)
    source = BackupSource(str(data), store, str(data / "segments"))
    Backup(source, str(tmp_path / "backup"), Advancing(), clock, "id", Silent()).run()
    store.close()
    copied = (tmp_path / "backup/data/flow/provenance").iterdir()
    assert {one.name: one.read_text() for one in copied} == {
        "1.spool": "after",
        "withdrawn.json": "after",
        "durable": "before",
        "position.json": "before",
    }
