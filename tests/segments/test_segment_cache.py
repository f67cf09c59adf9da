"""Copies of segment files: complete or absent, bounded, fetched once, kept while queries read."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.clock import SystemClock
from penstock.core.errors import StorageUnavailable
from penstock.segments.segment_cache import FREE_BYTES_MIN, NotCached, SegmentCache, StoredFile

ROOT = "s3://lake/segments"
SIZE = 100
UNTIL_S = float("inf")


def content_of(name: str, size: int = SIZE) -> bytes:
    return b"PAR1" + name.encode().ljust(size - 8, b".") + b"PAR1"


class Store:
    """A store whose answers a test changes."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.files: dict[str, bytes] = {}
        self.etag: Callable[[bytes], str] = lambda data: f'"{hashlib.md5(data).hexdigest()}"'
        self.error: Exception | None = None
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_asked = threading.Event()

    def fetch(self, relative: str, write: Callable[[bytes], object]) -> str:
        self.asked.append(relative)
        self.is_asked.set()
        self.may_answer.wait(120)
        data = self.files.get(relative, content_of(relative))
        write(data[:10])
        if self.error is not None:
            raise self.error
        write(data[10:])
        return self.etag(data)


def stored(name: str, size: int = SIZE) -> StoredFile:
    return StoredFile(f"{ROOT}/{name}", size)


class Rig:
    def __init__(self, folder: Path, files_max: int = 3) -> None:
        self.store, self.free = Store(), 1 << 40
        self.named = [stored(name) for name in "abcdef"]
        self.folder = folder
        self.cache = SegmentCache(
            *(folder, files_max * SIZE, ROOT, self.store, lambda: self.named, SystemClock()),
            lambda: self.free,
        )
        self.cache.start()

    def read(self, *names: str, until_s: float = UNTIL_S) -> list[bytes]:
        """Return the contents of copies while they are leased."""
        files = [stored(name) for name in names]
        with self.cache.leased(files, lambda: None, until_s):
            return [Path(self.cache.path_of(file) or "").read_bytes() for file in files]

    def refusal(self, *names: str, until_s: float = UNTIL_S) -> str:
        with pytest.raises(NotCached) as error:
            self.read(*names, until_s=until_s)
        return error.value.reason

    def held(self) -> set[str]:
        names = {str(self.cache.path_of(stored(name))): name for name in "abcdef"}
        return {names[str(path)] for path in self.folder.glob("*.parquet")}

    def count(self, what: str) -> float:
        found = {one.name: one.value for one in self.cache.samples()}
        value = found.get(f"penstock_segment_cache_{what}", 0.0)
        assert isinstance(value, float)
        return value


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "cache")
    yield made
    made.store.may_answer.set()
    made.cache.stop()


def test_a_file_is_fetched_at_its_first_use(rig: Rig) -> None:
    for _ in range(2):
        assert rig.read("a", "b") == [content_of("a"), content_of("b")]
    assert sorted(rig.store.asked) == ["a", "b"]
    assert [rig.count(f"{what}_total") for what in ("hits", "misses", "fetched_bytes")] == [
        2,
        2,
        200,
    ]
    assert (rig.count("bytes"), rig.count("files")) == (200, 2)


def test_a_file_is_fetched_once_for_all_that_wait(rig: Rig) -> None:
    rig.store.may_answer.clear()
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(rig.read, "a") for _ in range(8)]
        rig.store.is_asked.wait(120)
        rig.store.may_answer.set()
        assert [read.result() for read in reads] == [[content_of("a")]] * 8
    assert rig.store.asked == ["a"]


def test_the_longest_unused_copy_is_evicted_but_none_that_is_read(rig: Rig) -> None:
    rig.read("a")
    rig.read("b")
    rig.read("c")
    rig.read("a")
    with rig.cache.leased([stored("b")], lambda: None, UNTIL_S):
        rig.read("d")
        assert rig.held() == {"a", "b", "d"}
        rig.read("e", "f")
        assert rig.held() == {"b", "e", "f"}
        with rig.cache.leased([stored("e"), stored("f")], lambda: None, UNTIL_S):
            assert rig.refusal("a") == "all files are in use"
    assert rig.count("evictions_total") == 3
    assert rig.refusal("a", "b", "c", "d") == "larger than the cache"
    assert rig.count("bytes") == 3 * SIZE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (content_of("a", SIZE - 1), "damaged"),
        (content_of("a", SIZE + 1), "damaged"),
        (b"x" * SIZE, "damaged"),
        (StorageUnavailable("no answer"), "store"),
        (OSError(errno.ENOSPC, "no space"), "disk full"),
        (OSError(errno.EIO, "broken"), "disk"),
    ],
)
def test_what_is_not_the_whole_file_is_no_copy(
    rig: Rig, data: bytes | Exception, reason: str
) -> None:
    if isinstance(data, bytes):
        rig.store.files["a"] = data
    else:
        rig.store.error = data
    assert rig.refusal("a") == reason
    assert rig.held() == set()
    assert not list(rig.folder.glob("*.tmp"))
    assert rig.count("bytes") == 0
    rig.store.files, rig.store.error = {}, None
    if reason == "disk full":
        assert rig.refusal("a") == "disk full"  # for a while, without another attempt
        assert rig.store.asked == ["a"]
    else:
        assert rig.read("a") == [content_of("a")]


