"""The files of projections on disk: made whole or not at all, forgotten, and removed in time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore, files_below
from penstock.segments.layout import is_segment_file, projection_file, projection_folder
from penstock.segments.segment import SegmentId
from penstock.spark.projections.file_store import UNNEEDED_S, ProjectionFiles
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

DIGEST = "0123456789abcdef"
NAME = projection_file("/deep/d/part.parquet")
FOLDER = projection_folder("d", DIGEST)
CONTENT = bytes(range(256)) * 40


def crashable() -> CrashableFileSystem:
    fs = CrashableFileSystem()
    for folder in ("/worker", "/deep"):
        fs.mkdir(folder)
    fs.write_atomically("/worker/rows.parquet", CONTENT)
    return fs


def put(fs: CrashableFileSystem, temporary: str = ".x.tmp") -> int:
    _, files = files_below("/deep/~projections", fs)
    return files.put("/worker/rows.parquet", FOLDER, NAME, temporary)


def steps() -> range:
    fs = crashable()
    before = fs.steps
    put(fs)
    return range(before + 1, fs.steps + 1)


@pytest.mark.parametrize("step", steps())
def test_a_making_cut_anywhere_leaves_a_whole_file_or_none(step: int) -> None:
    for seed in range(12):
        fs = crashable()
        fs.kill_at(step, keep_bytes=100)
        with pytest.raises(PowerLoss):
            put(fs)
        after = fs.crash(seed) if seed else fs.kill_process()
        shelf = ProjectionFiles("/deep", VirtualClock(), fs=after)
        shelf.list_once()
        made = shelf.made("d", DIGEST)
        place = shelf.location("d", DIGEST, NAME)
        assert list(made) == ([NAME] if after.exists(place) else [])
        assert not made or after.read_bytes(place) == CONTENT
        # Another process makes it again, under a temporary name of its own.
        assert put(after, ".y.tmp") == len(CONTENT)
        survivor = after.crash(seed)
        assert survivor.read_bytes(place) == CONTENT
        assert ProjectionFiles("/deep", VirtualClock(), fs=survivor).find(
            "d", DIGEST, "/deep/d/part.parquet"
        )


@pytest.mark.parametrize("step", steps())
def test_what_a_cut_making_leaves_goes_after_an_hour(step: int) -> None:
    fs = crashable()
    fs.kill_at(step, keep_bytes=100)
    with pytest.raises(PowerLoss):
        put(fs)
    after, clock = fs.kill_process(), VirtualClock()
    shelf = ProjectionFiles("/deep", clock, fs=after)
    shelf.list_once()
    assert shelf.delete_unneeded({}) == 0
    clock.advance(UNNEEDED_S)
    shelf.delete_unneeded({})
    assert after.used_bytes() == len(CONTENT)  # what the worker has
    assert not shelf.made("d", DIGEST)


def test_a_file_goes_when_it_was_not_needed_for_an_hour(tmp_path: Path) -> None:
    clock = VirtualClock()
    shelf = ProjectionFiles(str(tmp_path), clock)
    for name in ("a.parquet", "b.parquet"):
        path = Path(shelf.location("d", DIGEST, name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    shelf.list_once()
    both, one = {FOLDER: {"a.parquet", "b.parquet"}}, {FOLDER: {"a.parquet"}}
    assert [shelf.delete_unneeded(needed) for needed in (both, one)] == [0, 0]
    clock.advance(UNNEEDED_S - 1)
    assert shelf.delete_unneeded(one) == 0
    # It is visible again for a moment: the hour begins anew.
    assert shelf.delete_unneeded(both) == 0
    clock.advance(UNNEEDED_S - 1)
    assert shelf.delete_unneeded(one) == 0
    clock.advance(UNNEEDED_S)
    assert shelf.delete_unneeded(one) == 1
    assert list(shelf.made("d", DIGEST)) == ["a.parquet"]
    assert os.listdir(tmp_path / "~projections" / FOLDER) == ["a.parquet"]  # noqa: PTH208


def test_what_is_damaged_is_found_and_forgotten(tmp_path: Path) -> None:
    shelf = ProjectionFiles(str(tmp_path), VirtualClock())
    paths = {name: Path(shelf.location("d", DIGEST, name)) for name in ("a", "b", "c", "e")}
    for path in paths.values():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
    shelf.add("d", DIGEST, dict.fromkeys(paths, len(CONTENT)))
    paths["a"].write_bytes(b"")
    paths["b"].write_bytes(CONTENT[:-1])
    paths["c"].unlink()
    assert shelf.damaged("d", DIGEST, paths) == ["a", "b", "c"]
    version = shelf.version
    shelf.forget("d", DIGEST, ["a", "b", "c"])
    assert shelf.version != version
    assert list(shelf.made("d", DIGEST)) == ["e"]
    assert [path.name for path in paths["e"].parent.iterdir()] == ["e"]


def test_an_empty_file_is_none(tmp_path: Path) -> None:
    shelf = ProjectionFiles(str(tmp_path), VirtualClock())
    path = Path(shelf.location("d", DIGEST, projection_file("x")))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"")
    assert not shelf.find("d", DIGEST, "x")


@pytest.mark.parametrize("datasource", ["d", "attempts", "~projections", "a:b", "projections"])
def test_the_janitor_leaves_them_alone(tmp_path: Path, datasource: str) -> None:
    local = tmp_path / "rows"
    local.write_bytes(CONTENT)
    store = DeepStore(str(tmp_path / "deep"))
    store.make_root()
    name = SegmentId(datasource, Interval.parse("2013-01-01/2013-01-02"), "v")
    pushed = store.push(str(local), name, "u")
    shelf = ProjectionFiles(str(tmp_path / "deep"), VirtualClock())
    for file in (NAME, f".{NAME}.0.tmp"):
        path = Path(shelf.location(datasource, DIGEST, file))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(CONTENT)
        assert not is_segment_file(str(path.relative_to(tmp_path / "deep")))
    found = store.list_orphans([], modified_before_ms=2**52)
    assert [store.location(one) for one in found] == [store.location(pushed.load_spec)]
    # And no datasource's segments lie where projections do.
    assert not store.location(pushed.load_spec).startswith(f"{shelf.root}/")


def test_a_store_behind_a_url(tmp_path: Path) -> None:
    local = tmp_path / "rows"
    local.write_bytes(CONTENT)
    shelf = ProjectionFiles("memory://bucket/segments", VirtualClock())
    _, files = files_below(shelf.root, CrashableFileSystem())
    files.put(str(local), FOLDER, NAME, ".x.tmp")
    assert shelf.find("d", DIGEST, "/deep/d/part.parquet")
    again = ProjectionFiles("memory://bucket/segments", VirtualClock())
    again.list_once()
    assert list(again.made("d", DIGEST)) == [NAME]
    again.forget("d", DIGEST, [NAME])
    assert not shelf.find("d", DIGEST, "/deep/d/part.parquet")
