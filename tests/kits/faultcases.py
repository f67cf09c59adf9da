"""Numbered cases of two faults: `make soak ARGS="faults"` runs all, `make test` a sample.

A module of tests has the cases of its part, `PAIRS = FaultCases(OPERATIONS, check)` or
`DrawnCases(check)`, runs a sample, and is listed in `soak/faults_suite.py`.
"""

from __future__ import annotations

import math
import random
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from call_faults_kit import FAULTS, Faults

# Neighbouring numbers are different cases of all kinds, so that any range of numbers is a sample.
_STRIDE: Final = 1_000_003


@dataclass(frozen=True)
class FaultCase:
    """One operation, and two faults at calls of its ports.

    Attributes:
        operation: Name of the operation.
        first: The first exception.
        at: Number of calls before it.
        after: Raise it when the call has taken effect.
        then: The second exception.
        gap: Number of calls between the two.
    """

    operation: str
    first: type[BaseException]
    at: int
    after: bool
    then: type[BaseException]
    gap: int

    def armed(self, faults: Faults) -> AbstractContextManager[None]:
        """Return the context in which both are raised."""
        return faults.armed(self.first, self.at, after=self.after, then=(self.then, self.gap))

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return (
            f"{self.operation}: {self.first.__name__} {when} call {self.at}, then "
            f"{self.then.__name__} {self.gap} calls later"
        )


class FaultCases:
    """All pairs of faults of one part.

    Args:
        operations: Their names.
        check: Carries a case out and asserts the invariants; says whether both were raised.
        calls: More calls of ports than any operation makes before it ends.
        gaps: More calls than any operation makes after the first fault.
        after: Whether the first fault comes after its call took effect, too.
    """

    def __init__(
        self,
        operations: Collection[str],
        check: Callable[[FaultCase], bool],
        *,
        calls: int = 48,
        gaps: int = 12,
        after: Sequence[bool] = (False, True),
    ) -> None:
        self._operations = sorted(operations)
        self._check = check
        self._sizes = (len(self._operations), len(FAULTS), calls, len(after), len(FAULTS), gaps)
        self._after = after
        self.total = math.prod(self._sizes)
        assert math.gcd(self.total, _STRIDE) == 1

    def case(self, number: int) -> FaultCase:
        """Return the case of a number below `total`."""
        rest = number * _STRIDE % self.total
        places = []
        for size in self._sizes:
            rest, place = divmod(rest, size)
            places.append(place)
        operation, first, at, after, then, gap = places
        return FaultCase(
            *(self._operations[operation], FAULTS[first], at),
            *(self._after[after], FAULTS[then], gap),
        )

    def run(self, numbers: Collection[int]) -> tuple[list[str], int]:
        """Carry cases out; return what failed, and in how many both faults were raised."""
        failures, reached = [], 0
        for number in numbers:
            case = self.case(number)
            try:
                reached += self._check(case)
            except BaseException as error:  # noqa: BLE001 - the faults are of every kind
                text = "".join(traceback.format_exception(error, limit=-3))
                failures.append(f"case {number}, {case}: {text}")
        return failures, reached


class DrawnCases:
    """Cases that are drawn from their number, for parts whose operations need worlds of their own.

    Args:
        check: Carries the case of a number out and asserts the invariants; says whether all of its
            faults were raised.
        total: How many there are. They may repeat: each number draws anew.
    """

    def __init__(self, check: Callable[[int], bool], total: int = 100_000) -> None:
        self._check = check
        self.total = total

    def run(self, numbers: Collection[int]) -> tuple[list[str], int]:
        """Carry cases out; return what failed, and in how many all faults were raised."""
        failures, reached = [], 0
        for number in numbers:
            try:
                reached += self._check(number)
            except BaseException as error:  # noqa: BLE001 - the faults are of every kind
                text = "".join(traceback.format_exception(error, limit=-3))
                failures.append(f"case {number}: {text}")
        return failures, reached


Op = TypeVar("Op")


def count_single(attempt: Callable[[int], str], stride: int = 1) -> int:
    """Raise one error at each call of an operation in turn; return the number of the last call.

    Args:
        attempt: Raises at the call of a number; returns where, empty if there was no such call.
        stride: 3 tries every third call.
    """
    at = 0
    while attempt(at):
        at += stride
    return at


@dataclass(frozen=True)
class DrawnPair(Generic[Op]):
    """Two faults of one operation, all drawn from a number.

    Attributes:
        operation: The operation.
        first: The first exception.
        at: Number of calls before it.
        after: Raise it when the call has taken effect.
        then: The second exception, and the number of calls between the two.
        dice: Draws what else a part needs.
    """

    operation: Op
    first: type[BaseException]
    at: int
    after: bool
    then: tuple[type[BaseException], int]
    dice: random.Random

    @classmethod
    def of(cls, number: int, operations: Sequence[Op], calls: int, gaps: int) -> DrawnPair[Op]:
        """Draw a pair within the given numbers of calls."""
        dice = random.Random(number)
        operation, first, then = dice.choice(operations), dice.choice(FAULTS), dice.choice(FAULTS)
        at, after = dice.randrange(calls), dice.random() < 0.5
        return cls(operation, first, at, after, (then, dice.randrange(gaps)), dice)
