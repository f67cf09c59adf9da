"""Calls between processes: each a fiber of the called process, with all faults on the way.

Publishes are also late, unanswered and repeated. A publish whose answer was lost must not be
refused when it is repeated, or a task whose rows are visible would fail.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from penstock.core.errors import Unavailable
from penstock.indexing.actions import PublishSegments
from tests.harness.cluster_simulation.fibers import Killed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.core.intervals import Interval
    from tests.harness.cluster_simulation.world import Process, SimulatedWorld

T = TypeVar("T")

_TIMEOUT_S: Final = 30.0
_DELAY_MAX_S: Final = 4.0
_LATE_MAX_S: Final = 20.0
# A file that no segment names is an orphan after 60 s: a task that the janitor forgot would lose
# everything later than that.
_VERY_LATE_S: Final = (60.0, 100.0)
_COME_BACK: Final = "they are visible again"
_ASKED: Final = ("sequenceName", "startMetadata", "endMetadata")


def call(
    caller: Process,
    callee: Process,
    name: str,
    work: Callable[[], T],
    *,
    timeout_s: float = _TIMEOUT_S,
) -> T:
    """Call another process and return its answer; on a fiber of the caller.

    A request may be late, lost, or sent twice; an answer may be lost, or late.

    Raises:
        Unavailable: No answer came; the request may have been executed.
        PenstockError: The error of the work.
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
    if world.is_unforeseen(error):
        raise Unavailable(f"{callee.name} answered with an internal error: {error!r}")
    return served.future.result()


def wait_for(process: Process, is_done: Callable[[], bool], timeout_s: float = _TIMEOUT_S) -> None:
    """Wait on a fiber until a condition holds. Raises Unavailable if it does not.

    Work on a mailbox ends when the mailbox has run it, which a fiber cannot force.
    """
    world = process.world
    until_s = world.now_s + timeout_s
    while not is_done():
        if world.now_s >= until_s:
            raise Unavailable(f"{process.name} is busy and did not answer in {timeout_s:g} s")
        world.pause(until_s - world.now_s, is_done)


@dataclass(slots=True)
class Publishes:
    """Publishes of all tasks.

    Attributes:
        world: The world that they belong to.
        decided: Called with the intervals when a task has decided to publish.
        brought_back: Whether a user has ever made segments visible again.
    """

    world: SimulatedWorld
    decided: Callable[[list[Interval]], None] = lambda _times: None
    brought_back: bool = False
    _through: set[bytes] = field(default_factory=set)

    def be_late(self, form: Mapping[str, object]) -> None:
        """Delay a publish, so that the state on which its task decided changes; on a fiber."""
        chance = self.world.chance
        self.decided([row.interval for row in PublishSegments.from_json(form).segments])
        if chance.fault("publish late"):
            self.world.pause(chance.of("late publishes").uniform(0.0, _LATE_MAX_S))
        if chance.fault("publish very late"):
            self.world.pause(chance.of("very late publishes").uniform(*_VERY_LATE_S))

    def arrive(self) -> None:
        """Delay the arrival of a publish, whatever happens to its task; on a fiber."""
        chance = self.world.chance
        if chance.fault("publish under way"):
            self.world.pause(chance.of("publishes under way").uniform(0.0, _LATE_MAX_S))

    def done(self, form: Mapping[str, object], answer: object) -> None:
        """Record the answer to a publish; a violation if it succeeded before and is refused now."""
        assert isinstance(answer, dict), "the answer to a publish must be an object"
        asked = orjson.dumps([form.get(name) for name in _ASKED], option=orjson.OPT_SORT_KEYS)
        why = str(answer["errorMsg"])
        if answer["success"]:
            self._through.add(asked)
        elif asked in self._through and not answer["alreadyPublished"]:
            self._violated(f"{asked.decode()} was published, and is refused now: {why}")
        elif _COME_BACK in why and not self.brought_back:
            self._violated(f"{asked.decode()} is refused for marks that nobody made: {why}")

    def come_back(self) -> None:
        """Raise Unavailable if the answer is lost."""
        if self.world.chance.fault("publish unheard"):
            raise Unavailable("it is unknown whether it was published")

    def _violated(self, text: str) -> None:
        self.world.violation = self.world.violation or text


def _require_way(caller: Process, callee: Process) -> None:
    if not callee.alive:
        raise Unavailable(f"{callee.name} refuses the connection")
    if caller.host != callee.host and (caller.is_cut or callee.is_cut):
        raise Unavailable(f"there is no connection from {caller.name} to {callee.name}")
