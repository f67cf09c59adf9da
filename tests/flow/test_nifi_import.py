"""NiFi's FlowFiles brought into a connection: once each, whatever comes in between."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.errors import CorruptData, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.nifi_import.import_record import key_of
from penstock.flow.nifi_import.nifi_content import NifiContent
from penstock.flow.nifi_import.swap_import import (
    ImportTarget,
    NifiImport,
    SwapFileReport,
    SwapImportOptions,
)
from penstock.flow.prioritizers import SortOrder, prioritizer_named
from penstock.flow.queue.queue import FlowFileQueue
from penstock.flow.queue.queue_size import QueueOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.swap.nifi.nifi_swap_file import NifiSwapFile
from penstock.flow.swap.nifi.schema_swap_file import open_nifi_swap
from penstock.storage.content.claims import ContentClaim, ResourceClaim
from penstock.storage.filesystem import FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.flow.repository_kit import Opened
from tests.flow.test_nifi_swap import legacy
from tests.harness.nifi_swap_kit import nifi_swap_bytes

QUEUE = "0a1b2c3d-0158-1000-ffff-ffffa1b2c3d4"
FOLDER = "/nifi"
FEW = SwapImportOptions(batch_flowfiles=2, swap_flowfiles=5)
FIFO = [prioritizer_named("FirstInFirstOutPrioritizer")]


def content_file(fs: FileSystem, name: str, data: bytes) -> ResourceClaim:
    fs.mkdir(f"{FOLDER}/1")
    fs.write_atomically(f"{FOLDER}/1/{name}", data)
    return ResourceClaim(name, "default", "1")


def body(number: int) -> bytes:
    return b"content of %d;" % number


def nifi_file(
    fs: FileSystem, count: int, name: str = "17-1", start: int = 0
) -> tuple[bytes, list[bytes]]:
    """Write content and return a swap file's bytes, and the contents in the order to go in."""
    bodies = [body(start + n) for n in range(count)]
    resource = content_file(fs, name, b"".join(bodies))
    ends = list(itertools.accumulate(map(len, bodies)))
    flowfiles = [
        FlowFile(
            1000 + start + n,
            {"uuid": f"u{start + n}", "n": str(start + n)},
            len(data),
            ContentClaim(resource, end - len(data), len(data)),
            0,
            entry_ms=5,
            lineage_start_ms=4,
            lineage_index=3,
            queued_ms=100 + (start + n) // 3,
            queue_index=70 + start + n,
        )
        for n, (data, end) in enumerate(zip(bodies, ends, strict=True))
    ]
    return nifi_swap_bytes(QUEUE, flowfiles[::-1]), bodies


def opened_file(data: bytes) -> NifiSwapFile:
    return open_nifi_swap("a.swap", data, now_ms=1)


def take(
    opened: Opened,
    *files: bytes,
    options: SwapImportOptions = FEW,
    source: bool = True,
    target: ImportTarget | None = None,
) -> list[SwapFileReport]:
    numbers = itertools.count()
    content = NifiContent(opened.fs, {}, FOLDER) if source else None
    run = NifiImport(
        target or ImportTarget("q", FIFO),
        opened.repository,
        opened.content,
        content,
        lambda: f"new{next(numbers)}",
        options,
    )
    return [run.take("a.swap", opened_file(data)) for data in files]


def queue_of(opened: Opened) -> FlowFileQueue:
    """Put the queue together as a start does."""
    queue = FlowFileQueue("q", opened.repository.swap_store, VirtualClock(), QueueOptions())
    queue.set_prioritizers(FIFO)
    found = opened.repository.recovered.queues.get("q")
    if found is not None:
        queue.restore(found.flowfiles, found.swap_files)
    return queue


def drained(opened: Opened) -> list[FlowFile]:
    queue, found = queue_of(opened), []
    while polled := queue.poll_many(100).flowfiles:
        found += polled
    return found


def contents(opened: Opened, flowfiles: Sequence[FlowFile]) -> list[bytes]:
    return [
        b"" if one.claim is None else opened.content.read(one.claim, one.content_offset, one.size)
        for one in flowfiles
    ]


def again(opened: Opened) -> Opened:
    return Opened.open(opened.fs.kill_process())


