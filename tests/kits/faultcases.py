"""Numbered cases of two faults: `make soak ARGS="faults"` runs all, `make test` a sample.

A module of tests has the cases of its part, `PAIRS = FaultCases(OPERATIONS, check)` or
`DrawnCases(check)`, runs a sample, and is listed in `soak/faults_suite.py`. The cases of a
`FaultCases` are all pairs of faults that its operations can meet; those of a `DrawnCases` are
drawn.
"""

from __future__ import annotations

import itertools
import random
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from call_faults_kit import FAULTS, Faults

# Neighbouring numbers of a sample are different cases of all kinds.
_STRIDE: Final = 1_000_003


@dataclass(frozen=True)
class FaultCase:
    """One operation, and one or two faults at calls of its ports.

    Attributes:
        operation: Name of the operation.
        first: The first exception.
        at: Number of calls before it.
        after: Raise it when the call has taken effect.
        then: The second exception and the number of calls between the two; None: no second one.
        inside: Names of modules. The first exception is raised at a call of their functions, not
            of a port.
    """

    operation: str
    first: type[BaseException]
    at: int
    after: bool = False
    then: tuple[type[BaseException], int] | None = None
    inside: tuple[str, ...] = ()

    def armed(self, faults: Faults) -> AbstractContextManager[None]:
        """Return the context in which the faults are raised."""
        if self.inside:
            return faults.armed_inside(self.inside, self.first, self.at)
        return faults.armed(self.first, self.at, after=self.after, then=self.then)

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """Return the exceptions that the part may raise."""
        return (self.first,) if self.then is None else (self.first, self.then[0])

    def __str__(self) -> str:
        when = "inside" if self.inside else "after" if self.after else "before"
        text = f"{self.operation}: {self.first.__name__} {when} call {self.at}"
        if self.then is None:
            return text
        return f"{text}, then {self.then[0].__name__} {self.then[1]} calls later"


@dataclass
class FaultCounts:
    """Number of cases in which all of their faults were raised.

    Attributes:
        firsts: Cases of one fault at a call of a port.
        pairs: Cases of two faults.
        inside: Cases of a MemoryError at a call of a function.
    """

    firsts: int = 0
    pairs: int = 0
    inside: int = 0


class FaultCases:
    """All pairs of faults of one part, and all faults inside its functions.

    A number is one first fault: an operation, a kind, a call. The first fault is raised alone, and
    the calls of ports that follow it are counted. Then each kind of second fault is raised at each
    of those calls. Numbers behind the pairs are calls of functions that raise a MemoryError.

    Args:
        operations: Their names.
        check: Carries a case out, asserts the invariants, and returns the faults that it armed.
        calls: More calls of ports than any operation makes; the run fails if there are more.
        after: Whether the first fault comes after its call took effect, too.
        inside: Modules whose functions raise a MemoryError; empty for none.
        inside_calls: More calls of these functions than any operation makes.
    """

    def __init__(
        self,
        operations: Collection[str],
        check: Callable[[FaultCase], Faults],
        *,
        calls: int = 48,
        after: Sequence[bool] = (False, True),
        inside: Sequence[str] = (),
        inside_calls: int = 3_000,
    ) -> None:
        self._operations = sorted(operations)
        self._check = check
        self._calls, self._after = calls, after
        self._inside, self._inside_calls = tuple(inside), inside_calls
        self._firsts = len(self._operations) * len(FAULTS) * len(after) * calls
        inside_total = len(self._operations) * inside_calls if inside else 0
        self.total = self._firsts + inside_total
        # How many calls an operation makes, of ports and of functions, once this is known.
        self._ends: dict[tuple[str, bool], int] = {}

    def case(self, number: int) -> FaultCase:
        """Return the first fault of a number below `total`."""
        if number >= self._firsts:
            at, place = divmod(number - self._firsts, len(self._operations))
            return FaultCase(self._operations[place], MemoryError, at, inside=self._inside)
        rest, operation = divmod(number, len(self._operations))
        rest, first = divmod(rest, len(FAULTS))
        at, after = divmod(rest, len(self._after))
        return FaultCase(self._operations[operation], FAULTS[first], at, self._after[after])

    def run(self, numbers: Collection[int]) -> tuple[list[str], FaultCounts]:
        """Carry out the cases of numbers; return what failed, and how many cases were raised."""
        failures: list[str] = []
        counts = FaultCounts()
        for number in numbers:
            case = self.case(number)
            followed = self._raise_first(case, failures, counts)
            for gap, kind in itertools.product(range(followed), FAULTS):
                self._raise_pair(replace(case, then=(kind, gap)), failures, counts)
        return failures, counts

    def sample(self, pairs: int) -> list[str]:
        """Carry out a fixed sample of this number of pairs, each of a first fault of its own.

        Returns:
            The failures. The first faults that were raised for the sample are checked, too.
        """
        failures: list[str] = []
        counts = FaultCounts()
        for turn in range(self._firsts):
            if counts.pairs == pairs:
                return failures
            number = turn * _STRIDE % self._firsts
            case = self.case(number)
            if followed := self._raise_first(case, failures, counts):
                gap, kind = turn % followed, FAULTS[turn % len(FAULTS)]
                self._raise_pair(replace(case, then=(kind, gap)), failures, counts)
        raise AssertionError(f"there are {counts.pairs} pairs, not {pairs}: take a smaller sample")

    def _raise_first(self, case: FaultCase, failures: list[str], counts: FaultCounts) -> int:
        """Raise the first fault alone; return how many calls of ports follow it."""
        calls = case.operation, bool(case.inside)
        if case.at >= self._ends.get(calls, case.at + 1):
            return 0
        faults = self._attempt(case, failures)
        if faults is None:
            return 0
        if not faults.raised:
            self._ends[calls] = faults.unraised
            return 0
        if case.inside:
            counts.inside += 1
        else:
            counts.firsts += 1
        if case.at == (self._inside_calls if case.inside else self._calls) - 1:
            failures.append(f"{case}: this is the last call that is tried: raise the limit")
        return 0 if case.inside else faults.followed

    def _raise_pair(self, case: FaultCase, failures: list[str], counts: FaultCounts) -> None:
        faults = self._attempt(case, failures)
        if faults is None:
            return
        if ", then " in faults.raised:
            counts.pairs += 1
        else:
            failures.append(f"{case}: the second fault was not raised, only {faults.raised!r}")

    def _attempt(self, case: FaultCase, failures: list[str]) -> Faults | None:
        try:
            return self._check(case)
        except BaseException as error:  # noqa: BLE001 - the faults are of every kind
            text = "".join(traceback.format_exception(error, limit=-3))
            failures.append(f"{case}: {text}")
            return None


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
    def of(
        cls, number: int, operations: Sequence[Op], count: Callable[[Op], int], gaps: int
    ) -> DrawnPair[Op]:
        """Draw a pair; its first fault is at any call of the operation.

        Args:
            number: The number of the case.
            operations: The operations.
            count: Returns the number of calls of an operation.
            gaps: More calls than most operations make to handle the first fault. Half of the
                second faults come within them, and half at any later call.
        """
        dice = random.Random(number)
        operation, first, then = dice.choice(operations), dice.choice(FAULTS), dice.choice(FAULTS)
        calls = count(operation)
        at, after = dice.randrange(calls), dice.random() < 0.5
        gap = dice.randrange(dice.choice((gaps, max(gaps, calls))))
        return cls(operation, first, at, after, (then, gap), dice)
