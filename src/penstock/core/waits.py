"""Waits for dependencies: their beginning, the number of failed tries, and the last error.

Owns the record that every retry loop writes (`DependencyWait`), and the thread-safe table of the
records of one process or task (`WaitTable`), which status pages, reports and metrics show.

A wait begins with the first failed try and ends with the first successful one. Work is identified
by its name, so two loops that share a table need different names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from penstock.core.errors import Dependency, PenstockError, Unavailable
from penstock.core.intervals import format_time, parse_time
from penstock.core.metrics import Sample

if TYPE_CHECKING:
    from penstock.core.clock import Clock

ERROR_CHARACTERS_MAX: Final = 2_000
"""Maximum length of a stored error text; messages of drivers have no limit."""


@dataclass(frozen=True, slots=True)
class DependencyWait:
    """Work that is retried because one of its dependencies fails.

    Attributes:
        dependency: The dependency that fails.
        work: Name of the work, such as ``publish``.
        since_ms: Time of the first failed try, in epoch milliseconds.
        tries: Number of failed tries.
        error: Error of the last try.
        tries_max: Number of failed tries after which the work is given up; 0 means unlimited.
        next_ms: Time of the next try, in epoch milliseconds; None if it is unknown.
        trying_since_ms: Time at which the current try began, in epoch milliseconds; None while no
            try runs.
        owner: The task or the supervisor that waits, such as ``task t``; empty if it is the process
            itself, or if the context names it.
    """

    dependency: Dependency
    work: str
    since_ms: int
    tries: int
    error: str
    tries_max: int = 0
    next_ms: int | None = None
    trying_since_ms: int | None = None
    owner: str = ""

    def __str__(self) -> str:
        """Return the wait as one line for users."""
        # The error is that of an earlier try: the dependency may already answer again.
        trying = self.trying_since_ms
        again = "" if trying is None else f"; a new try has run since {format_time(trying)}"
        tries = f"{self.tries} {'try' if self.tries == 1 else 'tries'}"
        since = f"{self.dependency.value} since {format_time(self.since_ms)}"
        # Before the error, which may be long or have several lines.
        return f"{since}, {tries}{self._next_try()} ({self.work}): {self.error}{again}"

    def _next_try(self) -> str:
        """Return which try is the next one, of how many, and its time; empty if it is unknown."""
        if self.next_ms is None:
            return ""
        of = f" of {self.tries_max}" if self.tries_max else ""
        return f", try {self.tries + 1}{of} is next at {format_time(self.next_ms)}"

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        trying = self.trying_since_ms
        return {
            "dependency": self.dependency.value,
            "work": self.work,
            "since": format_time(self.since_ms),
            "tries": self.tries,
            "triesMax": self.tries_max or None,
            "nextTry": None if self.next_ms is None else format_time(self.next_ms),
            "tryingSince": None if trying is None else format_time(trying),
            "error": self.error,
            "owner": self.owner or None,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> DependencyWait:
        """Parse the JSON form.

        Raises:
            KeyError: A field is missing.
            ValueError: A field has another type, or an invalid value.
        """
        tries, most, next_try = value["tries"], value.get("triesMax"), value.get("nextTry")
        trying, owner = value.get("tryingSince"), value.get("owner")
        if not isinstance(tries, int):
            raise ValueError(f"tries: {tries!r} is not a whole number")  # noqa: TRY004 - a bad document, as documented
        return cls(
            Dependency(str(value["dependency"])),
            str(value["work"]),
            parse_time(str(value["since"])),
            tries,
            str(value["error"])[:ERROR_CHARACTERS_MAX],
            most if isinstance(most, int) else 0,
            parse_time(next_try) if isinstance(next_try, str) else None,
            parse_time(trying) if isinstance(trying, str) else None,
            owner if isinstance(owner, str) else "",
        )


def waits_from_json(value: object) -> tuple[DependencyWait, ...]:
    """Parse a list of waits; skip invalid entries, because nothing depends on them."""
    found = []
    for one in value if isinstance(value, list) else ():
        try:
            found.append(DependencyWait.from_json(one))
        except (KeyError, TypeError, ValueError, AttributeError, PenstockError):
            continue
    return tuple(found)


class WaitTable:
    """The waits of one process, one task or one supervisor. Any thread.

    A mutex guards the dictionary: retry loops run on many threads, and readers must not wait for
    their mailboxes.

    Args:
        clock: Provides the time of the first failure.
        changed: Called after each change, on the thread of the change; must not block or raise.
    """

    def __init__(self, clock: Clock, changed: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._changed = changed
        self._mutex = threading.Lock()
        self._waits: dict[str, DependencyWait] = {}

    def failed(
        self,
        work: str,
        error: PenstockError,
        *,
        dependency: Dependency | None = None,
        tries: int | None = None,
        tries_max: int = 0,
        next_ms: int | None = None,
    ) -> DependencyWait:
        """Record a failed try and return the current wait.

        A wait for another dependency than before begins now, with this try as its first.

        Args:
            work: Name of the work.
            error: Why it failed; an `Unavailable` names its dependency.
            dependency: The dependency, if the error does not name one.
            tries: Number of failed tries, if the caller counts them; otherwise one more than
                before.
            tries_max: Number of failed tries after which the work is given up; 0 means unlimited.
            next_ms: Time of the next try.
        """
        named = error.dependency if isinstance(error, Unavailable) else Dependency.OTHER
        if named is Dependency.OTHER and dependency is not None:
            named = dependency
        with self._mutex:
            before = self._waits.get(work)
            if before is not None and before.dependency is not named:
                before = None
            wait = self._waits[work] = DependencyWait(
                named,
                work,
                self._clock.now_ms() if before is None else before.since_ms,
                tries or (1 if before is None else before.tries + 1),
                str(error)[:ERROR_CHARACTERS_MAX],
                tries_max,
                next_ms,
            )
        self._changed()
        return wait

    def begin_try(self, work: str) -> None:
        """Record that a new try of work began; no effect if it does not wait."""
        if work not in self._waits:
            return
        with self._mutex:
            before = self._waits.get(work)
            if before is not None:
                now_ms = self._clock.now_ms()
                self._waits[work] = replace(before, next_ms=None, trying_since_ms=now_ms)
        if before is not None:
            self._changed()

    def ended(self, work: str) -> None:
        """Record that work succeeded or was given up; no effect if it did not wait."""
        # Checked without the mutex: nearly all calls find nothing.
        if work not in self._waits:
            return
        with self._mutex:
            found = self._waits.pop(work, None)
        if found is not None:
            self._changed()

    def get(self, work: str) -> DependencyWait | None:
        """Return the wait of work; None if it does not wait."""
        return self._waits.get(work)

    def all(self) -> tuple[DependencyWait, ...]:
        """Return all waits, the longest first."""
        with self._mutex:
            waits = tuple(self._waits.values())
        return tuple(sorted(waits, key=lambda one: (one.since_ms, one.work)))

    def samples(self) -> list[Sample]:
        """Return the metrics of the waits."""
        return wait_samples(self.all(), self._clock.now_ms())


def wait_samples(waits: Iterable[DependencyWait], now_ms: int) -> list[Sample]:
    """Return metrics of waits: for each dependency the longest wait and the total of tries.

    Every dependency has its samples, 0 while no work waits for it, so that alerts need no special
    case for a missing series.
    """
    seconds = dict.fromkeys(Dependency, 0.0)
    tries = dict.fromkeys(Dependency, 0)
    for one in waits:
        waited_s = max(0, now_ms - one.since_ms) / 1000
        seconds[one.dependency] = max(seconds[one.dependency], waited_s)
        tries[one.dependency] += one.tries
    found = []
    for dependency in Dependency:
        labels = (("dependency", dependency.value),)
        name, about = "penstock_waiting_seconds", "How long work waits for a dependency that fails"
        found.append(Sample(name, "gauge", about, labels, seconds[dependency]))
        name, about = "penstock_waiting_tries", "Failed tries of the work that waits"
        found.append(Sample(name, "gauge", about, labels, float(tries[dependency])))
    return found


def owned(waits: Iterable[DependencyWait], owner: str) -> tuple[DependencyWait, ...]:
    """Return waits with the name of their task or supervisor, such as ``task t``."""
    return tuple(replace(one, owner=owner) for one in waits)


def merged(groups: Iterable[Sequence[DependencyWait]]) -> list[DependencyWait]:
    """Merge waits of many sources, the longest first.

    A wait that has an owner stays one entry: the worker and the overlord both report the waits of
    a task, and the newer report counts. The others become one per dependency: the longest, with
    the total of tries.
    """
    found: dict[tuple[Dependency, str, str], DependencyWait] = {}
    for one in sorted((one for group in groups for one in group), key=lambda one: one.since_ms):
        key = (one.dependency, one.owner, one.work if one.owner else "")
        first = found.get(key)
        if first is None:
            found[key] = one
        elif one.owner:
            found[key] = max(first, one, key=lambda wait: (wait.since_ms, wait.tries))
        else:
            found[key] = replace(first, tries=first.tries + one.tries)
    return list(found.values())
