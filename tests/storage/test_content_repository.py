"""The content repository: writing, reading, counting, deleting; a full disk; a restart."""

from __future__ import annotations

import io
import os
import threading
from typing import TYPE_CHECKING

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.clock import SystemClock
from penstock.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from penstock.storage.content.claims import UNKNOWN_CHECKSUM, ContentClaim, ResourceClaim
from penstock.storage.content.content_repository import ContentOptions, ContentRepository
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.kits.port_faults_kit import open_below

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = "/t/content"
SMALL = ContentOptions(resource_bytes=1000, sections=4, open_files=3, buffer_bytes=64)


def open_content(fs: CrashableFileSystem, options: ContentOptions = SMALL) -> ContentRepository:
    return ContentRepository.open(FOLDER, fs=fs, clock=VirtualClock(), options=options)


def put(content: ContentRepository, data: bytes) -> ContentClaim:
    claim = content.put(data)
    assert claim is not None
    return claim


def files(fs: CrashableFileSystem) -> list[str]:
    return [
        f"{section}/{name}"
        for section in fs.listdir(FOLDER)
        for name in fs.listdir(f"{FOLDER}/{section}")
    ]


def path_of(claim: ContentClaim) -> str:
    return f"{FOLDER}/{claim.resource.section}/{claim.resource.id}"


def drop(content: ContentRepository, *resources: ResourceClaim) -> None:
    for resource in resources:
        content.release(resource)
    content.delete_released(content.references.released())


def test_what_is_written_is_read_whole_and_in_part() -> None:
    content = open_content(CrashableFileSystem())
    writer = content.write()
    assert writer.write(b"abc") == 3
    assert writer.write(bytearray(b"d" * 100)) == 100
    assert writer.write(b"") == 0
    claim = writer.finish()
    assert claim is not None
    data = b"abc" + b"d" * 100
    assert (claim.length, claim.checksum) == (103, google_crc32c.value(data))
    assert content.read(claim) == data
    assert content.read(claim, 2, 3) == b"cdd"
    assert content.open_read(claim, 1, 4).read() == b"bcdd"
    assert content.check(claim)


def test_content_of_0_bytes_takes_no_claim_and_no_file() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    assert content.put(b"") is None
    with content.write() as writer:
        writer.write(b"")
        assert writer.finish() is None
    assert files(fs) == []


def test_small_claims_share_a_file_until_it_is_full_and_a_large_one_fills_its_own() -> None:
    content = open_content(CrashableFileSystem())
    first, second, third = (put(content, bytes(400)) for _ in range(3))
    assert first.resource == second.resource == third.resource
    assert third.offset == 800
    large = put(content, bytes(5000))
    assert large.resource != first.resource
    assert put(content, b"x").resource not in (large.resource, first.resource)


def test_writers_at_the_same_time_have_a_file_each() -> None:
    content = open_content(CrashableFileSystem())
    one, two = content.write(), content.write()
    for _ in range(5):
        one.write(b"1" * 50)
        two.write(b"2" * 50)
    first, second = one.finish(), two.finish()
    assert first is not None
    assert second is not None
    assert first.resource != second.resource
    assert (content.read(first), content.read(second)) == (b"1" * 250, b"2" * 250)


def test_an_aborted_claim_leaves_no_bytes() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    before = put(content, b"kept")
    with content.write() as writer:
        writer.write(bytes(500))
    assert fs.used_bytes() == 4
    after = put(content, b"next")
    assert (after.resource, after.offset) == (before.resource, 4)
    with pytest.raises(Closed, match="start a new claim"):
        writer.write(b"x")


def test_what_cannot_be_cut_off_is_counted_and_its_file_takes_no_more() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    before = put(content, b"kept")
    writer = content.write()
    writer.write(bytes(100))
    fs.fail_next("truncate")
    writer.abort()
    assert content.statistics().bytes_wasted == 100
    assert put(content, b"x").resource != before.resource
    assert content.read(before) == b"kept"


def test_a_full_disk_refuses_a_claim_and_leaves_nothing_half() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    before = put(content, b"kept")
    fs.capacity_bytes = 300
    writer = content.write()
    writer.write(bytes(200))
    with pytest.raises(Unavailable, match="free space"):
        writer.write(bytes(200))
    with pytest.raises(Closed):
        writer.finish()
    assert fs.used_bytes() == 4
    with pytest.raises(Unavailable, match="free space"):
        content.put(bytes(500))
    fs.forget_faults()
    assert content.read(put(content, b"now")) == b"now"
    assert content.read(before) == b"kept"


