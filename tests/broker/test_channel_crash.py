"""The crash tier of channels: any story, cut at any step, by a kill -9 or a power loss."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.broker.channel import persistence
from penstock.storage.queue.blocks import FILE_HEADER_BYTES
from penstock.testing.memory_disk import PowerLoss
from tests.broker.channel_kit import LATER_MS, ChannelWorld, play

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    Step = Callable[[], Awaitable[None]]

NAMES = ("a", "b", "c")


@pytest.fixture(autouse=True, scope="module")
def small_journals() -> Iterator[None]:
    """Journals are compacted often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(persistence, "_COMPACT_BYTES", 600)
        yield


async def begin(world: ChannelWorld) -> None:
    await world.open()
    world.topics.create("t", 1)
    world.paused = False


def named(step: Callable[..., Awaitable[None]], *args: object, **options: object) -> Step:
    bound = partial(step, *args, **options)
    # Its name is that of a test.
    bound.__name__ = f"{step.__name__}{args}{options}"  # type: ignore[attr-defined]
    return bound


# -- one story, cut at each of its steps


def every_operation(world: ChannelWorld) -> list[Step]:
    w = world
    return [
        named(w.publish, 3, sync=True),
        named(w.create_channel, "a"),
        named(w.take, "a", 10),
        named(w.publish, 5, sync=False),
        named(w.finish, "a", 0.5),
        named(w.rest),
        named(w.create_channel, "b"),
        named(w.publish, 2, LATER_MS // 2, sync=False),
        named(w.requeue, "a", LATER_MS),
        named(w.take, "b", 3),
        named(w.sync),
        named(w.publish, 4, sync=False),
        named(w.finish, "b", 1.0),
        named(w.requeue, "a", 0),
        named(w.rest),
        named(w.pause, paused=True),
        named(w.publish, 4, sync=False),
        named(w.empty_topic),
        named(w.publish, 3, sync=True),
        named(w.pause, paused=False),
        named(w.take, "a", 20),
        named(w.take, "b", 20),
        named(w.finish, "a", 1.0),
        named(w.seek, "b", 2),
        named(w.pause_channel, "b", paused=True),
        named(w.time_passes, 40.0),
        named(w.reconnect, "a"),
        named(w.take, "a", 20),
        named(w.requeue, "a", LATER_MS),
        named(w.settle),
        named(w.finish, "a", 1.0),
        named(w.settle),
        named(w.seek, "b", 21),
        named(w.retain),
        named(w.publish, 6, sync=False),
        named(w.take, "a", 20),
        named(w.finish, "a", 0.7),
        named(w.delete_channel, "b"),
        named(w.rest),
        named(w.retain),
        named(w.delete_channel, "a"),
        named(w.publish, 2, sync=False),
        named(w.create_channel, "c"),
        named(w.take, "c", 5),
    ]


async def the_story(world: ChannelWorld) -> None:
    await begin(world)
    for step in every_operation(world):
        await world.do(step)


async def what_is_left(world: ChannelWorld) -> None:
    await world.look()
    if world.topics.find("t") is not None:
        # And it goes on.
        await world.do(named(world.publish, 2, sync=False))
        await world.do(named(world.create_channel, "new"))
        await world.do(named(world.take, "new", 50))
        await world.do(named(world.rest))


STEPS = 400  # more than there are


@pytest.mark.usefixtures("deaths")  # a crash is raised in tasks, too
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_each_step_of_each_operation_can_be_the_last(power: bool) -> None:
    step, through = 0, False
    while not through:
        step += 1
        world = ChannelWorld(step)
        world.fs.kill_at(step, keep_bytes=world.rng.choice((0, 20, 10_000)))
        through = play(world, the_story)
        world.restart(power=power, again=world.rng.choice((0, 0, 1, 2, 3, 5, 8)))
        survived(world, power=power)
        assert step < STEPS
    assert step > 100


def survived(world: ChannelWorld, *, power: bool) -> None:
    try:
        assert play(world, what_is_left)
        if world.topics.find("t") is not None:
            world.restart(power=not power)
            assert play(world, ChannelWorld.look)
    except AssertionError:
        print("\n".join(world.log))
        raise


def test_offsets_that_a_power_loss_took_are_not_served_already() -> None:
    async def before(world: ChannelWorld) -> None:
        await begin(world)
        await world.create_channel("a")
        await world.publish(5, sync=False)
        await world.delete_channel("a")  # the topic stands at 5 now, durably

    async def after(world: ChannelWorld) -> None:
        await world.open()
        world.latest = world.topic.queues[0].latest
        assert world.latest == 0
        await world.publish(5, sync=False)
        await world.create_channel("a")
        await world.take("a", 10)
        await world.time_passes(0.01)  # they are read from the disk
        assert sorted(world.known["a"].attempts) == [0, 1, 2, 3, 4]

    world = ChannelWorld(0)
    assert play(world, before)
    log = "/topics/t/0/00000000000000000000.log"
    outcomes = (copy.deepcopy(world.fs).crash(seed) for seed in range(100))
    world.fs = next(
        fs for fs in outcomes if fs.exists(log) and fs.stat(log).size <= FILE_HEADER_BYTES
    )
    assert play(world, after)


# -- any story


def any_operation(world: ChannelWorld, rng: random.Random) -> Step:
    w, name = world, rng.choice(NAMES)
    chance = rng.random()
    table: list[tuple[float, Callable[[], Step]]] = [
        (0.16, lambda: named(w.publish)),
        (0.03, lambda: named(w.publish, delay_ms=rng.randint(1, LATER_MS))),
        (0.15, lambda: named(w.take, name, rng.randint(0, 12))),
        (0.15, lambda: named(w.finish, name, rng.choice((0.3, 1.0)))),
        (0.10, lambda: named(w.requeue, name, rng.choice((0, 100, LATER_MS)))),
        (0.03, lambda: named(w.touch, name)),
        (0.05, lambda: named(w.reconnect, name)),
        (0.08, lambda: named(w.create_channel, name)),
        (0.01, lambda: named(w.delete_channel, name)),
        (0.03, lambda: named(w.seek, name, rng.randint(w.topic.queues[0].earliest, w.latest))),
        (0.01, lambda: named(w.seek, name, w.topic.position()[0])),
        (0.03, lambda: named(w.pause, paused=rng.random() < 0.4)),
        (0.02, lambda: named(w.pause_channel, name, paused=rng.random() < 0.4)),
        (0.01, lambda: named(w.empty_topic)),
        (0.04, lambda: named(w.rest)),
        (0.04, lambda: named(w.settle)),
        (0.03, lambda: named(w.time_passes, rng.choice((0.02, 1.0, 40.0)))),
        (0.03, lambda: named(w.retain)),
    ]
    for share, make in table:
        chance -= share
        if chance < 0:
            return make()
    return named(w.sync)


@given(seed=st.integers(0, 2**32))
@example(seed=5604)  # the power goes after a kill, before anything is written
@pytest.mark.usefixtures("deaths")
def test_any_life_of_a_topic_keeps_its_promises(seed: int) -> None:
    rng = random.Random(seed)
    world = ChannelWorld(seed)
    power = False

    async def first(world: ChannelWorld) -> None:
        await begin(world)
        await live(world)

    async def live(world: ChannelWorld) -> None:
        faults = rng.random() < 0.3
        for _ in range(rng.randint(5, 60)):
            if faults and rng.random() < 0.1:
                world.faulty = True
                kind = rng.choice(("append", "fsync", "create", "rename", "delete"))
                world.fs.fail_next(kind, keep_bytes=rng.choice((0, 9)))
            await world.do(any_operation(world, rng))

    async def later(world: ChannelWorld) -> None:
        await world.look()
        if world.topics.find("t") is None:
            world.topics.create("t", 1)
            world.paused = False
        await live(world)

    try:
        world.fs.kill_at(rng.randint(1, 400), keep_bytes=rng.choice((0, 20, 10_000)))
        play(world, first)
        for _ in range(3):
            # What an fsync lost is known to the process only: no kill then.
            power = world.faulty or rng.random() < 0.5
            world.restart(power=power, again=rng.choice((0, 0, 1, 2, 3, 5, 8)))
            world.fs.kill_at(world.fs.steps + rng.randint(30, 500), keep_bytes=rng.choice((0, 20)))
            play(world, later)
        world.restart(power=power)

        assert play(world, ChannelWorld.look)
    except AssertionError:
        print("\n".join(world.log))
        raise
    except PowerLoss:
        raise AssertionError("the power went away outside") from None
