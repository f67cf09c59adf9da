"""Throughput of a task: rows per second over 1, 5 and 15 minutes, and its idle time. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.indexing.ports import Throughput

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPANS_S: Final = {"1m": 60.0, "5m": 300.0, "15m": 900.0}
_EFFORT_SPAN_S: Final = 900.0
_OBSERVED_LEAST_S: Final = 60.0
_BATCHES_LEAST: Final = 10.0
# Batches of nearly one size cannot separate the cost of a message from that of a batch.
_SPREAD_LEAST: Final = 0.2
_MOSTLY_IDLE: Final = 0.5
_MESSAGE_SHARE_LEAST: Final = 0.01


class MovingAverages:
    """Exponentially weighted rates of some counts.

    Args:
        now_s: The time.
    """

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._rates: dict[str, dict[str, float]] = {span: {} for span in _SPANS_S}

    def add(self, counts: Mapping[str, int], now_s: float) -> None:
        """Record the counts since the last call."""
        passed_s = max(now_s - self._at_s, 1e-3)
        for span, span_s in _SPANS_S.items():
            rates = self._rates[span]
            kept = math.exp(-passed_s / span_s)
            for name in rates.keys() | counts.keys():
                # A count is spread over the time since the last call.
                new = counts.get(name, 0) / passed_s * (1 - kept)
                rates[name] = rates.get(name, 0.0) * kept + new
        self._at_s = now_s

    def rates(self, now_s: float) -> dict[str, dict[str, float]]:
        """Return the rate of each count per second, by span."""
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
    """Exponentially weighted sums over batches: n messages in t seconds."""

    batches: float = 0.0
    n: float = 0.0
    t: float = 0.0
    nn: float = 0.0
    nt: float = 0.0
    observed_s: float = 0.0

    def decay(self, passed_s: float) -> None:
        kept = math.exp(-passed_s / _EFFORT_SPAN_S)
        self.batches *= kept
        self.n *= kept
        self.t *= kept
        self.nn *= kept
        self.nt *= kept
        self.observed_s = self.observed_s * kept + passed_s


class ThroughputMeter:
    """Measures the time that messages take, without the fixed cost of each batch.

    A task that reads small batches is always busy, because each batch has a fixed cost; it could
    read far more in the same time. So a linear fit over batches of all sizes separates the cost of
    a message from the cost of a batch.

    Args:
        now_s: The time.
    """

    def __init__(self, now_s: float) -> None:
        self._at_s = now_s
        self._begun_s: float | None = None
        self._sums = _Sums()

    def begin(self, now_s: float) -> None:
        """Record the start of a batch."""
        self._begun_s = now_s

    def end(self, messages: int, now_s: float) -> None:
        """Record the end of the batch and its number of messages, 0 if it was dropped."""
        begun_s = now_s if self._begun_s is None else self._begun_s
        self._begun_s = None
        self._sums.decay(max(now_s - self._at_s, 0.0))
        self._at_s = now_s
        if not messages:
            return
        n, t, sums = float(messages), max(now_s - begun_s, 0.0), self._sums
        sums.batches += 1
        sums.n += n
        sums.t += t
        sums.nn += n * n
        sums.nt += n * t

    def measure(self, now_s: float) -> Throughput:
        """Return the recent throughput; a running batch counts after its end."""
        sums = self._sums
        until_s = now_s if self._begun_s is None else self._begun_s
        observed_s = sums.observed_s + max(until_s - self._at_s, 0.0)
        if observed_s < _OBSERVED_LEAST_S:
            return Throughput(per_second=sums.n / sums.t if sums.t else 0.0)
        if not sums.n or not sums.t:
            return Throughput(idle=1.0)
        message_s = self._message_s()
        if message_s is None:
            idle = 1 - min(1.0, sums.t / observed_s)
            # A lower idle time may be caused by the batches, so it is unknown.
            return Throughput(sums.n / sums.t, idle if idle > _MOSTLY_IDLE else None)
        return Throughput(1 / message_s, 1 - min(1.0, message_s * sums.n / observed_s))

    def _message_s(self) -> float | None:
        """Return the time of one message in seconds; None if the batches do not determine it."""
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
