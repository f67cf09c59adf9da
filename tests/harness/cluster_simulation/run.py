"""One seed: a cluster, its users and accidents, and the final checks after the accidents end.

A failure is a `Failed`: the violation, the last lines of the log, and how to repeat the run.
"""

from __future__ import annotations

import gc
import itertools
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from penstock.core.errors import PenstockError
from tests.harness.cluster_simulation.accidents import Accidents
from tests.harness.cluster_simulation.chance import FAULTS, USER_ACTIONS, Chance, Faults
from tests.harness.cluster_simulation.checker import Checker, Violation
from tests.harness.cluster_simulation.cluster import Cluster, Shape
from tests.harness.cluster_simulation.fibers import one_core
from tests.harness.cluster_simulation.users import DATASOURCE, Users, Wishes
from tests.harness.cluster_simulation.world import SimulatedWorld

if TYPE_CHECKING:
    from collections.abc import Callable

_FAULTY_S: Final = 40.0
_DRAIN_S: Final = 600.0
_STORY_LINES: Final = 40
_MEMORY_DISK: Final = Path("/dev/shm")


class Failed(PenstockError):
    """A seed has failed; the message has the log of the run."""


@dataclass(slots=True)
class Outcome:
    """Result of a run.

    Attributes:
        seed: The seed.
        commits: Number of transactions.
        steps: Number of steps.
        faults: Number of faults of each kind.
        virtual_s: Duration in virtual seconds.
        story: Log of the run.
        violation: The violation; empty if there was none.
    """

    seed: int
    commits: int = 0
    steps: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    virtual_s: float = 0.0
    story: list[str] = field(default_factory=list)
    violation: str = ""


def run_seed(
    seed: int,
    faults: Faults | None = None,
    *,
    shape: Shape | None = None,
    wishes: Wishes | None = None,
) -> Outcome:
    """Run one seed and return its result.

    Args:
        seed: Seed of all random numbers.
        faults: Faults that may occur.
        shape: Size of the cluster; None: chosen by the seed.
        wishes: Parameters of the users; None: chosen by the seed.
    """
    base = _MEMORY_DISK if _MEMORY_DISK.is_dir() else None
    with one_core(), TemporaryDirectory(prefix="simulation", dir=base) as folder:
        return _Run(Path(folder), seed, faults or Faults(), shape, wishes).outcome()


def require_seed(seed: int, faults: Faults | None = None) -> Outcome:
    """Run one seed. Raises Failed with the log if anything is wrong."""
    outcome = run_seed(seed, faults)
    if outcome.violation:
        raise Failed(tell(outcome, faults or Faults()))
    return outcome


def shrink(outcome: Outcome, faults: Faults, say: Callable[[str], None]) -> tuple[Outcome, Faults]:
    """Search for fewer faults with which a seed fails; return the smallest run that was found."""
    best, found = outcome, faults
    for kind in (*USER_ACTIONS, *FAULTS):
        if kind in FAULTS and not best.faults.get(kind):
            found = replace(found, without=found.without | {kind})
            continue
        tried = replace(found, without=found.without | {kind})
        again = run_seed(outcome.seed, tried)
        say(f"  without {kind}: {again.violation or 'all is well'}")
        if again.violation:
            best, found = again, tried
    low, high = 0, sum(best.faults.values())
    while low < high:
        middle = (low + high) // 2
        tried = replace(found, most=middle)
        again = run_seed(outcome.seed, tried)
        say(f"  with the first {middle} faults: {again.violation or 'all is well'}")
        if again.violation:
            best, found, high = again, tried, middle
        else:
            low = middle + 1
    return best, found


def tell(outcome: Outcome, faults: Faults, lines: int = _STORY_LINES) -> str:
    """Return the log of a failure, and how to repeat it."""
    options = "".join(f" --without {kind!r}" for kind in sorted(faults.without))
    if faults.most != Faults().most:
        options += f" --most {faults.most}"
    counts = ", ".join(f"{count} x {kind}" for kind, count in sorted(outcome.faults.items()))
    return "\n".join(
        [
            f"seed {outcome.seed}: {outcome.violation}",
            f"faults: {counts or 'none'}",
            *outcome.story[-lines:],
            f"again: make simulate ARGS='--seeds {outcome.seed}{options}'",
        ]
    )


