"""The bound on what a broker holds in memory: the sum, and who lets go or waits."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.channel.feed import Feed
from penstock.broker.memory.memory_budget import MemoryBudget
from penstock.storage.queue.disk_queue import DiskQueue


class Kept:
    """A cache that notes that it was told to let go."""

    def __init__(self) -> None:
        self.releases = 0

    def release(self) -> None:
        self.releases += 1


def test_the_longest_unused_cache_is_let_go_first() -> None:
    budget = MemoryBudget(100)
    old, used, new = Kept(), Kept(), Kept()
    budget.cache(old, 40)
    budget.cache(used, 40)
    budget.cache(old, 41)  # used again
    budget.cache(new, 30)
    assert (old.releases, used.releases, new.releases) == (0, 1, 0)
    assert budget.cached_bytes == 71


def test_the_cache_in_use_stays_however_large_it_is() -> None:
    budget = MemoryBudget(100)
    small, large = Kept(), Kept()
    budget.cache(small, 10)
    budget.cache(large, 1_000)
    assert (small.releases, large.releases) == (1, 0)


def test_what_is_held_takes_the_room_of_caches() -> None:
    budget = MemoryBudget(100)
    caches = [Kept() for _ in range(4)]
    for cache in caches:
        budget.cache(cache, 20)
    budget.hold("client", 50)
    assert [cache.releases for cache in caches] == [1, 1, 0, 0]
    budget.hold("client", 0)
    assert budget.held_bytes == 0


def test_consumers_wait_before_publishers_do() -> None:
    budget = MemoryBudget(100)
    seen = []
    for name, held in (("slow", 74), ("slow", 75), ("publisher", 25)):
        budget.hold(name, held)
        seen.append((budget.has_room, budget.is_full))
    assert seen == [(True, False), (False, False), (False, True)]


def test_who_knows_of_little_goes_on_when_others_wait() -> None:
    budget = MemoryBudget(102_400)
    budget.hold("much", 76_800)
    assert not budget.has_room_for(100)
    assert budget.has_room_for(99)
    calls: list[str] = []
    budget.hold("slow", 12_800)
    assert not budget.has_room_for(0)
    budget.when_room(lambda: calls.append("a"))
    budget.hold("slow", 12_799)
    assert calls == ["a"]
    assert budget.has_room_for(99)
    assert not budget.is_full


def test_who_waits_is_called_once_there_is_room() -> None:
    budget = MemoryBudget(100)
    calls: list[str] = []

    def call() -> None:
        calls.append("a")

    budget.hold("slow", 86)
    budget.when_room(call)
    budget.when_room(call)
    budget.hold("slow", 80)
    assert not calls
    budget.hold("slow", 10)
    budget.hold("slow", 0)
    assert calls == ["a"]


@given(
    st.lists(
        st.tuples(st.booleans(), st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=60
    )
)
def test_sums_are_those_of_what_is_there(steps: list[tuple[bool, int, int]]) -> None:
    budget = MemoryBudget(100)
    caches = [Kept() for _ in range(6)]
    sizes = [0] * 6
    held = [0] * 6
    for is_cache, index, size in steps:
        before = [cache.releases for cache in caches]
        if is_cache:
            sizes[index] = size
            budget.cache(caches[index], size)
        else:
            held[index] = size
            budget.hold(index, size)
        for other, cache in enumerate(caches):
            if cache.releases > before[other]:
                sizes[other] = 0
        assert budget.held_bytes == sum(held)
        assert budget.cached_bytes == sum(sizes)
        assert sum(sizes) + sum(held) <= 100 or sum(map(bool, sizes)) <= 1


@pytest.fixture
def queue(tmp_path_factory: pytest.TempPathFactory) -> DiskQueue:
    return DiskQueue.open(str(tmp_path_factory.mktemp("queue")))


def _append(feed: Feed, queue: DiskQueue, messages: list[bytes]) -> None:
    written = queue.append(messages)
    feed.appended(written.start, pa.array(messages), queue.last_append_ms, sum(map(len, messages)))


def test_a_feed_that_was_let_go_reads_from_the_disk(queue: DiskQueue) -> None:
    async def read() -> None:
        budget = MemoryBudget(10_000)
        feed = Feed(queue, 1_000, 1 << 20, budget)
        _append(feed, queue, [b"x" * 6_000])
        assert feed.slice(0, 1) is not None
        budget.cache(Kept(), 6_000)
        assert feed.slice(0, 1) is None
        there = asyncio.Event()
        feed.when_read(0, there.set)
        await there.wait()
        found = feed.slice(0, 1)
        assert found is not None
        assert found.messages is not None
        assert found.messages.to_pylist() == [b"x" * 6_000]
        feed.close()
        assert budget.cached_bytes == 0

    asyncio.run(read())
    queue.close()


def test_a_feed_that_keeps_nothing_holds_nothing(queue: DiskQueue) -> None:
    budget = MemoryBudget(10_000)
    feed = Feed(queue, 0, 1 << 20, budget)
    _append(feed, queue, [b"x"])
    assert feed.slice(0, 1) is None
    assert budget.cached_bytes == 0
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