def test_content_goes_with_its_last_reference_and_not_before_the_journal_is_durable() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    one, two = put(content, bytes(600)), put(content, bytes(600))
    assert one.resource == two.resource
    content.release(one.resource)
    assert not content.references.released()
    content.release(two.resource)
    released = content.references.released()
    assert released == (one.resource,)
    assert len(files(fs)) == 1
    content.sync()
    content.delete_released(released)
    assert files(fs) == []
    with pytest.raises(NotFound, match="the content is missing"):
        content.read(one)
    assert not content.check(one)


def test_what_is_referred_to_again_meanwhile_stays() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    claim = put(content, bytes(1000))
    content.release(claim.resource)
    released = content.references.released()
    content.hold(claim.resource)
    content.delete_released(released)
    assert content.read(claim) == bytes(1000)


def test_a_file_that_takes_claims_still_is_not_deleted() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    claim = put(content, b"a")
    drop(content, claim.resource)
    second = put(content, bytes(1000))
    assert second.resource == claim.resource
    assert content.read(second) == bytes(1000)
    drop(content, second.resource)
    assert files(fs) == []


def test_at_start_orphans_go_and_the_others_are_counted() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    kept, lost = put(content, bytes(1000)), put(content, bytes(1000))
    content.close()
    content = open_content(fs)
    assert content.recover({kept.resource: 2}) == [path_of(lost)]
    assert content.statistics().orphans_deleted == 1
    assert content.read(kept) == bytes(1000)
    drop(content, kept.resource)
    assert len(files(fs)) == 1
    drop(content, kept.resource)
    assert files(fs) == []


def test_names_are_never_used_again_though_the_clock_stands_still() -> None:
    fs = CrashableFileSystem()
    names = set()
    for _ in range(3):
        content = open_content(fs)
        claim = put(content, b"x")
        names.add(claim.resource)
        content.close()
    assert len(names) == 3


def test_a_folder_has_one_owner() -> None:
    fs = CrashableFileSystem()
    open_content(fs)
    with pytest.raises(Conflict):
        open_content(fs)


def test_synced_content_survives_a_power_loss() -> None:
    for seed in range(30):
        fs = CrashableFileSystem()
        content = open_content(fs)
        claims = [put(content, bytes([n]) * 300) for n in range(12)]
        content.sync()
        put(content, b"not synced")
        after = fs.crash(seed)
        content = open_content(after)
        assert [content.read(claim) for claim in claims] == [bytes([n]) * 300 for n in range(12)]


def test_after_a_failed_fsync_the_bytes_are_written_again() -> None:
    for seed in range(30):
        fs = CrashableFileSystem()
        content = open_content(fs)
        claim = put(content, b"precious" * 10)
        fs.fail_next("fsync")
        with pytest.raises(Unavailable):
            content.sync()
        content.sync()
        assert open_content(fs.crash(seed)).read(claim) == b"precious" * 10


def test_bytes_lost_after_a_failed_fsync_are_not_passed_off_as_durable() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    claim = put(content, b"precious" * 10)
    fs.fail_next("fsync")
    with pytest.raises(Unavailable):
        content.sync()
    fs.damage(path_of(claim), lambda raw: raw.__setitem__(3, 0))
    for _ in range(2):
        with pytest.raises(Unavailable, match="check the disk"):
            content.sync()


@pytest.mark.parametrize(
    "resource",
    [
        ResourceClaim("../../secret", "default", "0"),
        ResourceClaim("passwd", "default", "../../etc"),
        ResourceClaim("1-1", "elsewhere", "0"),
        ResourceClaim("..", "default", "."),
        ResourceClaim("", "default", ""),
    ],
)
def test_a_foreign_claim_leads_nowhere(resource: ResourceClaim) -> None:
    content = open_content(CrashableFileSystem())
    claim = ContentClaim(resource, 0, 1)
    with pytest.raises(NotFound, match="not of this repository"):
        content.read(claim)
    assert not content.check(claim)


