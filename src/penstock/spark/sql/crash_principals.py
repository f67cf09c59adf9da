"""Principals whose statements end Spark again and again, with a new text each time.

`crash_suspects` refuses a text that ended Spark twice. A principal that changes the text would end
Spark as often as before. So principals are suspects, too. Spark does not report whose statement was
the cause. It is the principal whose statements ran alone, or the only one that was present at each
of several ends. To tell principals apart, those that were present at an end take turns for a while.
A principal that caused several ends is refused for a time that grows.

Owns the suspects among principals and the rule. It does not use Spark: `service` reports to it.

Invariants: a principal that alone causes all ends does so at most `CAUSED_MAX` times before the
refusals begin, and then once for each of them; a principal that is refused because of ends at which
others were present, too, is released by the first end in its absence; the wait for a turn takes up
to `TURN_WAIT_S`; the number of suspects has a bound. Nothing is kept on disk.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest, QuotaExceeded
from penstock.indexing.engine import EngineUnavailable

logger = logging.getLogger(__name__)

CAUSED_MAX: Final = 3
"""Ends after which a principal is refused: an honest user may need two to find the remedy."""

SUSPECT_S: Final = 120.0
"""Time in which principals that were present at one end take turns; it doubles with each end."""

SUSPECT_S_MAX: Final = 1_800.0
REFUSED_S: Final = 60.0
"""Length of the first refusal; it doubles with each further end."""

REFUSED_S_MAX: Final = 3_600.0
MEMORY_S: Final = 3_600.0
"""Time after the last suspicion or refusal at which a principal is forgotten."""

LEFT_S: Final = 30.0
"""Time in which a statement that failed or was cancelled may still end Spark.

