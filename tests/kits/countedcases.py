"""Numbered cases of one fault: each kind at each call that each operation of a part makes.

The calls of an operation are counted when it runs without a fault, so the cases are all that there
are. `make soak ARGS="faults"` runs them; see `soak/faults_suite.py`.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from call_faults_kit import FAULTS, Faults
from faultcases import DrawnCases

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
