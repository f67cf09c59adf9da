"""How long loops stall: what is measured, and where it is shown."""

from __future__ import annotations

import asyncio
import threading

import pytest
import uvloop

from penstock.core.clock import SystemClock
from penstock.core.loop_stalls import (
    LoopStalls,
    LoopTicker,
    loop_stalls,
    stall_samples,
    watched_loop,
)


def block(seconds: float) -> None:
    """Hold the thread up, as an import or a slow disk does."""
    condition = threading.Condition()
    with condition:
        SystemClock().wait(condition, seconds)


def test_the_longest_stall_is_kept_and_the_long_ones_are_counted() -> None:
    stalls = LoopStalls("a test")
    for length_ms in (3.0, 50.0, 51.0, 120.5, 7.0):
        stalls.record(length_ms)
    assert stalls.to_json() == {"max": 120.5, "over_50": 2}
    values = {
        one.name: one.value for one in stall_samples("broker") if ("loop", "a test") in one.labels
    }
    assert values == {
        "penstock_loop_stall_ms_max": 120.5,
        "penstock_loop_stall_ms_over_50_total": 2.0,
    }


def test_of_two_loops_of_one_name_the_worse_is_shown() -> None:
    kept = [LoopStalls("twins"), LoopStalls("twins")]
    kept[0].record(9.0)
    kept[1].record(4.0)
    assert loop_stalls()["twins"] is kept[0]


def test_a_loop_of_asyncio_measures_each_turn_and_nothing_while_it_sleeps() -> None:
    async def story() -> float:
        await asyncio.sleep(0.3)
        asleep = loop_stalls()["story"].over_50_ms
        block(0.1)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asleep

    with asyncio.Runner(loop_factory=lambda: watched_loop("story")) as runner:
        asleep = runner.run(story())
        found = loop_stalls()["story"]
        assert found.over_50_ms >= asleep + 1
        assert found.max_ms >= 100


@pytest.mark.parametrize("make", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_ticker_measures_a_loop_of_any_kind(make: object) -> None:
    stalls = LoopStalls("ticked")

    async def story() -> None:
        ticker = LoopTicker(stalls, asyncio.get_running_loop())
        ticker.start()
        await asyncio.sleep(0.05)
        block(0.2)
        await asyncio.sleep(0.05)
        ticker.stop()
        ticker.stop()

    assert callable(make)
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(story())
    # Up to one interval of the timer is missing.
    assert stalls.max_ms >= 175
    assert stalls.over_50_ms >= 1