def test_a_content_that_has_another_etag_is_read_twice(rig: Rig) -> None:
    rig.store.etag = lambda _data: "0" * 32  # as with encryption by KMS
    assert rig.read("a") == [content_of("a")]
    assert rig.read("b") == [content_of("b")]
    assert rig.store.asked == ["a", "a", "b"]


def test_a_content_that_differs_each_time_is_no_copy(rig: Rig) -> None:
    rig.store.etag = lambda _data: f"{len(rig.store.asked):032}"
    numbers = iter(range(9))
    fetch = rig.store.fetch

    def changing(relative: str, write: Callable[[bytes], object]) -> str:
        rig.store.files["a"] = content_of(f"a{next(numbers)}")
        return fetch(relative, write)

    rig.store.fetch = changing  # type: ignore[method-assign]
    assert rig.refusal("a") == "damaged"


def test_a_query_that_ends_does_not_wait(rig: Rig) -> None:
    rig.store.may_answer.clear()
    assert rig.refusal("a", until_s=0.0) == "not fetched in time"

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), rig.cache.leased([stored("a")], stop, UNTIL_S):
        pass
    rig.store.may_answer.set()
    assert rig.read("a") == [content_of("a")]


def test_without_free_space_copies_give_way(rig: Rig) -> None:
    rig.read("a")
    rig.free = FREE_BYTES_MIN + SIZE // 2
    rig.read("b")
    assert rig.held() == {"b"}
    rig.free = FREE_BYTES_MIN - 2 * SIZE
    assert rig.refusal("c") == "disk full"
    assert rig.held() == set()


def test_files_that_the_metadata_no_longer_name_are_deleted(rig: Rig) -> None:
    rig.read("a", "b", "c")
    rig.named = [stored("c")]
    with rig.cache.leased([stored("b")], lambda: None, UNTIL_S):
        rig.cache.delete_unneeded()
        assert rig.held() == {"b", "c"}
    rig.cache.delete_unneeded()
    assert rig.held() == {"c"}


def test_another_process_continues_with_what_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with ExitStack() as stack:
        first = Rig(folder)
        stack.callback(first.cache.stop)
        first.read("a", "b", "c")
        second = Rig(folder)
        stack.callback(second.cache.stop)
        assert second.refusal("a") == "not open"
        first.cache.stop()
        damaged = Path(first.cache.path_of(stored("b")) or "")
        damaged.write_bytes(content_of("x"))
        Path(first.cache.path_of(stored("c")) or "").write_bytes(b"short")
        (folder / ".0123.tmp").write_bytes(b"half")
        second.cache.delete_unneeded()
        assert not (folder / ".0123.tmp").exists()
        assert second.read("a", "b", "c") == [content_of(name) for name in "abc"]
        assert sorted(second.store.asked) == ["b", "c"]


@pytest.mark.parametrize("left", [b"PAR1 changed PAR1".ljust(SIZE), b"PAR1"])
def test_a_damaged_copy_that_cannot_be_replaced_takes_no_room(tmp_path: Path, left: bytes) -> None:
    first = Rig(tmp_path)
    first.read("a")
    first.cache.stop()
    (copy,) = tmp_path.glob("*.parquet")
    copy.write_bytes(left)
    second = Rig(tmp_path)
    second.store.error = StorageUnavailable("the store does not answer")
    assert second.refusal("a") == "store"
    assert (second.held(), second.count("bytes")) == (set(), 0)
    second.cache.stop()


def test_a_copy_that_somebody_deleted_or_that_cannot_be_read_is_fetched_again(rig: Rig) -> None:
    rig.read("a", "b")
    path = rig.cache.path_of(stored("a")) or ""
    Path(path).unlink()
    assert rig.read("a") == [content_of("a")]
    assert not rig.cache.discard("/elsewhere/a.parquet")
    assert rig.cache.discard(path)
    assert rig.read("a") == [content_of("a")]
    assert rig.store.asked.count("a") == 3


def test_files_of_unknown_size_or_elsewhere_have_no_copy(rig: Rig) -> None:
    assert rig.cache.path_of(StoredFile(f"{ROOT}/a", 0)) is None
    assert rig.cache.path_of(StoredFile("/local/a.parquet", SIZE)) is None
    assert rig.cache.path_of(StoredFile(f"{ROOT}-other/a", SIZE)) is None


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4), max_size=12))
def test_the_bound_holds_and_contents_are_right(
    tmp_path_factory: pytest.TempPathFactory, reads: list[list[str]]
) -> None:
    rig = Rig(tmp_path_factory.mktemp("cache"))
    try:
        for names in reads:
            if len(set(names)) > 3:
                assert rig.refusal(*names) == "larger than the cache"
            else:
                assert rig.read(*names) == [content_of(name) for name in names]
            sizes = sum(path.stat().st_size for path in rig.folder.glob("*.parquet"))
            assert sizes == rig.count("bytes") <= 3 * SIZE
    finally:
        rig.cache.stop()
