"""Appends through the catalog: rows, refusals, hostile files, repetitions, two writers at once."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import BadRequestError, CommitFailedException
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.types import DateType, StringType

from penstock.core.errors import InvalidRequest, NotFound
from penstock.segments.iceberg import client_files, table_appends
from penstock.segments.iceberg.client_files import DATA, METADATA, ClientFiles
from penstock.segments.iceberg.table_files import TableFiles
from penstock.services.api.iceberg import catalog_commits
from penstock.services.api.iceberg.catalog_commits import CommitStateUnknown
from tests.spark.iceberg_append_kit import AppendWorld, Commit, rows

BEGIN = [("/a", 1), ("/b", 2)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AppendWorld]:
    with AppendWorld(tmp_path_factory.mktemp("appends")) as made:
        yield made


def test_a_client_appends_rows_and_reads_them(world: AppendWorld) -> None:
    table = world.begin_with_rows()
    assert table.spec().fields[0].name == "__time_day"
    table.append(rows((3, "/c", 3), (30, "/d", 4), (1, None, 5)))
    assert world.seen() == [*BEGIN, ("/c", 3), ("/d", 4), (None, 5)]
    table.append(rows((99, "/e", 6)))
    assert world.seen()[-1] == ("/e", 6)
    assert [spec["type"] for spec in world.specs] == ["index_spark"] * 2
    # Segments are Penstock's own: sorted, in their time chunks, under the names of tasks.
    names = {str(segment.load_spec["path"]).split("/")[1] for segment in world.visible()}
    assert names == {"attempts"}
    assert list((world.place / "data").rglob("*.parquet")) == []


def test_a_file_may_have_rows_of_several_time_chunks_in_any_order(world: AppendWorld) -> None:
    table = world.begin_with_rows()
    commit = world.commit_of(table, rows((49, "/e", 5), (3, "/c", 3), (25, "/d", 4)))
    assert world.post(commit.body).status_code == 200
    assert world.seen() == [*BEGIN, ("/c", 3), ("/d", 4), ("/e", 5)]
    assert len(world.visible()) == 5


def test_new_columns_come_with_their_first_rows(world: AppendWorld) -> None:
    table = world.begin_with_rows()
    with pytest.raises(BadRequestError, match="add both in one transaction"):
        table.update_schema().add_column("city", StringType()).commit()
    with table.transaction() as change:
        with change.update_schema() as schema:
            schema.add_column("city", StringType())
        city = pa.array(["Rome"])
        change.append(rows((3, "/c", 3)).append_column("city", city))
    found = world.table().scan().to_arrow().sort_by("n")
    assert found["city"].to_pylist() == [None, None, "Rome"]


def test_new_columns_of_other_types_are_refused(world: AppendWorld) -> None:
    change = world.begin_with_rows().transaction()
    with change.update_schema() as schema:
        schema.add_column("day", DateType())
    data = change.table_metadata.schema().as_arrow().empty_table()
    change.append(pa.concat_tables([data, rows((3, "/c", 3))], promote_options="permissive"))
    with pytest.raises(BadRequestError, match="'day' has a type that a datasource cannot store"):
        change.commit_transaction()
    assert world.seen() == BEGIN


def test_other_changes_are_refused(world: AppendWorld) -> None:
    table = world.begin_with_rows()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for change in (
        lambda: table.delete(EqualTo("n", 1)),
        lambda: table.overwrite(rows((3, "/c", 3))),
        lambda: table.update_schema().delete_column("n").commit(),
        lambda: table.update_schema().rename_column("n", "m").commit(),
        lambda: table.transaction().set_properties({"a": "b"}).commit_transaction(),
        lambda: table.manage_snapshots().create_tag(snapshot.snapshot_id, "x").commit(),
    ):
        with pytest.raises(BadRequestError):
            change()
    assert world.seen() == BEGIN
    assert world.specs == []


def test_a_repeated_commit_is_answered_like_the_first(world: AppendWorld) -> None:
    table = world.begin_with_rows()
    commit = world.commit_of(table, rows((3, "/c", 3)))
    first = world.post(commit.body)
    again = world.post(commit.body)
    assert first.json() == again.json()
    assert world.seen() == [*BEGIN, ("/c", 3)]
    # The same files under another snapshot, as some clients repeat a commit.
    other = commit.under(commit.snapshot_id + 1, world.table())
    answer = world.post(other)
    assert answer.status_code == 404
    assert "another commit has taken it over" in answer.json()["error"]["message"]
    assert world.seen() == [*BEGIN, ("/c", 3)]


def test_requirements_are_honoured(world: AppendWorld) -> None:
    table = world.begin_with_rows()
    late = world.commit_of(table, rows((3, "/c", 3)))
    table.append(rows((4, "/d", 4)))
    answer = world.post(late.body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (409, "CommitFailedException")
    assert world.seen() == [*BEGIN, ("/d", 4)]
    # Nothing was moved, so the client can commit its files to the new snapshot.
    assert world.post(late.under(late.snapshot_id, world.table())).status_code == 200
    assert world.seen() == [*BEGIN, ("/c", 3), ("/d", 4)]
    for name, value in (
        ("assert-table-uuid", {"uuid": "x"}),
        ("assert-current-schema-id", {"current-schema-id": 9}),
        ("assert-default-spec-id", {"default-spec-id": 9}),
        ("assert-create", {}),
    ):
        body = {**late.body, "requirements": [{"type": name, **value}]}
        body["updates"] = late.under(77, world.table())["updates"]
        assert world.post(body).status_code == 409, name


def test_two_writers_at_once_append_each_row_once(world: AppendWorld) -> None:
    world.begin_with_rows()
    errors: list[Exception] = []

    def write(number: int) -> None:
        try:
            world.table().append(rows((number, f"/{number}", number)))
        except Exception as error:  # noqa: BLE001 - the test shows it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in (3, 4, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Clients repeat a commit that was refused because of another one.
    assert [type(error) for error in errors if not isinstance(error, CommitFailedException)] == []
    assert len(world.seen()) == len(BEGIN) + 3 - len(errors)
    assert len(set(world.seen())) == len(world.seen())


@pytest.mark.parametrize("cut", range(6))
def test_a_commit_that_was_cut_off_is_completed_by_its_repetition(
    world: AppendWorld, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """A router dies before the first file is moved, after each file, before and after the task."""
    table = world.begin_with_rows()
    commit = world.commit_of(table, rows((3, "/c", 3)), rows((30, "/d", 4)))
    left = cut

    def counted(work: Callable[..., object], *, after: bool) -> Callable[..., object]:
        def call(*given: object) -> object:
            nonlocal left
            result = work(*given) if after else None
            left -= 1
            if left < 0:
                raise CommitStateUnknown("the router was killed here")
            return result if after else work(*given)

        return call

    with monkeypatch.context() as killed:
        killed.setattr(ClientFiles, "take", counted(ClientFiles.take, after=True))
        submit = catalog_commits.CatalogCommits._submit
        killed.setattr(catalog_commits.CatalogCommits, "_submit", counted(submit, after=cut > 4))
        wait = catalog_commits.CatalogCommits._wait
        killed.setattr(catalog_commits.CatalogCommits, "_wait", counted(wait, after=False))
        first = world.post(commit.body)
    assert first.status_code == (200 if left >= 0 else 504)
    assert world.post(commit.body).status_code == 200
    assert world.seen() == [*BEGIN, ("/c", 3), ("/d", 4)]


def test_a_task_that_does_not_end_in_time_is_an_unknown_outcome(
    world: AppendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = world.begin_with_rows()
    commit = world.commit_of(table, rows((3, "/c", 3)))
    with monkeypatch.context() as slow:
        slow.setattr(catalog_commits, "WAIT_S", -1.0)
        slow.setattr(world, "result_of", lambda _id: {"statusCode": "RUNNING"})
        answer = world.post(commit.body)
    assert answer.status_code == 504
    assert answer.json()["error"]["type"] == "CommitStateUnknownException"
    assert world.post(commit.body).status_code == 200
    assert world.seen() == [*BEGIN, ("/c", 3)]


def test_a_commit_that_is_repeated_while_it_runs_is_an_unknown_outcome(
    world: AppendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer that nothing was published is for other commits."""
    table = world.begin_with_rows()
    commit = world.commit_of(table, rows((3, "/c", 3)))
    answers: list[int] = []
    wait = catalog_commits.CatalogCommits._wait

    def repeated(*given: object) -> None:
        with monkeypatch.context() as short:
            short.setattr(catalog_commits, "TURN_S", 0.0)
            other = json.loads(json.dumps(commit.body))
            for update in other["updates"]:
                update.get("snapshot", update)["snapshot-id"] = 77
            answers.extend(world.post(body).status_code for body in (commit.body, other))
        wait(*given)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(catalog_commits.CatalogCommits, "_wait", repeated)
        assert world.post(commit.body).status_code == 200
    assert answers == [504, 503]
    assert world.seen() == [*BEGIN, ("/c", 3)]


