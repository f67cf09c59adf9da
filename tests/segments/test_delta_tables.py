"""Delta tables against a naive reader of their logs, which reads them as any engine does."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import Conflict, CorruptData, InvalidRequest, Unavailable
from penstock.core.intervals import Interval
from penstock.segments.delta import table_log
from penstock.segments.delta.delta_schema import delta_schema
from penstock.segments.delta.delta_table import UNNEEDED_S, left_out_columns
from penstock.segments.delta.log_actions import LoggedFile, TableState, read_checkpoint
from penstock.segments.delta.table_log import LOG_KEPT_MS
from penstock.segments.engine_columns import Columns
from penstock.segments.visible_rows import VisibleFile
from tests.segments.delta_kit import CLICKS, KINDS, DeltaWorld, NaiveReader, change
from tests.segments.visible_files_kit import DAY_MS, PLAIN


def read(world: DeltaWorld, checkpoint: int = -1, last: int | None = None) -> list[int]:
    return NaiveReader(world.folder / CLICKS, checkpoint, last).rows()


@pytest.fixture
def world(tmp_path: Path) -> DeltaWorld:
    return DeltaWorld(tmp_path)


STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 400)), min_size=1, max_size=12)


@settings(max_examples=25)
@given(steps=STEPS)
def test_each_version_has_exactly_the_visible_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
        world = DeltaWorld(tmp_path_factory.mktemp("table"))
        world.add(0)
        world.create()
        versions: dict[int, list[int]] = {}
        for step, number in steps:
            change(world, step, number)
            world.build()
            found = NaiveReader(world.folder / CLICKS)
            assert found.rows() == world.expected()
            assert world.table.state.version == found.version
            versions[found.version] = world.expected()
    for version, expected in versions.items():
        assert read(world, last=version) == expected
    for path in world.log.glob("*.checkpoint.parquet"):
        start = int(path.name.split(".")[0])
        assert read(world, checkpoint=start) == world.expected()
        assert read(world, checkpoint=start, last=start) == read(world, last=start)
        assert _state(world, path) == _state(world, None, start)


def _state(world: DeltaWorld, checkpoint: Path | None, version: int | None = None) -> TableState:
    """Return the state at a checkpoint, or after the entries up to a version."""
    state = TableState()
    if checkpoint is not None:
        version = int(checkpoint.name.split(".")[0])
        return read_checkpoint(version, checkpoint.read_bytes(), "")
    assert version is not None
    for number in range(version + 1):
        state.apply(number, (world.log / f"{number:020d}.json").read_bytes(), "")
    return state


def test_equal_rows_make_no_entry(world: DeltaWorld) -> None:
    world.hide(world.add(0))
    world.create()
    for table in (world.table, world.opened()):
        table.update(world.rows())
        assert table.state.version == 0
    assert len(world.copies()) == 1


def test_an_entry_has_the_revision_of_its_rows(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    world.add(1)
    rows = world.build()
    assert NaiveReader(world.folder / CLICKS).revision == rows.revision
    assert world.opened().state.revision == -1
    assert world.table.state.revision == rows.revision


def test_whole_files_are_not_copied_and_paths_are_relative(world: DeltaWorld) -> None:
    name = world.add(0)
    world.create()
    assert list(NaiveReader(world.folder / CLICKS).files) == [Path(name).name]
    assert world.copies() == []


def test_names_with_characters_of_uris_are_escaped(world: DeltaWorld) -> None:
    name = Path(world.add(0))
    odd = name.with_name("__time=2024-10-05 00%3A00 #1.parquet")
    name.rename(odd)
    file, columns = world.visible.pop(str(name)), world.columns.pop(str(name))
    world.visible[str(odd)] = replace(file, location=str(odd))
    world.columns[str(odd)] = columns
    rows = world.rows()
    world.table.create(rows)
    reader = NaiveReader(world.folder / CLICKS)
    assert len(reader.rows()) == 4
    assert " " not in next(iter(reader.files))
    world.opened().update(rows)
    assert world.table.state.version == 0


def test_a_file_outside_the_folder_is_refused(world: DeltaWorld) -> None:
    name = world.add(0)
    world.visible[name] = replace(world.visible[name], location="/elsewhere/1.parquet")
    with pytest.raises(InvalidRequest, match="compact its segment"):
        world.table.check_possible(world.rows())
    with pytest.raises(InvalidRequest, match="is not in the folder"):
        world.create()
    assert not world.log.exists()


def test_columns_that_differ_in_case_are_refused_and_the_table_stays(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    other = (*PLAIN, ("Page", "string"))
    rows = world.rows()
    with pytest.raises(Conflict, match='"page" and "Page" of clicks differ only in case'):
        world.table.update(replace(rows, columns=other, in_files=[PLAIN, other]))
    with pytest.raises(Conflict, match="Iceberg"):
        world.table.update(replace(rows, in_files=[PLAIN, (("PAGE", "string"),)]))
    assert read(world) == world.expected()


def test_a_datasource_without_rows_keeps_its_columns(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    before = NaiveReader(world.folder / CLICKS).fields["metaData"]
    world.visible.clear()
    world.columns.clear()
    world.build()
    after = NaiveReader(world.folder / CLICKS)
    assert after.files == {}
    assert after.fields["metaData"] == before


def test_other_writers_must_know_the_feature_of_penstock(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    assert NaiveReader(world.folder / CLICKS).fields["protocol"] == {
        "minReaderVersion": 1,
        "minWriterVersion": 7,
        "writerFeatures": ["penstock"],
    }
    zoned = (*PLAIN, ("local", "timestamp_ntz"))
    rows = world.rows()
    world.table.update(replace(rows, columns=zoned, in_files=[PLAIN, zoned]))
    world.build()
    assert NaiveReader(world.folder / CLICKS).fields["protocol"] == {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["timestampNtz"],
        "writerFeatures": ["timestampNtz", "penstock"],
    }


def test_a_process_with_an_older_view_writes_nothing(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    older = world.rows()
    world.add(1)
    world.build()
    other = world.opened()
    other.update(older)
    assert other.state.version == 1
    assert read(world) == world.expected()


def test_metadata_of_an_earlier_time_that_were_restored_are_followed(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    added = world.add(1)
    world.build()
    del world.visible[added]
    world.stored_revision = 1
    world.opened().update(replace(world.rows(), revision=1))
    reader = NaiveReader(world.folder / CLICKS)
    assert (reader.rows(), reader.revision) == (world.expected(), 1)


def test_of_two_writers_one_writes_an_entry_and_the_other_follows(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    other = world.opened()
    other.update(world.rows())
    world.add(1)
    world.build()
    world.add(2)
    rows = world.rows()
    world.table.update(rows)
    other.update(rows)
    assert other.state == world.table.state
    assert read(world) == world.expected()


def test_a_writer_that_lost_the_race_reads_the_entry_and_tries_again(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(0)
    world.create()
    world.add(1)
    first = world.rows()
    world.add(2)
    second = world.rows()
    other = world.opened()
    files = other._files
    create = files.create

    def late(name: str, content: bytes) -> bool:
        monkeypatch.undo()
        world.table.update(first)
        return create(name, content)

    monkeypatch.setattr(files, "create", late)
    other.update(second)
    assert other.state.version == 2
    assert read(world) == world.expected()


def test_a_log_that_others_write_all_the_time_is_given_up(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add(0)
    world.create()
    world.add(1)
    monkeypatch.setattr(world.table._files, "create", lambda *_: False)
    with pytest.raises(Unavailable, match="changed 5 times"):
        world.build()


DAMAGE: Sequence[tuple[str, Callable[[bytes], bytes | None]]] = [
    ("0.json", lambda _: None),
    ("1.json", lambda _: None),
    ("1.json", lambda _: b""),
    ("1.json", lambda content: content[:-20]),
    ("1.json", lambda _: b"[1]"),
    ("1.json", lambda _: b'{"add":{}}'),
    ("2.json", lambda content: content.replace(b"t1", b"t2")),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGE)
def test_a_damaged_log_is_reported_and_rebuilt(
    world: DeltaWorld, name: str, damage: Callable[[bytes], bytes | None]
) -> None:
    for day in range(3):
        world.add(day)
        world.create() if day == 0 else world.build()
    path = world.log / name.zfill(25)
    content = damage(path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    world.add(4)
    before = sorted(world.log.iterdir())
    with pytest.raises(CorruptData, match="_delta_log"):
        world.opened().update(world.rows())
    with pytest.raises(CorruptData, match="_delta_log"):
        world.table.check()
    assert sorted(world.log.iterdir()) == before
    world.table_id = "t2"
    world.table = world.opened()
    world.create()
    assert read(world) == world.expected()
    assert NaiveReader(world.folder / CLICKS).fields["metaData"]["id"] == "t2"


def test_a_lost_log_is_reported(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    for path in world.log.iterdir():
        path.unlink()
    for table in (world.table, world.opened()):
        world.add(1)
        with pytest.raises(CorruptData):
            table.update(world.rows())
    with pytest.raises(CorruptData, match="no entries"):
        world.table.check()
    assert list(world.log.iterdir()) == []


def test_a_log_of_another_table_is_reported(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    world.table_id = "t2"
    with pytest.raises(CorruptData, match="another table"):
        world.opened().update(world.rows())


def test_a_writer_of_the_table_before_a_rebuild_does_not_damage_the_new_one(
    world: DeltaWorld,
) -> None:
    for day in range(3):
        world.add(day)
        world.create() if day == 0 else world.build()
    old = world.table
    world.table_id = "t2"
    world.table = world.opened()
    world.create()
    for day in range(3, 8):
        world.add(day)
        with pytest.raises(CorruptData):
            old.update(world.rows())
        world.build()
    assert read(world) == world.expected()


def test_a_late_deletion_leaves_the_table_that_came_after(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    old = world.table
    world.table_id = "t2"
    world.table = world.opened()
    world.create()
    assert old.delete()
    world.add(1)
    world.build()
    assert read(world) == world.expected()


def test_a_damaged_checkpoint_is_read_around_while_entries_lead_there(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
    world.add(0)
    world.create()
    for day in range(1, 4):
        world.add(day)
        world.build()
    *_, last = sorted(world.log.glob("*.checkpoint.parquet"))
    last.write_bytes(b"PAR1 not what it was PAR1")
    other = world.opened()
    other.update(world.rows())
    assert set(other.state.files) == set(world.table.state.files)


def test_old_entries_are_deleted_and_newer_versions_stay(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
    world.add(0)
    world.create()
    for day in range(1, 8):
        world.add(day)
        world.build()
    checkpoints = sorted(world.log.glob("*.checkpoint.parquet"))
    assert len(checkpoints) == 4
    world.clock.advance(seconds=_since_writing_s(world) + LOG_KEPT_MS / 1000 - 3600)
    assert world.table.clean_up() == 0
    (world.log / ".1.json.x.tmp").write_text("left over")
    world.clock.advance(seconds=7200)
    assert world.table.clean_up() > 0
    last = int(checkpoints[-1].name.split(".")[0])
    assert {path.name for path in world.log.iterdir()} == {
        *(f"{version:020d}.json" for version in range(last, 8)),
        *(checkpoints[-1].name, "_last_checkpoint"),
    }
    assert read(world, checkpoint=last) == world.expected()
    assert json.loads((world.log / "_last_checkpoint").read_text())["version"] == last
    other = world.opened()
    other.update(world.rows())
    assert other.state.files == world.table.state.files


def _since_writing_s(world: DeltaWorld) -> float:
    """Return how far the virtual clock is behind the times of files."""
    newest_ms = max(path.stat().st_mtime for path in world.log.iterdir()) * 1000
    return max(0.0, (newest_ms - world.clock.now_ms()) / 1000)


def test_a_pointer_to_a_deleted_checkpoint_is_deleted(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
    world.add(0)
    world.create()
    for day in range(1, 6):
        world.add(day)
        world.build()
    pointer = world.log / "_last_checkpoint"
    pointer.write_text('{"version": 1, "size": 4}')
    world.clock.advance(seconds=_since_writing_s(world) + 2 * LOG_KEPT_MS / 1000)
    world.table.clean_up()
    assert not pointer.exists()


def test_copies_are_deleted_when_no_reader_needs_them(world: DeltaWorld) -> None:
    name = world.add(0)
    world.hide(name)
    world.create()
    (copy,) = world.copies()
    orphan = copy.with_name("0-orphan.parquet")
    orphan.write_bytes(copy.read_bytes())
    world.table.clean_up()
    world.clock.advance(seconds=UNNEEDED_S)
    world.table.clean_up()
    assert world.copies() == [copy]
    world.visible[name] = replace(world.visible[name], visible=())
    world.build()
    world.table.clean_up(world.table.state.version)
    world.clock.advance(seconds=UNNEEDED_S + 1)
    world.table.clean_up()
    world.table = world.opened()
    world.table.check()
    world.table.clean_up()
    world.clock.advance(seconds=UNNEEDED_S + 1)
    world.table.clean_up()
    assert world.copies() == [copy], "the version before can be read"
    world.clock.advance(seconds=_since_writing_s(world) + LOG_KEPT_MS / 1000 + 1)
    world.table.clean_up()
    assert world.table.oldest_version == world.table.state.version
    assert world.copies() == [copy], "it is unneeded since now"
    world.clock.advance(seconds=UNNEEDED_S)
    world.table.clean_up()
    assert world.copies() == []
    assert Path(name).exists()
    assert read(world, checkpoint=world.table.state.version) == world.expected()


def test_a_copy_is_made_once_for_the_same_rows(world: DeltaWorld) -> None:
    name = world.add(0)
    world.hide(name)
    world.create()
    for day in range(1, 4):
        world.add(day)
        world.table = world.opened()
        world.build()
    assert len(world.copies()) == 1
    world.cover(name)
    world.build()
    assert len(world.copies()) == 2
    assert read(world) == world.expected()


def test_a_deleted_table_leaves_segments_and_for_a_while_copies(world: DeltaWorld) -> None:
    world.hide(world.add(0))
    world.create()
    assert not world.table.delete()
    assert not world.log.exists()
    assert len(world.copies()) == 1
    world.clock.advance(seconds=UNNEEDED_S)
    assert world.table.delete()
    assert world.copies() == []
    assert all(Path(name).exists() for name in world.visible)


def test_what_is_left_of_a_deletion_is_not_a_table(
    world: DeltaWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "CHECKPOINT_ENTRIES", 2)
    world.add(0)
    world.create()
    for day in range(1, 5):
        world.add(day)
        world.build()
    delete = world.table._files.delete

    def delete_and_check(name: str) -> None:
        delete(name)
        left = {path.name for path in world.log.glob("*")}
        entries = {f"{version:020d}.json" for version in range(5)}
        # An engine needs all entries, or a checkpoint.
        assert left >= entries or not (left - entries)

    monkeypatch.setattr(world.table._files, "delete", delete_and_check)
    world.table.delete()
    assert not world.log.exists()


SCHEMAS: Sequence[tuple[Columns, Sequence[Columns], Sequence[str]]] = [
    ((("a", "bigint"),), [(("a", "int"),), (("a", "bigint"),)], []),
    ((("a", "double"),), [(("a", "bigint"),), (("a", "double"),)], ["a"]),
    ((("a", "string"),), [(("a", "bigint"),), (("a", "string"),)], ["a"]),
    ((("a", "array<array<string>>"),), [(("a", "array<array<string>>"),)], []),
    ((("a", "variant"),), [(("a", "variant"),)], ["a"]),
    ((("a.b c", "string"),), [(("a.b c", "string"),)], []),
]


@pytest.mark.parametrize(("columns", "in_files", "left_out"), SCHEMAS)
def test_columns_that_delta_cannot_read_are_left_out(
    columns: Columns, in_files: Sequence[Columns], left_out: Sequence[str]
) -> None:
    found = delta_schema(CLICKS, columns, in_files)
    assert list(found.left_out) == left_out
    kept = {name for name, _ in columns} - set(left_out)
    assert {one["name"] for one in json.loads(found.text)["fields"]} == kept


TYPES = {
    "string": "string",
    "bigint": "long",
    "int": "integer",
    "tinyint": "integer",
    "double": "double",
    "float": "float",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "binary": "binary",
    "decimal(10, 2)": "decimal(10,2)",
    "array<int>": {"type": "array", "elementType": "integer", "containsNull": True},
}


def test_types_have_the_names_of_delta() -> None:
    columns = [(f"c{at}", type_) for at, type_ in enumerate(TYPES)]
    fields = json.loads(delta_schema(CLICKS, columns, [columns]).text)["fields"]
    assert [one["type"] for one in fields] == list(TYPES.values())


def test_the_table_has_the_reasons_for_columns_that_it_lacks(world: DeltaWorld) -> None:
    world.add(0)
    rows = world.rows()
    more = (*PLAIN, ("json", "variant"))
    world.table.create(replace(rows, columns=more, in_files=[more]))
    assert list(left_out_columns(world.table.state)) == ["json"]


@given(
    rows=st.integers(0, 2**62),
    times=st.none() | st.tuples(st.integers(-(10**13), 10**13), st.integers(1, 10**12)),
    cut=st.sampled_from(["", "abc"]),
)
def test_files_are_read_as_they_were_written(
    rows: int, times: tuple[int, int] | None, cut: str
) -> None:
    interval = None if times is None else Interval(times[0], times[0] + times[1])
    file = LoggedFile("a/b.parquet", 10, rows, interval, 5, cut)
    assert LoggedFile.from_action(json.loads(json.dumps(file.to_action()))) == file


def test_rows_of_many_row_groups_are_copied_group_by_group(world: DeltaWorld) -> None:
    folder = world.folder / CLICKS
    folder.mkdir()
    path = folder / "1.parquet"
    times = pa.array([at * 1_000_000 for at in range(1000)], pa.timestamp("us", "UTC"))
    table = pa.table({"__time": times, "ms": pa.array(range(1000))})
    pq.write_table(table, path, row_group_size=64)
    visible = (Interval(100_000, 200_000), Interval(900_000, 901_000))
    world.visible[str(path)] = VisibleFile(
        str(path), 1000, path.stat().st_size, Interval(0, DAY_MS), visible
    )
    world.columns[str(path)] = (("__time", "timestamp"), ("ms", "bigint"))
    world.create()
    assert read(world) == [*range(100, 200), 900]
    (copy,) = world.copies()
    assert pq.read_schema(copy).equals(table.schema)


def test_a_segment_that_is_no_parquet_file_is_named(world: DeltaWorld) -> None:
    name = world.add(0)
    world.hide(name)
    Path(name).write_bytes(b"no parquet file at all")
    with pytest.raises(CorruptData, match=r"1\.parquet"):
        world.create()
    assert not world.log.exists()


@pytest.mark.parametrize(("name", "is_refused"), [("a%20b", True), ("100% #é", False)])
def test_a_path_that_engines_would_decode_is_refused(
    tmp_path: Path, name: str, *, is_refused: bool
) -> None:
    world = DeltaWorld(tmp_path / name)
    world.folder.mkdir()
    world.add(0)
    if not is_refused:
        world.table.check_possible(world.rows())
        return
    with pytest.raises(InvalidRequest, match=r"decode %20 in the path .*/a%20b/clicks"):
        world.table.check_possible(world.rows())


def test_an_entry_without_files_keeps_writers_with_older_rows_away(world: DeltaWorld) -> None:
    world.add(0)
    world.create()
    older = world.rows()
    late = world.opened()
    world.add(1)
    world.build()
    gone = next(iter(world.visible))
    del world.visible[gone]
    confirmed = world.rows()
    world.table.update(confirmed)
    version = world.table.state.version
    world.table.update(replace(confirmed, revision=confirmed.revision + 1), confirms=True)
    world.revision = confirmed.revision + 1
    assert world.table.state.version == version + 1
    assert world.table.state.revision == confirmed.revision + 1
    assert read(world) == world.expected()
    late.update(older)
    late.update(confirmed)
    assert read(world) == world.expected()
    assert late.state.version == version + 1
    world.table.update(replace(confirmed, revision=confirmed.revision + 1), confirms=True)
    assert world.table.state.version == version + 1, "it is confirmed already"