Spark may work on after an interrupt, and needs this long to start again.
"""

TURN_WAIT_S: Final = 5.0  # as in `crash_suspects`
PRINCIPALS_MAX: Final = 1_000


class SparkEndsRefused(QuotaExceeded):
    """Spark ended too often while statements of this principal ran: try again later."""


@dataclass(slots=True)
class _Suspect:
    """One principal: ends while it was present, and ends that it caused.

    `is_alone`: it was the only one that was present at one of them. Times are monotonic seconds.
    """

    present: int = 0
    caused: int = 0
    is_alone: bool = False
    suspect_until_s: float = 0.0
    refused_until_s: float = 0.0


class PrincipalSuspects:
    """The suspects among the principals of one Spark; any thread may call it.

    Principals are named by their ids. The empty id stands for the owner of the server and for
    Penstock's own processes: it takes turns like others, but is never refused, because it may end
    Spark in any case.

    A condition guards the tables for the time of a look-up, and suspects wait on it for their turn:
    they are the threads of queries, which wait anyway.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._suspects: dict[str, _Suspect] = {}  # the earliest suspect comes first
        self._running: Counter[str] = Counter()
        self._left_s: dict[str, float] = {}  # when the last statement failed or was cancelled
        # Principals that were present at each of the last ends.
        self._candidates: frozenset[str] = frozenset()
        self._last_end_s = -MEMORY_S
        self._is_down = False  # as of the last statement that began
        self._waiting: deque[tuple[object, str]] = deque()
        self._holder = ""
        self._held = 0  # statements of `_holder` that run in its turn

    @property
    def is_watching(self) -> bool:
        """Return whether Spark ended lately, so that `found` is to be called for each statement."""
        return self._clock.monotonic_s() - self._last_end_s < MEMORY_S

    def found(self, *, is_up: bool) -> None:
        """Record whether Spark can be reached, before a statement begins.

        So an end over a statement that was cancelled just before is not blamed on the next one.
        """
        with self._changed:
            if not is_up and not self._is_down:
                now_s = self._clock.monotonic_s()
                self._record(self._present(now_s), now_s)
            self._is_down = not is_up

    @contextlib.contextmanager
    def admitted(self, principal: str) -> Iterator[None]:
        """Admit a statement of a principal for the time of the block.

        While one suspect runs statements, those of others wait for up to `TURN_WAIT_S`.

        Raises:
            SparkEndsRefused: Spark ended too often while statements of the principal ran.
            EngineUnavailable: A statement of another suspect still runs; try again.
        """
        with self._changed:
            has_turn = self._take_turn(principal)
            self._running[principal] += 1
            # A statement that begins while Spark is down fails, and does not cause the next end.
            since_s = -MEMORY_S if self._is_down else self._clock.monotonic_s()
        is_done = False
        try:
            yield
            is_done = True
        except InvalidRequest:  # narrow: passed on; Spark refused the statement and is done with it
            is_done = True
            raise
        finally:
            with self._changed:
                self._running[principal] -= 1
                if not self._running[principal]:
                    del self._running[principal]
                # Nor does a statement that was lost with an end that is recorded.
                if not is_done and since_s > self._last_end_s:
                    self._left_s.pop(principal, None)
                    self._left_s[principal] = self._clock.monotonic_s()
                    if len(self._left_s) > PRINCIPALS_MAX:
                        del self._left_s[next(iter(self._left_s))]
                self._held -= has_turn
                self._changed.notify_all()

    def ended(self, principal: str, since_s: float, *, is_cause: bool = False) -> None:
        """Record that Spark ended during a statement, which began at a monotonic time.

        Each statement that ran reports the same end; it counts once.

        Args:
            principal: Whose statement it was.
            since_s: When the statement began.
            is_cause: Whether Spark was ended because this statement did not stop.
        """
        with self._changed:
            now_s = self._clock.monotonic_s()
            # A statement that began while Spark was down lost nothing but an old session.
            is_known = since_s <= self._last_end_s or self._is_down
            if is_known and not is_cause:
                return
            present = set() if is_cause else self._present(now_s)
            self._record({principal, *present}, now_s)
            self._is_down = True

    def _record(self, present: set[str], now_s: float) -> None:
        if now_s - self._last_end_s >= MEMORY_S:
            self._candidates = frozenset()
        self._last_end_s = now_s
        if not present:
            return
        self._candidates = (self._candidates & present) or frozenset(present)
        for name in present:
            self._suspect(name, now_s)
        if len(self._candidates) == 1:
            self._blame(next(iter(self._candidates)), now_s, is_alone=len(present) == 1)
        self._release_absent(present, now_s)
        self._forget(now_s)
        self._changed.notify_all()

    def _present(self, now_s: float) -> set[str]:
        """Return the principals with statements that run, or that failed a short time before."""
        left = {name for name, left_s in self._left_s.items() if now_s - left_s < LEFT_S}
        self._left_s.clear()
        return {*self._running, *left}

    def _suspect(self, name: str, now_s: float) -> None:
        suspect = self._suspects.setdefault(name, _Suspect())
        suspect.present += 1
        suspect.suspect_until_s = now_s + _grown(SUSPECT_S, suspect.present, SUSPECT_S_MAX)

    def _blame(self, name: str, now_s: float, *, is_alone: bool) -> None:
        suspect = self._suspects[name]
        suspect.caused += 1
        suspect.is_alone |= is_alone
        for other in self._suspects.values():
            if other is not suspect:  # the cause is found, so they need not take turns
                other.suspect_until_s = min(other.suspect_until_s, now_s)
        further = suspect.caused - CAUSED_MAX + 1
        if further > 0:
            suspect.refused_until_s = now_s + _grown(REFUSED_S, further, REFUSED_S_MAX)
            logger.warning(
                "Spark ended %d times over statements of %s, which are refused for %.0f s",
                suspect.caused,
                name or "the owner of the server (not refused)",
                suspect.refused_until_s - now_s,
            )

    def _release_absent(self, present: set[str], now_s: float) -> None:
        """Release suspects that were never alone, and were refused during this end."""
        for name, suspect in self._suspects.items():
            is_refused = suspect.refused_until_s > now_s
            if is_refused and not suspect.is_alone and name not in present:
                self._suspects[name] = _Suspect()

    def _forget(self, now_s: float) -> None:
        for name, suspect in list(self._suspects.items()):
            until_s = max(suspect.suspect_until_s, suspect.refused_until_s)
            if now_s - until_s >= MEMORY_S or len(self._suspects) > PRINCIPALS_MAX:
                del self._suspects[name]

    def _known(self, principal: str) -> _Suspect | None:
        """Return a principal's entry if it is a suspect now, or refused."""
        suspect = self._suspects.get(principal)
        if suspect is None:
            return None
        now_s = self._clock.monotonic_s()
        until_s = max(suspect.suspect_until_s, suspect.refused_until_s)
        if now_s - until_s >= MEMORY_S:
            del self._suspects[principal]
        return suspect if now_s < until_s else None

    def _take_turn(self, principal: str) -> bool:
        """Return whether a principal is a suspect, once its statement may run."""
        if self._known(principal) is None:
            return False
        ticket = (object(), principal)
        self._waiting.append(ticket)
        until_s = self._clock.monotonic_s() + TURN_WAIT_S
        try:
            while (suspect := self._known(principal)) is not None:
                now_s = self._clock.monotonic_s()
                if principal and now_s < suspect.refused_until_s:
                    raise _refusal(suspect, suspect.refused_until_s - now_s)
                is_free = not self._held or self._holder == principal
                if is_free and self._waiting[0] is ticket:
                    self._holder = principal
                    self._held += 1
                    return True
                if now_s >= until_s:
                    raise EngineUnavailable(
                        "Spark ended while statements of several users ran, so these users take "
                        "turns for some minutes, and a statement of another one still runs: try "
                        "again in a moment"
                    )
                self._clock.wait(self._changed, until_s - now_s)
            return False
        finally:
            self._waiting.remove(ticket)
            self._changed.notify_all()


def _grown(first_s: float, times: int, most_s: float) -> float:
    """Return a time that doubles each time."""
    return min(first_s * 2.0 ** min(times - 1, 30), most_s)


def _refusal(suspect: _Suspect, left_s: float) -> SparkEndsRefused:
    return SparkEndsRefused(
        f"Spark ended {suspect.caused} times over your statements, which take too much memory or do"
        f" not stop planning: all of them are refused for another {left_s:.0f} s, so that the"
        " queries of others are answered. Select less at once then: each further end doubles this"
        " time",
        retry_after_s=max(1, round(left_s)),
    )
