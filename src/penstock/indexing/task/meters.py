"""How much a task does: rows a second over 1, 5 and 15 minutes, and how hard it works. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.indexing.ports import Effort

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPANS_S: Final = {"1m": 60.0, "5m": 300.0, "15m": 900.0}
_EFFORT_SPAN_S: Final = 900.0
_OBSERVED_LEAST_S: Final = 60.0
_BATCHES_LEAST: Final = 10.0
# Batches of nearly one size do not tell what a message costs and what each batch costs.
_SPREAD_LEAST: Final = 0.2
_MOSTLY_IDLE: Final = 0.5
_MESSAGE_SHARE_LEAST: Final = 0.01


class MovingAverages:
    """Rates of some counts, each weighing what is long ago less.

    Args:
        now_s: The time.
    """

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._rates: dict[str, dict[str, float]] = {span: {} for span in _SPANS_S}

    def add(self, counts: Mapping[str, int], now_s: float) -> None:
        """Note what was counted since the last time."""
        passed_s = max(now_s - self._at_s, 1e-3)
        for span, span_s in _SPANS_S.items():
            rates = self._rates[span]
            kept = math.exp(-passed_s / span_s)
            for name in rates.keys() | counts.keys():
                # A count is spread over the time that has passed since the last.
                new = counts.get(name, 0) / passed_s * (1 - kept)
                rates[name] = rates.get(name, 0.0) * kept + new
        self._at_s = now_s

    def rates(self, now_s: float) -> dict[str, dict[str, float]]:
        """Return, by span, how many a second of each."""
        passed_s = max(now_s - self._at_s, 0.0)
        return {
            span: {
                name: round(rate * math.exp(-passed_s / span_s), 3)
                for name, rate in sorted(self._rates[span].items())
            }
            for span, span_s in _SPANS_S.items()
        }


@dataclass(slots=True)
class _Sums:
    """Sums over batches, each weighing less the longer ago it was: n messages in t seconds."""

    batches: float = 0.0
    n: float = 0.0
    t: float = 0.0
    nn: float = 0.0
    nt: float = 0.0
    observed_s: float = 0.0

    def fade(self, passed_s: float) -> None:
        kept = math.exp(-passed_s / _EFFORT_SPAN_S)
        self.batches *= kept
        self.n *= kept
        self.t *= kept
        self.nn *= kept
        self.nt *= kept
        self.observed_s = self.observed_s * kept + passed_s


class EffortMeter:
    """How hard a task works: the time that its messages take, without what each batch takes.

    A task that reads a little at a time is busy all the time, since every batch has work that does
    not depend on its size; it could read far more in the same time. So what a message takes is told
    apart from what a batch takes, by a line through what batches of all sizes have taken.

    Args:
        now_s: The time.
    """

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._begun_s: float | None = None
        self._sums = _Sums()

    def begin(self, now_s: float) -> None:
        """Note that a batch begins."""
        self._begun_s = now_s

    def end(self, messages: int, now_s: float) -> None:
        """Note that the batch has ended with so many messages persisted, 0 if it was dropped."""
        begun_s = now_s if self._begun_s is None else self._begun_s
        self._begun_s = None
        self._sums.fade(max(now_s - self._at_s, 0.0))
        self._at_s = now_s
        if not messages:
            return
        n, t, sums = float(messages), max(now_s - begun_s, 0.0), self._sums
        sums.batches += 1
        sums.n += n
        sums.t += t
        sums.nn += n * n
        sums.nt += n * t

    def measure(self, now_s: float) -> Effort:
        """Return how hard it has worked lately; a batch that runs counts when it has ended."""
        sums = self._sums
        until_s = now_s if self._begun_s is None else self._begun_s
        observed_s = sums.observed_s + max(until_s - self._at_s, 0.0)
        if observed_s < _OBSERVED_LEAST_S:
            return Effort(per_second=sums.n / sums.t if sums.t else 0.0)
        if not sums.n or not sums.t:
            return Effort(idle=1.0)
        message_s = self._message_s()
        if message_s is None:
            idle = 1 - min(1.0, sums.t / observed_s)
            # Less idle than this may be due to the batches: that is not known.
            return Effort(sums.n / sums.t, idle if idle > _MOSTLY_IDLE else None)
        return Effort(1 / message_s, 1 - min(1.0, message_s * sums.n / observed_s))

    def _message_s(self) -> float | None:
        """Return what one message takes, in seconds; None if the batches do not tell."""
        sums = self._sums
        if sums.batches < _BATCHES_LEAST:
            return None
        mean = sums.n / sums.batches
        variance = sums.nn / sums.batches - mean * mean
        if variance < (_SPREAD_LEAST * mean) ** 2:
            return None
        slope = (sums.nt / sums.batches - mean * sums.t / sums.batches) / variance
        at_most_s = sums.t / sums.n
        return min(max(slope, _MESSAGE_SHARE_LEAST * at_most_s), at_most_s)
