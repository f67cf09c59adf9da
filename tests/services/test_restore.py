"""Backups of small folders and their restore: damage, power loss and kills at every step."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, CorruptData, InvalidRequest, PenstockError, Unavailable
from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId
from penstock.segments.shard_spec import ShardSpec
from penstock.services.backup.backup import Backup, BackupReport, BackupSource
from penstock.services.backup.manifest import BackedUpFile, Manifest, copy_file
from penstock.services.backup.restore import Restore, RestoreReport, RestoreTarget
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.tls_authority import TlsAuthority
from penstock.storage.deletion_hold import DeletionHold, HoldingFileSystem
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.storage.sqlite_urls import sqlite_url
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.harness.metadata_kit import create_metadata

DAY = Interval.parse("2013-01-01/2013-01-02")
NAME = "a b#ü%20%"
FILES = {
    "topics/t/topic.json": "{}",
    "topics/t/topic.id": "one",
    "topics/t/0/00000000000000000000.log": "old messages",
    "topics/t/0/00000000000000000100.log": "new messages",
    "topics/t/0/supervisor.s.cursor": "7",
    "topics/t/channels/c/00000000000000000000.log": "state",
    "flow/flow.json": "{}",
    "flow/flowfiles/journals/000000000001/00000000000000000000.log": "journal",
    "flow/flowfiles/swap/1-a.swap": "swapped",
    "flow/content/0/1-1": "content",
    "log/tasks/task/log": "lines",
    "penstock.toml": "[penstock]\n",
    "access/access.toml": "",
    "access/credentials.json": '{"format": 1}',
    "secrets/secrets.json": "sealed",
}
LEFT_BEHIND = {
    "tasks/task/task.json": "{}",
    "run/options.json": "{}",
    "topics/t/0/x.tmp": "half",
    "log/broker.log": "",
    "access/operator.token": "secret",
    "access/process.key": "secret",
    "access/last-used/router.json": "{}",
    "secrets/key": "the key",
    "secrets/secrets.toml": "",
}


class Silent:
    """Progress that is not shown."""

    def stage(self, name: str, files: int | None) -> None:
        del name, files

    def copied(self, size: int) -> None:
        del size

    def note(self, text: str) -> None:
        del text


def fill(data: Path) -> None:
    DataFolder(data).prepare()
    for name, text in (FILES | LEFT_BEHIND).items():
        path = data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    store = DeepStore(str(data / "segments"))
    store.make_root()
    local = data.parent / "local.parquet"
    create_metadata(data / "metadata.db")
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        for number in range(3):
            local.write_text(f"segment {number}")
            pushed = store.push(str(local), SegmentId("d", DAY, "v", number), "u")
            shard = ShardSpec(number, 0)
            segment = Segment("d", DAY, "v", pushed.load_spec, shard, size=pushed.size)
            assert metadata.publish(PublishRequest("t", "d", (segment.to_row(),))).ok
    local.unlink()


def back_up(data: Path, target: Path, deep_storage: str | None = None) -> BackupReport:
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        source = BackupSource(str(data), metadata, deep_storage or str(data / "segments"))
        backup = Backup(source, str(target), OsFileSystem(), SystemClock(), "id", Silent())
        return backup.run()


def restore(folder: Path, data: Path, deep_storage: str | None = None) -> RestoreReport:
    target = RestoreTarget(str(data), deep_storage or str(data / "segments"))
    return Restore(str(folder), target, OsFileSystem(), Silent()).run()


def files_in(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "metadata.db"
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder and its backup, which each test gets a copy of."""
    folder = tmp_path_factory.mktemp("made")
    fill(folder / NAME)
    back_up(folder / NAME, folder / "backup")
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / NAME, tmp_path / NAME)
    return tmp_path / NAME


@pytest.fixture
def backup(made: Path, data: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "backup", tmp_path / "backup")
    return tmp_path / "backup"


