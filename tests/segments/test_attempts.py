"""Files that Spark writes into deep storage itself, and what is left of a task that was cut."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from penstock.core.errors import InvalidRequest
from penstock.segments.deep_storage import DeepStore
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

if TYPE_CHECKING:
    from collections.abc import Iterator

LATER_MS = 2**52
PART = "part-00000-b5f1.c000.zstd.parquet"
_buckets = itertools.count()


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeepStore]:
    if request.param == "memory":
        yield DeepStore(f"memory://attempts{next(_buckets)}/segments")
        fsspec.filesystem("memory").store.clear()
    else:
        yield DeepStore(str(tmp_path / "deep storage"))


def write(folder: str, *names: str) -> list[str]:
    """Write files as an engine does; return their URIs."""
    uris = [f"{folder}/{name}" for name in names]
    for uri in uris:
        if uri.startswith("/"):
            Path(uri).parent.mkdir(parents=True, exist_ok=True)
        with fsspec.open(uri, "wb") as file:
            file.write(b"PAR1")
    return uris


def orphans(store: DeepStore, *known: Mapping[str, object]) -> list[str]:
    found = store.list_orphans(known, modified_before_ms=LATER_MS)
    return sorted(store.location(load_spec) for load_spec in found)


def test_a_file_of_an_attempt_is_fetched_by_its_load_spec(store: DeepStore) -> None:
    folder = store.attempt_folder("flights", "index_parallel_1", "a1")
    assert folder.endswith("/flights/attempts/index_parallel_1/a1")
    [uri] = write(folder, PART)
    load_spec = store.load_spec_of(uri)
    assert store.location(load_spec) == uri
    store.kill(load_spec)
    store.kill(load_spec)
    assert orphans(store) == []


def test_whatever_lies_in_an_attempt_and_is_no_segment_is_an_orphan(store: DeepStore) -> None:
    folder = store.attempt_folder("flights", "t", "a1")
    uris = write(
        folder,
        PART,
        "2013/part-1.parquet",
        "_SUCCESS",
        "_temporary/0/_temporary/attempt_0/part-2.parquet",
        ".scratch-7/x.arrow",
    )
    published = [store.load_spec_of(uri) for uri in uris[:2]]
    assert orphans(store, *published) == sorted(uris[2:])
    assert orphans(store) == sorted(uris)
    assert store.list_orphans([], modified_before_ms=0) == []
    for load_spec in store.list_orphans(published, modified_before_ms=LATER_MS):
        store.kill(load_spec)
    assert orphans(store) == sorted(uris[:2])


def test_every_attempt_has_a_folder_of_its_own(store: DeepStore) -> None:
    long = "index_parallel_" + "x" * 300
    folders = {
        store.attempt_folder(datasource, task, attempt)
        for datasource in ("d", "e")
        for task in ("t", "u", long, long + "2")
        for attempt in ("1", "2")
    }
    assert len(folders) == 16
    odd = store.attempt_folder("../x", "t/../..", "..")
    assert odd.endswith("/~2e~.~2f~x/attempts/t~2f~..~2f~../~2e~.")


@pytest.mark.parametrize(("task", "attempt"), [("", "1"), ("t", ""), ("t", "x" * 300)])
def test_a_name_that_cannot_be_is_refused(store: DeepStore, task: str, attempt: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a folder"):
        store.attempt_folder("d", task, attempt)


def test_spark_may_call_a_file_in_its_own_way(tmp_path: Path) -> None:
    store = DeepStore(str(tmp_path / "deep storage"))
    path = f"{store.attempt_folder('d', 't', '1')}/{PART}"
    quoted = path.replace(" ", "%20")
    for uri in (path, f"file://{quoted}", f"file:{quoted}"):
        assert store.load_spec_of(uri) == {
            "type": "deepStorage",
            "path": f"d/attempts/t/1/{PART}",
        }


def test_object_stores_have_two_names_for_one_scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.core.url_to_fs", lambda url: (MemoryFileSystem(), url))
    store = DeepStore("s3://bucket/segments")
    load_spec = store.load_spec_of("s3a://bucket/segments/d/attempts/t/1/x.parquet")
    assert load_spec["path"] == "d/attempts/t/1/x.parquet"


@pytest.mark.parametrize(
    "relative", ["x.parquet", "d/x.parquet", "d/attempts/t/x", "../d/attempts/t/1/x", "d/a/t/1/x"]
)
def test_only_files_of_attempts_become_segments_so(store: DeepStore, relative: str) -> None:
    root = store.attempt_folder("d", "t", "1").removesuffix("/d/attempts/t/1")
    for uri in (f"{root}/{relative}", f"/elsewhere/{relative}", f"s3://b/{relative}"):
        with pytest.raises(InvalidRequest, match="attempt_folder"):
            store.load_spec_of(uri)


def test_checksums_that_hadoop_keeps_beside_stay_and_go_with_their_file(tmp_path: Path) -> None:
    store = DeepStore(str(tmp_path / "deep"))
    folder = store.attempt_folder("d", "t", "1")
    uris = write(folder, PART, f".{PART}.crc", "other", ".other.crc")
    load_spec = store.load_spec_of(uris[0])
    assert orphans(store, load_spec) == sorted(uris[2:])
    for orphan in store.list_orphans([load_spec], modified_before_ms=LATER_MS):
        store.kill(orphan)
    store.kill(load_spec)
    assert list((tmp_path / "deep").iterdir()) == []


ROOT = "/deep"
CONTENT = b"PAR1" * 50


def crashable() -> CrashableFileSystem:
    fs = CrashableFileSystem()
    fs.mkdir(ROOT)
    return fs


def run_task(fs: CrashableFileSystem, task: str, files: int = 2) -> list[dict[str, object]]:
    """Write and settle as an engine does; return the load specs to be published."""
    store = DeepStore(ROOT, fs=fs)
    folder = store.attempt_folder("d", task, "1")
    fs.mkdir(folder)
    load_specs = []
    for number in range(files):
        name = f"{folder}/part-{number}.parquet"
        temporary = f"{folder}/.part-{number}.tmp"
        file = fs.create(temporary)
        file.writev([CONTENT])
        file.sync()
        file.close()
        fs.rename(temporary, name)
        load_specs.append(dict(store.load_spec_of(name)))
    parts = folder.split("/")
    for depth in range(len(parts), 1, -1):
        fs.fsync_folder("/".join(parts[:depth]))
    return load_specs


def steps_of(task: str) -> range:
    fs = crashable()
    run_task(fs, "published")
    before = fs.steps
    run_task(fs, task)
    return range(before + 1, fs.steps + 1)


@pytest.mark.parametrize("step", steps_of("cut"))
def test_what_a_cut_batch_task_leaves_goes_and_segments_stay(step: int) -> None:
    for seed in range(8):
        fs = crashable()
        published = run_task(fs, "published")
        fs.kill_at(step, keep_bytes=70)
        with pytest.raises(PowerLoss):
            run_task(fs, "cut")
        after = fs.crash(seed) if seed else fs.kill_process()
        store = DeepStore(ROOT, fs=after)
        # Segments share a file: those known may name one twice.
        found = store.list_orphans([*published, *published], modified_before_ms=LATER_MS)
        assert not [spec for spec in found if spec in published]
        for load_spec in found:
            store.kill(load_spec)
        assert orphans(store, *published) == []
        for load_spec in published:
            assert after.read_bytes(store.location(load_spec)) == CONTENT
        again = run_task(after, "again")
        assert orphans(store, *published, *again) == []


def kill_steps() -> range:
    fs = crashable()
    specs = run_task(fs, "published")
    before = fs.steps
    DeepStore(ROOT, fs=fs).kill(specs[0])
    return range(before + 1, fs.steps + 1)


@pytest.mark.parametrize("step", kill_steps())
def test_a_kill_that_is_cut_leaves_an_orphan_or_nothing(step: int) -> None:
    for seed in range(8):
        fs = crashable()
        gone, stays = run_task(fs, "published")
        fs.kill_at(step)
        with pytest.raises(PowerLoss):
            DeepStore(ROOT, fs=fs).kill(gone)
        after = fs.crash(seed) if seed else fs.kill_process()
        store = DeepStore(ROOT, fs=after)
        for load_spec in store.list_orphans([stays], modified_before_ms=LATER_MS):
            assert load_spec == gone
            store.kill(load_spec)
        assert orphans(store) == [store.location(stays)]
        assert after.read_bytes(store.location(stays)) == CONTENT
