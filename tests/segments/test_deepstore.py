"""Deep storage on a local folder and behind fsspec, and what a crash leaves of a push."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.core.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    StorageUnavailable,
    Unavailable,
)
from penstock.core.intervals import Interval
from penstock.segments.deep_storage import DeepStore, PushedFile, files_below
from penstock.segments.segment import SegmentId
from penstock.storage.disk import OsFileSystem
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss, _AppendFile, _ReadFile
from tests.harness.call_faults_kit import FAULTS, Faults

if TYPE_CHECKING:
    from collections.abc import Iterator

DAY = Interval.parse("2013-01-01/2013-01-02")
ID = SegmentId("flights", DAY, "2024-01-01T00:00:00.000Z", 3)
FOLDER = "flights/2013-01-01T00_00_00.000Z_2013-01-02T00_00_00.000Z/2024-01-01T00_00_00.000Z/3/u1"
LATER_MS = 2**52
_buckets = itertools.count()


@pytest.fixture(params=["path", "file url", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeepStore]:
    if request.param == "memory":
        yield DeepStore(f"memory://bucket{next(_buckets)}/segments")
        fsspec.filesystem("memory").store.clear()
    else:
        root = tmp_path / "deep storage"
        made = DeepStore(
            str(root) if request.param == "path" else f"file://{root}".replace(" ", "%20")
        )
        made.make_root()
        yield made


@pytest.fixture
def local_file(tmp_path: Path) -> Path:
    path = tmp_path / "merged.parquet"
    path.write_bytes(b"PAR1" * 1000)
    return path


def orphans(store: DeepStore, *known: Mapping[str, object]) -> list[str]:
    found = store.list_orphans(known, modified_before_ms=LATER_MS)
    return sorted(store.location(load_spec) for load_spec in found)


def test_a_pushed_file_lies_in_its_place(store: DeepStore, local_file: Path) -> None:
    pushed = store.push(str(local_file), ID, "u1")
    assert pushed.size == 4000
    location = store.location(pushed.load_spec)
    assert location.endswith(f"/{FOLDER}/part.parquet")
    with fsspec.open(location) as file:
        assert file.read() == local_file.read_bytes()


def test_a_push_again_is_the_same_push(store: DeepStore, local_file: Path) -> None:
    first = store.push(str(local_file), ID, "u1")
    assert store.push(str(local_file), ID, "u1") == first
    other = store.push(str(local_file), ID, "u2")
    assert other.load_spec != first.load_spec
    assert orphans(store, first.load_spec) == [store.location(other.load_spec)]


def test_other_content_needs_another_unique(store: DeepStore, local_file: Path) -> None:
    pushed = store.push(str(local_file), ID, "u1")
    local_file.write_bytes(b"shorter")
    with pytest.raises(Conflict, match="another unique name"):
        store.push(str(local_file), ID, "u1")
    assert orphans(store, pushed.load_spec) == []


def test_a_file_that_is_not_there_cannot_be_pushed(store: DeepStore, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        store.push(str(tmp_path / "none"), ID, "u1")
    assert orphans(store) == []


def test_killing_takes_the_file_and_is_fine_twice(store: DeepStore, local_file: Path) -> None:
    kept = store.push(str(local_file), ID, "u2")
    pushed = store.push(str(local_file), ID, "u1")
    store.kill(pushed.load_spec)
    store.kill(pushed.load_spec)
    assert orphans(store) == [store.location(kept.load_spec)]


def test_killing_takes_the_folders_that_are_empty_then(tmp_path: Path, local_file: Path) -> None:
    store = DeepStore(str(tmp_path / "deep"))
    store.make_root()
    first, second = (store.push(str(local_file), ID, unique) for unique in ("u1", "u2"))
    store.kill(first.load_spec)
    assert not (tmp_path / "deep" / FOLDER).exists()
    assert (tmp_path / "deep" / "flights").exists()
    store.kill(second.load_spec)
    assert list((tmp_path / "deep").iterdir()) == []


def test_young_files_are_no_orphans(store: DeepStore, local_file: Path) -> None:
    store.push(str(local_file), ID, "u1")
    assert store.list_orphans([], modified_before_ms=0) == []


def test_specs_of_other_stores_are_no_matter_to_the_search(
    store: DeepStore, local_file: Path
) -> None:
    pushed = store.push(str(local_file), ID, "u1")
    assert orphans(store, {"type": "tombstone"}, {"type": "local", "path": "/etc/x"}) == [
        store.location(pushed.load_spec)
    ]


def test_files_of_others_are_no_orphans(store: DeepStore, local_file: Path) -> None:
    pushed = store.push(str(local_file), ID, "u1")
    place = store.location(pushed.load_spec)
    root = place.removesuffix(f"/{FOLDER}/part.parquet")
    for other in ("notes.txt", "a/b/c/d/e/part.parquet", f"{FOLDER}/other.parquet", f"x/{FOLDER}"):
        fs, path = fsspec.core.url_to_fs(f"{root}/{other}")
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        fs.pipe_file(path, b"mine")
    assert orphans(store) == [place]


def test_the_root_may_be_written_in_several_ways(tmp_path: Path, local_file: Path) -> None:
    DeepStore(str(tmp_path / "deep")).make_root()
    pushed = DeepStore(f"/{tmp_path}/deep/").push(str(local_file), ID, "u1")
    assert DeepStore(f"file://localhost{tmp_path}/x/../deep").location(pushed.load_spec)


class OddStore(MemoryFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Says the time of a change as a test wants it, and fails with errors that nobody knows."""

    protocol = "oddstore"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    times: ClassVar[dict[str, object]] = {}
    asked: ClassVar[list[str]] = []

    def find(
        self, path: str, *, detail: bool = False, **more: object
    ) -> dict[str, dict[str, object]]:
        found = super().find(path, detail=True, **more)
        return {name: {"name": name, **self.times} for name in found}

    def modified(self, path: str) -> datetime:
        self.asked.append(path)
        return dt.datetime.fromisoformat("2013-01-01")

    def rm_file(self, path: str) -> None:
        if path.endswith(".parquet"):
            raise RuntimeError("the credentials have expired")
        super().rm_file(path)