def test_flowfiles_keep_what_they_are_and_their_order() -> None:
    opened = Opened.open()
    data, bodies = nifi_file(opened.fs, 12)
    before = {one.id: one for batch in opened_file(data).batches(99) for one in batch}
    (report,) = take(opened, data)
    assert (report.imported, report.imported_before) == (12, 0)
    assert report.content_bytes == sum(map(len, bodies))
    opened = again(opened)
    assert opened.repository.statistics().swapped_flowfiles == 12 // 6 * 6
    flowfiles = drained(opened)
    assert contents(opened, flowfiles) == bodies
    for one in flowfiles:
        old = before[1000 + int(one.attributes["n"])]
        assert one.attributes == old.attributes
        kept = ("size", "entry_ms", "lineage_start_ms", "lineage_index", "queued_ms", "queue_index")
        assert [getattr(one, name) for name in kept] == [getattr(old, name) for name in kept]
    assert [one.id for one in flowfiles] == list(range(flowfiles[0].id, flowfiles[0].id + 12))


def test_a_damaged_queue_index_is_bounded() -> None:
    opened = Opened.open()
    records = [FlowFile(n, {}, queue_index=index) for n, index in enumerate((2**63 - 1, -5))]
    take(opened, nifi_swap_bytes(QUEUE, records))
    opened = again(opened)
    assert [one.queue_index for one in drained(opened)] == [0, 2**62]
    assert opened.repository.next_queue_indexes(1) < 2**63


def test_without_prioritizers_the_order_is_that_of_the_content() -> None:
    opened = Opened.open()
    data, bodies = nifi_file(opened.fs, 12)
    take(opened, data, target=ImportTarget("q"))
    opened = again(opened)
    found = [one for _, one in opened.found().values()]
    keys = SortOrder().keys(found)
    ordered = [found[at] for at in sorted(range(len(keys)), key=keys.__getitem__)]
    assert contents(opened, ordered) == bodies


def test_a_second_run_takes_nothing() -> None:
    opened = Opened.open()
    one, _ = nifi_file(opened.fs, 7)
    other, _ = nifi_file(opened.fs, 4, "17-2", 50)
    take(opened, one)
    opened = again(opened)
    reports = take(opened, one, other, one)
    assert [(report.imported, report.imported_before) for report in reports] == [
        (0, 7),
        (4, 0),
        (0, 7),
    ]
    assert len(again(opened).found()) == 11


def test_a_cut_copy_and_then_the_whole_one() -> None:
    opened = Opened.open()
    data, bodies = nifi_file(opened.fs, 9)
    for length in (len(data) - 60, len(data) - 400, len(data)):
        file = opened_file(data[:length])
        run = NifiImport(
            ImportTarget("q", FIFO),
            opened.repository,
            opened.content,
            NifiContent(opened.fs, {"default": FOLDER}),
            str,
            FEW,
        )
        run.take("a.swap", file)
        assert (file.damage is None) == (length == len(data))
        opened = again(opened)
    assert contents(opened, drained(opened)) == bodies


def test_files_of_a_kind_are_told_apart() -> None:
    fs = CrashableFileSystem()
    one, _ = nifi_file(fs, 3)
    rows = [flowfile for batch in opened_file(one).batches(9) for flowfile in batch]
    summary = opened_file(one).summary
    assert len({key_of(summary, row) for row in rows}) == 3
    assert key_of(summary, rows[0]) == key_of(opened_file(one).summary, rows[0])


def test_content_that_is_missing_or_short_is_named_and_taken_when_it_is_there() -> None:
    opened = Opened.open()
    whole, bodies = nifi_file(opened.fs, 4)
    gone, others = nifi_file(opened.fs, 4, "17-2", 10)
    for name, data in (("17-1", b"".join(bodies)[:-1]), ("17-2", None)):
        opened.fs.unlink(f"{FOLDER}/1/{name}")
        if data is not None:
            content_file(opened.fs, name, data)
    reports = take(opened, whole, gone)
    assert [report.imported for report in reports] == [3, 0]
    assert [dict(report.left_out) for report in reports] == [
        {(f"{FOLDER}/1/17-1", "is too short"): 1},
        {(f"{FOLDER}/1/17-2", "is missing"): 4},
    ]
    opened = again(opened)
    nifi_file(opened.fs, 4)
    nifi_file(opened.fs, 4, "17-2", 10)
    assert [report.imported for report in take(opened, whole, gone)] == [1, 4]
    opened = again(opened)
    assert sorted(contents(opened, drained(opened))) == sorted(bodies + others)


def test_without_content_they_come_empty_and_are_not_taken_again() -> None:
    opened = Opened.open()
    data, _ = nifi_file(opened.fs, 3)
    (report,) = take(opened, data, source=False)
    assert (report.imported, sum(report.left_out.values())) == (0, 3)
    empty = SwapImportOptions(without_content=True)
    assert take(opened, data, source=False, options=empty)[0].imported == 3
    assert take(opened, data)[0].imported_before == 3
    assert {(one.size, one.claim) for one in drained(again(opened))} == {(0, None)}


