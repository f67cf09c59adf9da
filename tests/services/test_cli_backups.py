"""`penstock backup` and `penstock restore` as commands: PostgreSQL, S3, rebuilt metadata."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from rich.progress import Progress

from penstock.core.intervals import Interval
from penstock.segments.catalog import Catalog
from penstock.segments.deep_storage import DeepStore
from penstock.segments.segment import Segment, SegmentId
from penstock.segments.shard_spec import ShardSpec
from penstock.services.cli import backups, exit_codes
from penstock.services.cli.entry import run
from penstock.services.cli.output import Bars
from penstock.services.host.data_folder import DataFolder, DataFolderLock
from penstock.services.options import resolution
from penstock.services.options.table import PenstockOptions
from penstock.storage.metadata import MetadataStore, PublishRequest
from penstock.storage.sqlite_urls import sqlite_url
from tests.harness.metadata_kit import create_metadata
from tests.kits.ports_kit import kept_port
from tests.kits.s3_server_kit import s3_bucket
from tests.storage.postgres_server_kit import require_binaries, running_server

DAY = Interval.parse("2013-01-01/2013-01-02")
OLD, NEW = "1970-01-01T00:00:00.000Z", "2024-05-06T07:08:09.123Z"
COLUMNS = (("__time", "timestamp"), ("n", "bigint"), ("page", "string"))
PASSWORD = "for-this-test-alone"
Capture = pytest.CaptureFixture[str]


def rows(count: int) -> pa.Table:
    times = pa.array([DAY.start_ms * 1000 + n for n in range(count)], pa.timestamp("us", "UTC"))
    return pa.table({"__time": times, "n": pa.array(range(count)), "page": ["x"] * count})


def put(store: DeepStore, folder: Path, version: str, number: int, count: int) -> Segment:
    local = folder / "local.parquet"
    pq.write_table(rows(count), local)
    store.make_root()
    pushed = store.push(str(local), SegmentId("dé_f", DAY, version, number), "u")
    return Segment(
        *("dé_f", DAY, version, pushed.load_spec, ShardSpec(number, 0)),
        size=pushed.size,
        total_rows=count,
        columns=COLUMNS,
    )


def fill(data: Path, deep_storage: str, metadata_url: str) -> None:
    DataFolder(data).prepare()
    (data / "topics" / "t").mkdir(parents=True)
    (data / "topics" / "t" / "topic.json").write_text("{}")
    store = DeepStore(deep_storage)
    segments = [put(store, data.parent, version, n, 5) for version in (OLD, NEW) for n in (0, 1)]
    if metadata_url == metadata_of(data):
        create_metadata(data / "metadata.db")
    with MetadataStore.open(metadata_url) as metadata:
        for one in segments:
            assert metadata.publish(PublishRequest("t", "dé_f", (one.to_row(),))).ok


def metadata_of(data: Path) -> str:
    return sqlite_url(data / "metadata.db")


def every(url: str) -> list[Segment]:
    with MetadataStore.open(url) as metadata:
        found = [Segment.from_row(row) for row in metadata.segments.every()]
    return sorted(found)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "a b#ü%20%"


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_bucket("backups") as address:
        yield f"{address}/segments"


def test_options_that_the_running_penstock_does_not_have_are_refused(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    lock = DataFolderLock(DataFolder(data))
    lock.take()
    options = PenstockOptions(data_dir=data)
    DataFolder(data).children_options.write_text(resolution.to_json(options))
    words = ["backup", "--data-dir", str(data), str(tmp_path / "backup"), "--deep-storage"]
    try:
        assert run([*words, str(tmp_path / "other")]) == exit_codes.USAGE
        assert "leave out --deep-storage" in capsys.readouterr().err
        assert not (tmp_path / "backup").exists()
        assert run([*words, str(data / "segments")]) == exit_codes.OK
    finally:
        lock.release()


def test_a_backup_is_made_and_restored(data: Path, tmp_path: Path, capsys: Capture) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    backup, restored = str(tmp_path / "backup"), tmp_path / "restored"
    umask = os.umask(0o022)
    try:
        assert run(["backup", backup, "--data-dir", str(data)]) == exit_codes.OK
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(umask)
    shown = capsys.readouterr()
    assert "segments" in shown.out
    assert "metadata: 1 file" in shown.err
    for path in (tmp_path / "backup").rglob("*"):
        assert not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO), path
    assert run(["backup", backup, "--data-dir", str(data)]) == exit_codes.USAGE
    assert "is not empty" in capsys.readouterr().err
    command = ["restore", backup, "--data-dir", str(restored), "--json"]
    assert run(command) == exit_codes.OK
    parts = {one["part"]: one["files"] for one in json.loads(capsys.readouterr().out)["parts"]}
    assert parts == {"metadata": 1, "segments": 4, "topics: progress": 1}
    assert [one.id for one in every(metadata_of(restored))] == [
        one.id for one in every(metadata_of(data))
    ]
    assert run(command) == exit_codes.USAGE
    capsys.readouterr()
    again = tmp_path / "a b"
    assert run(["restore", backup, "--data-dir", str(again)]) == exit_codes.OK
    assert capsys.readouterr().out.endswith(f"\nstart it with penstock up --data-dir '{again}'\n")
    config, token, more = tmp_path / "p.toml", tmp_path / "token", tmp_path / "more"
    config.touch()
    token.write_text("secret")
    token.chmod(0o600)
    common = ["--config", str(config), "--token-file", str(token)]
    assert run(["restore", backup, "--data-dir", str(more), *common]) == exit_codes.OK
    start = f"penstock up --data-dir {more} {' '.join(common)}"
    assert capsys.readouterr().out.endswith(f"\nstart it with {start}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["restore", "x"], "--data-dir"),
        (["restore", "--data-dir", "/x"], "either a backup"),
        (["restore", "x", "--from-segments", "--data-dir", "/x"], "either a backup"),
        (["restore", "/none", "--data-dir", "/x"], "not a backup"),
        (["backup", "/x", "--data-dir", "/none"], "not the data folder of a Penstock"),
    ],
)
def test_wrong_commands_say_what_to_do(
    words: list[str], said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PENSTOCK_DATA_DIR", raising=False)
    assert run(words) == exit_codes.USAGE
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "named"),
    [
        (None, None),
        ("{data}/log/tasks", None),
        ("file://{url_path}/log/tasks", None),
        ("{data}-logs", "{data}-logs"),
        ("s3://bucket/logs", "s3://bucket/logs"),
        ("ftp://ann:secret@host/logs", "ftp://ann:<masked>@host/logs"),
    ],
)
def test_of_task_logs_elsewhere_the_backup_says_where_they_are(
    data: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    place: str | None,
    named: str | None,
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    if place is not None:
        monkeypatch.setenv("PENSTOCK_TASK_LOGS", place.format(data=data, url_path=quote(str(data))))
    assert run(["backup", str(tmp_path / "backup"), "--data-dir", str(data)]) == exit_codes.OK
    said = capsys.readouterr().err
    if named is None:
        assert "--task-logs" not in said
    else:
        assert f"Copy {named.format(data=data)}, or keep its versions" in said
    assert "secret" not in said


def test_of_an_object_store_the_backup_says_what_to_copy(
    data: Path, tmp_path: Path, bucket: str, capsys: Capture
) -> None:
    fill(data, bucket, metadata_of(data))
    backup, words = tmp_path / "backup", ["--deep-storage", bucket]
    assert run(["backup", str(backup), "--data-dir", str(data), *words]) == exit_codes.OK
    assert "Copy 4 objects with" in capsys.readouterr().err
    assert not (backup / "segments").exists()
    objects = json.loads((backup / "manifest.json").read_text())["objects"]
    assert len(objects) == 4
    restore = ["restore", str(backup), *words, "--data-dir"]
    assert run([*restore, str(tmp_path / "whole")]) == exit_codes.OK
    # An object that the operator did not copy is missed.
    lost = every(metadata_of(data))[0]
    DeepStore(bucket).kill(lost.load_spec)
    assert run([*restore, str(tmp_path / "cut")]) == exit_codes.FAILED
    assert str(lost.load_spec["path"]) in capsys.readouterr().err


@pytest.mark.postgres
def test_metadata_of_a_postgres_is_in_the_backup(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    with running_server(require_binaries()) as server:
        url = server.empty_database()
        words = ["--metadata-url", url]
        fill(data, str(data / "segments"), url)
        before = [(one.id, one.load_spec) for one in every(url)]
        backup = str(tmp_path / "backup")
        assert run(["backup", backup, "--data-dir", str(data), *words]) == exit_codes.OK
        with MetadataStore.open(url) as metadata:
            metadata.roots.register("worker", str(data / "tasks"))
        restore = ["restore", backup, *words, "--data-dir", str(tmp_path / "restored")]
        assert run(restore) == exit_codes.USAGE
        assert "not empty" in capsys.readouterr().err
        assert server.empty_database() == url
        assert run(restore) == exit_codes.OK
        assert [(one.id, one.load_spec) for one in every(url)] == before
        assert not (tmp_path / "restored" / "metadata.db").exists()


@pytest.mark.postgres
def test_a_postgres_with_a_password_is_backed_up_and_restored_by_the_environment(
    data: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept_port() as port, running_server(require_binaries(), port) as server:
        with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute(f"ALTER ROLE penstock PASSWORD '{PASSWORD}'")
        url = f"postgresql+psycopg://penstock:{PASSWORD}@127.0.0.1:{port}/postgres"
        fill(data, str(data / "segments"), url)
        before = [one.id for one in every(url)]
        backup, restored = tmp_path / "backup", tmp_path / "restored"
        commands = (
            ["backup", str(backup), "--data-dir", str(data)],
            ["restore", str(backup), "--data-dir", str(restored)],
        )
        for command in commands:
            assert run([*command, "--metadata-url", url]) == exit_codes.USAGE
            said = capsys.readouterr().err
            assert "set PENSTOCK_METADATA_URL" in said
            assert PASSWORD not in said
            monkeypatch.setenv("PENSTOCK_METADATA_URL", url)
            assert run(command) == exit_codes.OK
            monkeypatch.delenv("PENSTOCK_METADATA_URL")
            if command[0] == "backup":
                server.empty_database()
        assert [one.id for one in every(url)] == before
        written = [path for folder in (backup, restored) for path in folder.rglob("*")]
        assert not [
            one for one in written if one.is_file() and PASSWORD.encode() in one.read_bytes()
        ]


def test_a_backup_through_a_link_and_a_start_with_cut_metadata_are_refused(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    (tmp_path / "link").symlink_to(data)
    words = ["--data-dir", str(data)]
    assert run(["backup", str(tmp_path / "link" / "x"), *words]) == exit_codes.USAGE
    assert "would be in the folder" in capsys.readouterr().err
    assert not (data / "x").exists()
    content = (data / "metadata.db").read_bytes()
    (data / "metadata.db").write_bytes(content[: len(content) // 2])
    for command in (["up"], ["backup", str(tmp_path / "backup")]):
        assert run([*command, *words]) == exit_codes.USAGE
        assert "of its SQLite database" in capsys.readouterr().err
    assert not (tmp_path / "backup").exists()


@pytest.mark.parametrize("place", ["flow", "topics/t", "segments"])
def test_a_backup_refuses_links_in_the_data(
    data: Path, tmp_path: Path, capsys: Capture, place: str
) -> None:
    """The files that a link led to, such as those of /etc, were copied into the backup."""
    fill(data, str(data / "segments"), metadata_of(data))
    (data / place).mkdir(exist_ok=True)
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "secret").write_text("x")
    link = data / place / "evil"
    link.symlink_to(tmp_path / "others")
    if place == "segments":
        link.unlink()
        link = next((data / place).rglob("*.parquet"))
        (tmp_path / "others" / "a.parquet").write_bytes(link.read_bytes())
        link.unlink()
        link.symlink_to(tmp_path / "others" / "a.parquet")
    assert run(["backup", str(tmp_path / "b"), "--data-dir", str(data)]) == exit_codes.USAGE
    assert f"{link} is a symbolic link" in capsys.readouterr().err
    assert not list((tmp_path / "b").rglob("secret"))


@pytest.mark.parametrize("place", ["", "topics", "segments", "flow/content"])
def test_a_folder_that_is_on_another_disk_by_a_link_is_backed_up(
    data: Path, tmp_path: Path, place: str
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    (data / "flow" / "content").mkdir(parents=True)
    (data / "flow" / "content" / "a").write_text("x")
    moved = tmp_path / "other disk"
    (data / place).rename(moved)
    (data / place).symlink_to(moved)
    assert run(["backup", str(tmp_path / "b"), "--data-dir", str(data)]) == exit_codes.OK
    assert (tmp_path / "b" / "data" / "topics" / "t" / "topic.json").exists()
    assert (tmp_path / "b" / "data" / "flow" / "content" / "a").exists()
    assert len(list((tmp_path / "b" / "segments").rglob("*.parquet"))) == 4


def test_a_backup_tells_of_damaged_segments_and_topics(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    words = ["--data-dir", str(data), "--json"]
    file = next((data / "segments").rglob("*.parquet"))
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert run(["backup", str(tmp_path / "1"), *words]) == exit_codes.FAILED
    told = capsys.readouterr()
    relative = str(file.relative_to(data / "segments"))
    assert json.loads(told.out)["missing"] == [relative]
    assert f"or has them in another size: {relative}" in told.err
    file.write_bytes(whole)
    (data / "topics" / "t" / "topic.json").write_text('{"cut')
    assert run(["backup", str(tmp_path / "2"), *words]) == exit_codes.FAILED
    assert json.loads(capsys.readouterr().out)["damaged"] == ["topics/t/topic.json"]
    (data / "topics" / "t" / "topic.json").write_text("{}")
    log = data / "topics" / "t" / "0" / "0.log"
    log.mkdir(parents=True)
    assert run(["backup", str(tmp_path / "3"), *words]) != exit_codes.OK
    assert f"{log}" in capsys.readouterr().err


# Rebuilt metadata


def test_a_stage_without_files_ends_with_the_next_one_and_a_note_is_a_line() -> None:
    shown = StringIO()
    progress = Progress(console=Console(file=shown, width=40))
    bars = backups._Bars(Bars(progress))
    bars.stage("listing", None)
    bars.note("found [b]4 files of segments in 1 folder")
    assert not progress.finished
    bars.stage("reading", 1)
    assert [task.finished for task in progress.tasks] == [True, False]
    bars.copied(5)
    assert progress.finished
    assert shown.getvalue() == "found [b]4 files of segments in 1 folder\n"


def test_metadata_is_rebuilt_from_names_and_footers(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    before = every(metadata_of(data))
    (data / "metadata.db").unlink()
    words = ["restore", "--from-segments", "--data-dir", str(data)]
    assert run(words) == exit_codes.OK
    shown = capsys.readouterr()
    assert "supervisors are not rebuilt" in shown.err
    assert shown.err.splitlines()[:3] == [
        "listing the deep storage",
        "found 4 files of segments in 1 folder",
        "reading footers: 4 files",
    ]
    assert "marked unused" in shown.err
    after = every(metadata_of(data))
    for was, now in zip(before, after, strict=True):
        assert (now.id, now.load_spec, now.size) == (was.id, was.load_spec, was.size)
        assert (now.total_rows, now.columns) == (was.total_rows, was.columns)
    with MetadataStore.open(metadata_of(data)) as metadata:
        visible = Catalog().view(metadata.snapshot()).visible("dé_f")
    assert {piece.segment.version for piece in visible} == {NEW}
    DataFolder(data).require_metadata()
    assert run(words) == exit_codes.USAGE
    assert "exists" in capsys.readouterr().err


def test_what_files_do_not_tell_has_to_be_left_out_on_purpose(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    (data / "metadata.db").unlink()
    store = DeepStore(str(data / "segments"))
    attempt = Path(store.attempt_folder("dé_f", "compact_1", "a")) / "x.parquet"
    attempt.parent.mkdir(parents=True)
    pq.write_table(rows(3), attempt)
    damaged = put(store, tmp_path, NEW, 7, 5)
    Path(store.location(damaged.load_spec)).write_text("not Parquet")
    words = ["restore", "--from-segments", "--data-dir", str(data)]
    assert run(words) == exit_codes.USAGE
    assert "1 file of batch tasks and compactions" in capsys.readouterr().err
    assert not (data / "metadata.db").exists()
    assert attempt.exists()
    assert run([*words, "--skip-unknown", "--json"]) == exit_codes.OK
    told = json.loads(capsys.readouterr().out)
    assert told["datasources"] == [{"datasource": "dé_f", "segments": 4, "rows": 20, "left_out": 2}]
    assert any("cannot be read" in sentence for sentence in told["unknown"])
    # The janitor, which deletes what no segment names, finds none of what was left out.
    known = [one.load_spec for one in every(metadata_of(data))]
    assert not store.list_orphans(known, modified_before_ms=1 << 60)
    left_out = [p for p in (data / "segments" / "~left-out").rglob("*") if p.is_file()]
    assert len(left_out) == 2


def test_a_rebuild_without_files_of_segments_creates_nothing(
    tmp_path: Path, capsys: Capture
) -> None:
    nowhere, empty, foreign = (tmp_path / name for name in ("nowhere", "empty", "foreign"))
    empty.mkdir()
    foreign.mkdir()
    (foreign / "notes.txt").write_text("none of Penstock's")
    words = ["restore", "--from-segments", "--data-dir", str(nowhere)]
    folders = [str(folder) for folder in (tmp_path / "missing", empty, foreign)]
    for more, place in (
        ([], str(nowhere / "segments")),
        *((["--deep-storage", folder], folder) for folder in folders),
    ):
        assert run([*words, *more]) == exit_codes.USAGE
        told = capsys.readouterr().err
        assert f"{place} does not exist or has no files of segments: expected DATASOURCE/" in told
        assert not nowhere.exists()


def test_a_rebuild_from_a_missing_bucket_creates_nothing(
    bucket: str, tmp_path: Path, capsys: Capture
) -> None:
    missing = bucket.replace("backups", "no-such-bucket")
    words = ["restore", "--from-segments", "--data-dir", str(tmp_path / "new")]
    assert run([*words, "--deep-storage", missing]) == exit_codes.USAGE
    assert f"{missing} does not exist or has no files of segments" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("damaged", [None, "older", "newer", "both"])
def test_of_two_files_of_a_segment_the_oldest_readable_one_counts(
    data: Path, tmp_path: Path, capsys: Capture, damaged: str | None
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    (data / "metadata.db").unlink()
    store = DeepStore(str(data / "segments"))
    older = put(store, tmp_path, NEW, 7, 5)
    newer = store.push(str(tmp_path / "local.parquet"), older.id, "another")
    specs = {"older": older.load_spec, "newer": newer.load_spec}
    for age_s, (name, spec) in enumerate(specs.items()):
        path = Path(store.location(spec))
        if damaged in (name, "both"):
            path.write_text("not Parquet")
        os.utime(path, (1_700_000_000 + age_s,) * 2)
    assert run(["restore", "--from-segments", "--data-dir", str(data), "--json"]) == exit_codes.OK
    (told,) = json.loads(capsys.readouterr().out)["datasources"]
    known = [one.load_spec for one in every(metadata_of(data))]
    used = [name for name, spec in specs.items() if spec in known]
    assert used == {None: ["older"], "older": ["newer"], "newer": ["older"], "both": []}[damaged]
    # A file that is not needed is not looked at.
    left_out = {None: 0, "older": 1, "newer": 0, "both": 2}[damaged]
    assert (told["segments"], told["left_out"]) == (4 + len(used), left_out)


def test_a_rebuild_into_a_database_of_its_own_goes_on_where_it_was_interrupted(
    data: Path, tmp_path: Path, capsys: Capture
) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    before = every(metadata_of(data))
    (data / "metadata.db").unlink()
    elsewhere = sqlite_url(tmp_path / "other.db")
    words = ["restore", "--from-segments", "--data-dir", str(data), "--metadata-url", elsewhere]
    with MetadataStore.open(elsewhere) as metadata:
        for one in before[:2]:
            assert metadata.publish(PublishRequest("t", "dé_f", (one.to_row(),))).ok
    assert run(words) == exit_codes.OK
    assert [one.id for one in every(elsewhere)] == [one.id for one in before]
    with MetadataStore.open(elsewhere) as metadata:
        foreign = put(DeepStore(str(tmp_path / "foreign")), tmp_path, NEW, 9, 5)
        assert metadata.publish(PublishRequest("t", "dé_f", (foreign.to_row(),))).ok
    assert run(words) == exit_codes.USAGE
    assert "is not empty" in capsys.readouterr().err


def test_a_rebuild_that_was_interrupted_is_not_taken_for_whole(data: Path, capsys: Capture) -> None:
    fill(data, str(data / "segments"), metadata_of(data))
    (data / "metadata.db").rename(data / "metadata.db.rebuilt")
    words = ["--data-dir", str(data)]
    assert run(["up", *words]) == exit_codes.USAGE
    assert "is missing" in capsys.readouterr().err
    assert run(["restore", "--from-segments", *words]) == exit_codes.OK
    assert len(every(metadata_of(data))) == 4


def test_a_backup_is_made_by_the_user_of_the_folder(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    fill(data, str(data / "segments"), metadata_of(data))
    user = data.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    target = tmp_path / "backup"
    assert run(["backup", str(target), "--data-dir", str(data)]) == exit_codes.USAGE
    assert f"this is user {user + 1}" in capsys.readouterr().err
    # A file of another user would stand in the way of each deletion.
    assert not (data / "run" / "hold").exists()
    assert not target.exists()