@pytest.fixture
def odd(local_file: Path) -> Iterator[DeepStore]:
    fsspec.register_implementation("oddstore", OddStore, clobber=True)
    store = DeepStore("oddstore://bucket/segments")
    store.push(str(local_file), ID, "u1")
    OddStore.asked.clear()
    yield store
    OddStore.store.clear()


@pytest.mark.parametrize(
    "times",
    [
        {"LastModified": dt.datetime(2013, 1, 1, tzinfo=dt.UTC)},
        {"mtime": dt.datetime.fromisoformat("2013-01-01")},
        {"mtime": 1_356_998_400.0},
        {},
    ],
)
def test_the_time_of_a_file_comes_with_the_listing_where_it_can(
    odd: DeepStore, times: Mapping[str, object]
) -> None:
    OddStore.times = dict(times)
    at_ms = 1_356_998_400_000
    assert len(odd.list_orphans([], modified_before_ms=at_ms + 1)) == 1
    assert odd.list_orphans([], modified_before_ms=at_ms) == []
    assert bool(OddStore.asked) == (not times)


def test_an_error_that_nobody_knows_is_no_end_of_the_process(odd: DeepStore) -> None:
    with pytest.raises(Unavailable, match="cannot delete: the credentials have expired"):
        odd.kill({"type": "fsspec", "url": f"oddstore://bucket/segments/{FOLDER}/part.parquet"})


@pytest.mark.parametrize(
    "load_spec",
    [
        {},
        {"type": "tombstone"},
        {"type": "local", "path": "/etc/passwd"},
        {"type": "local", "path": "ROOT/../x"},
        {"type": "local", "path": "ROOT"},
        {"type": "local", "path": "ROOT/"},
        {"type": "local", "path": "ROOT/a//b"},
        {"type": "local", "path": 7},
        {"type": "fsspec", "url": "s3://b/x"},
    ],
)
def test_nothing_outside_the_store_is_touched(tmp_path: Path, load_spec: dict[str, Any]) -> None:
    root = str(tmp_path / "deep")
    spec = {k: v.replace("ROOT", root) if isinstance(v, str) else v for k, v in load_spec.items()}
    store = DeepStore(root)
    for act in (store.kill, store.location):
        with pytest.raises(InvalidRequest, match="is not of the deep storage"):
            act(spec)


@pytest.mark.parametrize(
    ("datasource", "folder"),
    [
        ("a:b", "a_b"),
        ("../x", "~2e~.~2f~x"),
        ("..", "~2e~."),
        ("_x", "~5f~x"),
        (":x", "~3a~x"),
        ("a b*?{}", "a~20~b~2a~~3f~~7b~~7d~"),
        ("flüge", "fl~fc~ge"),
        ("a~b", "a~7e~b"),
    ],
)
def test_names_are_made_safe(
    tmp_path: Path, local_file: Path, datasource: str, folder: str
) -> None:
    store = DeepStore(str(tmp_path / "deep"))
    store.make_root()
    pushed = store.push(str(local_file), SegmentId(datasource, DAY, "v"), "u1")
    assert [path.name for path in (tmp_path / "deep").iterdir()] == [folder]
    assert Path(store.location(pushed.load_spec)).read_bytes() == local_file.read_bytes()


