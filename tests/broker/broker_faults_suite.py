"""Cases for the fault injector over a broker: one fault, or two, in one operation."""

from __future__ import annotations

import asyncio
import copy
import functools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Final

from penstock.broker.topics.placement import ANYWHERE
from tests.broker.broker_faults_kit import BrokerWorld, Client, FaultyLoop, turns
from tests.harness.call_faults_kit import FAULTS, Faults
from tests.kits.fault_cases_kit import DrawnCases, FaultPlan, count_calls

if TYPE_CHECKING:
    from collections.abc import Coroutine

Operation = Callable[[BrokerWorld], Awaitable[None]]

# Of cancelled tasks at the end of a life.
_ROUNDS: Final = 20


# -- operations of a topic


async def publish(world: BrokerWorld) -> None:
    await world.publish("PUB t", world.body())


async def publish_many(world: BrokerWorld) -> None:
    await world.publish("MPUB", world.body(), world.body(), world.body())


async def publish_deferred(world: BrokerWorld) -> None:
    await world.publish("DPUB t 5000", world.body())


async def publish_gathered(world: BrokerWorld) -> None:
    """Two publishes of one turn of the loop, as over HTTP."""
    publisher, bodies = world.broker.publisher, (world.body(), world.body())
    topic = world.broker.topics.get("t")
    both = (publisher.append_one(topic, body, ANYWHERE) for body in bodies)
    outcomes = await asyncio.gather(*both, return_exceptions=True)
    world.sure.update(
        body
        for body, outcome in zip(bodies, outcomes, strict=True)
        if not isinstance(outcome, BaseException)
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def create_channel(world: BrokerWorld) -> None:
    world.gone.add("c")
    await world.broker.channel_changes.find_or_create(world.broker.topics.get("t"), "c")


async def delete_channel(world: BrokerWorld) -> None:
    await world.broker.channel_changes.delete(world.broker.topics.get("t"), "b")


async def pause_topic(world: BrokerWorld) -> None:
    await world.broker.changes.set_paused("t", paused=True)


async def unpause_topic(world: BrokerWorld) -> None:
    await world.broker.changes.set_paused("t", paused=True)
    await world.broker.changes.set_paused("t", paused=False)


async def pause_channel(world: BrokerWorld) -> None:
    topic = world.broker.topics.get("t")
    await world.broker.channel_changes.set_paused(topic, "a", paused=True)


async def configure(world: BrokerWorld) -> None:
    topic = world.broker.topics.get("t")
    await world.broker.changes.configure(topic, {"max_attempts": "100"})


async def purge(world: BrokerWorld) -> None:
    world.gone.update("ab")
    await world.broker.changes.purge(world.broker.topics.get("t"))


async def delete_topic(world: BrokerWorld) -> None:
    world.gone.update(("a", "b", "topic"))
    await world.broker.changes.delete("t")


async def create_topic(world: BrokerWorld) -> None:
    await world.broker.changes.create("other", 2)


# -- operations of a channel


async def take(world: BrokerWorld) -> None:
    for client in world.clients:
        client.send(b"RDY 20\n")
    await turns()


async def take_from_disk(world: BrokerWorld) -> None:
    for feed in world.broker.topics.get("t").feeds:
        feed.forget()
    await take(world)


async def finish(world: BrokerWorld) -> None:
    client = world.clients[1]
    await world.finish(client, *client.held)


async def requeue(world: BrokerWorld) -> None:
    client = world.clients[1]
    for number in tuple(client.held):
        del client.held[number]
        client.send(b"REQ %s 1000\n" % number)
    await turns()


async def touch(world: BrokerWorld) -> None:
    client = world.clients[1]
    for number in client.held:
        client.send(b"TOUCH %s\n" % number)
    await turns()


async def time_out(world: BrokerWorld) -> None:
    await asyncio.sleep(70)


async def time_passes(world: BrokerWorld) -> None:
    await asyncio.sleep(2.5)


async def clear(world: BrokerWorld) -> None:
    world.gone.add("a")
    world.channel("a").clear()
    await world.channel("a").keep()


async def seek(world: BrokerWorld) -> None:
    world.finished.pop("a", None)
    world.channel("a").seek([0])
    await world.channel("a").keep(durable=True)


async def dead_letters(world: BrokerWorld) -> None:
    world.gone.update("ab")
    topic = world.broker.topics.get("t")
    texts = {"max_attempts": "1", "dead_letter_topic": "dead"}
    await world.broker.changes.configure(topic, texts)
    await requeue(world)
    await asyncio.sleep(5)


# -- operations of a connection


async def connect(world: BrokerWorld) -> None:
    client = Client(world, "a")
    world.clients.append(client)
    await turns()


async def identify(world: BrokerWorld) -> None:
    client = Client(world)
    client.is_packed = True
    body = b'{"feature_negotiation":true,"snappy":true,"heartbeat_interval":1000}'
    client.send(b"IDENTIFY\n" + len(body).to_bytes(4, "big") + body)
    await turns()
    client.wire.close()
    await turns()


async def disconnect(world: BrokerWorld) -> None:
    for client in world.clients:
        client.wire.close()
    await turns()


async def close_consumer(world: BrokerWorld) -> None:
    world.clients[0].send(b"CLS\n")
    await turns()


async def heartbeat(world: BrokerWorld) -> None:
    await asyncio.sleep(31)


async def many_commands(world: BrokerWorld) -> None:
    world.clients[0].send(b"NOP\n" * 300)
    await turns()
    world.clients[0].send(b"RDY 3\n")
    await turns()


OPERATIONS: Final[tuple[Operation, ...]] = (
    *(publish, publish_many, publish_deferred, publish_gathered),
    *(create_channel, delete_channel, pause_topic, unpause_topic, pause_channel, configure),
    *(purge, delete_topic, create_topic),
    *(take, take_from_disk, finish, requeue, touch, time_out, time_passes, clear, seek),
    *(dead_letters, connect, identify, disconnect, close_consumer, heartbeat, many_commands),
)


# Whose functions are made to raise a `MemoryError`, too.
INSIDE: Final = ("penstock.broker.channel", "penstock.broker.topics")


def play(operation: Operation, plan: FaultPlan) -> tuple[str, list[str]]:
    """Return the port at which a fault was raised, and the problems that it left."""
    world = BrokerWorld()
    loop = FaultyLoop(world.clock, world.faults)
    if _run(loop, _live(world, operation, plan, loop.unhandled)):
        return world.faults.raised, world.problems
    # The loop's exception handler, or Ctrl-C, ended the process: the next one finds everything.
    after = BrokerWorld(
        clock=world.clock,
        disk=copy.deepcopy(world.disk).kill_process(),
        sure=world.sure,
        maybe=world.maybe,
        gone=world.gone,
        number=world.number,
    )
    for finished in (world.finished, world.maybe_finished):
        for name, bodies in finished.items():
            after.seen.setdefault(name, Counter()).update(bodies)
    loop = FaultyLoop(after.clock, after.faults)
    if not _run(loop, _go_on(after, "after a restart", restarted=True)):
        after.problems.append(f"the restarted broker failed: {loop.unhandled}")
    return world.faults.raised, [*world.problems, *after.problems]


async def _live(
    world: BrokerWorld, operation: Operation, plan: FaultPlan, unhandled: list[dict[str, object]]
) -> bool:
    world.open()
    await world.fill()
    with plan.armed(world.faults):
        try:
            await operation(world)
            await turns()
        except Exception:
            if not world.faults.raised:
                raise
    await turns()
    if unhandled:
        return False
    await _go_on(world, "in the same process")
    return not unhandled


async def _go_on(world: BrokerWorld, where: str, *, restarted: bool = False) -> bool:
    if restarted:
        world.open()
        world.clients = []
    await asyncio.sleep(3)  # what failed is tried again within seconds, and journals are written
    world.sync_asked()
    world.check_whole(where)
    _compare(world, where)
    await world.drain()
    world.check_whole(f"{where}, at the end")
    world.check_all_came(where)
    world.check_nothing_leaked(where)
    _compare(world, f"{where}, at the end")
    await world.server.stop()
    reopened = BrokerWorld(clock=world.clock, disk=world.disk)
    reopened.open()
    await reopened.server.stop()
    return True


def _compare(world: BrokerWorld, where: str) -> None:
    """Check that a restart finds what memory has."""
    other = BrokerWorld(clock=world.clock, disk=copy.deepcopy(world.disk).kill_process())
    other.open()
    found, wanted = other.summary(), world.summary()
    if found != wanted:
        world.problems.append(f"a restart finds {found}, not {wanted}, {where}")
    other.broker.topics.close()


def _run(loop: FaultyLoop, work: Coroutine[object, object, bool]) -> bool:
    """Run a life to its end; False if it was ended."""
    try:
        return loop.run_until_complete(work)
    except KeyboardInterrupt:
        return False
    finally:
        loop.disarm()
        # A reader that is cancelled wakes channels, which start the next one, for ever.
        for _ in range(_ROUNDS):
            if not (left := asyncio.all_tasks(loop)):
                break
            for task in left:
                task.cancel()
            try:
                loop.run_until_complete(asyncio.wait(left))
            except KeyboardInterrupt:
                continue  # it goes from the task that met it to the one that waits for that
            for task in left:
                _ = task.cancelled() or task.exception()
        loop.close()


@functools.cache
def call_count(operation: Operation, *, inside: bool = False) -> int:
    """Return how many calls of ports an operation makes, or of functions of `INSIDE`."""

    def attempt(plan: FaultPlan) -> Faults:
        world = BrokerWorld()

        async def live() -> bool:
            world.open()
            await world.fill()
            with plan.armed(world.faults):
                await operation(world)
                await turns()
            return True

        assert _run(FaultyLoop(world.clock, world.faults), live())
        return world.faults

    return count_calls(attempt, INSIDE if inside else ())


# Ctrl-C while an error is handled ends the process, which the first fault shows already.
SECOND: Final = tuple(one for one in FAULTS if one is not KeyboardInterrupt)
GAPS: Final = 6
# Neighbouring numbers are different cases, so that any range of numbers is a sample.
_STRIDE: Final = 1_000_003


class AllCases:
    """All single faults at every call of each operation, and all pairs of them.

    In this order, before the numbers are mixed: an exception of each kind before and after each
    call of a port, then the same with each second exception in each of the next calls, and a
    `MemoryError` at each call of a function.
    """

    @functools.cached_property
    def total(self) -> int:
        """Number of cases."""
        total = sum(count * size for _, count, size, _ in self._parts)
        assert math.gcd(total, _STRIDE) == 1
        return total

    @functools.cached_property
    def _parts(self) -> list[tuple[Operation, int, int, bool]]:
        """Operations with their calls, the cases of each call, and whether they are inside."""
        of_call = len(FAULTS) * 2 * (1 + len(SECOND) * GAPS)
        parts = []
        for one in OPERATIONS:
            parts.append((one, call_count(one), of_call, False))
            parts.append((one, call_count(one, inside=True), 1, True))
        return parts

    def case(self, number: int) -> tuple[Operation, FaultPlan]:
        """Return the operation and the faults of a number below `total`."""
        rest = number * _STRIDE % self.total
        parts = iter(self._parts)
        operation, count, size, is_inside = next(parts)
        while rest >= count * size:
            rest -= count * size
            operation, count, size, is_inside = next(parts)
        at, rest = divmod(rest, size)
        if is_inside:
            return operation, FaultPlan(MemoryError, at, inside=INSIDE)
        rest, place = divmod(rest, len(FAULTS))
        second, after = divmod(rest, 2)
        then = None
        if second:
            gap, kind = divmod(second - 1, len(SECOND))
            then = SECOND[kind], gap
        return operation, FaultPlan(FAULTS[place], at, after=bool(after), then=then)

    def run(self, numbers: Collection[int]) -> tuple[list[str], int]:
        """Carry cases out; return what failed, and in how many two faults were raised."""
        return DrawnCases(self._check).run(numbers)

    def _check(self, number: int) -> bool:
        operation, plan = self.case(number)
        raised, problems = play(operation, plan)
        name = getattr(operation, "__name__", "")
        assert not problems, f"{name}: {plan}, at {raised}: {'; '.join(problems)}"
        return ", then " in raised


PAIRS = AllCases()
