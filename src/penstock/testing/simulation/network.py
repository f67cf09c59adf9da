"""Calls between processes: each a strand of who is called, and all that can go wrong on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Unavailable
from penstock.testing.simulation.strands import Killed

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.testing.simulation.world import Process

T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
_DELAY_MAX_S: Final = 4.0


def call(
    caller: Process,
    callee: Process,
    name: str,
    work: Callable[[], T],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> T:
    """Have another process do something and return its answer; on a strand of the caller.

    A request may be late, lost, or come twice; an answer may be lost, or come when nobody waits.

    Raises:
        Unavailable: Nobody answered; whether it was done is unknown.
        PenstockError: Whatever the work raises.
    """
    world, dice = caller.world, caller.world.chance.of("network")
    caller.moment("before a call")
    world.let_others_run()
    _require_way(caller, callee)
    late_s = dice.uniform(0.1, _DELAY_MAX_S) if world.chance.fault("request delayed") else 0.0
    if world.chance.fault("request lost"):
        world.pause(timeout_s)
        raise Unavailable(f"{callee.name} did not answer in {timeout_s:g} s")
    served = callee.spawn(name, work, late_s)
    if world.chance.fault("request doubled"):
        callee.spawn(name, work, late_s + dice.uniform(0.0, _DELAY_MAX_S))
    until_s = world.now_s + timeout_s
    while not served.finished and callee.alive and world.now_s < until_s:
        world.pause(until_s - world.now_s, lambda: served.finished or not callee.alive)
    caller.moment("after a call")
    _require_way(caller, callee)
    if not served.future.done() or world.chance.fault("answer lost"):
        raise Unavailable(f"{callee.name} did not answer")
    error = served.future.exception()
    if isinstance(error, Killed):
        raise Unavailable(f"{callee.name} died")
    return served.future.result()


def wait_for(process: Process, is_done: Callable[[], bool], timeout_s: float = _TIMEOUT_S) -> None:
    """Wait on a strand until something is done in the process. Raises Unavailable when it is not.

    What runs on a mailbox ends when the mailbox says so, which no strand can force.
    """
    world = process.world
    until_s = world.now_s + timeout_s
    while not is_done():
        if world.now_s >= until_s:
            raise Unavailable(f"{process.name} is busy and did not answer in {timeout_s:g} s")
        world.pause(until_s - world.now_s, is_done)


def _require_way(caller: Process, callee: Process) -> None:
    if not callee.alive:
        raise Unavailable(f"{callee.name} refuses the connection")
    if caller.host != callee.host and (caller.is_cut or callee.is_cut):
        raise Unavailable(f"there is no way from {caller.name} to {callee.name}")
