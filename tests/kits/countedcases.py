"""Numbered cases of one fault: each kind at each call that each operation of a part makes.

The calls of an operation are counted when it runs without a fault, so the cases are all that there
are. `make soak ARGS="faults"` runs them; see `soak/faults_suite.py`.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from call_faults_kit import FAULTS, Faults
from faultcases import DrawnCases, DrawnPair

Op = TypeVar("Op")

NEVER: Final = 1 << 40
"""Number of a call that no operation makes."""

# Neighbouring numbers are different cases of all kinds, so that any range of numbers is a sample.
_STRIDE: Final = 1_000_003


@dataclass(frozen=True)
class FaultPlan:
    """One or two exceptions, and the calls at which they are raised.

    Attributes:
        error: The first exception.
        at: Number of calls before it.
        after: Raise it when the call has taken effect.
        then: The second exception and the number of calls between the two; None: no second one.
        inside: Names of modules: count calls of their functions, not of ports.
    """

    error: type[BaseException]
    at: int
    after: bool = False
    then: tuple[type[BaseException], int] | None = None
    inside: tuple[str, ...] = ()

    @contextmanager
    def armed(self, faults: Faults) -> Iterator[None]:
        """Raise the exceptions in the block."""
        if self.inside:
            assert self.then is None
            with faults.armed_inside(self.inside, self.error, self.at):
                yield
        else:
            with faults.armed(self.error, self.at, after=self.after, then=self.then):
                yield

    def calls(self, faults: Faults) -> int:
        """Return how many calls a block made in which nothing was raised."""
        assert not faults.raised
        return faults.unraised

    def __str__(self) -> str:
        then = "" if self.then is None else f", then {self.then[0].__name__} {self.then[1]} later"
        when = "inside, at" if self.inside else "after" if self.after else "before"
        return f"{self.error.__name__} {when} call {self.at}{then}"


def counting(inside: tuple[str, ...] = ()) -> FaultPlan:
    """Return a plan that raises nothing, to count calls."""
    return FaultPlan(MemoryError, NEVER, inside=inside)


def single_cases(
    operations: Sequence[Op],
    count: Callable[[Op], int],
    check: Callable[[Op, FaultPlan], bool],
    *,
    inside: tuple[str, ...] = (),
) -> DrawnCases:
    """Return the cases of one fault of a part, each of which exists once.

    Args:
        operations: The operations.
        count: Returns the number of calls of an operation.
        check: Carries a case out and asserts the invariants; says whether the fault was raised.
        inside: Names of modules: memory runs out at calls of their functions. Without, the
            exceptions are of all kinds, before and after calls of ports.
    """
    kinds: Collection[tuple[type[BaseException], bool]] = [(MemoryError, False)]
    if not inside:
        kinds = list(itertools.product(FAULTS, (False, True)))
    ends = list(itertools.accumulate(count(one) for one in operations))
    total = ends[-1] * len(kinds)
    assert math.gcd(total, _STRIDE) == 1

    def run(number: int) -> bool:
        call, kind = divmod(number * _STRIDE % total, len(kinds))
        place = bisect.bisect_right(ends, call)
        error, after = list(kinds)[kind]
        at = call - (ends[place - 1] if place else 0)
        return check(operations[place], FaultPlan(error, at, after, inside=inside))

    return DrawnCases(run, total)


class CountedPart(Generic[Op]):
    """The cases of a part whose calls are counted in a run without faults.

    Args:
        operations: Its operations.
        attempt: Carries one out under a plan, and checks the invariants.
        inside: Names of the modules in whose functions memory may run out.
        gaps: Number of calls after the first fault at which a second one is raised.
    """

    def __init__(
        self,
        operations: Sequence[Op],
        attempt: Callable[[Op, FaultPlan], Faults],
        inside: tuple[str, ...],
        gaps: int,
    ) -> None:
        self._operations, self._attempt = operations, attempt
        self._inside, self._gaps = inside, gaps
        self.count = functools.cache(self._count)

    def _count(self, operation: Op, inside: tuple[str, ...] = ()) -> int:
        """Return how many calls of ports, or of functions inside, an operation makes."""
        plan = counting(inside)
        return plan.calls(self._attempt(operation, plan))

    def is_met(self, operation: Op, plan: FaultPlan) -> bool:
        """Carry a case of one fault out; return whether the fault was raised."""
        return bool(self._attempt(operation, plan).raised)

    def pair(self, number: int) -> str:
        """Raise two errors during one operation; both and the operation follow from the number."""
        drawn = DrawnPair.of(number, self._operations, self.count, gaps=self._gaps)
        plan = FaultPlan(drawn.first, drawn.at, drawn.after, drawn.then)
        return self._attempt(drawn.operation, plan).raised

    def singles(self) -> DrawnCases:
        """Return the cases of one exception at a call of a port."""
        return single_cases(self._operations, self.count, self.is_met)

    def insides(self) -> DrawnCases:
        """Return the cases in which memory runs out in a function."""
        counted = functools.partial(self.count, inside=self._inside)
        return single_cases(self._operations, counted, self.is_met, inside=self._inside)