@pytest.mark.parametrize(("datasource", "unique"), [("", "u"), ("x" * 300, "u"), ("d", "")])
def test_names_that_cannot_be_are_refused(
    tmp_path: Path, local_file: Path, datasource: str, unique: str
) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a folder"):
        DeepStore(str(tmp_path)).push(str(local_file), SegmentId(datasource, DAY, "v"), unique)


@pytest.mark.parametrize("url", ["relative/path", "", "nonsense://x/y", "file://segments/x"])
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        DeepStore(url)


CONTENT = bytes(range(256)) * 40
TARGET = f"/deep/{FOLDER}/part.parquet"


def crashable() -> CrashableFileSystem:
    fs = CrashableFileSystem()
    for folder in ("/task", "/deep"):
        fs.mkdir(folder)
    fs.write_atomically("/task/merged.parquet", CONTENT)
    return fs


def push(fs: CrashableFileSystem) -> PushedFile:
    return DeepStore("/deep", fs=fs).push("/task/merged.parquet", ID, "u1")


def push_steps() -> range:
    fs = crashable()
    before = fs.steps
    push(fs)
    return range(before + 1, fs.steps + 1)


@pytest.mark.parametrize("step", push_steps())
def test_a_push_cut_anywhere_is_whole_or_not_there(step: int) -> None:
    for seed in range(12):
        fs = crashable()
        fs.kill_at(step, keep_bytes=100)
        with pytest.raises(PowerLoss):
            push(fs)
        # Killed, or without power, and cut again while it was pushed anew.
        after = fs.crash(seed) if seed else fs.kill_process()
        assert not after.exists(TARGET) or after.read_bytes(TARGET) == CONTENT
        pushed = push(after)
        survivor = after.crash(seed)
        assert survivor.read_bytes(TARGET) == CONTENT
        assert orphans(DeepStore("/deep", fs=survivor), pushed.load_spec) == []


@pytest.mark.parametrize("step", push_steps())
def test_what_a_cut_push_leaves_is_found_and_killed(step: int) -> None:
    fs = crashable()
    fs.kill_at(step, keep_bytes=100)
    with pytest.raises(PowerLoss):
        push(fs)
    after = fs.kill_process()
    store = DeepStore("/deep", fs=after)
    for load_spec in store.list_orphans([], modified_before_ms=LATER_MS):
        store.kill(load_spec)
    assert orphans(store) == []
    assert after.used_bytes() == len(CONTENT)


@pytest.mark.parametrize("step", push_steps())
def test_a_push_that_fails_anywhere_can_be_made_again(step: int) -> None:
    fs = crashable()
    fs.fail_at(step)
    with pytest.raises(Unavailable):
        push(fs)
    assert not fs.exists(TARGET) or fs.read_bytes(TARGET) == CONTENT
    push(fs)
    assert fs.read_bytes(TARGET) == CONTENT


def test_a_full_disk_leaves_nothing_visible() -> None:
    fs = crashable()
    before_bytes = fs.used_bytes()
    fs.capacity_bytes = before_bytes + 100
    with pytest.raises(Unavailable, match="no space"):
        push(fs)
    assert fs.listdir(TARGET.rpartition("/")[0]) == []
    assert fs.used_bytes() == before_bytes
    fs.forget_faults()
    push(fs)


def test_a_folder_removed_under_a_push_is_made_again() -> None:
    class Sweeper(CrashableFileSystem):
        """Somebody kills the neighbour's file just when our folder was made."""

        def __init__(self) -> None:
            super().__init__()
            self.sweeps = 2

        def create(self, path: str, *, replace: bool = False) -> _AppendFile:
            if path.startswith("/deep") and self.sweeps:
                self.sweeps -= 1
                self.rmdir(f"/deep/{FOLDER}")
            return super().create(path, replace=replace)

    fs = Sweeper()
    for folder in ("/task", "/deep"):
        fs.mkdir(folder)
    fs.write_atomically("/task/merged.parquet", CONTENT)
    push(fs)
    assert fs.read_bytes(TARGET) == CONTENT


def spoilt(root: Path, how: str) -> None:
    """Take the folder of a deep storage away, as a user or an unmounted disk does."""
    match how:
        case "moved":
            root.rename(root.with_name("elsewhere"))
        case "a file":
            root.rename(root.with_name("elsewhere"))
            root.touch()
        case "a file above":
            root.parent.rename(root.parent.with_name("elsewhere"))
            root.parent.touch()
        case "a file below":
            (root / "flights").rename(root / "elsewhere")
            (root / "flights").touch()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("moved", "the deep storage folder .*/disk/deep is missing: mount it, or restore it"),
        ("a file", "/disk/deep is a file, but must be a folder of the deep storage"),
        ("a file above", "the deep storage .*/disk/deep is missing .*is not a folder"),
        ("a file below", "/disk/deep/flights is a file, but must be a folder of the deep storage"),
    ],
)
def test_a_folder_that_is_away_is_waited_for_and_never_made(
    tmp_path: Path, local_file: Path, how: str, text: str
) -> None:
    root = tmp_path / "disk" / "deep"
    store = DeepStore(str(root))
    store.make_root()
    pushed = store.push(str(local_file), ID, "u1")
    spoilt(root, how)
    there = sorted(tmp_path.rglob("*"))
    works: list[Callable[[], object]] = [
        lambda: store.push(str(local_file), ID, "u1"),
        lambda: store.push(str(local_file), ID, "u2"),
        lambda: store.kill(pushed.load_spec),
    ]
    if how != "a file below":
        works.append(store.probe)
    for work in works:
        with pytest.raises(StorageUnavailable, match=text):
            work()
    assert sorted(tmp_path.rglob("*")) == there