def require_restored(data: Path) -> None:
    found = files_in(data)
    assert {n: t for n, t in found.items() if not n.startswith("segments/")} == {
        **{name: text for name, text in FILES.items() if name != "penstock.toml"},
        "penstock.toml.of-the-backup": FILES["penstock.toml"],
        "format.json": '{"format":1}',
    }
    DataFolder(data).prepare()
    DataFolder(data).require_metadata()
    store = DeepStore(str(data / "segments"))
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        rows = metadata.segments.every()
    texts = [Path(store.location(Segment.from_row(row).load_spec)).read_text() for row in rows]
    assert sorted(texts) == ["segment 0", "segment 1", "segment 2"]


def test_a_backup_is_restored_at_another_place(tmp_path: Path) -> None:
    data, moved = tmp_path / NAME, tmp_path / "moved"
    fill(data)
    back_up(data, tmp_path / "backup")
    (tmp_path / "backup").rename(moved)
    for path in sorted(data.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    report = restore(moved, tmp_path / "new" / "data")
    assert {str(part): count for part, (count, _) in report.parts.items()} == {
        "topics: progress": 4,
        "journals": 2,
        "metadata": 1,
        "flow content": 2,
        "topics: messages": 2,
        "segments": 3,
        "options, access, sealed values, task logs": 5,
    }
    assert (report.absent, report.options_aside) == ((), True)
    require_restored(tmp_path / "new" / "data")
    assert not (moved / "unfinished.json").exists()
    names = {file.path for file in report.manifest.files}
    assert not any(
        "tasks/task/task.json" in n or "/run/" in n or ".tmp" in n or n.endswith("key")
        for n in names
    )
    assert {name for name in names if "access" in name} == {
        "data/access/access.toml",
        "data/access/credentials.json",
    }


@pytest.mark.parametrize("is_damaged", [False, True])
def test_the_events_of_provenance_have_another_producer_after_a_restore(
    data: Path, tmp_path: Path, *, is_damaged: bool
) -> None:
    position = data / "flow/provenance/position.json"
    position.parent.mkdir()
    text = "damaged" if is_damaged else '{"producer":"one","following":70,"sending":90}'
    position.write_text(text)
    back_up(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    restored = (tmp_path / "new/flow/provenance/position.json").read_text()
    if is_damaged:
        assert restored == text
    else:
        found = json.loads(restored)
        assert found.pop("producer").startswith("provenance-")
        assert found == {"following": 70, "sending": 0}


def test_a_backup_lacks_rules_outside_of_the_data_folder_and_says_so(
    data: Path, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        source = BackupSource(
            *(str(data), metadata, str(data / "segments")), access=str(tmp_path / "shared")
        )
        backup = Backup(source, str(tmp_path / "b"), OsFileSystem(), SystemClock(), "id", Silent())
        advice = backup.run().manifest.advice
    (sentence,) = advice
    assert sentence.startswith(f"Copy access.toml and credentials.json of {tmp_path}/shared: ")


def test_a_backup_lacks_the_authority_of_the_certificates_and_says_so(
    data: Path, tmp_path: Path
) -> None:
    authority = TlsAuthority(data / "tls", SystemClock())
    authority.create()
    authority.issue(["penstock.example.com"])
    made = back_up(data, tmp_path / "backup")
    (sentence,) = made.manifest.advice
    assert sentence.startswith(f"Copy {data}/tls to a safe place: ")
    copied = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert not any("tls" in path.parts for path in copied)
    assert not any(b"PRIVATE KEY" in path.read_bytes() for path in copied)


def test_a_backup_and_its_restore_name_the_same_parts(data: Path, tmp_path: Path) -> None:
    made = back_up(data, tmp_path / "backup")
    assert restore(tmp_path / "backup", tmp_path / "new").parts == made.parts


def test_files_that_are_deleted_meanwhile_are_in_the_backup(data: Path, tmp_path: Path) -> None:
    """Retention, a journal that is replaced, content and a whole topic go while it copies."""
    fs = HoldingFileSystem(str(data), SystemClock())

    class Deleting(Silent):
        def stage(self, name: str, files: int | None) -> None:
            doomed = {
                "journals": ["topics/t/0/00000000000000000000.log", "flow/content/0/1-1"],
                "metadata": [
                    "flow/flowfiles/swap/1-a.swap",
                    "topics/t/0/00000000000000000100.log",
                ],
            }
            for path in doomed.get(name, []):
                fs.unlink(str(data / path))
            if name == "flow content":
                # Another topic of that name: what it holds is not of this instant.
                (data / "topics/t/topic.id").write_text("two")
                (data / "topics/t/0/00000000000000000200.log").write_text("another topic")

    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        source = BackupSource(str(data), metadata, str(data / "segments"))
        clock, target = SystemClock(), str(tmp_path / "backup")
        Backup(source, target, OsFileSystem(), clock, "id", Deleting()).run()
        assert metadata.leases.every() == []
    restore(tmp_path / "backup", tmp_path / "new")
    wanted = {"topics/t/0/00000000000000000100.log", "topics/t/0/00000000000000000000.log"}
    found = files_in(tmp_path / "new")
    assert {name for name in found if name.startswith("topics/t/0/") and ".log" in name} == wanted
    for name in (*wanted, "flow/content/0/1-1", "flow/flowfiles/swap/1-a.swap"):
        assert found[name] == FILES[name]
    assert not (data / "run" / "hold" / "held").exists()


def test_what_is_appended_meanwhile_does_not_spoil_the_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "log", tmp_path / "copy"
    source.write_bytes(b"x" * 100)

    def grow(_size: int) -> None:
        with source.open("ab") as file:
            file.write(b"later")

    made = copy_file(OsFileSystem(), str(source), str(target), "log", moved=grow)
    assert (made.size, target.read_bytes()) == (100, b"x" * 100)


def test_an_expired_hold_fails_the_backup(data: Path, tmp_path: Path, monkeypatch) -> None:
    def lost(_hold: DeletionHold) -> None:
        raise Unavailable("the hold expired")

    monkeypatch.setattr(DeletionHold, "renew", lost)
    with pytest.raises(Unavailable, match="expired"):
        back_up(data, tmp_path / "backup")
    with pytest.raises(InvalidRequest, match="not complete"):
        restore(tmp_path / "backup", tmp_path / "new")
    monkeypatch.undo()
    back_up(data, tmp_path / "backup")
    restore(tmp_path / "backup", tmp_path / "new")
    require_restored(tmp_path / "new")


def test_a_missing_segment_is_said_and_the_rest_is_copied(data: Path, tmp_path: Path) -> None:
    lost, *_ = sorted((data / "segments").rglob("*.parquet"))
    lost.unlink()
    report = back_up(data, tmp_path / "backup")
    assert report.manifest.missing == (str(lost.relative_to(data / "segments")),)
    assert report.parts["segments"][0] == 2


def test_a_backup_is_refused_where_it_would_do_harm(data: Path, backup: Path) -> None:
    for target in (data, data / "backup", data / "segments" / "x"):
        with pytest.raises(InvalidRequest, match="would be in the folder"):
            back_up(data, target)
    with pytest.raises(InvalidRequest, match="is not empty"):
        back_up(data, backup)
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        metadata.leases.renew("backup", "other", host="h", port=0, ttl_ms=60_000)
    with pytest.raises(Conflict, match="another backup is running"):
        back_up(data, backup.with_name("second"))


def test_a_backup_is_kept_apart_from_its_source_through_links(data: Path, tmp_path: Path) -> None:
    links, elsewhere = tmp_path / "links", tmp_path / "elsewhere"
    links.mkdir()
    (links / "data").symlink_to(data)
    (data / "flow").rename(elsewhere)
    (data / "flow").symlink_to(elsewhere)
    before = files_in(tmp_path)
    for target in (links / "data" / "x", links / "data", elsewhere / "x"):
        with pytest.raises(InvalidRequest, match="would be in the folder"):
            back_up(data, target)
    with pytest.raises(InvalidRequest, match="would be in the folder"):
        back_up(links / "data", data / "x")
    with pytest.raises(InvalidRequest, match="would be in the folder"):
        back_up(data, data / "segments" / "x", str(links / "data" / "segments"))
    for target in (tmp_path, elsewhere.parent):
        with pytest.raises(InvalidRequest, match="would contain the folder"):
            back_up(data, target)
    assert files_in(tmp_path) == before


def test_a_link_in_an_unfinished_backup_is_deleted_and_not_followed(
    data: Path, tmp_path: Path
) -> None:
    target, other = tmp_path / "backup", tmp_path / "other"
    for folder in (target, other):
        folder.mkdir()
    (other / "mine").write_text("mine")
    (target / "unfinished.json").write_text("{}")
    (target / "data").symlink_to(other)
    (target / "gone").symlink_to(tmp_path / "none")
    back_up(data, target)
    assert files_in(other) == {"mine": "mine"}
    assert not (target / "data").is_symlink()


def test_a_second_backup_into_one_folder_is_refused_and_the_first_is_made(
    data: Path, tmp_path: Path
) -> None:
    refused: list[str] = []
    target = tmp_path / "backup"

    class Twice(Silent):
        def stage(self, name: str, files: int | None) -> None:
            with pytest.raises(Conflict, match=r"another backup into .* is running") as caught:
                back_up(data, target)
            refused.append(str(caught.value))

    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        source = BackupSource(str(data), metadata, str(data / "segments"))
        Backup(source, str(target), OsFileSystem(), SystemClock(), "first", Twice()).run()
    assert len(refused) == 8
    restore(target, tmp_path / "new")
    require_restored(tmp_path / "new")
    with pytest.raises(InvalidRequest, match="is not empty"):
        back_up(data, target)


@pytest.mark.parametrize("part", ["metadata.db", "data/topics", "segments", "data/flow"])
def test_a_damaged_file_is_found_and_its_folder_does_not_start(
    backup: Path, tmp_path: Path, part: str
) -> None:
    path = backup / part
    if path.is_dir():
        path = next(file for file in sorted(path.rglob("*")) if file.is_file())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptData, match="the backup is damaged"):
        restore(backup, tmp_path / "new")
    with pytest.raises(InvalidRequest, match="half restored"):
        DataFolder(tmp_path / "new").prepare()
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    restore(backup, tmp_path / "new")
    require_restored(tmp_path / "new")


def test_a_missing_file_of_a_backup_is_named(backup: Path, tmp_path: Path) -> None:
    (backup / "data/topics/t/topic.id").unlink()
    with pytest.raises(InvalidRequest, match=r"lacks data/topics/t/topic\.id"):
        restore(backup, tmp_path / "new")


def test_only_an_empty_folder_is_restored(data: Path, backup: Path, tmp_path: Path) -> None:
    before = files_in(data)
    with pytest.raises(InvalidRequest, match="is not empty"):
        restore(backup, data)
    assert files_in(data) == before
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "other").write_text("mine")
    with pytest.raises(InvalidRequest, match=r"the deep storage .* is not empty"):
        restore(backup, tmp_path / "new", str(tmp_path / "deep"))
    with pytest.raises(InvalidRequest, match="is not a folder"):
        restore(backup, tmp_path / "new2", "memory://bucket")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(format=2), "format 2"),
        (lambda m: m["files"][0].update(path="../../etc/passwd"), "checksum is wrong"),
        (lambda m: m.update(penstock="x"), "checksum is wrong"),
        (lambda m: m.pop("files"), "checksum is wrong"),
    ],
)
def test_a_changed_manifest_is_refused(backup: Path, tmp_path: Path, change, said: str) -> None:
    path = backup / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(PenstockError, match=said):
        restore(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def rewrite_manifest(backup: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest as an attacker would, with the checksum of what it holds then."""
    path = backup / "manifest.json"
    manifest = orjson.loads(path.read_bytes())
    del manifest["checksum"]
    change(manifest)
    text = orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)
    manifest["checksum"] = hashlib.sha256(text).hexdigest()
    path.write_bytes(orjson.dumps(manifest))


def add_file(path: object, size: object = 0) -> Callable[[dict[str, Any]], object]:
    empty = hashlib.sha256(b"").hexdigest()
    return lambda m: m["files"].append({"path": path, "bytes": size, "sha256": empty})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (add_file("data/topics/a\0b"), r"'data/topics/a\\x00b', which no file can have"),
        (lambda m: m["objects"].update({"a\0b": 1}), r"'a\\x00b', which no file can have"),
        (add_file("../x"), r"'\.\./x' .*leads out of the backup"),
        (add_file("data/topics/../../x"), "leads out of the backup"),
        (lambda m: m.update(files=[]), r"lacks metadata\.db"),
        (
            lambda m: m.update(files=[f for f in m["files"] if f["path"] != "metadata.db"]),
            r"lacks metadata\.db",
        ),
        *((lambda m, n=n: m.update(format=n), "has format") for n in (0, -1, "x", True, None, 1.0)),
        *(
            (add_file(name), f"'{name}', which is of no part")
            for name in (
                *("data/penstock.lock", "data/run/options.json", "data/format.json", "evil/x"),
                *(
                    "data/restoring.json",
                    "data/tasks/t/task.json",
                    "data/metadata.db",
                    "data/log/x",
                ),
                *(
                    "data/topics",
                    "segments",
                    "metadata.db/x",
                    "manifest.json",
                    "topics/t/topic.json",
                ),
            )
        ),
        (add_file("metadata.db"), r"'metadata\.db' twice"),
        (
            add_file("data/topics/t/topic.id/x"),
            r"'data/topics/t/topic\.id' as a file and as a fold",
        ),
        (add_file("data/topics/none"), "lacks data/topics/none"),
        (add_file("data/topics/t"), "as a file and as a folder"),
        (add_file("data/topics/" + "x" * 300), "the name is too long"),
        *((add_file("data/topics/t/x", n), f"has {n!r} bytes") for n in (-1, "5", 1.5, None)),
    ],
)
def test_a_manifest_that_somebody_wrote_is_not_trusted(
    backup: Path, tmp_path: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    rewrite_manifest(backup, change)
    with pytest.raises(InvalidRequest, match=said):
        restore(backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_links_devices_and_folders_in_a_backup_are_refused(backup: Path, tmp_path: Path) -> None:
    outside, new = tmp_path / "outside", tmp_path / "new"
    outside.mkdir()
    (outside / "secret").write_text("")
    (outside / "topic.json").write_text("{}")
    rewrite_manifest(backup, add_file("data/topics/x/secret"))
    place = backup / "data/topics/x"
    place.symlink_to(outside)
    with pytest.raises(InvalidRequest, match="secret is a symbolic link or is inside a linked"):
        restore(backup, new)
    place.unlink()
    place.mkdir()
    (place / "secret").symlink_to(outside / "secret")
    with pytest.raises(InvalidRequest, match="is a symbolic link"):
        restore(backup, new)
    (place / "secret").unlink()
    os.mkfifo(place / "secret")
    with pytest.raises(InvalidRequest, match="is a device or a pipe"):
        restore(backup, new)
    (place / "secret").unlink()
    (place / "secret").mkdir()
    with pytest.raises(InvalidRequest, match="is a folder"):
        restore(backup, new)
    assert not new.exists()
    (place / "secret").rmdir()
    (place / "secret").write_text("")
    (tmp_path / "link").symlink_to(backup)
    restore(tmp_path / "link", new)
    assert (new / "topics/x/secret").read_text() == ""


def test_a_backup_is_not_restored_into_or_over_itself(backup: Path, tmp_path: Path) -> None:
    (tmp_path / "restoring.json").write_text("{}")
    (tmp_path / "link").symlink_to(backup)
    with pytest.raises(InvalidRequest, match="would contain the folder"):
        restore(backup, tmp_path)
    for data in (backup / "new", tmp_path / "link" / "new"):
        with pytest.raises(InvalidRequest, match="would be in the folder"):
            restore(backup, data)
    with pytest.raises(InvalidRequest, match="would be in the folder"):
        restore(backup, tmp_path / "new", str(backup / "segments"))
    restore(backup, tmp_path / "new")
    require_restored(tmp_path / "new")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}'])
def test_what_is_not_a_manifest_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptData, match=r"manifest\.json"):
        Manifest.read(OsFileSystem(), str(tmp_path))
    with pytest.raises(InvalidRequest, match="not a backup"):
        Manifest.read(OsFileSystem(), str(tmp_path / "none"))


def test_a_path_that_leads_out_of_the_backup_is_refused(tmp_path: Path) -> None:
    files = (BackedUpFile("metadata.db", 0, ""),)
    for path in ("../x", "/etc/x", "a/../../x", "..", "."):
        manifest = Manifest("id", "now", "0", files, "s", objects={path: 1})
        manifest.write(OsFileSystem(), str(tmp_path))
        with pytest.raises(InvalidRequest, match="leads out of the backup"):
            Manifest.read(OsFileSystem(), str(tmp_path))


# Power loss and kills

FOLDER, ROOT = "/backup", "/data"


def disk_with_backup() -> CrashableFileSystem:
    fs = CrashableFileSystem()
    files = []
    fs.mkdir("/source")
    for name in ("metadata.db", "data/topics/t/topic.json", "segments/d/1/part.parquet"):
        fs.mkdir(f"{FOLDER}/{name}".rpartition("/")[0])
        fs.write_atomically("/source/file", name.encode() * 3)
        files.append(copy_file(fs, "/source/file", f"{FOLDER}/{name}", name))
        fs.fsync_folder(f"{FOLDER}/{name}".rpartition("/")[0])
    Manifest("id", "now", "0", tuple(files), "/s").write(fs, FOLDER)
    return fs


def restore_on(fs: CrashableFileSystem) -> None:
    Restore(FOLDER, RestoreTarget(ROOT, f"{ROOT}/segments"), fs, Silent()).run()


def starts(fs: CrashableFileSystem) -> bool:
    """Whether Penstock would start in the folder: see `DataFolder.prepare`."""
    return fs.exists(f"{ROOT}/format.json") and not fs.exists(f"{ROOT}/restoring.json")


def require_whole(fs: CrashableFileSystem) -> None:
    names = {"metadata.db": "metadata.db", "topics/t/topic.json": "data/topics/t/topic.json"}
    names["segments/d/1/part.parquet"] = "segments/d/1/part.parquet"
    for name, text in names.items():
        assert fs.read_bytes(f"{ROOT}/{name}") == text.encode() * 3
    assert orjson.loads(fs.read_bytes(f"{ROOT}/format.json")) == {"format": 1}


def restore_steps() -> range:
    fs = disk_with_backup()
    before = fs.steps
    restore_on(fs)
    return range(before + 1, fs.steps + 1)


@pytest.mark.parametrize("step", restore_steps())
def test_a_restore_that_is_cut_never_starts_and_can_be_run_again(step: int) -> None:
    for seed in range(6):
        fs = disk_with_backup()
        fs.kill_at(step, keep_bytes=5)
        with pytest.raises(PowerLoss):
            restore_on(fs)
        after = fs.crash(seed) if seed else fs.kill_process()
        if starts(after):
            require_whole(after)
            continue
        restore_on(after)
        require_whole(after)
        again = after.crash(seed)
        assert starts(again)
        require_whole(again)


@pytest.mark.parametrize("step", restore_steps())
def test_a_restore_on_a_full_disk_fails_and_can_be_run_again(step: int) -> None:
    fs = disk_with_backup()
    fs.fail_at(step)
    with pytest.raises(PenstockError):
        restore_on(fs)
    if not starts(fs):
        restore_on(fs)
    assert starts(fs)
    require_whole(fs)


KILLED = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from tests.services import test_restore
    from penstock.storage.disk import OsFileSystem

    left, plain = int(sys.argv[3]), OsFileSystem.create

    def create(self, path, *, replace=False):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, path, replace=replace)

    OsFileSystem.create = create
    test_restore.back_up(Path(sys.argv[1]), Path(sys.argv[2]))
    """
)


@pytest.mark.parametrize("files", [2, 9, 14])
def test_a_killed_backup_is_not_taken_for_one_and_is_made_anew(
    data: Path, tmp_path: Path, files: int
) -> None:
    target = tmp_path / "backup"
    words = [sys.executable, "-c", KILLED, str(data), str(target), str(files)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(words, env=environment, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(InvalidRequest, match=r"not complete|not a backup"):
        restore(target, tmp_path / "new")
    with MetadataStore.open(sqlite_url(data / "metadata.db")) as metadata:
        for row in metadata.leases.every("backup"):
            metadata.leases.drop("backup", row.instance)  # it expires after two minutes
    back_up(data, target)
    restore(target, tmp_path / "new")
    require_restored(tmp_path / "new")