def test_content_that_flowfiles_share_is_copied_once() -> None:
    opened = Opened.open()
    claim = ContentClaim(content_file(opened.fs, "17-1", b"0123456789"), 2, 8)
    records = [FlowFile(n, {}, 3, claim, 1) for n in range(5)]
    (report,) = take(opened, nifi_swap_bytes(QUEUE, [*records, FlowFile(9, {})]))
    assert (report.imported, report.content_bytes) == (6, 3)
    opened = again(opened)
    flowfiles = drained(opened)
    assert contents(opened, flowfiles) == [b""] + [b"345"] * 5
    assert len({one.attributes["uuid"] for one in flowfiles}) == 6
    opened.repository.commit(Changes(removes=flowfiles))
    opened.repository.sync()
    assert opened.content.statistics().references == 0


@pytest.mark.parametrize(
    ("section", "name", "offset", "size"),
    [
        ("..", "secret", 0, 1),
        ("1", "../../secret", 0, 1),
        ("", "secret", 0, 1),
        ("1", "a/b", 0, 1),
        ("1", "\0", 0, 1),
        ("1", "17-1", -1, 1),
        ("1", "17-1", 0, -1),
        ("1", "17-1", 2**62, 2**62),
    ],
)
def test_a_swap_file_cannot_name_other_files(
    section: str, name: str, offset: int, size: int
) -> None:
    opened = Opened.open()
    content_file(opened.fs, "17-1", b"x")
    opened.fs.write_atomically("/secret", b"x")
    claim = ContentClaim(ResourceClaim(name, "default", section), offset, 1)
    (report,) = take(opened, nifi_swap_bytes(QUEUE, [FlowFile(1, {}, size, claim)]))
    assert (report.imported, sum(report.left_out.values())) == (0, 1)


def test_containers_have_folders_of_their_own() -> None:
    opened = Opened.open()
    for name in ("a", "b"):
        opened.fs.mkdir(f"/{name}/1")
        opened.fs.write_atomically(f"/{name}/1/17-1", name.encode())
    with NifiContent(opened.fs, {"one": "/a"}, "/b") as source:
        found = [
            opened.content.read(source.copy(flowfile, opened.content))
            for container in ("one", "two", "one")
            for flowfile in [
                FlowFile(1, {}, 1, ContentClaim(ResourceClaim("17-1", container, "1"), 0, 1))
            ]
        ]
    assert found == [b"a", b"b", b"a"]


def test_large_content_is_copied_piece_by_piece() -> None:
    opened = Opened.open()
    data = bytes(range(256)) * 12_000
    claim = ContentClaim(content_file(opened.fs, "17-1", data), 0, len(data))
    take(opened, nifi_swap_bytes(QUEUE, [FlowFile(1, {}, len(data) - 3, claim, 1)]))
    opened = again(opened)
    assert contents(opened, drained(opened)) == [data[1:-2]]


def test_a_large_flowfile_has_a_commit_of_its_own() -> None:
    opened = Opened.open()
    records = [FlowFile(n, {"uuid": str(n), "x": "x" * 600}) for n in range(4)]
    records += [FlowFile(9, {"uuid": "9"})]
    commits = opened.repository.statistics().commits
    take(opened, nifi_swap_bytes(QUEUE, records), options=SwapImportOptions(batch_text=1_000))
    assert opened.repository.statistics().commits == commits + 4


def test_something_else_under_the_key_is_an_error() -> None:
    opened = Opened.open()
    data, _ = nifi_file(opened.fs, 2)
    (first, _) = next(iter(opened_file(data).batches(9)))
    key = key_of(opened_file(data).summary, first)
    opened.repository.commit(Changes(states={key: b"x"}))
    with pytest.raises(CorruptData, match="record of an import"):
        take(opened, data)


# -- kills, power losses, full disks


def check(opened: Opened, bodies: Sequence[bytes], data: bytes) -> None:
    """After whatever happened: each is there at most once, and a second run brings the rest."""
    kinds = {event.kind for event in opened.repository.recovered.events}
    assert kinds <= {"content-orphaned", "journal-torn", "swap-file-unknown", "commits-cut"}
    found = [one for _, one in opened.found().values()]
    there = contents(opened, found)
    assert len(set(there)) == len(there)
    assert set(there) <= set(bodies)
    (report,) = take(opened, data)
    assert report.imported_before == len(there)
    opened = again(opened)
    assert contents(opened, drained(opened)) == list(bodies)
    files = {one.claim.resource.id for one in drained(opened) if one.claim is not None}
    assert opened.content_files() == files


