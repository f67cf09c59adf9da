"""Provenance: the spool of commits after crashes, the events, lineage and replays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.errors import Conflict, InvalidRequest, NotFound, Unavailable
from penstock.flow.flowfile import FlowFile
from penstock.flow.provenance.provenance_events import events_of
from penstock.flow.provenance.provenance_index import SpoolFileIndex
from penstock.flow.provenance.provenance_reader import ProvenanceReader
from penstock.flow.repository.commit_note import CommitNote, EndReason
from penstock.flow.repository.commit_records import CommitRecord
from penstock.flow.repository.commit_spool import (
    CommitSpool,
    SpoolOptions,
    read_durable,
    spool_files,
    spool_path,
)
from penstock.flow.repository.repository_changes import Changes
from penstock.flow.repository.repository_state import RepositoryState
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, Disk, PowerLoss
from tests.flow.provenance_kit import (
    KEEP_MS,
    SPOOL,
    World,
    all_events,
    decoded,
    made_and_ended,
    made_and_passed,
)


class MovedFileSystem(CrashableFileSystem):
    """The disk of whichever process runs now, for a reader that outlives them."""

    def __init__(self) -> None:
        super().__init__()
        self.now: CrashableFileSystem | None = None

    def live(self) -> Disk:
        assert self.now is not None
        return self.now.live()


class FileSystemWithoutLinks(CrashableFileSystem):
    """A disk whose second names can be switched off."""

    has_links = False

    def link(self, source: str, target: str) -> None:
        if not self.has_links:
            raise Unavailable(f"{source}: cannot link as {target}: Operation not permitted")
        super().link(source, target)


def event_ids(reader: ProvenanceReader) -> list[object]:
    return [one["id"] for one in all_events(reader)]


def script(world: World) -> None:
    """Create, route, remove, with fsyncs and snapshots in between."""
    for number in range(4):
        with world.session("make", outputs="success:a") as session:
            made = session.create(each=[{"n": str(number)}, {"n": "x" * 300}])
            session.write(made[0], b"content")
            session.transfer(made, "success")
        with world.session("pass", "a", "success:b") as session:
            session.transfer(session.get_many(3), "success")
        if number % 2:
            world.repository.sync()
        if number == 2:
            world.repository.compact()
            with world.session("end", "b") as session:
                session.remove(session.get_many(2))
        world.look()


def live_and_recorded(world: World) -> tuple[set[int], set[int]]:
    """The FlowFiles in queues, and those that exist according to the events."""
    live = {
        one.id for found in world.repository.recovered.queues.values() for one in found.flowfiles
    }
    ids: dict[str, set[object]] = {"CREATE": set(), "DROP": set()}
    seen: set[object] = set()
    for event in all_events(world.reader()):
        assert event["id"] not in seen, "an event exists twice"
        seen.add(event["id"])
        if event["event"] in ids:
            assert event["flowfile"] not in ids[str(event["event"])]
            ids[str(event["event"])].add(event["flowfile"])
    recorded = ids["CREATE"] - ids["DROP"]
    return live, {int(str(one)) for one in recorded}


def steps_of_script() -> int:
    world = World()
    script(world)
    return world.fs.steps


def faulty_script(world: World) -> None:
    """A commit is undone because its fsync fails, and a snapshot replaces the journal."""
    for number in range(3):
        with world.session("make", outputs="success:a") as session:
            session.transfer(session.create(each=[{"n": str(number)}]), "success")
        if number == 1:
            world.repository.sync()
            with world.session("make", outputs="success:a") as session:
                session.transfer(session.create(each=[{"n": "not waited for"}]), "success")
            world.fs.fail_next("fsync")
            with pytest.raises(Unavailable):
                make_durably(world)
            world.repository.sync()
        if number == 0:
            world.repository.compact()
            world.look()
            world.repository.compact()  # the journal before has no commit
        world.look()
    world.sync()
    world.look()


@pytest.mark.parametrize("run", [script, faulty_script])
@pytest.mark.parametrize("is_power_loss", [False, True], ids=["kill -9", "power loss"])
def test_events_agree_with_the_repository_after_a_crash_at_each_step(
    is_power_loss: bool, run: Callable[[World], None]
) -> None:
    disk = MovedFileSystem()
    disk.now = CrashableFileSystem()
    run(World(disk.now, living=ProvenanceReader(disk, SPOOL)))
    for step in range(1, disk.now.steps + 1):
        fs = disk.now = CrashableFileSystem()
        reader = ProvenanceReader(disk, SPOOL)
        fs.kill_at(step, keep_bytes=5 * (step % 3))
        with contextlib.suppress(PowerLoss):
            run(World(fs, living=reader))
        disk.now = fs.crash(step) if is_power_loss else fs.kill_process()
        after = World(disk.now)
        live, recorded = live_and_recorded(after)
        if is_power_loss:
            reader = ProvenanceReader(disk, SPOOL)  # no process outlives it
        assert event_ids(reader) == event_ids(after.reader()), f"step {step}, living reader"
        if is_power_loss and run is faulty_script:
            # The journal whose fsync failed may lose them, and the spool does not have them yet.
            assert recorded <= live, f"step {step}"
        else:
            assert recorded == live, f"step {step}"
        after.close()
        again = World(after.fs)
        assert live_and_recorded(again) == (live, recorded), f"step {step}, second start"
        assert event_ids(reader) == event_ids(again.reader()), f"step {step}, second start"


def make_durably(world: World) -> None:
    with world.session("make", outputs="success:a") as session:
        session.transfer(session.create(), "success")
        session.commit(durable=True)


def test_a_commit_that_was_undone_has_no_events() -> None:
    world = World()
    with world.session("make", outputs="success:a") as session:
        session.transfer(session.create(), "success")
    world.sync()
    world.fs.fail_next("fsync")
    with pytest.raises(Unavailable):
        make_durably(world)
    world.sync()
    with world.session("make", outputs="success:a") as session:
        session.transfer(session.create(), "success")
    world.sync()
    assert [one["event"] for one in all_events(world.reader())] == ["CREATE", "CREATE"]


def test_files_of_a_repository_that_was_replaced_by_a_copy_are_deleted() -> None:
    world = World()
    script(world)
    world.close()
    fs = world.fs
    fs.write_atomically(f"{SPOOL}/position.json", b"{}")
    for folder in ("journals", "snapshots"):
        for name in fs.listdir(f"/t/flowfiles/{folder}"):
            for file in fs.listdir(f"/t/flowfiles/{folder}/{name}"):
                fs.unlink(f"/t/flowfiles/{folder}/{name}/{file}")
    after = World(fs)
    assert after.spool.is_replaced
    assert all_events(after.reader()) == []
    assert not fs.exists(f"{SPOOL}/position.json")
    again = World(after.fs.kill_process())
    assert not again.spool.is_replaced
    assert not again.fs.exists(f"{SPOOL}/position.json")


def test_commits_that_are_undone_while_a_snapshot_contains_them_have_no_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    reader = world.reader()
    world.make()
    world.sync()
    committer = world.repository._committer
    note = CommitNote("make", 1)
    note.created = [7]
    note.add_route("success", [7])
    changes = Changes(puts={"a": [FlowFile(7, {"uuid": "z"}, queue_index=7)]}, notes=[note])
    ticket = committer.commits.append(changes, changes.claim_references(), durable=True)
    write = committer._journals.write_snapshot

    def fail_a_pass(
        state: RepositoryState, flowfiles_per_part: int, before_end: Callable[[], None]
    ) -> None:
        committer.commits.fail(Unavailable("fsync"), committer.commits.number)
        write(state, flowfiles_per_part, before_end)

    with monkeypatch.context() as during:
        during.setattr(committer._journals, "write_snapshot", fail_a_pass)
        world.repository.compact()
    assert ticket is not None
    assert ticket.error is not None
    world.spool.flush()
    assert [one["flowfile"] for one in all_events(reader)] == [0]
    world.repository.compact()  # heals
    for _ in range(2):
        world.sync()
        for one in (reader, world.reader()):
            assert [found["flowfile"] for found in all_events(one)] == [0]
        world.close()
        world = World(world.fs)
        reader = world.reader()


def test_a_reader_sees_the_commits_of_a_journal_that_took_the_name_of_an_empty_one() -> None:
    world = World()
    reader = world.reader()
    world.make()
    for _ in range(2):
        world.repository.compact()
        world.look()
        assert len(all_events(reader)) == 1
    world.make(3)
    world.sync()
    assert len(all_events(reader)) == 4
    world.repository.compact()
    world.make()
    world.sync()
    assert len(all_events(reader)) == len(all_events(world.reader())) == 5


def test_commits_of_a_new_journal_wait_for_its_second_name(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    reader = world.reader()
    world.make()
    world.sync()
    spool, commits = world.spool, world.repository._commits
    keep, seen = spool.keep_files, []

    def commit_before() -> None:
        world.make()
        commits.mark_durable(commits.number)
        spool.flush()
        seen.append(len(all_events(reader)))
        keep()

    monkeypatch.setattr(spool, "keep_files", commit_before)
    world.repository.compact()
    assert seen == [2]
    world.sync()
    assert len(all_events(reader)) == 2


def test_a_disk_without_second_names_stops_no_start_and_no_commit() -> None:
    fs = FileSystemWithoutLinks()
    world = World(fs)
    world.make()
    with pytest.raises(Unavailable):
        world.sync()
    assert all_events(world.reader()) == []
    fs.has_links = True
    world.sync()
    assert len(all_events(world.reader())) == 1
    fs.has_links = False
    world.make()
    world.repository.compact()
    world.make()
    with pytest.raises(Unavailable):
        world.sync()
    assert len(all_events(world.reader())) == 2  # those of the first file
    fs.has_links = True
    world.sync()
    assert len(all_events(world.reader())) == 3


def lose_content(world: World) -> CrashableFileSystem:
    """Kill the process, and delete the content that its last commits wrote."""
    fs = world.fs.kill_process()
    for folder in fs.listdir("/t/content"):
        for name in fs.listdir(f"/t/content/{folder}"):
            fs.unlink(f"/t/content/{folder}/{name}")
    return fs


def test_commits_that_a_start_without_a_record_cut_off_do_not_come_back() -> None:
    world = World()
    world.make(2)
    world.sync()
    world.make(2, b"hello")
    without = World(lose_content(world), spool_folder=None)
    without.make(5)
    without.close()
    full = without.fs
    full.capacity_bytes = full.used_bytes()
    after = World(full)  # a full disk delays the bound of the last file
    assert event_ids(after.reader()) == ["1-0", "2-0"]
    full.forget_faults()
    after.sync()
    for expected in (["1-0", "2-0"], ["1-0", "2-0", "8-0"]):
        for _ in range(2):
            assert [one["id"] for one in all_events(after.reader())] == expected
        after.make()
        after.sync()
        after = World(after.fs.kill_process())


def test_a_power_loss_during_a_start_that_cuts_commits_off_keeps_the_record() -> None:
    def cut() -> CrashableFileSystem:
        world = World()
        world.make(2)
        world.sync()
        world.make(3)
        world.make(2, b"hello")
        return lose_content(world)

    fs = cut()
    before = fs.steps
    World(fs)
    for step in range(1, fs.steps - before + 1):
        fs = cut()
        fs.kill_at(fs.steps + step)
        with contextlib.suppress(PowerLoss):
            World(fs)
        after = World(fs.crash(step))
        assert not after.spool.is_replaced, f"step {step}"
        live, recorded = live_and_recorded(after)
        assert live == recorded, f"step {step}"


def test_kinds_of_events_with_their_relationship_queue_and_content() -> None:
    world = World()
    with world.session("make", outputs="success:a") as session:
        one = session.write(session.create(attributes={"n": "1"}), b"hello")
        session.transfer(one, "success")
    with world.session("mark", "a", "success:b") as session:
        session.transfer(session.put_attributes(session.get_many(1)[0], {"k": "v"}), "success")
    with world.session("pass", "b", "success:c") as session:
        session.transfer(session.get_many(1), "success")
    with world.session("write", "c", "success:d") as session:
        session.transfer(session.write(session.get_many(1)[0], b"other"), "success")
    with world.session("end", "d", ended="done") as session:
        session.transfer(session.get_many(1), "done")
    assert world.kinds(one) == [
        "CREATE",
        "ATTRIBUTES_MODIFIED",
        "ROUTE",
        "CONTENT_MODIFIED",
        "DROP",
    ]
    events = world.reader().lineage([one.id], 0).events
    assert [(e.component, e.relationship, e.queue) for e in events] == [
        ("make", "success", "a"),
        ("mark", "success", "b"),
        ("pass", "success", "c"),
        ("write", "success", "d"),
        ("end", "done", ""),
    ]
    assert events[-1].reason == EndReason.TERMINATED
    assert (events[0].size, events[0].claim_length, events[0].uuid) == (5, 5, "u1")
    assert events[0].resource


def test_parents_and_children_of_fork_join_and_copies() -> None:
    world = World()
    with world.session("make", outputs="success:a") as session:
        session.transfer(session.create(), "success")
    with world.session("split", "a", "parts:b original:c,d") as session:
        parent = session.get_many(1)[0]
        parts = [session.write(session.create(parent), b"%d" % n) for n in range(3)]
        session.transfer(parts, "parts")
        session.transfer(parent, "original")
    with world.session("merge", "b", "merged:e", ended="original") as session:
        taken = session.get_many(5)
        merged = session.write(session.create(taken), b"012")
        session.transfer(merged, "merged")
        session.transfer(taken, "original")
    world.sync()
    found = world.reader().lineage([merged.id], 5)
    assert found.is_complete
    assert set(found.flowfiles) == {merged.id, parent.id, *(one.id for one in parts)}
    by_kind = {e.event: e for e in found.events if e.flowfile in {merged.id, parts[0].id}}
    assert by_kind["JOIN"].parents == [one.id for one in parts]
    assert by_kind["FORK"].parents == [parent.id]
    below = world.reader().lineage([parent.id], 5)
    copies = [e for e in below.events if e.event == "CLONE" or e.queue in {"c", "d"}]
    assert {e.queue for e in copies} == {"c", "d"}
    assert merged.id in below.flowfiles
    assert world.reader().lineage([merged.id], 0).is_complete is False


def test_expired_flowfiles_and_those_without_earlier_version() -> None:
    put = FlowFile(7, {"uuid": "u"}, queue_index=1)
    note = CommitNote("p", 5)
    note.add_route("success", [7])
    note.add_ended(EndReason.EXPIRED, [8])
    record = CommitRecord(3, 2, {"q": [put]}, [8], notes=[note])
    events = events_of(record, {})
    assert [(e.id, e.event, e.flowfile) for e in events] == [
        ("3-0", "ROUTE", 7),
        ("3-1", "EXPIRE", 8),
    ]
    assert [e.id for e in events_of(record, {}, {8})] == ["3-1"]


def test_messages_of_topics_lead_to_their_flowfiles() -> None:
    world = World()
    with world.session("consume", outputs="success:a") as session:
        made = session.create(each=[{}, {}, {}])
        session.topics.received(made, "in", 2, 100)
        session.transfer(made, "success")
    with world.session("publish", "a", ended="success") as session:
        taken = session.get_many(3)
        session.topics.sent(taken[:2], "out", (0, 7), [2, 3])
        session.topics.sent(taken[2:], "out", None)
        session.transfer(taken, "success")
    world.sync()
    reader = world.reader()
    assert [reader.flowfiles_of("in", 2, n) for n in (99, 100, 101, 103)] == [
        [],
        [made[0].id],
        [made[1].id],
        [],
    ]
    assert [reader.flowfiles_of("out", 0, n) for n in (6, 7, 8, 9, 11, 12)] == [
        *([], [made[0].id], [made[0].id], [made[1].id], [made[1].id], [])
    ]
    sent = [e for e in reader.lineage([one.id for one in made], 0).events if e.event == "SEND"]
    assert [(e.partition, e.offset, e.count) for e in sent] == [
        (0, 7, 2),
        (0, 9, 3),
        (None, None, 1),
    ]
    [first] = spool_files(world.fs, SPOOL)
    index, loaded = (SpoolFileIndex(world.fs, SPOOL, first) for _ in range(2))
    index.advance(100)
    index.save(100)
    assert loaded.load(100)
    for topic, partition, offset in (("in", 2, 101), ("out", 0, 11), ("out", 0, 12), ("x", 0, 0)):
        found = index.of_message(topic, partition, offset)
        assert loaded.of_message(topic, partition, offset) == found
    received = reader.lineage([made[1].id], 0).events[0]
    assert (received.event, received.queue, received.offset) == ("RECEIVE", "a", 101)


def test_batches_have_each_event_once_and_the_same_number_again() -> None:
    world = World()
    script(world)
    world.sync()
    reader = world.reader()
    events = all_events(reader)
    first = reader.events(0)
    middle = reader.events((3 << 24) + 1)
    assert decoded(reader.events(middle.first, middle.last)) == decoded(middle)
    again = decoded(world.reader().events(first.first, first.last))
    assert [one["id"] for one in again] == [one["id"] for one in events[: first.count]]


def test_a_stored_index_answers_like_a_new_one() -> None:
    world = World()
    script(world)
    world.sync()
    first = spool_files(world.fs, SPOOL)[0]
    index = SpoolFileIndex(world.fs, SPOOL, first)
    assert index.advance(100)
    index.save(100)
    loaded = SpoolFileIndex(world.fs, SPOOL, first)
    assert loaded.load(100)
    for number in range(12):
        places = index.of_flowfile(number)
        assert loaded.of_flowfile(number) == places
        assert [loaded.place(one) for one in places] == [index.place(one) for one in places]
    path = spool_path(SPOOL, first).replace(".spool", ".index")
    world.fs.write_atomically(path, b"\x00damaged")
    assert not SpoolFileIndex(world.fs, SPOOL, first).load(100)


@pytest.mark.parametrize(("start_ms", "kept"), [(10**12, [8]), (0, [5, 6, 7, 8])])
def test_old_and_too_many_files_are_deleted_and_unpublished_commits_counted(
    start_ms: int, kept: list[int]
) -> None:
    fs, clock = CrashableFileSystem(), VirtualClock(start_ms)  # all files are of 1970
    spool = CommitSpool(SPOOL, fs, clock, SpoolOptions(60_000, 4 << 20))
    for number in range(1, 9):
        journal_file(fs, number, bytes(1 << 20))
        spool.begin_file(f"/t/{number}", number)
    spool.keep_files()
    spool.published(2)
    spool.trim()
    assert spool_files(fs, SPOOL) == kept
    assert spool.size_bytes() == len(kept) << 20
    assert spool.lost == 8 - len(kept) - 2


def test_a_journal_larger_than_the_limit_stays_until_its_events_are_published() -> None:
    fs, clock = CrashableFileSystem(), VirtualClock(0)
    spool = CommitSpool(SPOOL, fs, clock, SpoolOptions(60_000, 4 << 20))
    for number, size in ((1, 5 << 20), (100, 1)):
        journal_file(fs, number, bytes(size))
        spool.begin_file(f"/t/{number}", number)
    spool.keep_files()
    spool.published(98)
    spool.trim()
    assert (spool_files(fs, SPOOL), spool.lost) == ([1, 100], 0)
    spool.published(99)
    spool.trim()
    assert (spool_files(fs, SPOOL), spool.lost) == ([100], 0)


def journal_file(fs: CrashableFileSystem, number: int, content: bytes = b"") -> None:
    file = fs.create(f"/t/{number}")
    file.writev([content])
    file.close()


def test_a_disk_that_refuses_gives_the_files_of_journals_their_names_later() -> None:
    fs, clock = CrashableFileSystem(), VirtualClock()
    spool = CommitSpool(SPOOL, fs, clock)
    for number in (1, 2):
        journal_file(fs, number)
    fs.read_only = True
    for number in (1, 2):
        spool.begin_file(f"/t/{number}", number)
    spool.keep_files()
    with pytest.raises(Unavailable):
        spool.flush()
    assert spool_files(fs, SPOOL) == []
    fs.read_only = False
    fs.unlink("/t/1")  # a snapshot has replaced it meanwhile
    spool.flush()
    assert spool_files(fs, SPOOL) == [1, 2]
    assert (fs.read_bytes(spool_path(SPOOL, 1)), spool.lost) == (b"", 1)


class OverlappingWrite(CrashableFileSystem):
    """The first read of the number meets a write that is not finished."""

    reads = 0

    def read_bytes(self, path: str) -> bytes:
        if path.endswith("/durable"):
            self.reads += 1
            if self.reads == 1:
                return bytes(12)
        return super().read_bytes(path)


def test_the_number_is_read_again_while_it_is_being_written() -> None:
    world = World()
    world.make()
    world.sync()
    assert read_durable(OverlappingWrite(world.fs.live()), SPOOL) == 1


def test_a_start_gives_the_same_file_its_name_again_on_a_real_disk(tmp_path: Path) -> None:
    journal, other = tmp_path / "journal", tmp_path / "other"
    for path in (journal, other):
        path.write_text(path.name)
    folder = str(tmp_path / "provenance")
    for path in (journal, journal, other):
        spool = CommitSpool(folder, OsFileSystem(), VirtualClock())
        spool.recover({1: str(path)}, 3, 0)
        spool.show_recovered(3)
        spool.close()
        assert Path(spool_path(folder, 1)).read_text() == path.name
        assert read_durable(OsFileSystem(), folder) == 3
        assert len(OsFileSystem().listdir(folder)) == 2  # nothing temporary


def test_commits_are_seen_once_they_are_durable() -> None:
    world = World()
    spool = world.repository.spool
    assert spool is not None
    reader = world.reader()
    for number in range(3):
        with world.session("make", outputs="success:a") as session:
            session.transfer(session.create(), "success")
        spool.flush()
        assert len(all_events(reader)) == number
        world.sync()
        assert len(all_events(reader)) == number + 1
    world.fs.write_atomically(f"{SPOOL}/durable", b"torn")
    assert len(all_events(reader)) == 3
    assert all_events(world.reader()) == []


def test_a_replay_puts_the_content_into_the_queue_once_for_each_key() -> None:
    world = World()
    one = made_and_ended(world)
    version = world.reader().version(one.id)
    assert version is not None
    done = world.replays.replay(version, world.queue("a"), "k")
    assert world.replays.replay(version, world.queue("a"), "k").flowfile == done.flowfile
    with world.session("end", "a") as session:
        [again] = session.get_many(10)
        assert session.read_all(again) == b"hello"
        assert (again.attributes["n"], again.id) == ("1", done.flowfile)
        session.remove(again)
    assert world.kinds(again) == ["REPLAY", "DROP"]
    found = world.reader().lineage([one.id], 3)
    assert again.id in found.flowfiles
    with pytest.raises(Conflict, match="was used"):
        world.replays.replay(type(version)(again, "a", ""), world.queue("a"), "k")
    with pytest.raises(InvalidRequest):
        world.replays.replay(version, world.queue("a"), "")
    assert world.replays.count == 1


def test_a_replay_happens_once_after_a_crash_at_each_step() -> None:
    for step in range(1, 200):
        base = World()
        one = made_and_ended(base)
        base.close()
        fs = base.fs.kill_process()
        world = World(fs)
        version = world.reader().version(one.id)
        assert version is not None
        fs.kill_at(fs.steps + step)
        try:
            world.replays.replay(version, world.queue("a"), "k")
        except PowerLoss:
            is_over = False
        else:
            is_over = True
        after = World(fs.kill_process())
        after.replays.replay(version, after.queue("a"), "k")
        queued = after.queue("a").poll_many(10).flowfiles
        assert len(queued) == 1, f"step {step}"
        claim = queued[0].claim
        assert claim is not None
        assert after.content.read(claim, queued[0].content_offset, queued[0].size) == b"hello"
        if is_over:
            return
    raise AssertionError("the replay never ended")


def test_a_replay_is_refused_when_the_content_is_gone() -> None:
    world = World()
    one = made_and_ended(world)
    version = world.reader().version(one.id)
    assert version is not None
    assert world.content.statistics().retained == 1
    world.clock.advance(ms=KEEP_MS + 1)
    world.content.trim_retained()
    assert world.content.statistics().retained == 0
    with pytest.raises(Conflict, match="no longer kept"):
        world.replays.replay(version, world.queue("a"), "k")
    assert world.replays.refused == 1
    assert world.queue("a").size.count == 0


def test_kept_content_survives_a_restart_and_gives_way_on_a_full_disk() -> None:
    world = World()
    one = made_and_ended(world)
    claim = one.claim
    assert claim is not None
    world.close()
    after = World(world.fs, world.clock)
    assert after.content.statistics().retained == 1
    after.content.revive(claim)
    assert after.content.statistics().retained == 0
    after.content.release(claim.resource)
    after.sync()
    assert after.content.statistics().retained == 1
    with pytest.raises(NotFound):
        after.content.revive(type(claim)(type(claim.resource)("missing"), 0, 1))


def test_a_damaged_frame_is_reported_once_and_the_commits_before_it_are_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    first = made_and_ended(world)
    spool = world.repository.spool
    assert spool is not None
    [number] = spool_files(world.fs, SPOOL)
    path = spool_path(SPOOL, number)
    made_and_ended(world)
    content = bytearray(world.fs.read_bytes(path))
    content[-5] ^= 1
    world.fs.write_atomically(path, bytes(content))
    world.fs.write_atomically(spool_path(SPOOL, 5), b"")  # the four commits are a complete file
    reader = world.reader()
    for _ in range(2):
        assert [one.event for one in reader.lineage([first.id], 0).events] == ["CREATE", "DROP"]
    [record] = [one for one in caplog.records if "provenance_index" in one.name]
    assert "is damaged" in record.getMessage()


def test_an_index_of_a_file_with_a_cut_off_tail_is_loaded_and_reports_no_damage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.make(2)
    world.sync()
    world.make(2, b"hello")
    after = World(lose_content(world))
    after.make()
    after.sync()
    first = spool_files(after.fs, SPOOL)[0]
    for _ in range(2):
        assert len(all_events(after.reader())) == 3
    assert SpoolFileIndex(after.fs, SPOOL, first).load(2)
    assert not SpoolFileIndex(after.fs, SPOOL, first).load(3)
    assert [one for one in caplog.records if "provenance_index" in one.name] == []


def test_a_damaged_frame_before_valid_ones_is_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    world.make(3)
    world.sync()
    [number] = spool_files(world.fs, SPOOL)
    index = SpoolFileIndex(world.fs, SPOOL, number)
    index.advance(3)
    place = index.place(1)

    def change(content: bytearray) -> None:
        content[place.position + place.length - 5] ^= 1

    world.fs.damage(spool_path(SPOOL, number), change)
    reader = world.reader()
    for _ in range(2):
        assert [one["id"] for one in all_events(reader)] == ["1-0", "3-0"]
    [record] = [one for one in caplog.records if "provenance_index" in one.name]
    assert f"position {place.position} is damaged" in record.getMessage()


def test_a_lineage_reads_the_last_commits_of_a_flowfile_with_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.flow.provenance.provenance_reader.EVENTS_MAX", 5)
    world = World()
    one = made_and_passed(world, 9)
    world.sync()
    reader = world.reader()
    found = reader.lineage([one.id], 0)
    assert [event.event for event in found.events] == ["ROUTE"] * 5
    assert not found.is_complete
    version = reader.version(one.id, "1-0")
    assert version is not None
    assert (version.event, version.queue) == ("1-0", "a")
    newest = reader.version(one.id)
    assert newest is not None
    assert newest.event == "10-0"
    assert reader.version(one.id, "1-7") is None
