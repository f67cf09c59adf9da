"""The bound on what a broker holds in memory: the sum, and who lets go or waits."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.channel.feed import Feed
from penstock.broker.memory.budget import MemoryBudget
from penstock.storage.queue.disk_queue import DiskQueue


class Kept:
    """A cache that notes that it was told to let go."""

    def __init__(self) -> None:
        self.sheds = 0

    def shed(self) -> None:
        self.sheds += 1


def test_the_longest_unused_cache_is_let_go_first() -> None:
    ledger = MemoryBudget(100)
    old, used, new = Kept(), Kept(), Kept()
    ledger.cache(old, 40)
    ledger.cache(used, 40)
    ledger.cache(old, 41)  # used again
    ledger.cache(new, 30)
    assert (old.sheds, used.sheds, new.sheds) == (0, 1, 0)
    assert ledger.cached_bytes == 71


def test_the_cache_in_use_stays_however_large_it_is() -> None:
    ledger = MemoryBudget(100)
    small, large = Kept(), Kept()
    ledger.cache(small, 10)
    ledger.cache(large, 1_000)
    assert (small.sheds, large.sheds) == (1, 0)


def test_what_is_held_takes_the_room_of_caches() -> None:
    ledger = MemoryBudget(100)
    caches = [Kept() for _ in range(4)]
    for cache in caches:
        ledger.cache(cache, 20)
    ledger.hold("client", 50)
    assert [cache.sheds for cache in caches] == [1, 1, 0, 0]
    ledger.hold("client", 0)
    assert ledger.held_bytes == 0


def test_consumers_wait_before_publishers_do() -> None:
    ledger = MemoryBudget(100)
    ledger.hold("slow", 74)
    assert ledger.has_room
    ledger.hold("slow", 75)
    assert not ledger.has_room
    assert not ledger.is_full
    ledger.hold("publisher", 25)
    assert ledger.is_full


def test_who_knows_of_little_goes_on_when_others_wait() -> None:
    ledger = MemoryBudget(102_400)
    ledger.hold("much", 76_800)
    assert not ledger.has_room_for(100)
    assert ledger.has_room_for(99)
    calls: list[str] = []
    ledger.hold("slow", 12_800)
    assert not ledger.has_room_for(0)
    ledger.when_room(lambda: calls.append("a"))
    ledger.hold("slow", 12_799)
    assert calls == ["a"]
    assert ledger.has_room_for(99)
    assert not ledger.is_full


def test_who_waits_is_called_once_there_is_room() -> None:
    ledger = MemoryBudget(100)
    calls: list[str] = []

    def call() -> None:
        calls.append("a")

    ledger.hold("slow", 86)
    ledger.when_room(call)
    ledger.when_room(call)
    ledger.hold("slow", 80)
    assert not calls
    ledger.hold("slow", 10)
    ledger.hold("slow", 0)
    assert calls == ["a"]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=60
    )
)
def test_sums_are_those_of_what_is_there(steps: list[tuple[bool, int, int]]) -> None:
    ledger = MemoryBudget(100)
    caches = [Kept() for _ in range(6)]
    sizes = [0] * 6
    held = [0] * 6
    for is_cache, index, size in steps:
        before = [cache.sheds for cache in caches]
        if is_cache:
            sizes[index] = size
            ledger.cache(caches[index], size)
        else:
            held[index] = size
            ledger.hold(index, size)
        for other, cache in enumerate(caches):
            if cache.sheds > before[other]:
                sizes[other] = 0
        assert ledger.held_bytes == sum(held)
        assert ledger.cached_bytes == sum(sizes)
        assert sum(sizes) + sum(held) <= 100 or sum(map(bool, sizes)) <= 1


@pytest.fixture
def queue(tmp_path_factory: pytest.TempPathFactory) -> DiskQueue:
    return DiskQueue.open(str(tmp_path_factory.mktemp("queue")))


def _append(feed: Feed, queue: DiskQueue, messages: list[bytes]) -> None:
    written = queue.append(messages)
    feed.appended(written.start, pa.array(messages), queue.last_append_ms, sum(map(len, messages)))


def test_a_feed_that_was_let_go_reads_from_the_disk(queue: DiskQueue) -> None:
    async def read() -> None:
        ledger = MemoryBudget(10_000)
        feed = Feed(queue, 1_000, 1 << 20, ledger)
        _append(feed, queue, [b"x" * 6_000])
        assert feed.slice(0, 1) is not None
        ledger.cache(Kept(), 6_000)
        assert feed.slice(0, 1) is None
        there = asyncio.Event()
        feed.when_read(0, there.set)
        await there.wait()
        found = feed.slice(0, 1)
        assert found is not None
        assert found.messages is not None
        assert found.messages.to_pylist() == [b"x" * 6_000]
        feed.close()
        assert ledger.cached_bytes == 0

    asyncio.run(read())
    queue.close()


def test_a_feed_that_keeps_nothing_holds_nothing(queue: DiskQueue) -> None:
    ledger = MemoryBudget(10_000)
    feed = Feed(queue, 0, 1 << 20, ledger)
    _append(feed, queue, [b"x"])
    assert feed.slice(0, 1) is None
    assert ledger.cached_bytes == 0
    queue.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_slice_is_bounded_in_bytes_and_holds_a_message_at_least(
    queue: DiskQueue, *, at_once: bool
) -> None:
    feed = Feed(queue, 1_000, 1 << 26)
    messages = [b"a" * 400_000] * 5 + [b"b" * 3_000_000] * 2
    for batch in [messages] if at_once else [[message] for message in messages]:
        _append(feed, queue, batch)
    position, counts = 0, []
    while position < len(messages):
        found = feed.slice(position, len(messages))
        assert found is not None
        assert found.messages is not None
        assert found.start == position
        assert found.messages.to_pylist() == messages[position : found.end]
        counts.append(found.end - position)
        position = found.end
    assert counts == [2, 2, 1, 1, 1]
    queue.close()
