"""Swap files: what is written is read; altered or cut, exactly the damaged pages are lost."""

from __future__ import annotations

import contextlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, InvalidRequest, NotFound, PenstockError, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.swap import swap_file, swap_pages
from penstock.flow.swap.swap_file import SwapReader, read_summary, write_swap_file
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

PATH = "/swap/1.swap"

resources = st.builds(
    ResourceClaim, st.text(max_size=3), st.just("default"), st.sampled_from("01"), st.booleans()
)
numbers = st.integers(0, 2**62)
claims = st.none() | st.builds(ContentClaim, resources, numbers, numbers, st.integers(-1, 2**32))
flowfiles = st.builds(
    FlowFile,
    id=st.integers(-(2**63), 2**63 - 1),
    attributes=st.dictionaries(st.text(max_size=3), st.text(max_size=8), max_size=4),
    size=numbers,
    claim=claims,
    content_offset=numbers,
    entry_ms=st.integers(-(2**63), 2**63 - 1),
    lineage_start_ms=numbers,
    lineage_index=numbers,
    queued_ms=st.integers(0, 2**40),
    queue_index=numbers,
    penalty_until_ms=numbers,
)


def some(count: int, characters: int = 3) -> list[FlowFile]:
    return [
        FlowFile(
            i,
            {"uuid": f"u{i}", "n": "x" * characters, **({"odd": "1"} if i % 2 else {})},
            i,
            ContentClaim(ResourceClaim(f"r{i // 7}"), i, 1),
            queued_ms=5 + i,
            entry_ms=1000 - i,
        )
        for i in range(count)
    ]


def disk() -> CrashableFileSystem:
    fs = CrashableFileSystem()
    fs.mkdir("/swap")
    return fs


def written(rows: list[FlowFile]) -> CrashableFileSystem:
    fs = disk()
    write_swap_file(fs, PATH, "queue", "order", rows)
    return fs


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swap_pages, "PAGE_ROWS", 4)


