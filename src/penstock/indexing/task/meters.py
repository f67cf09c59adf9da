"""How many rows a second a task has handled lately: averages over 1, 5 and 15 minutes. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_SPANS_S: Final = {"1m": 60.0, "5m": 300.0, "15m": 900.0}


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
