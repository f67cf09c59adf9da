"""What a task finds again in its folder: commits, folds, damage, litter, power loss."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.core.errors import CorruptData, InvalidRequest
from penstock.core.intervals import Interval
from penstock.indexing.engine import DataFile, RowCounts
from penstock.indexing.sequences import TaskSequences
from penstock.indexing.task.commit_file import BadFile, CommitFile, Persist
from penstock.indexing.task.task_folder import TaskFolder
from penstock.storage.disk import OsFileSystem
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

DAY = Interval(0, 86_400_000)


@pytest.fixture
def folder(tmp_path: Path) -> TaskFolder:
    made = TaskFolder(str(tmp_path / "task"), OsFileSystem())
    made.restore_commit(set())
    return made


def data_file(folder: TaskFolder, rows: int = 10) -> DataFile:
    path = f"{folder.new_folder('persist')}/part.parquet"
    return write(path, b"x" * rows, rows)


def write(path: str, content: bytes, rows: int) -> DataFile:
    fs = OsFileSystem()
    fs.mkdir(path.rpartition("/")[0])
    fs.write_atomically(path, content)
    return DataFile(path, DAY, rows, len(content), 0, 1, (("__time", "TIMESTAMP"),))


def persist(
    number: int,
    *files: DataFile,
    sequence: str = "B_0",
    level: int = 0,
    bad: tuple[BadFile, ...] = (),
) -> Persist:
    return Persist(
        number,
        sequence,
        {0: number * 10},
        {0: number * 10 + 10},
        files,
        RowCounts(processed=10),
        bad,
        level,
    )


def committed(folder: TaskFolder, count: int) -> CommitFile:
    commit = CommitFile(0, {0: 0})
    for number in range(count):
        commit = commit.add(persist(number, data_file(folder)))
    folder.write_commit(commit)
    return commit


def again(folder: TaskFolder) -> TaskFolder:
    return TaskFolder(folder.path, OsFileSystem())


def test_what_was_committed_is_found(folder: TaskFolder) -> None:
    commit = committed(folder, 3)
    assert again(folder).restore_commit({"B_0"}) == commit


def test_an_empty_folder_has_nothing(folder: TaskFolder) -> None:
    assert again(folder).restore_commit({"B_0"}) is None
    assert again(folder).restore_sequences() is None


@pytest.mark.parametrize("damage", ["missing", "cut"])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_damaged_file_takes_its_persist_and_those_behind_it(
    folder: TaskFolder, damage: str, index: int
) -> None:
    commit = committed(folder, 3)
    path = commit.persists[index].files[0].path
    if damage == "cut":
        OsFileSystem().write_atomically(path, b"x")
    else:
        OsFileSystem().unlink(path)
    found = again(folder).restore_commit({"B_0"})
    assert found is not None
    assert commit is not None
    assert found.persists == commit.persists[:index]
    assert found is not None
    assert found.current == {0: index * 10}
    assert again(folder).restore_commit({"B_0"}) == found
    for gone in commit.persists[index:]:
        assert not OsFileSystem().exists(gone.files[0].path)


def test_persists_of_published_sequences_are_dropped_even_if_damaged(folder: TaskFolder) -> None:
    first = persist(0, data_file(folder))
    second = persist(1, data_file(folder), sequence="B_1")
    folder.write_commit(CommitFile(0, {0: 0}).add(first).add(second))
    OsFileSystem().unlink(first.files[0].path)
    found = again(folder).restore_commit({"B_1"})
    assert found is not None
    assert found.persists == (second,)
    assert found is not None
    assert found.current == {0: 20}


@pytest.mark.parametrize("written", ["now", "by an earlier release"])
def test_a_folder_that_was_moved_has_its_own_files(
    folder: TaskFolder, tmp_path: Path, written: str
) -> None:
    """The original may still be at the old place: a copy must not touch its files."""
    bad = BadFile(f"{folder.new_folder('bad')}/x.bin", 3)
    write(bad.path, b"bad", 1)
    commit = CommitFile(0, {0: 0}).add(persist(0, data_file(folder), bad=(bad,)))
    folder.write_commit(commit)
    before, after = tmp_path / "task", tmp_path / "a b#ü%20%" / "persist" / "task"
    assert str(tmp_path) not in (before / "commit.json").read_text()
    if written != "now":
        old = {**commit.to_json(), "format": 1}
        (before / "commit.json").write_bytes(orjson.dumps(old))
    shutil.copytree(before, after)
    moved = TaskFolder(str(after), OsFileSystem())
    found = moved.restore_commit({"B_0"})
    assert found is not None
    paths = [f.path for p in found.persists for f in p.files]
    paths += [f.path for p in found.persists for f in p.bad_files]
    assert len(paths) == 2
    assert all(path.startswith(f"{after}/") for path in paths)
    moved.delete(paths)
    assert again(folder).restore_commit({"B_0"}) == commit


def test_litter_is_deleted(folder: TaskFolder) -> None:
    committed(folder, 1)
    litter = write(f"{folder.new_folder('merge')}/deep/part.parquet", b"y", 1)
    other = again(folder)
    other.restore_commit({"B_0"})
    assert not OsFileSystem().exists(litter.path)


def test_no_name_of_a_folder_comes_again_though_nothing_of_it_is_left(folder: TaskFolder) -> None:
    """A query that began before the publish may still read the file that it was told."""
    seen: set[object] = set()
    for _ in range(3):
        started = again(folder)
        started.restore_commit(set())
        names = {started.new_folder(kind) for kind in ("persist", "persist", "merge")}
        assert not names & seen
        seen |= names


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "number": "x"}'],
)
def test_a_damaged_commit_is_told(folder: TaskFolder, content: bytes) -> None:
    OsFileSystem().write_atomically(f"{folder.path}/commit.json", content)
    with pytest.raises(CorruptData, match=r"commit\.json"):
        again(folder).restore_commit({"B_0"})


def test_a_commit_that_contradicts_itself_is_told_even_without_assertions() -> None:
    value = CommitFile(0, {0: 0}).add(persist(0)).add(persist(1)).to_json()
    persists: Any = value["persists"]
    first, last = persists
    for wrong in ({"persists": [last, first]}, {"current": {"0": 7}}):
        with pytest.raises(CorruptData, match=r"commit\.json.*end of") as caught:
            CommitFile.from_json(value | wrong, source="commit.json")
        assert isinstance(caught.value.__cause__, ValueError)


def test_a_newer_commit_is_refused_with_both_numbers(folder: TaskFolder) -> None:
    value = committed(folder, 1).to_json() | {"format": 7}
    OsFileSystem().write_atomically(f"{folder.path}/commit.json", orjson.dumps(value))
    with pytest.raises(InvalidRequest, match="format number 7, but this release reads up to 2"):
        again(folder).restore_commit({"B_0"})


def test_sequences_survive(folder: TaskFolder) -> None:
    sequences = TaskSequences.begin("B", {0: 5})
    folder.write_sequences(sequences)
    assert again(folder).restore_sequences() == sequences


def test_a_removed_folder_is_gone(folder: TaskFolder, tmp_path: Path) -> None:
    committed(folder, 2)
    folder.remove()
    assert not (tmp_path / "task").exists()


def test_small_persists_fold_level_by_level(folder: TaskFolder) -> None:
    commit = committed(folder, 3)
    assert commit.to_fold(4, 1000) == ()
    run = commit.to_fold(3, 1000)
    assert run == commit.persists
    assert commit.to_fold(3, 10) == ()
    merged = data_file(folder, 30)
    folded = commit.fold(run, (merged,))
    assert commit is not None
    assert folded is not None
    assert folded.current == commit.current
    assert folded is not None
    assert folded.counts("B_0") == RowCounts(processed=30)
    assert folded is not None
    assert folded.files("B_0") == (merged,)
    assert folded is not None
    assert folded.to_fold(1, 1000)[0].level == 1
    assert folded is not None
    assert CommitFile.from_json(folded.to_json(), source="x") == folded


def test_a_fold_of_what_was_published_meanwhile_is_thrown_away(folder: TaskFolder) -> None:
    commit = committed(folder, 3)
    run = commit.persists[:2]
    assert commit.without("B_0").fold(run, (data_file(folder),)) is None


def test_dead_letters_are_remembered_beyond_their_persists() -> None:
    bad = BadFile("bad.jsonl", 7)
    commit = CommitFile(0, {0: 0}).add(persist(0, bad=(bad,)))
    assert commit.unsent() == bad
    assert not commit.all_sent("B_0")
    sent = commit.mark_sent(BadFile("bad.jsonl", 7, sent=True), {0: 4})
    assert sent.all_sent("B_0")
    assert sent.back_to(0).dead_lettered == {0: 4}


# power loss


def run_three_persists(fs: CrashableFileSystem, done: list[object]) -> None:
    folder = TaskFolder("/tasks/a", fs)
    folder.restore_commit({"B_0"})
    commit = CommitFile(0, {0: 0})
    folder.write_commit(commit)
    for number in range(3):
        path = f"{folder.new_folder('persist')}/chunk/part.parquet"
        fs.mkdir(path.rpartition("/")[0])
        file = fs.create(path)
        file.writev([bytes([number]) * 1500])
        file.close()
        sizes = folder.sync([path])
        written = DataFile(path, DAY, 10, sizes[path], 0, 1, (("__time", "TIMESTAMP"),))
        commit = commit.add(persist(number, written))
        folder.write_commit(commit)
        done.append(number)


def test_power_loss_at_any_step_leaves_a_commit_that_holds() -> None:
    whole = CrashableFileSystem()
    run_three_persists(whole, [])
    for step in range(1, whole.steps + 1):
        for seed in range(4):
            fs = CrashableFileSystem()
            done: list[object] = []
            fs.kill_at(step)
            with suppress(PowerLoss):
                run_three_persists(fs, done)
            after = fs.crash(seed)
            folder = TaskFolder("/tasks/a", after)
            commit = folder.restore_commit({"B_0"})
            persists = commit.persists if commit is not None else ()
            assert len(persists) >= len(done), f"step {step}, seed {seed}"
            for index, found in enumerate(persists):
                content = after.read_bytes(found.files[0].path)
                assert content == bytes([index]) * 1500, f"step {step}, seed {seed}"
            assert folder.restore_commit({"B_0"}) == commit
