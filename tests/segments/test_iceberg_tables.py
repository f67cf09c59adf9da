"""Versions of an Iceberg table against PyIceberg, which reads them as any engine does."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table import StaticTable

from penstock.core.errors import NotFound, StorageUnavailable, Unavailable
from penstock.core.intervals import Interval
from penstock.segments.engine_columns import Columns
from penstock.segments.iceberg import partitions, table_versions
from penstock.segments.iceberg.manifest_files import (
    ManifestEntry,
    PartitionField,
    PartitionSpec,
    manifest_of,
    read_manifest,
    read_manifest_list,
    write_manifest,
    write_manifest_list,
)
from penstock.segments.iceberg.table_files import TableFiles
from penstock.segments.iceberg.table_schema import ColumnIds, table_schema
from penstock.segments.iceberg.table_versions import (
    HIDDEN_REUSED_S,
    SNAPSHOTS_NEWEST,
    UNNEEDED_S,
    TableVersion,
    TableVersions,
)
from penstock.testing.clock import VirtualClock
from tests.segments.visible_files_kit import DAY_MS, FIRST_DAY, PLAIN, ROWS, WIDE, FilesWorld

HOUR_MS = DAY_MS // 24
UNITS = ("hour", "day", "month", "year")


class Stored:
    """A pointer in memory."""

    def __init__(self) -> None:
        self.value: bytes | None = None

    def get(self) -> bytes | None:
        return self.value

    def compare_and_set(self, old: bytes | None, new: bytes) -> bool:
        if self.value != old:
            return False
        self.value = new
        return True


@dataclass
class World(FilesWorld):
    """A table in a folder, with the rows that it should have."""

    pointer: Stored = field(default_factory=Stored)

    def __post_init__(self) -> None:
        self.table = self.opened()

    def opened(self) -> TableVersions:
        """Return the table as another process opens it."""
        return TableVersions(TableFiles(str(self.folder), "clicks"), self.pointer, self.clock)

    def build(self) -> TableVersion:
        return self.table.build(self.rows())


def read(version: TableVersion, snapshot_id: int | None = None) -> list[int]:
    """Return the values of a column as PyIceberg reads them."""
    table = StaticTable.from_metadata(version.location)
    scan = table.scan(selected_fields=("ms",), snapshot_id=snapshot_id)
    return sorted(scan.to_arrow()["ms"].to_pylist())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["add", "long", "wide", "remove", "hide", "cover", "nothing", "show", "other"]
        ),
        st.integers(0, 400),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=10)
@given(steps=STEPS)
def test_each_snapshot_has_exactly_the_visible_rows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    world = World(tmp_path_factory.mktemp("table"))
    world.add(0)
    snapshots: dict[int, list[int]] = {}
    for step, number in steps:
        names = sorted(world.visible)
        if step == "add":
            world.add(number)
        elif step == "long":
            world.add(number, days=3)
        elif step == "wide":
            world.add(number, columns=WIDE)
        elif step == "remove" and len(names) > 1:
            del world.visible[names[number % len(names)]]
        elif step == "hide":
            world.hide(names[number % len(names)])
        elif step == "cover":
            world.cover(names[number % len(names)])
        elif step == "nothing":
            world.cover_nothing(names[number % len(names)])
        elif step == "show":
            name = names[number % len(names)]
            world.visible[name] = replace(world.visible[name], visible=())
        elif step == "other":
            world.table = world.opened()
        version = world.build()
        assert version.snapshot_id is not None
        assert read(version) == world.expected()
        snapshots[version.snapshot_id] = world.expected()
    for snapshot_id, values in snapshots.items():
        assert read(version, snapshot_id) == values


def test_equal_rows_make_no_version(world: World) -> None:
    world.add(0)
    first = world.build()
    assert world.build() is first
    assert world.opened().build(world.rows()).location == first.location


def test_a_publish_writes_the_manifest_of_its_time_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MANIFEST_FILES_MIN", 2)
    for day in range(16):
        world.add(day)
    world.build()
    world.add(3)
    before = set(manifests(world))
    world.build()
    assert len(set(manifests(world)) - before) == 1


def manifests(world: World) -> list[str]:
    folder = world.folder / "~iceberg" / "clicks" / "metadata"
    return [path.name for path in folder.glob("rows-*.avro")]


def test_many_files_of_one_time_are_divided(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "MANIFEST_FILES_MAX", 4)
    for _ in range(20):
        world.add(0)
    assert read(world.build()) == world.expected()
    assert len(manifests(world)) > 4


def test_times_before_1970_are_in_no_partition(world: World) -> None:
    """DuckDB rounds them up, and would skip files that have rows."""
    for day in (-FIRST_DAY - 2, -FIRST_DAY - 1, -FIRST_DAY, 1):
        world.add(day)
    version = world.build()
    assert read(version) == world.expected()
    table = StaticTable.from_metadata(version.location)
    records = [one.file.partition for one in table.scan().plan_files()]
    found = [{at: one[at] for at in range(len(one))} for one in records]
    assert sorted(found, key=str) == [{0: 0}, {0: FIRST_DAY + 1}, {}, {}]


def test_a_division_among_manifests_that_is_in_use_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partitions, "MANIFEST_FILES_MIN", 10)
    monkeypatch.setattr(partitions, "MANIFEST_FILES_MAX", 80)

    def layout(count: int, hours: int, before: Iterable[str] = ()) -> list[str]:
        intervals = [
            Interval(at % hours * HOUR_MS, (at % hours + 1) * HOUR_MS) for at in range(count)
        ]
        names = [f"/{at}" for at in range(count)]
        groups = partitions.manifest_groups(partitions.UNPARTITIONED, intervals, names, before)
        return [key.removeprefix("0s") for key, members in groups.items() for _ in members]

    at_limit = layout(40, 4)
    assert {key[:2] for key in at_limit} == {"1x"}
    # A file less would be divided otherwise, and a file more again.
    assert {key[:2] for key in layout(39, 4)} == {"2x"}
    assert {key[:2] for key in layout(39, 4, at_limit)} == {"1x"}
    assert {key[:2] for key in layout(19, 4, at_limit)} == {"4x"}
    wide = layout(39, 4)
    assert {key[:2] for key in layout(40, 4, wide)} == {"2x"}
    assert {key[:2] for key in layout(80, 4, wide)} == {"1x"}
    two = layout(81, 1)
    assert {key.rpartition("of")[2] for key in two} == {"2"}
    assert {key.rpartition("of")[2] for key in layout(80, 1, two)} == {"2"}
    assert set(layout(40, 1, two)) == {"1x0"}
    assert {key.rpartition("of")[2] for key in layout(161, 1, two)} == {"4"}
    assert layout(80, 1, ["x", "1s1x0", "9" * 30]) == layout(80, 1)


HOURS = st.integers(-900_000, 3_000_000)
SPECS = [
    partitions.UNPARTITIONED,
    *(PartitionSpec(1, PartitionField(1, f"__time_{unit}", unit)) for unit in UNITS),
]


@given(
    hours=st.lists(st.tuples(HOURS, st.sampled_from([1, 24, 72, 720, 8760])), max_size=40),
    spec=st.sampled_from(SPECS),
    most=st.integers(1, 40),
)
def test_a_manifest_has_neighbours_with_and_without_a_partition(
    hours: list[tuple[int, int]], spec: PartitionSpec, most: int
) -> None:
    intervals = [Interval(at * HOUR_MS, (at + count) * HOUR_MS) for at, count in hours]
    paths = [str(number) for number in range(len(intervals))]
    with (
        patch.object(partitions, "MANIFEST_FILES_MIN", 3),
        patch.object(partitions, "MANIFEST_FILES_MAX", most),
    ):
        groups = partitions.manifest_groups(spec, intervals, paths)
    assert sorted(at for members in groups.values() for at in members) == [*range(len(intervals))]
    for key, members in groups.items():
        id_, _, bucket = key.partition("s")
        width = int(re.split("[xm]", bucket)[0])
        for at in members:
            has_value = partitions.value_of(spec, intervals[at]) is not None
            assert int(id_) == (spec.id if has_value else 0)
        assert len({intervals[at].start_ms // (HOUR_MS * width) for at in members}) == 1
        assert members == sorted(members)


def test_engines_skip_the_files_of_other_days(world: World) -> None:
    for day in range(4):
        world.add(day)
    world.add(8, days=3)
    table = StaticTable.from_metadata(world.build().location)
    that_day = "__time >= '2024-10-06T00:00:00+00:00' and __time < '2024-10-07T00:00:00+00:00'"
    assert len(list(table.scan(row_filter=that_day).plan_files())) == 1
    assert {one.name for one in table.spec().fields} == {"__time_day"}


def test_a_plan_of_a_snapshot_reads_the_manifests_of_its_time_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partitions, "MANIFEST_FILES_MIN", 1)
    for day in range(8):
        world.add(day)
    world.hide(world.add(8))
    world.add(3, days=3)
    snapshot_id = world.build().snapshot_id
    assert snapshot_id is not None
    read = TableFiles.read
    names: list[str] = []
    monkeypatch.setattr(
        TableFiles, "read", lambda self, name: (names.append(name), read(self, name))[1]
    )
    start_ms = (FIRST_DAY + 8) * DAY_MS
    found = world.table.entries(snapshot_id, Interval(start_ms, start_ms + 1))
    assert sorted(one.content for one in found) == [0, 1]
    # That of the day, that of its hidden rows, and that of files without a partition.
    assert len([one for one in names if not one.startswith("snap-")]) == 3
    assert len(world.table.entries(snapshot_id)) == 11


def test_partitions_are_chosen_by_the_first_files(world: World) -> None:
    rows = replace(world.rows(), columns=PLAIN, in_files=[PLAIN])
    empty = world.table.build(rows)
    assert read(empty) == []
    world.hide(world.add(0))
    version = world.build()
    table = StaticTable.from_metadata(version.location)
    assert {one.name for one in table.spec().fields} == {"__time_day"}
    assert read(version) == world.expected()
    world.add(0, days=3)
    world.add(4, days=3)
    assert read(world.build()) == world.expected()


def test_operations_say_whether_rows_were_only_added(world: World) -> None:
    first = world.add(0)
    world.build()
    world.add(1)
    world.build()
    world.hide(first)
    world.build()
    world.add(2)
    world.build()
    del world.visible[first]
    version = world.build()
    snapshots = version.metadata["snapshots"]
    assert isinstance(snapshots, list)
    operations = [one["summary"]["operation"] for one in snapshots]
    assert operations == ["append", "append", "overwrite", "append", "overwrite"]


def times(version: TableVersion) -> list[int]:
    """Return the times of the snapshots, which PyIceberg and the log of snapshots have, too."""
    found = StaticTable.from_metadata(version.location).metadata
    made = [one.timestamp_ms for one in found.snapshots]
    assert made == [one.timestamp_ms for one in found.snapshot_log]
    assert made == sorted(set(made)), "each is after the one before"
    assert found.last_updated_ms >= made[-1]
    return made


def test_a_snapshot_has_the_time_of_its_rows(world: World) -> None:
    made = []
    for day in range(3):
        world.add(day)
        rows = world.rows()
        made.append(world.clock.now_ms())
        world.clock.advance(seconds=900)  # until a client loads the table
        version = world.table.build(rows, changed_ms=made[-1])
        assert times(version) == made


def test_a_snapshot_is_after_the_one_before_if_its_time_is_lost(world: World) -> None:
    world.add(0)
    changed_ms = world.clock.now_ms()
    (first_ms,) = times(world.table.build(world.rows(), changed_ms=changed_ms))
    world.add(1)
    # The segments that had changed last are killed: the time is that of an earlier change.
    version = world.table.build(world.rows(), changed_ms=changed_ms - 500)
    assert times(version) == [first_ms, first_ms + 1]
    world.add(2)
    assert times(world.table.build(world.rows()))[-1] == world.clock.now_ms()


def test_a_snapshot_of_a_clock_that_went_back_is_not_in_the_future(world: World) -> None:
    for day in range(2):
        world.add(day)
        world.table.build(world.rows(), changed_ms=world.clock.now_ms())
    world.clock = VirtualClock(world.clock.now_ms() - 40 * HOUR_MS)
    world.table = world.opened()
    made = []
    for day in range(2, 4):
        world.add(day)
        rows = world.rows()
        made.append(world.clock.now_ms())
        world.clock.advance(seconds=900)
        version = world.table.build(rows, changed_ms=made[-1])
        assert times(version) == [made[0] - 2, made[0] - 1, *made]
    assert read(version) == world.expected()
    # Another process, whose clock is ahead, has changed segments.
    world.add(4)
    version = world.table.build(world.rows(), changed_ms=world.clock.now_ms() + HOUR_MS)
    assert times(version)[-1] == world.clock.now_ms()


def test_ids_of_columns_are_kept_for_ever(world: World) -> None:
    wide = world.add(0, columns=WIDE)
    world.add(1)
    before = ids(world.build())
    del world.visible[wide], world.columns[wide]
    assert ids(world.build()) == {name: before[name] for name, _ in PLAIN}
    world.add(2, columns=WIDE)
    assert ids(world.build()) == before


def ids(version: TableVersion) -> Mapping[str, int]:
    schema = StaticTable.from_metadata(version.location).schema()
    return {one.name: one.field_id for one in schema.fields}


def test_columns_of_announced_rows_change_the_schema_and_no_snapshot(world: World) -> None:
    world.add(0)
    first = world.build()
    rows = world.rows()
    more = (*PLAIN, ("country", "string"))
    second = world.table.build(replace(rows, columns=more, in_files=[*rows.in_files, more]))
    assert second.snapshot_id == first.snapshot_id
    assert "country" in ids(second)
    assert read(second) == world.expected()


def test_two_processes_that_build_at_once_make_one_version(world: World) -> None:
    world.add(0)
    other = world.opened()
    rows = world.rows()
    stored = world.pointer.get()
    first = world.table.build(rows)
    # The other one read the pointer before.
    answers = iter([stored])
    get = world.pointer.get
    world.pointer.get = lambda: next(answers, get())  # type: ignore[method-assign]
    assert other.build(rows).location == first.location


def test_a_process_with_an_older_view_does_not_take_a_newer_version_back(world: World) -> None:
    world.add(0)
    world.build()
    older = world.rows()
    world.add(1)
    newer = world.build()
    assert world.opened().build(older).location == newer.location
    assert read(world.build()) == world.expected()


def test_schemas_that_no_snapshot_has_are_forgotten(world: World) -> None:
    world.add(0)
    for day in range(1, 4):
        version = world.build()
        rows = world.rows()
        more = (*PLAIN, (f"column{day}", "string"))
        version = world.table.build(replace(rows, columns=more, in_files=[*rows.in_files, more]))
        world.add(day)
    assert len(version.metadata["schemas"]) == 2  # type: ignore[arg-type]
    assert "column3" in ids(version)
    final = world.build()
    assert final.metadata["current-schema-id"] == 0
    assert read(final) == world.expected()


def test_a_file_with_hidden_rows_is_written_once_while_snapshots_have_it(world: World) -> None:
    world.hide(world.add(0))
    for day in range(1, 4):
        world.build()
        world.add(day)
        world.clock.advance(seconds=2 * HIDDEN_REUSED_S)
        world.table = world.opened()
    world.build()
    assert len(hidden_files(world)) == 1


def test_a_plan_does_not_use_a_file_that_another_process_may_delete(world: World) -> None:
    name = world.add(0)
    world.hide(name)
    file = world.visible[name]
    first = world.table.hidden_rows(file, 0, 0)
    assert first is not None
    assert world.table.hidden_rows(file, 0, 0) == first
    world.clock.advance(seconds=HIDDEN_REUSED_S)
    second = world.table.hidden_rows(file, 0, 0)
    assert second is not None
    assert second.path != first.path
    world.build()
    world.clock.advance(seconds=HIDDEN_REUSED_S)
    assert world.table.hidden_rows(file, 0, 0) == second, "the current snapshot needs it"


def hidden_files(world: World) -> list[str]:
    folder = world.folder / "~iceberg" / "clicks" / "metadata"
    return [path.name for path in folder.glob("hidden-*.parquet")]


class FullDisk(TableFiles):
    """Files of which one write fails."""

    def __init__(self, deep_storage: str, datasource: str, failing: int) -> None:
        super().__init__(deep_storage, datasource)
        self._left = failing

    def write(self, name: str, content: bytes) -> None:
        self._left -= 1
        if not self._left:
            raise StorageUnavailable("disk full")
        super().write(name, content)


def test_a_version_after_each_failed_write_has_all_rows(world: World) -> None:
    world.hide(world.add(0))
    version = world.build()
    for failing in range(1, 6):
        world.add(failing, columns=WIDE)
        world.hide(world.add(failing))
        rows = world.rows()
        before = read(version)
        failed = world.opened()
        failed._files = FullDisk(str(world.folder), "clicks", failing)
        with pytest.raises(Unavailable):
            failed.build(rows)
        assert read(version) == before
        version = world.table.build(rows)
        assert read(version) == world.expected()


@pytest.mark.parametrize("pattern", ["*.metadata.json", "snap-*", "rows-*", "hidden-1s-*"])
@pytest.mark.parametrize("damage", [None, b"", b"not what it was", b"Obj\1\4\x14"])
def test_lost_or_damaged_metadata_is_written_anew(
    world: World, pattern: str, damage: bytes | None
) -> None:
    world.hide(world.add(0))
    world.build()
    world.add(1)
    for path in (world.folder / "~iceberg" / "clicks" / "metadata").glob(pattern):
        path.unlink() if damage is None else path.write_bytes(damage)
    world.table = world.opened()
    assert read(world.build()) == world.expected()


def test_a_moved_deep_storage_has_its_table_at_the_new_place(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    world = World(tmp_path / "old")
    world.hide(world.add(0))
    world.build()
    (tmp_path / "old").rename(tmp_path / "new")
    moved = World(tmp_path / "new", pointer=world.pointer, revision=world.revision)
    for name, file in world.visible.items():
        location = name.replace("/old/", "/new/")
        moved.visible[location] = replace(file, location=location)
        moved.columns[location] = world.columns[name]
    version = moved.build()
    assert read(version) == moved.expected()
    assert "/old/" not in orjson.dumps(version.metadata).decode()


def test_files_that_no_snapshot_needs_are_removed(world: World) -> None:
    name = world.add(0)
    world.hide(name)
    world.build()
    for day in range(1, SNAPSHOTS_NEWEST + 3):
        world.add(day)
        version = world.build()
    folder = world.folder / "~iceberg" / "clicks" / "metadata"
    assert world.table.remove_unneeded() == 0, "they may be in use"
    world.clock.advance(seconds=UNNEEDED_S - 1)
    assert world.table.remove_unneeded() == 0, "until shortly before they may have been needed"
    world.clock.advance(seconds=1)
    assert world.opened().remove_unneeded() == 0, "another process has just seen them"
    assert world.table.remove_unneeded() > 0
    snapshots = version.metadata["snapshots"]
    assert isinstance(snapshots, list)
    assert len(snapshots) == SNAPSHOTS_NEWEST + 1, "of older ones the last of their hour"
    for snapshot in snapshots:
        read(version, snapshot["snapshot-id"])
    assert len(list(folder.glob("*.metadata.json"))) == 1


@pytest.mark.parametrize(
    ("pattern", "is_folder"),
    [
        *itertools.product(("*.metadata.json", "snap-*", "rows-*", "hidden-1s-*"), (False, True)),
        ("hidden-*.parquet", False),
    ],
)
def test_a_process_that_starts_writes_lost_files_anew(
    world: World, pattern: str, is_folder: bool
) -> None:
    """No row has changed, so only the missing file shows that a version is needed."""
    world.hide(world.add(0))
    rows = world.rows()
    world.table.build(rows)
    (path,) = (world.folder / "~iceberg" / "clicks" / "metadata").glob(pattern)
    path.unlink()
    if is_folder:
        path.mkdir()
        (path / "inside").write_text("")
    assert read(world.opened().build(rows)) == world.expected()


@settings(max_examples=100)
@given(data=st.data())
def test_damage_of_manifests_is_found_or_changes_values(data: st.DataObject) -> None:
    entries = [
        ManifestEntry(f"file:///{at}", 4, 100, 1, 1, partition=at, bounds={1: (b"a", b"b")})
        for at in range(3)
    ]
    spec = PartitionSpec(1, PartitionField(1, "__time_day", "day"))
    content = write_manifest(entries, spec, {"schema-id": 0})
    listed = manifest_of("file:///m", content, entries, spec)
    of_list = write_manifest_list([listed], snapshot_id=1, parent_id=None, sequence_number=1)
    reader, whole = data.draw(
        st.sampled_from([(read_manifest, content), (read_manifest_list, of_list)])
    )
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytes([*whole[:at], whole[at] ^ data.draw(st.integers(1, 255)), *whole[at + 1 :]])
    for damaged in (whole[:at], flipped):
        with suppress(ValueError):
            reader(damaged)


def test_a_manifest_that_ends_between_blocks_is_damaged() -> None:
    spec = PartitionSpec(0)
    entries = [ManifestEntry(f"file:///{at:0100}", 4, 100, 1, 1) for at in range(1_000)]
    manifest = write_manifest(entries, spec, {"schema-id": 0})
    listed = [manifest_of(f"file:///{at:0300}", b"", entries[:1], spec) for at in range(300)]
    of_list = write_manifest_list(listed, snapshot_id=1, parent_id=None, sequence_number=1)
    for content, reader in ((manifest, read_manifest), (of_list, read_manifest_list)):
        mark = content[-16:]  # Avro ends each block with the mark in the head
        ends = [at + 16 for at in range(len(content)) if content[at : at + 16] == mark]
        assert len(ends) > 2
        assert reader(content)
        for end in ends[:-1]:
            with pytest.raises(ValueError, match=r"it has \d+ of \d+ records"):
                reader(content[:end])


def test_manifests_have_bounds_and_counts_of_columns(world: World) -> None:
    world.add(0)
    world.add(1)
    table = StaticTable.from_metadata(world.build().location)
    for row_filter, count in (("ms < 200", 1), ("ms < 100", 0), ("page == '/2'", 1)):
        assert len(list(table.scan(row_filter=row_filter).plan_files())) == count, row_filter
    names = {one.name: one.field_id for one in table.schema().fields}
    file = next(iter(table.scan(row_filter="ms < 200").plan_files())).file
    assert file.value_counts == {names["page"]: ROWS, names["ms"]: ROWS}
    assert file.null_value_counts == {names["page"]: 0, names["ms"]: 0}
    assert file.lower_bounds[names["page"]] == file.upper_bounds[names["page"]] == b"/1"


def test_files_that_could_not_be_read_in_time_get_their_bounds_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_versions, "BOUNDS_READ_S", -1.0)
    world.add(0)
    first = StaticTable.from_metadata(world.build().location)
    assert len(list(first.scan(row_filter="ms > 999").plan_files())) == 1
    monkeypatch.undo()
    world.add(0)
    second = StaticTable.from_metadata(world.build().location)
    assert list(second.scan(row_filter="ms > 999").plan_files()) == []
    assert len(second.scan().to_arrow()) == 2 * ROWS


def test_the_files_of_a_table_without_rows_are_deleted_and_its_ids_kept(world: World) -> None:
    world.hide(world.add(0))
    before = StaticTable.from_metadata(world.build().location)
    other = world.opened()
    other.build(world.rows())
    assert world.table.remove_all() == len(before.snapshots()) + 4
    assert world.table.remove_all() == 0
    assert list(Path(world.folder).glob("~iceberg/clicks/metadata/*")) == []
    assert world.table.remove_unneeded() == 0
    # A process that knew the files writes them again when the datasource has rows again.
    again = StaticTable.from_metadata(other.build(world.rows()).location)
    assert len(again.scan().to_arrow()) == ROWS // 2
    assert [one.field_id for one in again.schema().fields] == [
        one.field_id for one in before.schema().fields
    ]


def test_a_version_that_is_built_during_the_deletion_stays_complete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.hide(world.add(0))
    world.build()
    other = world.opened()
    exchange = world.pointer.compare_and_set
    built: list[TableVersion] = []

    def build_first(old: bytes | None, new: bytes) -> bool:
        monkeypatch.undo()
        world.add(1)
        built.append(other.build(world.rows()))
        return exchange(old, new)

    monkeypatch.setattr(world.pointer, "compare_and_set", build_first)
    assert world.table.remove_all() == 0
    found = StaticTable.from_metadata(built[0].location).scan().to_arrow()
    assert len(found) == ROWS // 2 + ROWS

    def remove_first(old: bytes | None, new: bytes) -> bool:
        monkeypatch.undo()
        assert other.remove_all() > 0
        return exchange(old, new)

    world.add(2)
    monkeypatch.setattr(world.pointer, "compare_and_set", remove_first)
    rebuilt = StaticTable.from_metadata(world.build().location)
    assert len(rebuilt.scan().to_arrow()) == ROWS // 2 + 2 * ROWS


def test_a_lost_snapshot_does_not_keep_unneeded_files(world: World) -> None:
    for day in range(2):
        world.add(day)
        version = world.build()
    folder = world.folder / "~iceberg" / "clicks" / "metadata"
    (folder / _list_of(version, 0)).write_bytes(b"damaged")
    world.table = world.opened()
    assert world.table.remove_unneeded() == 0
    world.clock.advance(seconds=UNNEEDED_S)
    assert world.table.remove_unneeded() > 0
    assert read(version) == world.expected()


def _list_of(version: TableVersion, number: int) -> str:
    snapshots = version.metadata["snapshots"]
    assert isinstance(snapshots, list)
    return Path(snapshots[number]["manifest-list"]).name


def test_entries_are_those_of_a_snapshot(world: World) -> None:
    first = world.add(0)
    version = world.build()
    assert version.snapshot_id is not None
    world.add(1)
    world.build()
    assert [one.path for one in world.table.entries(version.snapshot_id)] == [f"file://{first}"]
    with pytest.raises(NotFound, match="no snapshot 99"):
        world.table.entries(99)
    day = world.visible[first].interval
    after = Interval(day.end_ms, day.end_ms + DAY_MS)
    assert [one.path for one in world.table.entries(2, after)] == [
        f"file://{name}" for name in world.visible if name != first
    ]


SCHEMAS: Sequence[tuple[Columns, Sequence[Columns], Sequence[str]]] = [
    ((("a", "bigint"),), [(("a", "int"),), (("a", "bigint"),)], []),
    ((("a", "bigint"),), [(("a", "smallint"),)], []),
    ((("a", "double"),), [(("a", "float"),)], []),
    ((("a", "double"),), [(("a", "bigint"),), (("a", "double"),)], ["a"]),
    ((("a", "string"),), [(("a", "bigint"),), (("a", "string"),)], ["a"]),
    ((("a", "decimal(20,2)"),), [(("a", "decimal(10,2)"),)], []),
    ((("a", "decimal(20,2)"),), [(("a", "decimal(20,3)"),)], ["a"]),
    ((("a", "array<bigint>"),), [(("a", "array<int>"),)], ["a"]),
    ((("a", "array<array<string>>"),), [(("a", "array<array<string>>"),)], []),
    ((("a", "variant"),), [(("a", "variant"),)], ["a"]),
    ((("A", "string"), ("a", "string")), [(("A", "string"), ("a", "string"))], []),
    ((("User", "string"),), [(("User", "string"),), (("user", "string"),)], []),
    ((("a", "array<string>"), ("a.element", "int")), [], ["a.element"]),
    ((("__time_day", "string"), ("a", "string")), [], ["__time_day"]),
]


@pytest.mark.parametrize(("columns", "in_files", "left_out"), SCHEMAS)
def test_columns_that_iceberg_cannot_read_are_left_out(
    columns: Columns, in_files: Sequence[Columns], left_out: Sequence[str]
) -> None:
    found = table_schema(columns, in_files, ColumnIds.none().extended(columns))
    assert list(found.left_out) == left_out
    names = {name for one in found.mapping for name in _names(one)}
    kept = {name for name, _ in columns} - set(left_out)
    assert {one["name"] for one in found.fields} == kept
    if in_files and not left_out:
        assert names == {name for pairs in in_files for name, _ in pairs}


def _names(mapping: Mapping[str, object]) -> list[str]:
    names = mapping["names"]
    assert isinstance(names, list)
    return names
