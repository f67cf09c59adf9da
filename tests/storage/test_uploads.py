"""Uploads: bounds, expiry, owners, and what a crash or a full disk leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from penstock.core.errors import Full, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.storage.uploads import (
    EXPIRES_AFTER_MS,
    Upload,
    UploadLimits,
    UploadStore,
    UploadTooLarge,
    UploadWriter,
)
from penstock.testing.clock import VirtualClock

ME, OTHER = "user:me", "user:other"
LIMITS = UploadLimits(
    file_bytes_max=10,
    owner_bytes_max=15,
    total_bytes_max=20,
    owner_files_max=3,
    files_max=4,
    owner_running_max=2,
    free_bytes_min=0,
)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> UploadStore:
    return UploadStore(tmp_path / "uploads", clock, LIMITS)


def add(store: UploadStore, content: bytes = b"a", owner: str = ME, name: str = "a.csv") -> Upload:
    writer = store.begin(owner, name, len(content))
    writer.write(content)
    return writer.finish()


def store_all(writer: UploadWriter) -> None:
    writer.write(b"xy")
    writer.finish()


def files_of(store: UploadStore, tmp_path: Path) -> set[str]:
    return {str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file()}


def test_an_upload_is_there_once_it_is_complete(store: UploadStore) -> None:
    writer = store.begin(ME, "a.csv", None)
    writer.write(b"x,")
    assert store.all() == []
    writer.write(b"y\n")
    made = writer.finish()
    assert made.path.read_bytes() == b"x,y\n"
    assert store.all(ME) == [made]
    assert store.all(OTHER) == []
    assert (made.name, made.bytes, made.owner) == ("a.csv", 4, ME)


@pytest.mark.parametrize("name", ["../../etc/passwd", "/tmp/x", "<img src=x>", "a\u0301.csv"])
def test_a_name_is_only_text(store: UploadStore, tmp_path: Path, name: str) -> None:
    made = add(store, name=name)
    assert store.get(made.id).name == name
    assert files_of(store, tmp_path) == {
        f"uploads/{made.id}/content",
        f"uploads/{made.id}/upload.json",
    }


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "a\0", "\u202egnp.csv"])
def test_a_name_that_people_cannot_read_is_refused(store: UploadStore, name: str) -> None:
    with pytest.raises(InvalidRequest, match="printable"):
        store.begin(ME, name, 1)
    add(store)  # nothing was counted


@pytest.mark.parametrize("wanted", ["../uploads", "", "x", "0" * 32, "/", "0" * 31 + "/"])
def test_an_id_that_is_not_one_leads_nowhere(store: UploadStore, wanted: str) -> None:
    add(store)
    with pytest.raises(NotFound):
        store.use(wanted, ME)
    store.delete(wanted)
    assert len(store.all()) == 1


def test_an_upload_of_another_principal_does_not_exist(store: UploadStore) -> None:
    made = add(store)
    with pytest.raises(NotFound) as of_other:
        store.use(made.id, OTHER)
    with pytest.raises(NotFound) as of_none:
        store.use("0" * 32, OTHER)
    assert str(of_other.value).replace(made.id, "0" * 32) == str(of_none.value)
    assert store.use(made.id, None).id == made.id


def test_sizes_are_bounded_for_each_file_principal_and_all(store: UploadStore) -> None:
    with pytest.raises(UploadTooLarge, match="larger than 10 bytes"):
        store.begin(ME, "a", 11)
    writer = store.begin(ME, "a", None)  # of which the size is not known before
    writer.write(b"x" * 10)
    with pytest.raises(UploadTooLarge):
        writer.write(b"x")
    writer.abort()
    add(store, b"x" * 10)
    with pytest.raises(Full, match="user:me would have 16 bytes"):
        store.begin(ME, "a", 6)
    add(store, b"x" * 10, OTHER)
    with pytest.raises(Full, match="all uploads would have 21 bytes"):
        store.begin(ME, "a", 1)


def test_two_uploads_at_once_share_the_bounds(store: UploadStore) -> None:
    one, two = store.begin(ME, "a", None), store.begin(ME, "b", None)
    with pytest.raises(Full, match="2 uploads of user:me arrive now"):
        store.begin(ME, "c", None)
    one.write(b"x" * 9)
    with pytest.raises(Full, match="would have 18 bytes"):
        two.write(b"x" * 9)
    two.abort()
    assert one.finish().bytes == 9
    assert add(store, b"x" * 6).bytes == 6


def test_numbers_are_bounded(store: UploadStore) -> None:
    for _ in range(3):
        add(store)
    with pytest.raises(Full, match="user:me has 3 uploads"):
        store.begin(ME, "a", 1)
    first = store.all(ME)[0]
    add(store, owner=OTHER)
    with pytest.raises(Full, match="there are 4 uploads"):
        store.begin("user:third", "a", 1)
    store.delete(first.id)
    add(store)


def test_bounds_count_what_an_earlier_process_stored(
    store: UploadStore, tmp_path: Path, clock: VirtualClock
) -> None:
    add(store, b"x" * 10)
    with pytest.raises(Full):
        UploadStore(tmp_path / "uploads", clock, LIMITS).begin(ME, "a", 6)


@pytest.mark.parametrize("how", ["abort", "empty", "killed"])
def test_an_interrupted_upload_leaves_nothing(store: UploadStore, tmp_path: Path, how: str) -> None:
    writer = store.begin(ME, "a", None)
    if how == "empty":
        with pytest.raises(InvalidRequest, match="empty"):
            writer.finish()
    else:
        writer.write(b"xy")
    if how == "killed":
        assert files_of(store, tmp_path)
        store.clear()  # of the next process
    else:
        writer.abort()
    assert files_of(store, tmp_path) == set()
    assert store.all() == []


@pytest.mark.parametrize("step", ["write", "fsync", "rename"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_disk_that_fails_is_reported_and_leaves_nothing(
    store: UploadStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, number: int
) -> None:
    writer = store.begin(ME, "a", 2)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    if step == "rename":
        monkeypatch.setattr(Path, "rename", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    try:
        with pytest.raises(Unavailable, match="uploads"):
            store_all(writer)
    finally:
        monkeypatch.undo()
        writer.abort()
    assert files_of(store, tmp_path) == set()
    assert add(store).bytes == 1


def test_space_must_stay_free(tmp_path: Path, clock: VirtualClock) -> None:
    store = UploadStore(tmp_path / "uploads", clock, UploadLimits(free_bytes_min=1 << 60))
    with pytest.raises(Unavailable, match="too little space"):
        store.begin(ME, "a", None)


def test_an_upload_expires_a_day_after_its_last_use(
    store: UploadStore, clock: VirtualClock
) -> None:
    made, needed, used = add(store), add(store), add(store)
    assert made.expires_ms == clock.now_ms() + EXPIRES_AFTER_MS
    clock.advance(ms=EXPIRES_AFTER_MS - 1)
    assert store.expired() == []
    store.use(used.id, ME)
    clock.advance(ms=1)
    assert {one.id for one in store.expired()} == {made.id, needed.id}
    assert store.expire({needed.id}) == 1
    assert {one.id for one in store.all()} == {needed.id, used.id}
    with pytest.raises(NotFound, match="expired"):
        store.use(made.id, ME)


def test_uploads_that_another_process_deleted_no_longer_count(
    store: UploadStore, tmp_path: Path, clock: VirtualClock
) -> None:
    for _ in range(LIMITS.owner_files_max):
        add(store)
    with pytest.raises(Full, match="user:me has 3 uploads"):
        add(store)
    clock.advance(ms=EXPIRES_AFTER_MS)
    assert UploadStore(tmp_path / "uploads", clock, LIMITS).expire(()) == LIMITS.owner_files_max
    assert add(store).owner == ME


def test_a_damaged_record_is_no_upload(store: UploadStore) -> None:
    made = add(store)
    (made.path.parent / "upload.json").write_text("{")
    with pytest.raises(PenstockError):
        store.get(made.id)
    assert store.all() == []