def test_a_folder_that_goes_away_during_a_push_is_not_made_again() -> None:
    class Unmounted(CrashableFileSystem):
        def open_read(self, path: str) -> _ReadFile:
            if self.exists("/deep"):
                self.rmdir("/deep")
            return super().open_read(path)

    fs = Unmounted()
    for folder in ("/task", "/deep"):
        fs.mkdir(folder)
    fs.write_atomically("/task/merged.parquet", CONTENT)
    with pytest.raises(StorageUnavailable, match="mount it"):
        push(fs)
    assert not fs.exists("/deep")


def test_projections_need_the_folder_of_the_deep_storage_and_make_their_own(
    tmp_path: Path, local_file: Path
) -> None:
    _, files = files_below(f"{tmp_path}/deep/~projections", OsFileSystem())
    works: tuple[Callable[[], object], ...] = (
        lambda: files.size("a/b"),
        lambda: files.put(str(local_file), "a", "b"),
    )
    for work in works:
        with pytest.raises(StorageUnavailable, match=f"{tmp_path}/deep is missing"):
            work()
    (tmp_path / "deep").mkdir()
    assert files.size("a/b") is None
    assert files.put(str(local_file), "a", "b") == files.size("a/b") == 4000


def test_load_specs_stay_valid_when_the_store_moves(tmp_path: Path, local_file: Path) -> None:
    before, after = tmp_path / "a b#ü%20%", tmp_path / "elsewhere"
    before.mkdir()
    pushed = DeepStore(str(before)).push(str(local_file), ID, "u1")
    before.rename(after)
    moved = DeepStore(str(after))
    location = moved.location(pushed.load_spec)
    assert location == f"{after}/{FOLDER}/part.parquet"
    assert moved.rebased(f"{before}/{FOLDER}/part.parquet") == location
    assert orphans(moved, pushed.load_spec) == []


def test_a_load_spec_of_an_earlier_release_has_a_current_form(tmp_path: Path) -> None:
    store = DeepStore(str(tmp_path))
    for old in (
        {"type": "local", "path": f"/was/here/{FOLDER}/part.parquet"},
        {"type": "fsspec", "url": f"s3://bucket/segments/{FOLDER}/part.parquet"},
    ):
        current = {"type": "deepStorage", "path": f"{FOLDER}/part.parquet"}
        assert store.current(old) == current
        assert store.current(current) == current
    assert store.location({"type": "local", "path": f"{tmp_path}/x/y"}) == f"{tmp_path}/x/y"
    for foreign in ({"type": "tombstone"}, {"type": "local", "path": "/p"}):
        assert store.current(foreign) == foreign


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "", ".", "a//b"])
def test_a_load_spec_does_not_lead_out_of_the_store(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidRequest, match="not of the deep storage"):
        DeepStore(str(tmp_path)).location({"type": "deepStorage", "path": path})


@pytest.mark.parametrize("error", FAULTS)
def test_no_exception_during_a_push_leaves_half_a_file(error: type, local_file: Path) -> None:
    """Only an `Unavailable` deleted it; what others left took room until the janitor came."""
    at, raised = 0, True
    while raised:
        fs, faults = CrashableFileSystem(), Faults()
        fs.mkdir("/in")
        fs.write_atomically("/in/f", b"PAR1" * 100)
        store = DeepStore("/deep", fs=faults.port(fs, results=["create"]))
        store.make_root()
        with faults.armed(error, at):
            store.push("/in/f", ID, "u1")
        raised = bool(faults.raised)
        folder = f"/deep/{FOLDER}"
        left = set(fs.listdir(folder)) if fs.exists(folder) else set()
        again = store.push("/in/f", ID, "u1")
        assert fs.read_bytes(store.location(again.load_spec)) == b"PAR1" * 100
        whole = set(fs.listdir(folder))
        assert left <= whole, f"{error.__name__} at call {at}, {faults.raised}: {left}"
        assert len(whole) == 1
        at += 1
    assert at > 3
