"""Numbered cases of faults: `make soak ARGS="faults"` runs all, `make test` a sample.

A case is an operation of a part and a `FaultPlan`: one or two exceptions, and the calls at which
they are raised. The check of a part carries a case out and asserts the invariants. A module of
tests has the cases of its part, runs a sample, and is listed in `soak/faults_suite.py`:

| cases | which |
|---|---|
| `FaultCases` | all pairs of faults that operations can meet, one operation after the other |
| `DrawnCases` | cases that a check draws from their number |
| `CountedPart` | one fault at each call of ports, or of functions; pairs are drawn |
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import random
import traceback
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from tests.harness.call_faults_kit import FAULTS, Faults

Op = TypeVar("Op")

# Neighbouring numbers are different cases of all kinds, so that any range of numbers is a sample.
_STRIDE: Final = 1_000_003
# Number of a call that no operation makes.
_NEVER: Final = 1 << 40


@dataclass(frozen=True)
class FaultPlan:
    """One or two exceptions, and the calls at which they are raised.

    Attributes:
        error: The first exception.
        at: Number of calls before it.
        after: Raise it when the call has taken effect.
        then: The second exception and the number of calls between the two; None: no second one.
        inside: Names of modules. The exception is raised at a call of their functions, not of a
            port.
    """

    error: type[BaseException]
    at: int
    after: bool = False
    then: tuple[type[BaseException], int] | None = None
    inside: tuple[str, ...] = ()

    def armed(self, faults: Faults) -> AbstractContextManager[None]:
        """Return the context in which the exceptions are raised."""
        if self.inside:
            assert self.then is None
            return faults.armed_inside(self.inside, self.error, self.at)
        return faults.armed(self.error, self.at, after=self.after, then=self.then)

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        """Return the exceptions that the part may raise."""
        return (self.error,) if self.then is None else (self.error, self.then[0])

    def __str__(self) -> str:
        when = "inside" if self.inside else "after" if self.after else "before"
        text = f"{self.error.__name__} {when} call {self.at}"
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
        check: Carries out an operation under a plan, asserts the invariants, and returns the
            faults that it armed.
        calls: More calls of ports than any operation makes; the run fails if there are more.
        after: Whether the first fault comes after its call took effect, too.
        inside: Modules whose functions raise a MemoryError; empty for none.
        inside_calls: More calls of these functions than any operation makes.
    """

    def __init__(
        self,
        operations: Collection[str],
        check: Callable[[str, FaultPlan], Faults],
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

    def case(self, number: int) -> tuple[str, FaultPlan]:
        """Return the operation and the first fault of a number below `total`."""
        if number >= self._firsts:
            at, place = divmod(number - self._firsts, len(self._operations))
            return self._operations[place], FaultPlan(MemoryError, at, inside=self._inside)
        rest, operation = divmod(number, len(self._operations))
        rest, first = divmod(rest, len(FAULTS))
        at, after = divmod(rest, len(self._after))
        return self._operations[operation], FaultPlan(FAULTS[first], at, self._after[after])

    def run(self, numbers: Collection[int]) -> tuple[list[str], FaultCounts]:
        """Carry out the cases of numbers; return what failed, and how many cases were raised."""
        failures: list[str] = []
        counts = FaultCounts()
        for number in numbers:
            name, plan = self.case(number)
            followed = self._raise_first(name, plan, failures, counts)
            for gap, kind in itertools.product(range(followed), FAULTS):
                self._raise_pair(name, replace(plan, then=(kind, gap)), failures, counts)
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
            name, plan = self.case(number)
            if followed := self._raise_first(name, plan, failures, counts):
                gap, kind = turn % followed, FAULTS[turn % len(FAULTS)]
                self._raise_pair(name, replace(plan, then=(kind, gap)), failures, counts)
        raise AssertionError(f"there are {counts.pairs} pairs, not {pairs}: take a smaller sample")

    def _raise_first(
        self, name: str, plan: FaultPlan, failures: list[str], counts: FaultCounts
    ) -> int:
        """Raise the first fault alone; return how many calls of ports follow it."""
        calls = name, bool(plan.inside)
        if plan.at >= self._ends.get(calls, plan.at + 1):
            return 0
        faults = self._attempt(name, plan, failures)
        if faults is None:
            return 0
        if not faults.raised:
            self._ends[calls] = faults.unraised
            return 0
        if plan.inside:
            counts.inside += 1
        else:
            counts.firsts += 1
        if plan.at == (self._inside_calls if plan.inside else self._calls) - 1:
            failures.append(f"{name}: {plan}: this is the last call that is tried: raise the limit")
        return 0 if plan.inside else faults.followed

    def _raise_pair(
        self, name: str, plan: FaultPlan, failures: list[str], counts: FaultCounts
    ) -> None:
        faults = self._attempt(name, plan, failures)
        if faults is None:
            return
        if ", then " in faults.raised:
            counts.pairs += 1
        else:
            failures.append(
                f"{name}: {plan}: the second fault was not raised, only {faults.raised!r}"
            )

    def _attempt(self, name: str, plan: FaultPlan, failures: list[str]) -> Faults | None:
        try:
            return self._check(name, plan)
        except BaseException as error:  # noqa: BLE001 - the faults are of every kind
            failures.append(_failure(f"{name}: {plan}", error))
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
                failures.append(_failure(f"case {number}", error))
        return failures, reached


def _failure(case: str, error: BaseException) -> str:
    return f"{case}: {''.join(traceback.format_exception(error, limit=-3))}"


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
        plan: The two faults.
        dice: Draws what else a part needs.
    """

    operation: Op
    plan: FaultPlan
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
        return cls(operation, FaultPlan(first, at, after, (then, gap)), dice)


def count_calls(attempt: Callable[[FaultPlan], Faults], inside: tuple[str, ...] = ()) -> int:
    """Return how many calls an operation makes: of ports, or of functions of modules.

    Args:
        attempt: Carries the operation out under a plan.
        inside: Names of the modules; empty for ports.
    """
    faults = attempt(FaultPlan(MemoryError, _NEVER, inside=inside))
    assert not faults.raised
    return faults.unraised


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
        return count_calls(functools.partial(self._attempt, operation), inside)

    def is_met(self, operation: Op, plan: FaultPlan) -> bool:
        """Carry a case of one fault out; return whether the fault was raised."""
        return bool(self._attempt(operation, plan).raised)

    def pair(self, number: int) -> str:
        """Raise two errors during one operation; both and the operation follow from the number."""
        drawn = DrawnPair.of(number, self._operations, self.count, gaps=self._gaps)
        return self._attempt(drawn.operation, drawn.plan).raised

    def singles(self) -> DrawnCases:
        """Return the cases of one exception at a call of a port."""
        return single_cases(self._operations, self.count, self.is_met)

    def insides(self) -> DrawnCases:
        """Return the cases in which memory runs out in a function."""
        counted = functools.partial(self.count, inside=self._inside)
        return single_cases(self._operations, counted, self.is_met, inside=self._inside)
