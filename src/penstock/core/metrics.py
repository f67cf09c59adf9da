"""Metrics without a library: counters, gauges, histograms, and their registry.

Owns the current values; `services` converts snapshots to Prometheus' text. Recording is cheap and
safe from any thread; a snapshot is immutable. Names follow Prometheus: snake case, the unit last,
``_total`` for counters.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from penstock.core.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Kind = Literal["counter", "gauge", "histogram"]
Labels = tuple[tuple[str, str], ...]

LATENCY_BOUNDS_S: Final = (0.0001, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0)

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """Value of a histogram: for each upper bound, the number of values up to it.

    `cumulative` has one entry for each bound; `count` includes values above the last.
    """

    bounds: tuple[float, ...]
    cumulative: tuple[int, ...]
    count: int
    sum: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Value of one metric at one moment."""

    name: str
    kind: Kind
    help: str
    labels: Labels
    value: float | HistogramValue


class Counter:
    """A number that only increases.

    A mutex guards the addition: mail would cost more than the counted event.
    """

    kind: Final = "counter"

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._value = 0.0

    def add(self, amount: float = 1) -> None:
        """Add an amount of 0 or more.

        Raises:
            InvalidRequest: The amount is negative.
        """
        if amount < 0:
            raise InvalidRequest(
                f"{amount} was added to a counter, which only increases: use a gauge instead"
            )
        with self._mutex:
            self._value += amount

    @property
    def value(self) -> float:
        """The sum so far."""
        return self._value


class Histogram:
    """Distribution of values over fixed upper bounds.

    A mutex guards a few additions, so that a snapshot's count, sum and buckets agree.

    Raises:
        InvalidRequest: The bounds are empty or not ascending.
    """

    kind: Final = "histogram"

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S) -> None:
        if not bounds or any(a >= b for a, b in pairwise(bounds)):
            raise InvalidRequest(f"histogram bounds {list(bounds)} must be ascending and not empty")
        self._mutex = threading.Lock()
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    @property
    def bounds(self) -> tuple[float, ...]:
        """The inclusive upper bounds."""
        return self._bounds

    def observe(self, value: float) -> None:
        """Count one value."""
        place = bisect_left(self._bounds, value)
        with self._mutex:
            self._counts[place] += 1
            self._sum += value

    @property
    def value(self) -> HistogramValue:
        """The current value."""
        with self._mutex:
            counts, total = list(self._counts), self._sum
        running, cumulative = 0, []
        for count in counts:
            running += count
            cumulative.append(running)
        return HistogramValue(self._bounds, tuple(cumulative[:-1]), running, total)


class _Reading:
    """A counter or gauge whose value is read by a call when a snapshot is taken."""

    def __init__(self, kind: Kind, read: Callable[[], float]) -> None:
        self.kind = kind
        self._read = read

    @property
    def value(self) -> float:
        return self._read()


_Instrument = Counter | Histogram | _Reading
_Made = TypeVar("_Made", Counter, Histogram)


class MetricRegistry:
    """All metrics of a process, by name and labels.

    Requesting the same name and labels twice returns the same instrument. A mutex guards the map of
    instruments, but not the recording nor the reading of a value.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._families: dict[str, tuple[Kind, str]] = {}
        self._instruments: dict[tuple[str, Labels], _Instrument] = {}

    def counter(self, name: str, about: str, **labels: str) -> Counter:
        """Return the counter of this name and labels.

        Raises:
            Conflict: The name is taken by a metric of another kind.
            InvalidRequest: The name or a label is not in snake case.
        """
        return self._get_or_add(Counter(), name, about, labels)

    def histogram(
        self,
        name: str,
        about: str,
        bounds: Sequence[float] = LATENCY_BOUNDS_S,
        **labels: str,
    ) -> Histogram:
        """Return the histogram of this name and labels. Raises as `counter`."""
        return self._get_or_add(Histogram(bounds), name, about, labels)

    def read(
        self,
        kind: Literal["counter", "gauge"],
        name: str,
        about: str,
        read: Callable[[], float],
        **labels: str,
    ) -> None:
        """Read the value by a call at each snapshot; a later call of `read` replaces it.

        The call must be fast, safe from any thread, and must not raise. Raises as `counter`.
        """
        with self._mutex:
            key = self._claim(kind, name, about, labels)
            self._instruments[key] = _Reading(kind, read)

    def forget(self, **labels: str) -> None:
        """Drop every metric that has all these labels, such as those of a task that ended.

        Raises:
            InvalidRequest: No label was given.
        """
        if not labels:
            raise InvalidRequest("forget needs a label: without one it would drop every metric")
        wanted = set(labels.items())
        with self._mutex:
            for key in [key for key in self._instruments if wanted <= set(key[1])]:
                del self._instruments[key]

    def snapshot(self) -> list[Sample]:
        """Return all metrics now, ordered by name and labels."""
        with self._mutex:
            instruments = sorted(self._instruments.items(), key=lambda item: item[0])
            families = dict(self._families)
        return [
            Sample(name, *families[name], labels, instrument.value)
            for (name, labels), instrument in instruments
        ]

    def _get_or_add(self, made: _Made, name: str, about: str, labels: Mapping[str, str]) -> _Made:
        with self._mutex:
            key = self._claim(made.kind, name, about, labels)
            found = self._instruments.setdefault(key, made)
            if not isinstance(found, type(made)):
                raise Conflict(f"metric {name} exists already as a reading: choose another name")
            return found

    def _claim(
        self, kind: Kind, name: str, about: str, labels: Mapping[str, str]
    ) -> tuple[str, Labels]:
        for word in (name, *labels):
            if not _NAME.fullmatch(word):
                raise InvalidRequest(f"invalid metric or label name {word!r}: use snake case")
        family = self._families.setdefault(name, (kind, about))
        if family[0] != kind:
            raise Conflict(f"metric {name} is a {family[0]} already, not a {kind}")
        return name, tuple(sorted(labels.items()))
