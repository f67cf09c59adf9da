"""Statements during which Spark ended, and which are refused for a while if it ends again.

A statement can use up the memory of the JVM that runs it, or occupy it with planning until Penstock
ends the JVM. If a client repeats the statement, no other query is answered. Spark does not report
which of the running statements was the cause. So each of them becomes a suspect, and suspects run
one at a time: if Spark ends again, the running suspect is the cause. Other statements run as
before.

Owns the suspects and the rule. It does not use Spark: `service` reports to it.

Invariants: a statement ends Spark at most `ENDS_MAX` times within `WINDOW_S`; a suspect that has
succeeded is cleared; the number of suspects has a bound. Nothing is kept on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.clock import Clock
from penstock.core.errors import InvalidRequest
from penstock.indexing.engine import EngineUnavailable

logger = logging.getLogger(__name__)

ENDS_MAX: Final = 2
WINDOW_S: Final = 600.0
TURN_WAIT_S: Final = 5.0  # less than the time that a router has to stop
SUSPECTS_MAX: Final = 1_000
_LOGGED_MAX: Final = 500  # characters of a statement


@dataclass(slots=True)
class _Suspect:
    """Number of times that Spark ended during a statement, and when it last did."""

    ends: int
    last_s: float


class CrashSuspects:
    """The suspects among the statements of one Spark; any thread may call it.

    A condition guards the table for the time of a look-up, and suspects wait on it for their turn:
    they are the threads of queries, which wait anyway.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._suspects: dict[bytes, _Suspect] = {}  # by the digest of the statement, oldest first
        self._is_one_running = False

    @contextlib.contextmanager
    def admitted(self, sql: str, parameters: Sequence[object] = ()) -> Iterator[None]:
        """Admit a statement for the time of the block, which has succeeded if it does not raise.

        A suspect waits up to `TURN_WAIT_S` while another one runs.

        Raises:
            InvalidRequest: Spark ended during it too often.
            EngineUnavailable: Another suspect still runs; try again.
        """
        key = _digest(sql, parameters)
        with self._changed:
            is_suspect = self._take_turn(key)
        try:
            yield
            with self._changed:
                self._suspects.pop(key, None)
        finally:
            if is_suspect:
                with self._changed:
                    self._is_one_running = False
                    self._changed.notify_all()

    def ended(self, sql: str, parameters: Sequence[object], since_s: float) -> None:
        """Record that Spark ended during a statement, which began at a monotonic time.

        Several requests with one statement count once for each end.
        """
        key, now_s = _digest(sql, parameters), self._clock.monotonic_s()
        with self._changed:
            before = self._known(key)
            if before is not None and since_s <= before.last_s:
                return
            self._suspects.pop(key, None)
            self._suspects[key] = _Suspect(1 if before is None else before.ends + 1, now_s)
            if len(self._suspects) > SUSPECTS_MAX:
                del self._suspects[next(iter(self._suspects))]
            ends = self._suspects[key].ends
        logger.warning(
            "Spark ended during this statement, %d of %d times before it is refused: %r",
            ends,
            ENDS_MAX,
            sql[:_LOGGED_MAX],
        )

    def _known(self, key: bytes) -> _Suspect | None:
        suspect = self._suspects.get(key)
        if suspect is not None and self._clock.monotonic_s() - suspect.last_s >= WINDOW_S:
            del self._suspects[key]
            return None
        return suspect

    def _take_turn(self, key: bytes) -> bool:
        """Return whether a statement is a suspect, once it may run."""
        until_s = self._clock.monotonic_s() + TURN_WAIT_S
        while (suspect := self._known(key)) is not None:
            now_s = self._clock.monotonic_s()
            if suspect.ends >= ENDS_MAX:
                raise InvalidRequest(
                    f"Spark ended {suspect.ends} times during this statement, which takes too much"
                    " memory or does not stop planning: it is refused for another"
                    f" {suspect.last_s + WINDOW_S - now_s:.0f} s, so that other queries are "
                    "answered. Select less at once, or give queries more memory (--query-memory)"
                )
            if not self._is_one_running:
                self._is_one_running = True
                return True
            if now_s >= until_s:
                raise EngineUnavailable(
                    "Spark ended while this statement ran, so it runs only while no other such "
                    "statement runs, and one still does: try again in a moment"
                )
            self._clock.wait(self._changed, until_s - now_s)
        return False


def _digest(sql: str, parameters: Sequence[object]) -> bytes:
    return hashlib.sha256(repr((sql, *parameters)).encode(errors="surrogatepass")).digest()