class _Run:
    def __init__(
        self,
        folder: Path,
        seed: int,
        faults: Faults,
        shape: Shape | None = None,
        wishes: Wishes | None = None,
    ) -> None:
        self.chance = Chance(seed, faults)
        self.world = SimulatedWorld(self.chance)
        dice = self.chance.of("shape")
        shape = shape or Shape(
            dice.choice([1, 2, 2, 3]), dice.choice([1, 2, 3]), dice.choice([2, 3, 5])
        )
        wishes = wishes or Wishes(
            concurrent=dice.random() < 0.6,
            tasks=dice.choice([1, 1, 2]),
            replicas=dice.choice([1, 1, 2]),
            batches=dice.random() < 0.8,
            operators=dice.random() < 0.7,
            every_s=dice.choice([0.5, 1.0, 2.0]),
        )
        self.world.note(f"{shape}, {wishes}")
        self.cluster = Cluster(self.world, folder, shape)
        self.users = Users(self.cluster, wishes)
        self.checker = Checker(self.cluster, self.users)
        self.accidents = Accidents(self.cluster)
        self.cluster.shared.committed = self.checker.committed
        self.cluster.files.deleting = self.checker.deleting

    def outcome(self) -> Outcome:
        violation = ""
        try:
            self._play()
        except Violation as error:
            violation = str(error)
        except Exception as error:  # noqa: BLE001 - the boundary: a bug anywhere fails the seed
            violation = f"{type(error).__name__}: {error}"
            self.world.story += traceback.format_exception(error)
        finally:
            self.users.end()
            self.cluster.close()
            gc.collect(0)
        return Outcome(
            self.chance.seed,
            self.checker.commits,
            self.world.steps,
            dict(self.chance.counts),
            self.world.now_s,
            self.world.story,
            self.world.violation or violation,
        )

    def _play(self) -> None:
        world = self.world
        self._go_on(4.0)
        self.users.begin()
        self._go_on(2.0)
        self.accidents.begin()
        self._go_on(_FAULTY_S)
        self.users.end()
        self.accidents.end()
        self._settle(self._is_read, "not everything is published")
        self._settle(self.checker.replicas_are_as_asked, "groups lack the requested replicas")
        self._end_supervisor()
        self._settle(lambda: next(self.checker.left(), None) is None, "left behind")
        self.checker.finally_()
        world.note("all is well")

    def _go_on(self, seconds: float) -> None:
        self.world.run(seconds)
        self._raise_violation()

    def _settle(self, until: Callable[[], bool], otherwise: str) -> None:
        """Run until a condition holds; meanwhile request a supervisor that reads."""
        end_s = self.world.now_s + _DRAIN_S
        while self.world.now_s < end_s:
            self._keep_going(otherwise)
            done = self.world.run(15.0, until)
            self._raise_violation()
            if done:
                return
        offsets = self.cluster.truth.offsets(DATASOURCE)
        lengths = self.cluster.topics.lengths(DATASOURCE)
        left = "; ".join(itertools.islice(self.checker.left(), 8))
        raise Violation(f"{otherwise} after {_DRAIN_S:g} s: {offsets} of {lengths}; {left}")

    def _keep_going(self, otherwise: str) -> None:
        if otherwise == "left behind":
            self._end_supervisor()
        else:
            self.users.want_supervisor()

    def _end_supervisor(self) -> None:
        self.users.ask(lambda leader: leader.overlord.supervisor_service.terminate(DATASOURCE))

    def _is_read(self) -> bool:
        offsets = self.cluster.truth.offsets(DATASOURCE) or {}
        lengths = self.cluster.topics.lengths(DATASOURCE)
        return all(offsets.get(p) == end for p, end in lengths.items())

    def _raise_violation(self) -> None:
        if self.world.violation:
            raise Violation(self.world.violation)
