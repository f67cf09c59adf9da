"""The journal: what was appended is there, whatever happens at whichever step."""

from __future__ import annotations

import struct

import google_crc32c
import pytest

from penstock.core.errors import CorruptData, InvalidRequest, Unavailable
from penstock.storage.journal import Journal, JournalFile, read_block
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem, PowerLoss

FOLDER = "/t/journal"


def opened(fs: CrashableFileSystem, *, strict: bool = True) -> Journal:
    return Journal.open(FOLDER, fs=fs, clock=VirtualClock(), strict=strict)


def story(fs: CrashableFileSystem, seen: list[tuple[bytes, list[bytes]]]) -> None:
    """Do a bit of everything, noting each state that is reached."""
    journal = opened(fs)
    journal.compact(b"one")
    seen.append((b"one", []))
    journal.append([b"a", b"b" * 600])
    seen.append((b"one", [b"a", b"b" * 600]))
    journal.append([b"c"])
    journal.sync()
    seen.append((b"one", [b"a", b"b" * 600, b"c"]))
    journal.compact(b"two" * 300)
    seen.append((b"two" * 300, []))
    journal.append([b"d"])
    seen.append((b"two" * 300, [b"d"]))
    journal.sync()
    journal.close()


def steps() -> int:
    fs = CrashableFileSystem()
    story(fs, [])
    return fs.steps


ALL: list[tuple[bytes, list[bytes]]] = []
story(CrashableFileSystem(), ALL)
STATES = [(b"", []), *ALL]
DURABLE = {1: 1, 3: 3, 4: 4, 5: 5}  # states that a power loss later on cannot undo


def killed_at(step: int, keep_bytes: int) -> tuple[CrashableFileSystem, int]:
    """Tell the story until the power goes; return the disk, and how many states were reached."""
    fs = CrashableFileSystem()
    seen: list[tuple[bytes, list[bytes]]] = []
    fs.kill_at(step, keep_bytes=keep_bytes)
    with pytest.raises(PowerLoss):
        story(fs, seen)
    return fs, len(seen)


@pytest.mark.parametrize("step", range(1, steps() + 1))
@pytest.mark.parametrize("keep_bytes", [0, 9, 700])
def test_a_kill_at_each_step_leaves_the_state_before_or_after(step: int, keep_bytes: int) -> None:
    fs, reached = killed_at(step, keep_bytes)
    killed = fs.kill_process()
    for _ in range(2):  # opening changes nothing
        journal = opened(killed)
        found = (journal.snapshot, journal.records)
        assert found in STATES[reached : reached + 2]
        journal.close()
    journal.append([b"more"])
    after = opened(killed)
    assert (after.snapshot, after.records) == (found[0], [*found[1], b"more"])


@pytest.mark.parametrize("step", range(1, steps() + 1))
@pytest.mark.parametrize("seed", range(3))
def test_a_power_loss_at_each_step_leaves_what_was_synced(step: int, seed: int) -> None:
    fs, reached = killed_at(step, seed)
    least = max((state for state in DURABLE if state <= reached and state != 5), default=0)
    journal = opened(fs.crash(seed), strict=False)
    assert (journal.snapshot, journal.records) in STATES[least : reached + 2]


@pytest.mark.parametrize("step", range(1, steps() + 1))
def test_a_failure_at_each_step_loses_nothing(step: int) -> None:
    fs = CrashableFileSystem()
    seen: list[tuple[bytes, list[bytes]]] = []
    fs.fail_at(step, keep_bytes=5)
    try:
        story(fs, seen)
    except Unavailable:
        journal = opened(fs.kill_process())
        assert (journal.snapshot, journal.records) in STATES[len(seen) : len(seen) + 2]


def test_after_a_failed_step_the_journal_goes_on() -> None:
    whole = steps()
    for step in range(1, whole + 1):
        fs = CrashableFileSystem()
        journal = opened(fs)
        journal.compact(b"one")
        journal.append([b"a"])
        fs.fail_at(fs.steps + step)
        snapshot, records = b"one", [b"a"]
        try:
            journal.compact(b"two")
            snapshot, records = b"two", []
        except Unavailable:
            pass
        fs.forget_faults()
        journal.append([b"b"])
        after = opened(fs.kill_process())
        assert (after.snapshot, after.records) in [
            (snapshot, [*records, b"b"]),
            (b"two", [b"b"]),
        ]


def test_a_torn_tail_is_counted_and_cut_at_the_next_write() -> None:
    fs = CrashableFileSystem()
    journal = opened(fs)
    journal.compact(b"s")
    journal.append([b"a"])
    journal.close()
    (name,) = [f"{FOLDER}/{entry}" for entry in fs.listdir(FOLDER)]
    fs.damage(name, lambda content: content.extend(b"\x9dPB\x01 half a block"))
    again = opened(fs)
    assert (again.records, again.damage.torn_bytes) == ([b"a"], 17)
    again.append([b"b"])
    assert opened(fs).records == [b"a", b"b"]
    assert opened(fs).damage.torn_bytes == 0