@given(st.lists(flowfiles, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_what_is_written_is_read(rows: list[FlowFile], random: object) -> None:
    reader = SwapReader.open(written(rows), PATH)
    assert reader.read(0, len(rows)).flowfiles == rows
    some_rows = np.array(random.sample(range(len(rows)), random.randint(1, len(rows))))  # type: ignore[attr-defined]
    assert reader.take(some_rows).flowfiles == [rows[row] for row in some_rows]
    (page,) = reader.pages()
    assert page.attributes() == [row.attributes for row in rows]
    for name in {name for row in rows for name in row.attributes} | {"never"}:
        assert page.attribute(name) == [row.attributes.get(name) for row in rows]
    assert page.integers("id", "size").tolist() == [
        [row.id for row in rows],
        [row.size for row in rows],
    ]


def test_the_summary_is_read_without_the_rows() -> None:
    rows = some(1000)
    fs = written(rows)
    summary = read_summary(fs, PATH)
    assert (summary.queue, summary.order, summary.count, summary.max_id) == (
        *("queue", "order", 1000, 999),
    )
    assert summary.size_bytes == sum(row.size for row in rows)
    assert (summary.min_queued_ms, summary.total_queued_ms) == (5, sum(range(5, 1005)))
    assert summary.min_entry_ms == 1
    assert dict(summary.resource_claims)[ResourceClaim("r3")] == 7
    assert sum(count for _, count in summary.resource_claims) == 1000


def test_pages_are_as_large_as_their_attributes_allow() -> None:
    few = SwapReader.open(written(some(2000)), PATH).pages()
    assert [page.count for page in few][:2] == [256, 256]
    rows = some(40, 300_000)
    fs = written([*rows, FlowFile(99, {"large": "y" * 10_000_000})])
    reader = SwapReader.open(fs, PATH)
    assert max(page.count for page in reader.pages()) <= 4
    assert reader.read(40, 41).flowfiles[0].attributes["large"] == "y" * 10_000_000


@pytest.mark.usefixtures("small_pages")
def test_each_byte_flipped_costs_the_page_it_is_in() -> None:
    rows = some(11)
    fs = written(rows)
    good = fs.read_bytes(PATH)
    pages = swap_file._places(*_head(fs))
    for position in range(len(good)):
        fs.damage(PATH, lambda content, at=position: content.__setitem__(at, content[at] ^ 0x41))
        hit = [p for p in pages if p.position <= position < p.position + p.length]
        lost = [row for p in hit for row in range(p.start, p.start + p.rows)]
        reader = SwapReader.open(fs, PATH)
        found = reader.read(0, 11)
        assert found.flowfiles == [row for row in rows if row.id not in lost], position
        assert found.lost.tolist() == lost
        assert (reader.summary is None) == (position < pages[0].position)
        fs.damage(PATH, lambda content: content.__setitem__(slice(None), good))


@pytest.mark.usefixtures("small_pages")
def test_a_cut_costs_what_is_behind_it() -> None:
    rows = some(11)
    fs = written(rows)
    good = fs.read_bytes(PATH)
    pages = swap_file._places(*_head(fs))
    for size in range(len(good)):
        fs.damage(PATH, lambda content, at=size: content.__delitem__(slice(at, None)))
        whole = sum(p.rows for p in pages if p.position + p.length <= size)
        if size < pages[0].position:
            with pytest.raises(CorruptData):
                SwapReader.open(fs, PATH)
        else:
            found = SwapReader.open(fs, PATH).read(0, 11)
            assert found.flowfiles == rows[:whole]
            assert found.lost.tolist() == [*range(whole, 11)]
        fs.damage(PATH, lambda content: content.__setitem__(slice(None), good))


def _head(fs: CrashableFileSystem) -> tuple[swap_file._Head, int]:
    head, position = swap_file._read_head(fs.open_read(PATH), PATH)
    assert head is not None
    return head, position


@pytest.mark.usefixtures("small_pages")
def test_without_a_head_a_missing_page_in_the_middle_is_told() -> None:
    rows = some(12)
    fs = written(rows)
    places = swap_file._places(*_head(fs))

    def damage(content: bytearray) -> None:
        content[3] ^= 1
        content[places[1].position + 30] ^= 1

    fs.damage(PATH, damage)
    reader = SwapReader.open(fs, PATH)
    found = reader.read(0, 12)
    assert found.lost.tolist() == [4, 5, 6, 7]
    assert [row.id for row in found.flowfiles] == [0, 1, 2, 3, 8, 9, 10, 11]
    assert [page.start for page in reader.pages()] == [0, 8]
    back = reader.take(np.array([11, 5, 0]))
    assert [row.id for row in back.flowfiles] == [11, 0]


@given(st.binary(max_size=300), st.data())
def test_any_bytes_are_refused_or_read(raw: bytes, data: st.DataObject) -> None:
    fs = written(some(3))
    good = fs.read_bytes(PATH)
    start = data.draw(st.integers(0, len(good)))
    end = data.draw(st.integers(start, len(good)))
    changed = good[:start] + raw + good[end:]
    fs.damage(PATH, lambda content: content.__setitem__(slice(None), changed))
    try:
        found = SwapReader.open(fs, PATH).read(0, 3)
    except PenstockError:
        return
    assert all(row in some(3) for row in found.flowfiles)


def _signed(head: bytes, pages: bytes = b"") -> bytes:
    sizes = swap_file._PREFIX + len(head).to_bytes(4, "little")
    crc = swap_file.google_crc32c.value(sizes + head)
    return sizes + crc.to_bytes(4, "little") + head + pages


def test_what_a_hostile_file_claims_is_not_believed() -> None:
    fs = written(some(3))
    head, position = _head(fs)
    page = fs.read_bytes(PATH)[position:]
    huge = msgspec.structs.replace(head.summary, count=2**31)

    def opened(raw: bytes) -> SwapReader:
        fs.damage(PATH, lambda content: content.__setitem__(slice(None), raw))
        return SwapReader.open(fs, PATH)

    def with_head(changed: object) -> bytes:
        return _signed(msgspec.msgpack.encode(changed), page)

    # The head is not believed, and the page that is there is found.
    reader = opened(with_head(msgspec.structs.replace(head, summary=huge)))
    assert (reader.summary, reader.count) == (None, 3)
    # Rows that the page does not have.
    many = msgspec.structs.replace(head, summary=huge, rows=[2**31])
    assert opened(with_head(many)).count == 3
    many = msgspec.structs.replace(
        head, summary=msgspec.structs.replace(huge, count=2**16), rows=[2**16]
    )
    assert opened(with_head(many)).take(np.arange(3)).flowfiles == []
    # Pages that claim to unpack to much, to hold many rows, or to be of a codec unknown.
    raw = swap_file._PAGE_HEAD.unpack_from(page)
    for place, value in ((3, 2**31), (4, 2**31), (5, 2**31), (6, 7)):
        fields = list(raw)
        fields[place] = value
        body = bytearray(swap_file._PAGE_HEAD.pack(*fields) + page[swap_file._PAGE_HEAD.size :])
        crc = swap_file.google_crc32c.value(bytes(body[8:]))
        body[4:8] = crc.to_bytes(4, "little")
        found = opened(_signed(msgspec.msgpack.encode(head), bytes(body))).read(0, 3)
        assert found.flowfiles == []
    # A head longer than the file.
    with pytest.raises(CorruptData):
        opened(swap_file._PREFIX + b"\xff\xff\xff\x7f" + bytes(40))


@given(st.integers(1, 5), st.binary(min_size=1, max_size=200))
def test_a_page_that_verifies_and_lies_is_damaged(count: int, raw: bytes) -> None:
    with contextlib.suppress(CorruptData):
        swap_pages.SwapPage("f", 0, 0, count, raw).flowfiles()


def test_a_newer_format_and_a_foreign_serializer_are_refused() -> None:
    fs = written(some(1))
    newer = msgspec.msgpack.encode([swap_file.FORMAT_NUMBER + 1, "what it means is not known"])
    fs.damage(PATH, lambda content: content.__setitem__(slice(None), _signed(newer)))
    with pytest.raises(InvalidRequest, match="newer Penstock"):
        SwapReader.open(fs, PATH)
    theirs = b"SWAP\x00\x19Schema Swap Serialization" + bytes(50)
    fs.damage(PATH, lambda content: content.__setitem__(slice(None), theirs))
    with pytest.raises(InvalidRequest, match="Schema Swap Serialization"):
        SwapReader.open(fs, PATH)
    with pytest.raises(NotFound):
        SwapReader.open(fs, "/swap/none.swap")


def test_a_flowfile_that_cannot_be_written_is_refused_and_leaves_nothing() -> None:
    fs = disk()
    for bad in (
        FlowFile(1, {"name": 5}),  # type: ignore[dict-item]
        FlowFile(1, {"name": "\ud800"}),
        FlowFile(2**63, {}),
    ):
        with pytest.raises(InvalidRequest, match="cannot be swapped"):
            write_swap_file(fs, PATH, "q", "o", [bad])
    with pytest.raises(InvalidRequest, match="at least one FlowFile"):
        write_swap_file(fs, PATH, "q", "o", [])
    assert fs.listdir("/swap") == []


def test_a_failure_at_each_step_leaves_no_file_of_that_name() -> None:
    rows = some(300)
    fs = written(rows)
    steps = fs.steps
    first = steps - 5
    for step in range(first, steps + 1):
        fs = disk()
        fs.fail_at(step - first + fs.steps + 1)
        try:
            write_swap_file(fs, PATH, "q", "o", rows)
        except Unavailable:
            names = fs.listdir("/swap")
            assert names in ([], ["1.swap"])
            if names:  # the folder's fsync failed
                assert SwapReader.open(fs, PATH).read(0, 300).flowfiles == rows


@given(st.integers(0, 2**32))
def test_after_a_power_loss_a_file_is_there_in_full_or_not(seed: int) -> None:
    rows = some(30)
    counting = disk()
    before = counting.steps
    write_swap_file(counting, PATH, "q", "o", rows)
    fs = disk()
    total = counting.steps - before
    fs.kill_at(before + 1 + seed % (total + 1))
    finished = False
    try:
        write_swap_file(fs, PATH, "q", "o", rows)
        finished = True
    except PowerLoss:
        pass
    after = fs.crash(seed)
    assert after.exists(PATH) or not finished
    if after.exists(PATH):
        assert SwapReader.open(after, PATH).read(0, 30).flowfiles == rows