def test_damage_is_found_by_every_way_of_reading_the_whole() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    claim = put(content, b"0123456789")
    fs.damage(path_of(claim), lambda raw: raw.__setitem__(4, 0))
    with pytest.raises(CorruptData, match="checksum"):
        content.read(claim)
    with pytest.raises(CorruptData, match="checksum"):
        content.open_read(claim).read()
    assert not content.check(claim)
    unknown = ContentClaim(claim.resource, claim.offset, claim.length, UNKNOWN_CHECKSUM)
    assert len(content.read(unknown)) == 10


def test_a_file_that_ends_early_is_damage() -> None:
    fs = CrashableFileSystem()
    content = open_content(fs)
    claim = put(content, b"0123456789")
    fs.damage(path_of(claim), lambda raw: raw.__delitem__(slice(5, None)))
    with pytest.raises(CorruptData, match="ends before"):
        content.read(claim)
    with pytest.raises(CorruptData, match="ends before"):
        content.open_read(claim).read()


def test_a_part_outside_the_claim_is_refused() -> None:
    content = open_content(CrashableFileSystem())
    claim = put(content, b"0123456789")
    for offset, length in ((-1, 2), (9, 2), (11, None), (0, -1)):
        with pytest.raises(InvalidRequest, match="not in a claim of 10 bytes"):
            content.read(claim, offset, length)


@given(
    st.binary(min_size=1, max_size=300),
    st.lists(
        st.tuples(
            st.sampled_from(["read", "readinto", "set", "cur", "end"]), st.integers(-50, 400)
        ),
        max_size=12,
    ),
)
def test_a_reader_is_like_a_stream_of_the_same_bytes(
    data: bytes, steps: list[tuple[str, int]]
) -> None:
    content = open_content(CrashableFileSystem())
    put(content, b"before")
    claim = put(content, data)
    put(content, b"after")
    model = io.BytesIO(data)
    with content.open_read(claim) as reader:
        for step, number in steps:
            match step:
                case "read":
                    assert reader.read(number) == model.read(number)
                case "readinto":
                    ours, theirs = bytearray(abs(number)), bytearray(abs(number))
                    assert reader.readinto(ours) == model.readinto(theirs)
                    assert ours == theirs
                case _:
                    whence = {"set": os.SEEK_SET, "cur": os.SEEK_CUR, "end": os.SEEK_END}[step]
                    base = {"set": 0, "cur": model.tell(), "end": len(data)}[step]
                    if base + number >= 0:
                        assert reader.seek(number, whence) == model.seek(number, whence)
                    else:
                        with pytest.raises(InvalidRequest):
                            reader.seek(number, whence)
            assert reader.tell() == model.tell()


def test_large_content_is_streamed_on_the_real_file_system(tmp_path: Path) -> None:
    with_options = ContentOptions()
    content = ContentRepository.open(
        str(tmp_path), fs=OsFileSystem(), clock=SystemClock(), options=with_options
    )
    piece = os.urandom(1 << 20)
    with content.write() as writer:
        for _ in range(8):
            writer.write(memoryview(piece))
        claim = writer.finish()
    assert claim is not None
    assert claim.length == 8 << 20
    with io.BufferedReader(content.open_read(claim)) as reader:
        while data := reader.read(1 << 20):
            assert data == piece
    content.close()
    content.close()


def test_files_open_for_reading_are_bounded(tmp_path: Path) -> None:
    content = ContentRepository.open(
        str(tmp_path), fs=OsFileSystem(), clock=SystemClock(), options=SMALL
    )
    claims = [put(content, bytes([n]) * 1000) for n in range(40)]
    content.sync()
    before = open_below(tmp_path)
    for claim in claims * 2:
        content.read(claim)
    assert open_below(tmp_path) <= before + SMALL.open_files
    content.close()


def test_many_threads_write_read_and_drop(tmp_path: Path) -> None:
    content = ContentRepository.open(
        str(tmp_path), fs=OsFileSystem(), clock=SystemClock(), options=SMALL
    )
    failures: list[str] = []

    def work(number: int) -> None:
        for turn in range(60):
            data = bytes([number, turn]) * 60
            claim = put(content, data)
            if content.read(claim) != data:
                failures.append(f"{number}/{turn}")
            if turn % 10 == 0:
                content.sync()
            content.release(claim.resource)
            content.delete_released(content.references.released())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert content.statistics().references == 0
    content.close()