def test_pieces_of_a_tail_that_was_not_durable_are_cut_off() -> None:
    fs = CrashableFileSystem()
    journal = opened(fs)
    journal.compact(b"s")
    for record in (b"aaaa", b"bbbb", b"cccc"):
        journal.append([record])
    (name,) = [f"{FOLDER}/{entry}" for entry in fs.listdir(FOLDER)]

    def flip(content: bytearray) -> None:
        content[content.index(b"bbbb")] ^= 1

    fs.damage(name, flip)
    unsynced = opened(fs)  # as a power loss may have left it
    assert (unsynced.records, unsynced.damage.lost_bytes) == ([b"aaaa"], 0)
    assert unsynced.damage.torn_bytes > 0
    unsynced.append([b"dddd"])
    assert opened(fs).records == [b"aaaa", b"dddd"]


def test_damage_before_what_was_durable_is_refused_or_read_up_to_and_kept_aside() -> None:
    fs = CrashableFileSystem()
    journal = opened(fs)
    journal.compact(b"s")
    for record in (b"aaaa", b"bbbb", b"cccc"):
        journal.append([record])
        journal.sync()
    (name,) = [f"{FOLDER}/{entry}" for entry in fs.listdir(FOLDER)]

    def flip(content: bytearray) -> None:
        content[content.index(b"bbbb")] ^= 1

    fs.damage(name, flip)
    with pytest.raises(CorruptData, match="records are missing: restore a copy"):
        opened(fs)
    left = opened(fs, strict=False)
    assert (left.snapshot, left.records) == (b"s", [b"aaaa"])
    assert left.damage.lost_bytes > 0
    left.compact(b"t")
    left.append([b"dddd"])
    assert [entry for entry in fs.listdir(FOLDER) if entry.endswith(".bad")]
    after = opened(fs)
    assert (after.snapshot, after.records) == (b"t", [b"dddd"])


def test_a_damaged_snapshot_is_refused_or_set_aside() -> None:
    fs = CrashableFileSystem()
    journal = opened(fs)
    journal.compact(b"snap")
    (name,) = [f"{FOLDER}/{entry}" for entry in fs.listdir(FOLDER)]
    fs.damage(name, lambda content: content.__setitem__(slice(64, 80), bytes(16)))
    with pytest.raises(CorruptData, match="records are missing"):
        opened(fs)
    left = opened(fs, strict=False)
    assert (left.snapshot, left.records) == (b"", [])
    assert left.damage.lost_bytes > 0
    left.compact(b"new")
    assert [entry for entry in fs.listdir(FOLDER) if entry.endswith(".bad")]
    assert opened(fs).snapshot == b"new"


def test_a_newer_format_is_refused() -> None:
    fs = CrashableFileSystem()
    opened(fs).compact(b"s")
    (name,) = [f"{FOLDER}/{entry}" for entry in fs.listdir(FOLDER)]

    def newer(content: bytearray) -> None:
        content[8:12] = struct.pack("<I", 99)
        content[12:16] = struct.pack(
            "<I", google_crc32c.value(bytes(content[:12] + content[16:64]))
        )

    fs.damage(name, newer)
    with pytest.raises(InvalidRequest, match="99"):
        opened(fs)


def read_on(file: JournalFile) -> list[bytes]:
    """The records that were appended since the last call."""
    found = []
    for block in file.blocks():
        found += block.records
        file.passed(block)
    return found


def test_a_file_is_read_while_it_is_appended_and_under_a_second_name() -> None:
    fs = CrashableFileSystem()
    journal = opened(fs)
    journal.compact(b"snapshot")
    fs.mkdir("/t/kept")
    fs.link(journal.path, "/t/kept/file")
    file = JournalFile(fs, "/t/kept/file")
    assert read_on(file) == []
    large = bytes(9 << 20)  # more than one read has
    for records in ([b"a", b"b"], [large], [b"c"]):
        journal.append(records)
        assert read_on(file) == records
    first = next(one for one in JournalFile(fs, "/t/kept/file").blocks() if one.records)
    content = fs.read_bytes("/t/kept/file")[first.position : first.position + first.length]
    assert read_block(content, "file") == [b"a", b"b"]
    with pytest.raises(CorruptData):
        read_block(content[:-8], "file")
    journal.compact(b"")  # deletes its first name
    journal.append([b"d"])
    assert read_on(file) == []
    assert read_on(JournalFile(fs, "/t/kept/file")) == [b"a", b"b", large, b"c"]


def test_damage_of_a_file_is_passed_over_if_a_block_follows() -> None:
    fs = CrashableFileSystem()
    journal = opened(fs)
    journal.compact(b"")
    for record in (b"a", b"b", b"c"):
        journal.append([record])
    [_, _, damaged, _] = JournalFile(fs, journal.path).blocks()

    def change(content: bytearray) -> None:
        content[damaged.position + damaged.length - 8] ^= 1

    fs.damage(journal.path, change)
    file = JournalFile(fs, journal.path)
    assert read_on(file) == [b"a", b"c"]
    fs.damage(journal.path, lambda content: content.extend(b"torn"))
    assert read_on(file) == []
