"""Names, the budget of bytes and the reserve of disk space."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.publish_admission import ByteBudget
from penstock.broker.topic_names import is_ephemeral, is_valid_name, require_name
from penstock.core.clock import SystemClock
from penstock.core.disk_space import DiskSpace
from penstock.core.errors import InvalidRequest, Unavailable


@pytest.mark.parametrize(
    "name",
    ["a", "flights", "a.b-c_9", ".hidden", "...", "x" * 64, "t#ephemeral", "x" * 54 + "#ephemeral"],
)
def test_names_that_are_legal(name: str) -> None:
    assert is_valid_name(name)
    assert require_name(name) == name
    assert is_ephemeral(name) == name.endswith("#ephemeral")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a b",
        "a:b",
        "a\n",
        "a\0",
        "ä",
        "٣",
        "~x",
        "x" * 65,
        "x" * 55 + "#ephemeral",
        "#ephemeral",
        "..#ephemeral",
        "a#other",
        "a#ephemeral#ephemeral",
    ],
)
def test_names_that_are_not(name: str) -> None:
    assert not is_valid_name(name)
    with pytest.raises(InvalidRequest, match="1 to 64"):
        require_name(name)


@given(st.text(max_size=70))
def test_a_valid_name_stays_within_its_folder(name: str) -> None:
    if is_valid_name(name):
        assert "/" not in name
        assert name not in {".", ".."}
        assert len(name.encode()) <= 64


def test_the_budget_is_kept_and_handed_on_in_order() -> None:
    async def story() -> None:
        budget = ByteBudget(10, timeout_s=60)
        order: list[str] = []
        leave = {name: asyncio.Event() for name in "abcd"}

        async def hold(name: str, size: int) -> None:
            async with budget.reserve(size):
                assert budget.held_bytes <= 10
                order.append(name)
                await leave[name].wait()

        tasks = {}
        for name, size in (("a", 6), ("b", 8), ("c", 1), ("d", 999)):
            tasks[name] = asyncio.create_task(hold(name, size))
            await asyncio.sleep(0)
        # c would fit beside a, but b came first.
        assert (order, budget.held_bytes, budget.waiting) == (["a"], 6, 3)
        leave["a"].set()
        await tasks["a"]
        await asyncio.sleep(0)
        assert (order, budget.held_bytes) == (["a", "b", "c"], 9)
        leave["b"].set()
        leave["c"].set()
        await asyncio.gather(tasks["b"], tasks["c"])
        await asyncio.sleep(0)
        assert (order, budget.held_bytes) == (["a", "b", "c", "d"], 10)
        leave["d"].set()
        await tasks["d"]
        assert (budget.held_bytes, budget.waiting) == (0, 0)

    asyncio.run(story())


def test_a_publisher_that_waits_too_long_is_refused_and_leaves_no_trace() -> None:
    async def story() -> None:
        budget = ByteBudget(10, timeout_s=0.001)
        async with budget.reserve(10):
            with pytest.raises(Unavailable, match="limit is 10"):
                async with budget.reserve(1):
                    pytest.fail("there was no room")
        assert (budget.held_bytes, budget.waiting, budget.refused) == (0, 0, 1)
        async with budget.reserve(10):
            assert budget.held_bytes == 10

    asyncio.run(story())


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), max_size=12))
def test_the_budget_balances_whoever_gives_up(steps: list[tuple[int, bool]]) -> None:
    async def story() -> None:
        budget = ByteBudget(10, timeout_s=60)
        held_most = 0

        async def hold(size: int) -> None:
            nonlocal held_most
            async with budget.reserve(size):
                held_most = max(held_most, budget.held_bytes)
                await asyncio.sleep(0)

        tasks = []
        for size, gives_up in steps:
            tasks.append(asyncio.create_task(hold(size)))
            await asyncio.sleep(0)
            if gives_up:
                tasks[len(tasks) // 2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert held_most <= 10
        assert (budget.held_bytes, budget.waiting) == (0, 0)

    asyncio.run(story())


@dataclass
class Hand(SystemClock):
    """A clock moved by hand."""

    seconds: float = 0.0

    def monotonic_s(self) -> float:
        return self.seconds


def test_publishes_stop_before_the_disk_is_full_and_go_on_by_themselves() -> None:
    clock, free = Hand(), [1000]
    headroom = DiskSpace("/d", lambda: free[0], 900, clock, "delete topics")
    headroom.require(60)
    headroom.require(60)  # begins the reserve
    for size_bytes in (60, 1, 0):  # between measurements what was taken counts
        with pytest.raises(Unavailable, match="disk of /d"):
            headroom.require(size_bytes)
    free[0] = 5000
    with pytest.raises(Unavailable):
        headroom.require(1)
    clock.seconds += 1
    with pytest.raises(Unavailable, match="kept free"):
        headroom.require(4600)  # more than half of the reserve would go
    headroom.require(4000)
