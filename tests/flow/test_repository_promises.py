"""The promises of the FlowFile repository, one by one."""

from __future__ import annotations

import contextlib
import shutil
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import (
    Closed,
    Conflict,
    CorruptData,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from penstock.flow.flowfile import FlowFile
from penstock.flow.repository.flowfile_repository import FlowFileRepository
from penstock.flow.repository.options import RepositoryOptions
from penstock.flow.repository.repository_changes import Changes
from penstock.storage.content.content_repository import ContentRepository
from penstock.storage.disk import OsFileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss
from tests.flow.repository_kit import REPOSITORY, SMALL, Opened, claim_of

if TYPE_CHECKING:
    from pathlib import Path

LARGE = RepositoryOptions(sync_in_background=False)  # no snapshot but where a test asks for one


def again(opened: Opened, options: RepositoryOptions = SMALL) -> Opened:
    """Kill the process and start it again."""
    return Opened.open(opened.fs.kill_process(), options)


def after_power_loss(opened: Opened, seed: int = 0) -> Opened:
    return Opened.open(opened.fs.crash(seed))


def changed(flowfile: FlowFile, text: str) -> FlowFile:
    return msgspec.structs.replace(flowfile, attributes={"text": text})


# -- commits


def test_what_was_committed_survives_a_kill() -> None:
    opened = Opened.open()
    one, two, three = opened.create("a", 3)
    later = changed(one, "later")
    opened.repository.commit(Changes(puts={"b": [later]}, replaced=[one], removes=[two]))
    found = again(opened).found()
    assert found == {one.id: ("b", later), three.id: ("a", three)}


def test_what_was_durable_survives_every_power_loss() -> None:
    for seed in range(40):
        opened = Opened.open()
        kept = opened.create("a", 3, durable=True)
        opened.create("a", 2)
        restarted = after_power_loss(opened, seed)
        found = restarted.found()
        assert {one.id for one in kept} <= found.keys()
        for _, flowfile in found.values():
            assert restarted.content.read(claim_of(flowfile))


def test_a_commit_is_made_whole_or_not_at_all() -> None:
    for seed in range(40):
        opened = Opened.open()
        opened.repository.sync()
        opened.put("a", *(opened.make(str(number)) for number in range(50)))
        assert len(after_power_loss(opened, seed).found()) in (0, 50)


def test_a_full_disk_refuses_a_commit_and_changes_nothing() -> None:
    opened = Opened.open()
    (one,) = opened.create("a")
    opened.fs.capacity_bytes = opened.fs.used_bytes() + 10
    with pytest.raises(Unavailable, match="free space"):
        opened.repository.commit(Changes(puts={"b": [changed(one, "x")]}, replaced=[one]))
    assert opened.repository.statistics().refused_commits == 1
    opened.fs.forget_faults()
    opened.repository.commit(Changes(puts={"c": [one]}, replaced=[one]), durable=True)
    assert again(opened).found() == {one.id: ("c", one)}


def test_a_commit_that_cannot_be_made_durable_is_undone_and_the_journal_begins_anew() -> None:
    for seed in range(20):
        opened = Opened.open()
        kept, moved = opened.create("a", 2, durable=True)
        opened.fs.fail_next("fsync")
        change = Changes(puts={"b": [changed(moved, "x")]}, replaced=[moved], removes=[kept])
        with pytest.raises(Unavailable, match="was undone"):
            opened.repository.commit(change, durable=True)
        assert opened.repository.statistics().flowfiles == 2
        opened.repository.commit(Changes(puts={"c": [moved]}, replaced=[moved]), durable=True)
        found = after_power_loss(opened, seed).found()
        assert found == {kept.id: ("a", kept), moved.id: ("c", moved)}


def test_a_poisoned_journal_refuses_commits_until_a_snapshot_is_written() -> None:
    opened = Opened.open()
    (one,) = opened.create("a", durable=True)
    opened.fs.fail_next("fsync")
    with pytest.raises(Unavailable, match="was undone"):
        opened.repository.commit(Changes(removes=[one]), durable=True)
    opened.fs.capacity_bytes = 0
    for _ in range(2):
        with pytest.raises(Unavailable):
            opened.repository.commit(Changes(removes=[one]))
    opened.fs.forget_faults()
    opened.repository.commit(Changes(removes=[one]))
    assert opened.repository.statistics().flowfiles == 0
    assert again(opened).found() == {}


def test_what_the_repository_does_not_know_is_refused_before_anything_is_written() -> None:
    opened = Opened.open()
    one, two = opened.create("a", 2)
    opened.repository.commit(Changes(removes=[one]))
    before = opened.repository.statistics()
    with pytest.raises(Conflict, match=f"FlowFile {one.id}: is not in the repository"):
        opened.repository.commit(Changes(removes=[one]))
    with pytest.raises(Conflict, match="not in the repository"):
        opened.repository.commit(Changes(puts={"a": [one]}, replaced=[one]))
    with pytest.raises(Conflict, match=f"FlowFile {two.id}: is already in the repository"):
        opened.repository.commit(Changes(puts={"b": [two]}))
    with pytest.raises(Conflict, match="puts one twice"):
        opened.repository.commit(Changes(puts={"b": [two], "c": [two]}, replaced=[two]))
    assert opened.repository.statistics() == before
    assert opened.content.statistics().references == 1


def test_many_threads_share_fsyncs(tmp_path: Path) -> None:
    fs, clock = OsFileSystem(), SystemClock()
    content = ContentRepository.open(str(tmp_path / "content"), fs=fs, clock=clock)
    repository = FlowFileRepository.open(
        str(tmp_path / "flowfiles"), fs=fs, clock=clock, content=content
    )
    barrier = threading.Barrier(16)

    def work() -> None:
        for _ in range(20):
            barrier.wait()
            one = FlowFile(repository.next_ids(1), {})
            repository.commit(Changes(puts={"a": [one]}), durable=True)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statistics = repository.statistics()
    assert (statistics.flowfiles, statistics.durable_commits) == (320, 320)
    assert statistics.syncs < 320
    repository.close()
    repository.close()
    content.close()


def test_what_nobody_waits_for_is_synced_after_the_interval() -> None:
    opened = Opened.open(options=LARGE)
    opened.create("a")
    assert opened.repository.statistics().unsynced_commits == 1
    opened.clock.advance(ms=150)
    opened.create("a")
    assert opened.repository.statistics().unsynced_commits == 0


def test_a_closed_repository_refuses() -> None:
    opened = Opened.open()
    opened.close()
    with pytest.raises(Closed, match="open it again"):
        opened.repository.commit(Changes(states={"x": b""}))


def test_a_durable_commit_beside_closing_is_there_or_was_refused(tmp_path: Path) -> None:
    fs, clock = OsFileSystem(), SystemClock()

    def open_both() -> tuple[ContentRepository, FlowFileRepository]:
        content = ContentRepository.open(str(tmp_path / "content"), fs=fs, clock=clock)
        folder = str(tmp_path / "flowfiles")
        return content, FlowFileRepository.open(folder, fs=fs, clock=clock, content=content)

    content, repository = open_both()
    begun = threading.Barrier(5)
    done: set[int] = set()

    def work() -> None:
        begun.wait()
        with contextlib.suppress(Closed):
            while True:
                one = FlowFile(repository.next_ids(1), {})
                repository.commit(Changes(puts={"a": [one]}), durable=True)
                done.add(one.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    begun.wait()
    repository.close()
    for thread in threads:
        thread.join()
    content.close()
    content, repository = open_both()
    recovered = repository.recovered.queues
    found = {one.id for queue in recovered.values() for one in queue.flowfiles}
    assert found == done
    repository.close()
    content.close()


def test_a_folder_has_one_owner() -> None:
    opened = Opened.open()
    with pytest.raises(Conflict):
        FlowFileRepository.open(
            REPOSITORY, fs=opened.fs, clock=opened.clock, content=opened.content
        )


# -- ids, state of processors


def test_ids_queue_indexes_and_file_names_go_on_above_the_greatest() -> None:
    opened = Opened.open(options=LARGE)
    made = opened.create("a", 5)
    opened.repository.swap_store.swap_out("a", made, "")
    opened = again(opened, LARGE)
    assert opened.repository.next_ids(1) > made[-1].id
    assert opened.repository.next_queue_indexes(1) > made[-1].queue_index
    (one,) = opened.create("a")
    file = opened.repository.swap_store.swap_out("a", [one], "")
    opened.repository.swap_store.discard(file)
    opened.close()
    opened = Opened.open(opened.fs)
    assert opened.repository.next_ids(1) > one.id
    (other,) = opened.create("a")
    assert opened.repository.swap_store.swap_out("a", [other], "").name > file.name


def test_state_of_processors_is_committed_with_the_flowfiles() -> None:
    opened = Opened.open()
    (one,) = opened.create("a")
    opened.repository.commit(Changes(removes=[one], states={"tail": b"12", "list": b"x"}))
    opened = again(opened)
    assert opened.repository.state("tail") == b"12"
    opened.repository.commit(Changes(states={"tail": None, "list": b"y"}), durable=True)
    opened.close()
    opened = Opened.open(opened.fs)
    assert opened.repository.state("tail") is None
    assert opened.repository.state("list") == b"y"


# -- snapshots


def test_a_snapshot_bounds_the_journal_and_a_clean_close_leaves_nothing_to_replay() -> None:
    opened = Opened.open()
    for _ in range(100):
        (one,) = opened.create("a")
        opened.repository.commit(Changes(removes=[one]))
    statistics = opened.repository.statistics()
    assert statistics.snapshots > 3
    assert statistics.journal_bytes < 4 * SMALL.snapshot_bytes
    kept = opened.create("a", 7)
    opened.close()
    assert len(opened.fs.listdir(f"{REPOSITORY}/journals")) == 1
    opened = Opened.open(opened.fs)
    assert opened.found() == {one.id: ("a", one) for one in kept}
    opened.close()
    assert opened.repository.statistics().snapshots == 0


def test_a_snapshot_that_fails_costs_nothing() -> None:
    opened = Opened.open(options=LARGE)
    made = opened.create("a", 5)
    for step in range(1, 40):
        opened.fs.fail_at(opened.fs.steps + step % 13 + 1)
        try:
            opened.repository.compact()
        except Unavailable:
            opened.fs.forget_faults()
        made += opened.create("a")
    assert again(opened).found() == {one.id: ("a", one) for one in made}


def test_a_power_loss_at_each_step_of_a_snapshot_loses_nothing() -> None:
    for step in range(1, 60):
        opened = Opened.open(options=LARGE)
        made = opened.create("a", 5)
        file = opened.repository.swap_store.swap_out("a", made[3:], "")
        opened.repository.sync()
        opened.fs.kill_at(opened.fs.steps + step, keep_bytes=100)
        try:
            opened.repository.compact()
        except PowerLoss:
            restarted = after_power_loss(opened, step)
            assert restarted.found() == {one.id: ("a", one) for one in made}
            assert restarted.swap_folder() == [file.name]
        else:
            assert step > 10
            return


def test_commits_behind_a_journal_that_lost_its_end_are_cut_off() -> None:
    opened = Opened.open(options=LARGE)
    kept = opened.create("a", durable=True)
    opened.create("a")
    first = journal_of(opened)
    opened.fs.fail_at(opened.fs.steps + 8)
    with pytest.raises(Unavailable):
        opened.repository.compact()
    assert len(opened.fs.listdir(f"{REPOSITORY}/journals")) == 2
    opened.create("a")
    opened.fs.damage(first, lambda raw: raw.__delitem__(slice(-20, None)))
    opened = again(opened)
    assert opened.events()["commits-cut"] == 1
    assert opened.found() == {one.id: ("a", one) for one in kept}
    more = opened.create("a", durable=True)
    assert set(again(opened).found()) == {kept[0].id, more[0].id}


@pytest.mark.parametrize("snapshot_bytes", [20_000, 1 << 30])
def test_commits_of_many_threads_go_on_beside_snapshots_and_syncs(
    tmp_path: Path, snapshot_bytes: int
) -> None:
    fs, clock = OsFileSystem(), SystemClock()
    options = RepositoryOptions(
        snapshot_bytes=snapshot_bytes, snapshot_slice=10, sync_interval_ms=1
    )

    def open_at(folder: Path) -> Opened:
        content = ContentRepository.open(str(folder / "content"), fs=fs, clock=clock)
        repository = FlowFileRepository.open(
            str(folder / "flowfiles"), fs=fs, clock=clock, content=content, options=options
        )
        return Opened(CrashableFileSystem(), VirtualClock(), content, repository)

    opened = open_at(tmp_path / "1")
    repository, content, home = opened.repository, opened.content, opened.repository.swap_store
    expected: dict[int, tuple[str, FlowFile]] = {}

    def work(queue: str) -> None:
        for turn in range(40):
            first = repository.next_ids(6)
            claim = content.put(b"%d" % first)
            assert claim is not None
            made = [FlowFile(first + n, {"turn": str(turn)}, claim=claim) for n in range(6)]
            repository.commit(Changes(puts={queue: made}, written=[claim]), durable=turn % 8 == 0)
            moved = changed(made[0], "moved")
            change = Changes(puts={"moved": [moved]}, replaced=made[:1], removes=made[1:2])
            repository.commit(change)
            if turn % 5 == 0:
                file = home.swap_out(queue, made[2:], "")
                home.loaded(file, [0], [made[2].id])
                home.remove([made[2]])
            else:
                expected[made[2].id] = (queue, made[2])
            expected[moved.id] = ("moved", moved)
            expected.update({one.id: (queue, one) for one in made[3:]})

    threads = [threading.Thread(target=work, args=(f"q{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    repository.sync()
    if snapshot_bytes == 1 << 30:
        # What a kill would leave: nothing runs any more, and there is only the journal.
        shutil.copytree(tmp_path / "1", tmp_path / "2")
    opened.close()
    assert repository.statistics().snapshots
    for folder in sorted(tmp_path.iterdir()):
        opened = open_at(folder)
        assert opened.found() == expected
        for _, flowfile in expected.values():
            assert opened.content.read(claim_of(flowfile))
        opened.close()


# -- content


def test_content_goes_only_when_what_dropped_it_is_durable() -> None:
    opened = Opened.open()
    one = opened.make(data=bytes(400))
    opened.put("a", one, durable=True)
    name = claim_of(one).resource.id
    opened.repository.commit(Changes(removes=[one]))
    assert name in opened.content_files()
    opened.repository.sync()
    assert name not in opened.content_files()


def test_content_of_clones_goes_with_the_last_and_changed_content_at_once() -> None:
    opened = Opened.open()
    one = opened.make(data=bytes(400))
    clone = msgspec.structs.replace(one, id=opened.repository.next_ids(1))
    opened.put("a", one)
    opened.repository.commit(Changes(puts={"b": [clone]}))
    claim = opened.content.put(b"new" * 200)
    assert claim is not None
    rewritten = msgspec.structs.replace(one, claim=claim, size=600)
    opened.repository.commit(Changes(puts={"a": [rewritten]}, replaced=[one], written=[claim]))
    opened.repository.commit(Changes(removes=[clone]), durable=True)
    assert opened.content_files() == {claim.resource.id}
    assert again(opened).content.read(claim) == b"new" * 200


def test_content_that_was_written_and_not_used_goes() -> None:
    opened = Opened.open()
    claim = opened.content.put(bytes(400))
    assert claim is not None
    opened.repository.commit(Changes(written=[claim], states={"x": b""}), durable=True)
    assert opened.content_files() == set()


def test_content_of_a_rollback_goes_within_the_interval_though_nothing_is_committed() -> None:
    opened = Opened.open()
    claims = [opened.content.put(bytes(400)) for _ in range(2)]
    assert len(opened.content_files()) == 2
    for claim in claims:
        assert claim is not None
        opened.content.release(claim.resource)
        opened.clock.advance(ms=200)
    opened.content.release(claim_of(opened.make(data=b"x")).resource)
    assert len(opened.content_files()) == 1


def test_orphaned_content_is_deleted_at_start_and_counted() -> None:
    opened = Opened.open()
    opened.put("a", opened.make(data=bytes(400)), durable=True)
    opened.content.put(bytes(500))
    opened = again(opened)
    assert opened.events() == {"content-orphaned": 1}
    assert len(opened.content_files()) == 1


def test_a_commit_whose_content_did_not_reach_the_disk_is_cut_off_with_what_follows() -> None:
    opened = Opened.open(options=LARGE)
    kept = opened.create("a", 2, durable=True)
    lost = opened.make(data=bytes(400))
    opened.put("a", lost)
    opened.create("b")
    path = f"/t/content/{claim_of(lost).resource.section}/{claim_of(lost).resource.id}"
    opened.fs.damage(path, lambda raw: raw.__setitem__(slice(-10, None), b"x" * 10))
    opened = again(opened, LARGE)
    assert opened.events()["commits-cut"] == 2
    assert opened.found() == {one.id: ("a", one) for one in kept}
    opened.create("c")
    assert len(again(opened).found()) == 3


def test_content_that_came_and_went_in_the_tail_is_not_missed() -> None:
    opened = Opened.open(options=LARGE)
    one = opened.make(data=bytes(400))
    opened.put("a", one)
    opened.repository.commit(Changes(removes=[one]))
    opened.repository.sync()
    (two,) = opened.create("a")
    assert claim_of(one).resource.id not in opened.content_files()
    opened = again(opened)
    assert opened.found() == {two.id: ("a", two)}
    assert "commits-cut" not in opened.events()


# -- swap files


def test_a_swap_file_is_one_record_and_the_home_of_its_flowfiles() -> None:
    opened = Opened.open(options=LARGE)
    made = opened.create("a", 200)
    before = opened.repository.statistics()
    file = opened.repository.swap_store.swap_out("a", made, "fifo")
    after = opened.repository.statistics()
    assert after.commits - before.commits == 1
    assert after.journal_bytes - before.journal_bytes < 2500
    assert (after.flowfiles, after.swapped_flowfiles, after.swap_files) == (0, 200, 1)
    assert (file.summary.count, file.summary.order) == (200, "fifo")
    restarted = again(opened)
    assert restarted.found() == {one.id: ("a", one) for one in made}
    assert restarted.content.statistics().references == 200


@pytest.mark.parametrize("crash", ["power", "kill"])
def test_a_crash_at_each_step_of_a_swap_out_loses_and_doubles_nothing(crash: str) -> None:
    set_aside = 0
    for step in range(1, 30):
        opened = Opened.open(options=LARGE)
        made = opened.create("a", 6, durable=True)
        opened.fs.kill_at(opened.fs.steps + step, keep_bytes=50)
        try:
            opened.repository.swap_store.swap_out("a", made, "")
        except PowerLoss:
            fs = opened.fs.crash(step) if crash == "power" else opened.fs.kill_process()
            fs.forget_faults()
            restarted = Opened.open(fs)
            assert restarted.found() == {one.id: ("a", one) for one in made}
            unknown = [one for one in restarted.swap_folder() if one.endswith(".unknown")]
            assert len(unknown) == restarted.events().get("swap-file-unknown", 0)
            set_aside += len(unknown)
            assert not [one for one in restarted.swap_folder() if one.endswith(".tmp")]
        else:
            break
    assert step > 6
    assert set_aside


def test_a_failure_at_each_step_of_a_swap_out_changes_nothing() -> None:
    for step in range(1, 30):
        opened = Opened.open(options=LARGE)
        made = opened.create("a", 6, durable=True)
        opened.fs.fail_at(opened.fs.steps + step)
        try:
            opened.repository.swap_store.swap_out("a", made, "")
        except Unavailable:
            opened.fs.forget_faults()
            assert opened.repository.statistics().flowfiles == 6
            opened.repository.commit(Changes(puts={"b": made[:1]}, replaced=made[:1]))
            opened.repository.sync()
            assert opened.swap_folder() == []
            assert set(again(opened).found()) == {one.id for one in made}
        else:
            break
    assert step > 4


def test_another_file_under_the_name_of_a_swap_file_is_not_read() -> None:
    opened = Opened.open()
    made = opened.create("a", 4)
    home = opened.repository.swap_store
    one, other = home.swap_out("a", made[:2], ""), home.swap_out("a", made[2:], "")
    folder = f"{REPOSITORY}/swap"
    opened.fs.write_atomically(
        f"{folder}/{one.name}", opened.fs.read_bytes(f"{folder}/{other.name}")
    )
    home.open(other).close()
    with pytest.raises(CorruptData, match="not the swap file that was written"):
        home.open(one)
    opened.close()


def test_a_full_disk_refuses_a_swap_out_and_leaves_no_file() -> None:
    opened = Opened.open()
    made = opened.create("a", 20)
    opened.fs.capacity_bytes = opened.fs.used_bytes() + 100
    with pytest.raises(Unavailable):
        opened.repository.swap_store.swap_out("a", made, "")
    opened.fs.forget_faults()
    assert opened.swap_folder() == []
    assert opened.repository.statistics().flowfiles == 20


def test_rows_that_change_or_go_are_done_with_and_the_file_goes_with_the_last() -> None:
    opened = Opened.open()
    made = opened.create("a", 4)
    home = opened.repository.swap_store
    file = home.swap_out("a", made, "")
    home.loaded(file, [0, 1], [made[0].id, made[1].id])
    moved = changed(made[0], "moved")
    opened.repository.commit(Changes(puts={"b": [moved]}, replaced=made[:1], removes=made[1:2]))
    opened = again(opened)
    home = opened.repository.swap_store
    assert list(opened.repository.recovered.queues["a"].swap_files[0].done) == [0, 1]
    assert opened.found() == {
        moved.id: ("b", moved),
        made[2].id: ("a", made[2]),
        made[3].id: ("a", made[3]),
    }
    home.drop_rows(file, [2], {claim_of(made[2]).resource: 1})
    home.loaded(file, [3], [made[3].id])
    home.remove([made[3]])
    assert opened.swap_folder() == [file.name]
    opened.repository.sync()
    assert opened.swap_folder() == []
    assert opened.content.statistics().references == 1
    assert again(opened).found() == {moved.id: ("b", moved)}


def test_a_row_that_is_read_costs_no_write_and_is_in_the_file_after_a_restart() -> None:
    opened = Opened.open()
    made = opened.create("a", 3)
    file = opened.repository.swap_store.swap_out("a", made, "")
    steps = opened.fs.steps
    opened.repository.swap_store.loaded(file, [0, 1, 2], [one.id for one in made])
    assert opened.fs.steps == steps
    restarted = again(opened)
    assert list(restarted.repository.recovered.queues["a"].swap_files[0].done) == []
    assert len(restarted.found()) == 3


def test_rows_in_memory_move_to_another_swap_file() -> None:
    opened = Opened.open()
    made = opened.create("a", 3)
    home = opened.repository.swap_store
    first = home.swap_out("a", made, "")
    home.loaded(first, [0, 1, 2], [one.id for one in made])
    second = home.swap_out("a", made[::-1], "")
    assert opened.swap_folder() == [second.name]
    assert opened.content.statistics().references == 3
    assert again(opened).found() == {one.id: ("a", one) for one in made}


def test_a_discarded_file_goes_but_for_the_rows_in_memory() -> None:
    opened = Opened.open()
    made = opened.create("a", 5)
    home = opened.repository.swap_store
    file = home.swap_out("a", made, "")
    home.loaded(file, [1], [made[1].id])
    home.discard(file)
    opened.repository.sync()
    assert again(opened).found() == {made[1].id: ("a", made[1])}


def test_a_file_that_is_discarded_whole_goes_with_its_content() -> None:
    opened = Opened.open()
    made = opened.create("a", 30)
    file = opened.repository.swap_store.swap_out("a", made, "")
    opened.repository.swap_store.discard(file)
    opened.repository.sync()
    assert opened.swap_folder() == []
    assert opened.content.statistics().references == 0


def test_damaged_rows_are_counted_and_the_file_is_kept_aside() -> None:
    opened = Opened.open()
    made = opened.create("a", 5)
    home = opened.repository.swap_store
    file = home.swap_out("a", made, "")
    home.damaged(file, [0, 2], "page 0 does not match its checksum")
    assert opened.repository.statistics().damaged_flowfiles == 2
    home.loaded(file, [1, 3, 4], [made[row].id for row in (1, 3, 4)])
    home.remove([made[row] for row in (1, 3, 4)])
    opened.repository.sync()
    assert opened.swap_folder() == [f"{file.name}.bad"]
    assert opened.content.statistics().references == 0
    assert again(opened).swap_folder() == [f"{file.name}.bad"]


def test_a_swap_file_that_is_gone_is_reported_and_its_queue_is_told() -> None:
    opened = Opened.open()
    made = opened.create("a", 5)
    file = opened.repository.swap_store.swap_out("a", made, "")
    opened.fs.unlink(f"{REPOSITORY}/swap/{file.name}")
    opened = again(opened)
    assert opened.events() == {"swap-file-missing": 5}
    with pytest.raises(NotFound):
        opened.repository.swap_store.open(file)
    opened.repository.swap_store.damaged(file, range(5), "it is gone")
    opened.repository.sync()
    assert again(opened).found() == {}


def test_a_file_that_no_record_knows_is_set_aside_and_not_read() -> None:
    opened = Opened.open()
    made = opened.create("a", 2)
    opened.fs.write_atomically(f"{REPOSITORY}/swap/0000000000000099.swap", b"anything")
    opened = again(opened)
    assert opened.events() == {"swap-file-unknown": 1}
    assert opened.repository.statistics().unknown_swap_files == 1
    assert opened.swap_folder() == ["0000000000000099.swap.unknown"]
    assert set(opened.found()) == {one.id for one in made}
    assert opened.repository.swap_store.swap_out("a", made, "").name == "0000000000000100.swap"


# -- damage


def journal_of(opened: Opened) -> str:
    folder = f"{REPOSITORY}/journals"
    generation = opened.fs.listdir(folder)[-1]
    (name,) = (one for one in opened.fs.listdir(f"{folder}/{generation}") if one.endswith(".log"))
    return f"{folder}/{generation}/{name}"


def test_damage_of_what_was_durable_is_refused_and_repaired_on_demand() -> None:
    opened = Opened.open(options=LARGE)
    first = opened.create("a", durable=True)
    middle = len(opened.fs.read_bytes(journal_of(opened))) + 60
    for _ in range(3):
        opened.create("a", durable=True)
    opened.fs.damage(journal_of(opened), lambda raw: raw.__setitem__(middle, raw[middle] ^ 1))
    fs = opened.fs.kill_process()
    with pytest.raises(CorruptData, match="open with `repair`"):
        Opened.open(fs)
    repaired = Opened.open(fs.kill_process(), repairing())
    assert repaired.events()["journal-damaged"]
    assert repaired.found() == {one.id: ("a", one) for one in first}
    # What the lost part referred to is there still, for whoever repairs by hand.
    assert len(repaired.content_files()) > 1 or "content-orphaned" not in repaired.events()
    repaired.create("b")
    assert len(again(repaired).found()) == 2


def repairing() -> RepositoryOptions:
    return RepositoryOptions(sync_in_background=False, repair=True)


def test_a_snapshot_that_is_cut_is_not_passed_off_as_a_new_repository() -> None:
    opened = Opened.open()
    opened.create("a", 9)
    opened.close()
    folder = f"{REPOSITORY}/snapshots"
    (generation,) = opened.fs.listdir(folder)
    (name,) = opened.fs.listdir(f"{folder}/{generation}")
    path = f"{folder}/{generation}/{name}"
    size = len(opened.fs.read_bytes(path))
    opened.fs.damage(path, lambda raw: raw.__delitem__(slice(size - 100, None)))
    with pytest.raises(CorruptData, match="restore a copy"):
        Opened.open(opened.fs)
    repaired = Opened.open(opened.fs.kill_process(), repairing())
    assert 0 < len(repaired.found()) <= 9


def test_a_journal_that_is_gone_is_damage() -> None:
    opened = Opened.open()
    opened.create("a", 9)
    opened.close()
    opened.fs.unlink(journal_of(opened))
    with pytest.raises(CorruptData, match="the journal is missing"):
        Opened.open(opened.fs)


def test_queues_that_the_flow_does_not_have_keep_their_flowfiles() -> None:
    opened = Opened.open()
    (one,) = opened.create("of a connection that was deleted")
    for _ in range(3):
        opened.close()
        opened = Opened.open(opened.fs)
    assert opened.found() == {one.id: ("of a connection that was deleted", one)}
    assert opened.content.read(claim_of(one))


def test_options_that_make_no_sense_name_the_option() -> None:
    with pytest.raises(InvalidRequest, match="snapshot_bytes: is 0"):
        RepositoryOptions(snapshot_bytes=0)
    with pytest.raises(InvalidRequest, match="sync_pause_ms: is -1"):
        RepositoryOptions(sync_pause_ms=-1)


def test_a_fresh_folder_has_nothing_to_tell() -> None:
    opened = Opened.open(CrashableFileSystem())
    assert opened.found() == {}
    assert not opened.repository.recovered.events