def take_until(step: int, keep: int) -> tuple[Opened, bytes, list[bytes]]:
    """Take a file in; the process is killed at a step, within a write, if it comes so far."""
    opened = Opened.open()
    data, bodies = nifi_file(opened.fs, 13)
    opened.fs.kill_at(opened.fs.steps + step, keep_bytes=keep)
    try:
        take(opened, data)
    except PowerLoss:
        pass
    else:
        opened.fs.forget_faults()
    return opened, data, bodies


@given(st.integers(1, 400), st.integers(0, 200), st.integers(0, 2**32))
def test_a_power_loss_loses_and_doubles_nothing(step: int, keep: int, seed: int) -> None:
    opened, data, bodies = take_until(step, keep)
    check(Opened.open(opened.fs.crash(seed)), bodies, data)


@given(st.integers(1, 400), st.integers(0, 200))
def test_a_kill_loses_and_doubles_nothing(step: int, keep: int) -> None:
    opened, data, bodies = take_until(step, keep)
    check(again(opened), bodies, data)


@given(st.integers(1, 400))
def test_an_io_error_loses_and_doubles_nothing(step: int) -> None:
    opened = Opened.open()
    data, bodies = nifi_file(opened.fs, 13)
    opened.fs.fail_at(opened.fs.steps + step)
    with suppress(Unavailable):
        take(opened, data)
    opened.fs.forget_faults()
    check(again(opened), bodies, data)


@given(st.integers(0, 6_000))
def test_a_full_disk_loses_and_doubles_nothing(room: int) -> None:
    opened = Opened.open()
    data, bodies = nifi_file(opened.fs, 13)
    opened.fs.capacity_bytes = opened.fs.used_bytes() + room
    try:
        (report,) = take(opened, data)
        assert report.imported == 13
    except Unavailable:
        # The same process goes on when there is room.
        opened.fs.forget_faults()
        (report,) = take(opened, data)
        assert report.imported + report.imported_before == 13
    opened.fs.forget_faults()
    check(again(opened), bodies, data)


def plain(numbers: Sequence[int], **fields: int) -> list[FlowFile]:
    return [
        FlowFile(n, {"uuid": f"u{n}", "n": str(n)}, 0, None, 0, 5, 5, **fields) for n in numbers
    ]


def numbers_of(opened: Opened) -> list[int]:
    return [int(one.attributes["n"]) for one in drained(again(opened))]


@pytest.mark.parametrize("version", [4, 5, 10])
def test_flowfiles_without_dates_come_by_nifis_record_id(version: int) -> None:
    opened = Opened.open()
    take(opened, legacy(version, plain(range(10, 22))), source=False)
    assert numbers_of(opened) == list(range(10, 22))


def test_ids_follow_record_ids_over_all_files() -> None:
    opened = Opened.open()
    files = [nifi_swap_bytes(QUEUE, plain(ids)) for ids in ([9, 1, 5], [2, 8, 4], [7, 3, 6])]
    run = NifiImport(ImportTarget("q"), opened.repository, opened.content, None, lambda: "new", FEW)
    run.expect(opened_file(data) for data in files)
    for data in files:
        run.take("a.swap", opened_file(data))
    found = sorted(drained(again(opened)), key=lambda one: one.id)
    assert [int(one.attributes["n"]) for one in found] == list(range(1, 10))


def test_a_flowfile_in_two_files_of_a_queue_is_imported_once() -> None:
    opened = Opened.open()
    first, second = ([1, 2, 3, 4, 5, 6], [4, 5, 6, 7, 8, 8])
    reports = take(
        opened, *(nifi_swap_bytes(QUEUE, plain(ids)) for ids in (first, second)), source=False
    )
    assert [(one.imported, one.imported_before) for one in reports] == [(6, 0), (2, 4)]
    opened = again(opened)
    # Also after a restart, and in a file that was never seen.
    (report,) = take(opened, nifi_swap_bytes(QUEUE, plain([2, 7, 9])), source=False)
    assert (report.imported, report.imported_before) == (1, 2)
    assert sorted(numbers_of(opened)) == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_a_record_id_of_another_node_or_queue_is_another_flowfile() -> None:
    opened = Opened.open()
    other = [FlowFile(1, {"uuid": "of another node", "n": "1"}, 0, None, 0, 5, 5)]
    files = [
        nifi_swap_bytes(QUEUE, plain([1])),
        nifi_swap_bytes(QUEUE, other),
        nifi_swap_bytes("another queue", plain([1])),
    ]
    assert [one.imported for one in take(opened, *files, source=False)] == [1, 1, 1]
    found = drained(again(opened))
    assert len({one.id for one in found}) == 3
