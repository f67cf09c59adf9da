"""What a power loss may leave of the disk in memory that the crash tests stand on."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from penstock.testing.memory_disk import Disk, Inode, Rename, Truncate, Write

SEEDS = st.integers(0, 2**32)


@given(st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 1500)), max_size=5), SEEDS)
def test_bytes_after_a_crash_are_the_synced_ones_the_new_ones_or_zeros(
    writes: list[tuple[int, int]], seed: int
) -> None:
    file = Inode(bytearray(), bytearray())
    file.change(Write(0, b"s" * 700))
    file.sync()
    for position, size in writes:
        file.change(Write(position, b"n" * size))
    after = file.after_crash(random.Random(seed))
    assert after.visible == after.durable
    assert not after.pending
    assert 700 <= len(after.visible) <= len(file.visible)
    touched = {at for position, size in writes for at in range(position, position + size)}
    for at, byte in enumerate(after.visible):
        if at < 700:
            assert byte in (b"sn" if at in touched else b"s")
        else:
            assert byte in b"n\0"


@given(SEEDS)
def test_names_after_a_crash_change_whole_or_not_and_synced_ones_stay(seed: int) -> None:
    disk = Disk()
    disk.make_folder("/f")
    folder, _ = disk.place("/f/a")
    folder.change(Rename(None, "a", Inode(bytearray(), bytearray())))
    folder.sync()
    folder.change(Rename("a", "b", disk.file("/f/a", "rename")))
    assert disk.names_in("/f") == ["b"]
    assert disk.after_crash(random.Random(seed)).names_in("/f") in (["a"], ["b"])
    folder.sync()
    assert disk.after_crash(random.Random(seed)).names_in("/f") == ["b"]


def test_a_file_that_was_cut_and_synced_stays_cut() -> None:
    file = Inode(bytearray(b"abcdef"), bytearray(b"abcdef"))
    file.change(Truncate(2))
    file.sync()
    assert file.after_crash(random.Random(1)).visible == b"ab"