def of_time(values: object, type_: pa.DataType) -> pa.Table:
    return rows((3, "/c", 3)).set_column(0, "__time", pa.array([values], type_))


BAD_ROWS: Mapping[str, tuple[pa.Table, str]] = {
    "no time": (of_time(None, pa.timestamp("us", tz="UTC")), "__time is null"),
    "time without a zone": (of_time(0, pa.timestamp("us")), "must be a timestamp with a time zone"),
    "time beyond the unit": (
        of_time(2**63 - 1, pa.timestamp("ms", tz="UTC")),
        "__time has a time that segments cannot have",
    ),
    "time as a number": (of_time(0, pa.int64()), "must be a timestamp with a time zone"),
    "text for a number": (
        rows((3, "/c", 3)).set_column(2, "n", pa.array(["x"])),
        "column 'n' is string, and long in the schema",
    ),
    "a date": (
        rows((3, "/c", 3)).append_column("day", pa.array([1], pa.date32())),
        "has values in column 'day'",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_stored_are_refused_whole(world: AppendWorld, name: str) -> None:
    data, said = BAD_ROWS[name]
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    commit.replace_data(data)
    answer = world.post(commit.body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert world.seen() == BEGIN


def test_values_of_narrower_types_are_widened(world: AppendWorld) -> None:
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    data = rows((3, "/c", 3)).cast(
        pa.schema(
            [
                ("__time", pa.timestamp("ns", tz="UTC")),
                ("page", pa.dictionary(pa.int32(), pa.large_string())),
                ("n", pa.int16()),
            ]
        )
    )
    commit.replace_data(data.append_column("day", pa.nulls(1, pa.date32())))
    assert world.post(commit.body).status_code == 200
    assert world.seen() == [*BEGIN, ("/c", 3)]


Change = Callable[[Commit, dict[str, object]], None]


def data_file(record: dict[str, object]) -> dict[str, object]:
    return cast("dict[str, object]", record["data_file"])


def of_file(**values: object) -> Change:
    return lambda _commit, record: data_file(record).update(values)


HOSTILE: Mapping[str, tuple[Change, str]] = {
    "a file outside": (of_file(file_path="file:///etc/passwd"), "is not in the folder"),
    "a path outside": (of_file(file_path="/etc/passwd"), "is not in the folder"),
    "another scheme": (of_file(file_path="s3://bucket/x.parquet"), "is not in the folder"),
    "the web": (of_file(file_path="http://127.0.0.1:1/x.parquet"), "is not in the folder"),
    "dots": (
        lambda commit, record: data_file(record).update(
            file_path=f"{commit.location}/data/../../../x.parquet"
        ),
        "is not in the folder",
    ),
    "another table": (
        lambda commit, record: data_file(record).update(
            file_path=f"{commit.location}/../other/data/x.parquet"
        ),
        "is not in the folder",
    ),
    "a segment": (
        lambda commit, record: data_file(record).update(
            file_path=f"{commit.location}/../../{commit.world.datasource}/attempts/a/b/x.parquet"
        ),
        "is not in the folder",
    ),
    "a manifest": (
        lambda commit, record: data_file(record).update(
            file_path=f"{commit.location}/metadata/x.avro"
        ),
        "is not in the folder",
    ),
    "a control character": (
        lambda commit, record: data_file(record).update(file_path=f"{commit.location}/data/a\0b"),
        "is not in the folder",
    ),
    "no file": (
        lambda commit, record: data_file(record).update(
            file_path=f"{commit.location}/data/none.parquet"
        ),
        "does not exist",
    ),
    "ORC": (of_file(file_format="ORC"), "not Parquet"),
    "deletes": (of_file(content=1), "deletes rows"),
    "too many rows": (of_file(record_count=2), "its worker reported 2"),
    "negative rows": (of_file(record_count=-2), "without its rows and size"),
    "another size": (of_file(file_size_in_bytes=1), "its worker reported 1"),
    "removed": (lambda _commit, record: record.update(status=2), "removes files"),
    "existing": (lambda _commit, record: record.update(status=0), "adds no files"),
    "another snapshot": (lambda _commit, record: record.update(snapshot_id=5), "another snapshot"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_manifests_that_are_hostile_or_wrong_are_refused(world: AppendWorld, name: str) -> None:
    change, said = HOSTILE[name]
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    commit.change_manifest(lambda record: change(commit, record))
    answer = world.post(commit.body)
    assert answer.status_code in {400, 404}
    assert said in answer.json()["error"]["message"]
    assert world.seen() == BEGIN


def test_a_place_outside_is_refused_before_anything_is_read_or_moved(
    world: AppendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)), rows((4, "/d", 4)))
    commit.change_manifest(lambda record: data_file(record).update(file_path="/etc/x"), last=True)
    moved: list[object] = []
    monkeypatch.setattr(ClientFiles, "take", lambda *given: moved.append(given))
    assert world.post(commit.body).status_code == 400
    assert moved == []


def test_manifest_lists_elsewhere_are_refused_unread(world: AppendWorld) -> None:
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    for place in ("/etc/passwd", "file:///etc/passwd", "s3://b/x", f"{commit.location}/data/x"):
        body = commit.with_list(place)
        answer = world.post(body)
        assert answer.status_code == 400, place
        assert "is not in the folder" in answer.json()["error"]["message"]
    gone = world.post(commit.with_list(f"{commit.location}/metadata/none.avro"))
    assert gone.status_code == 404


@pytest.mark.parametrize("content", [b"", b"Obj\x01", b"x" * 100, b"PAR1"])
def test_manifest_lists_that_are_no_avro_are_refused(world: AppendWorld, content: bytes) -> None:
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    commit.list_path.write_bytes(content)
    answer = world.post(commit.body)
    assert answer.status_code == 400
    assert "is not a manifest" in answer.json()["error"]["message"]


def test_avro_that_unpacks_to_too_much_is_refused(
    world: AppendWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "bytes"}]}
    out = io.BytesIO()
    big = {"a": bytes(table_appends._BLOCK_BYTES_MAX + 1)}
    fastavro.writer(out, fastavro.parse_schema(schema), [big], codec="deflate")
    commit.list_path.write_bytes(out.getvalue())
    assert "unpacks to more than" in world.post(commit.body).json()["error"]["message"]
    monkeypatch.setattr(table_appends, "LIST_BYTES_MAX", 100)
    assert "has more than 100 bytes" in world.post(commit.body).json()["error"]["message"]


@pytest.mark.parametrize("kind", ["link", "folder link", "second name", "pipe"])
def test_links_and_special_files_are_refused(world: AppendWorld, tmp_path: Path, kind: str) -> None:
    world.begin_with_rows()
    secret = tmp_path / "secret.parquet"
    pq.write_table(rows((3, "/c", 3)), secret)
    data = world.place / "data"
    data.mkdir(parents=True, exist_ok=True)
    files = ClientFiles(str(world.folder / "deep"), world.datasource)
    place, name = data / "x.parquet", "x.parquet"
    if kind == "link":
        place.symlink_to(secret)
    elif kind == "folder link":
        (data / "more").symlink_to(tmp_path)
        name = "more/secret.parquet"
    elif kind == "second name":
        os.link(secret, place)
    else:
        os.mkfifo(place)
    with pytest.raises(InvalidRequest, match="link"):
        files.take(f"{data}/{name}", "index_spark_" + "0" * 32, "spark", "a.parquet")
    assert secret.exists()
    metadata = world.place / "metadata"
    for path in (data / name,):
        target = metadata / "hostile.avro"
        target.unlink(missing_ok=True)
        target.symlink_to(path)
        with pytest.raises(InvalidRequest, match="link"):
            files.read(str(target), 1_000_000)
        target.unlink()


def test_a_taken_file_is_not_taken_again(world: AppendWorld) -> None:
    world.begin_with_rows()
    files = ClientFiles(str(world.folder / "deep"), world.datasource)
    path = world.place / "data/x.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"1")
    task = "index_spark_" + "1" * 32
    for _ in range(2):
        files.take(f"file://{path}", task, "spark", "a.parquet")
    with pytest.raises(NotFound, match="another commit has taken it over"):
        files.take(str(path), task, "spark", "b.parquet")


def test_the_age_of_a_file_counts_from_its_commit(world: AppendWorld) -> None:
    commit = world.commit_of(world.begin_with_rows(), rows((3, "/c", 3)))
    (path,) = (world.place / "data").rglob("*.parquet")
    os.utime(path, (1, 1))
    assert world.post(commit.body).status_code == 200
    assert world.seen() == [*BEGIN, ("/c", 3)]


def test_abandoned_files_are_deleted_after_a_day(world: AppendWorld) -> None:
    world.begin_with_rows()
    files = ClientFiles(str(world.folder / "deep"), world.datasource)
    old, new = (world.place / "data" / name for name in ("p/old.parquet", "new.parquet"))
    for path in (old, new):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    os.utime(old, (1, 1))
    assert files.delete_abandoned(client_files.ABANDONED_MS) == 1
    assert (old.exists(), new.exists()) == (False, True)
    shutil.rmtree(new.parent)
    assert files.delete_abandoned(client_files.ABANDONED_MS) == 0


def test_files_behind_links_are_not_deleted(world: AppendWorld, tmp_path: Path) -> None:
    world.begin_with_rows()
    (tmp_path / "mine").write_bytes(b"1")
    os.utime(tmp_path / "mine", (1, 1))
    for folder in ("data", "metadata"):
        (world.place / folder).mkdir(parents=True, exist_ok=True)
        (world.place / folder / "more").symlink_to(tmp_path)
        (world.place / folder / "one").symlink_to(tmp_path / "mine")
    files = ClientFiles(str(world.folder / "deep"), world.datasource)
    assert files.delete_abandoned(2**60) == 2  # the links themselves
    metadata = TableFiles(str(world.folder / "deep"), world.datasource)
    for name in list(metadata.names()):
        metadata.delete(name)
    assert list(metadata.names()) == []
    (world.place / "metadata/one").symlink_to(tmp_path / "mine")
    with pytest.raises(NotFound, match="is a link"):
        metadata.read("one")
    assert (tmp_path / "mine").exists()
    for folder in ("data", "metadata"):
        shutil.rmtree(world.place / folder)
        (world.place / folder).symlink_to(tmp_path)
    with pytest.raises(InvalidRequest, match="is a link"):
        files.delete_abandoned(2**60)
    with pytest.raises(InvalidRequest, match="is a link"):
        list(metadata.names())
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("root", ["s3://bucket/deep", "memory://deep"])
def test_places_in_an_object_store(root: str) -> None:
    files = ClientFiles(root, "d")
    good = f"{root}/~iceberg/d/data/day=1/x.parquet"
    assert files.place(good, DATA) == "~iceberg/d/data/day=1/x.parquet"
    for uri in (
        f"{root}/~iceberg/d/data/../x",
        f"{root}/~iceberg/e/data/x",
        f"{root}x/~iceberg/d/data/x",
        "s3://other/~iceberg/d/data/x",
        f"file://{root}/~iceberg/d/data/x",
        "/~iceberg/d/data/x",
        f"{root}/~iceberg/d/data/",
        f"{root}/~iceberg/d/data//x",
        good + "/a" * 30,
        good + "a" * 300,
    ):
        with pytest.raises(InvalidRequest, match="is not in the folder"):
            files.place(uri, DATA)
    with pytest.raises(InvalidRequest, match="is not in the folder"):
        files.place(good, METADATA)


def test_bodies_that_are_no_appends_are_refused(world: AppendWorld) -> None:
    table: Table = world.begin_with_rows()
    commit = world.commit_of(table, rows((3, "/c", 3)))
    updates = cast("list[dict[str, object]]", commit.body["updates"])
    snapshot = cast("dict[str, object]", updates[0]["snapshot"])
    for body in (
        {},
        {"updates": []},
        {"updates": [1]},
        {"updates": {}},
        {"updates": [{"action": "remove-snapshots", "snapshot-ids": [1]}]},
        {"updates": [{"action": "set-location", "location": "/tmp/x"}]},
        {"updates": [updates[0], updates[0]]},
        {"updates": [{"action": "add-snapshot"}]},
        {"updates": [{"action": "add-snapshot", "snapshot": {**snapshot, "summary": {}}}]},
        {"updates": [{"action": "add-snapshot", "snapshot": {**snapshot, "snapshot-id": "1"}}]},
        {"updates": [{"action": "add-snapshot", "snapshot": {**snapshot, "snapshot-id": 1 << 70}}]},
        {"updates": [*updates, {"action": "set-snapshot-ref", "ref-name": "x", "type": "tag"}]},
        {"updates": updates, "requirements": [{"type": "assert-odd"}]},
        {
            "updates": updates,
            "requirements": [{"type": "assert-ref-snapshot-id", "ref": "x", "snapshot-id": None}],
        },
    ):
        answer = world.post(body)
        assert answer.status_code == 400, body
        assert answer.json()["error"]["message"]
    assert world.post(commit.body, "none").status_code == 404
    assert world.seen() == BEGIN
