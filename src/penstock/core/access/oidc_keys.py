"""The keys of the issuers of one process: read on a thread of their own, and kept.

Owns when keys are read, and for how long they may be used:

- at the start, and every 5 minutes after that, so that a key which its issuer has withdrawn is no
  longer accepted;
- when a token names a key that is not known, because an issuer may have a new one. The keys of one
  issuer are read at most every 10 seconds, however many such tokens arrive;
- if the issuer does not answer, the keys that were read before are used for one hour. Then its
  tokens are refused.

Invariant: nothing here waits, except the thread. Callers on event loops get a future.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.core.access.json_web_keys import VerificationKey
from penstock.core.access.oidc_fetch import fetch_keys
from penstock.core.access.oidc_issuer import OidcIssuer
from penstock.core.clock import Clock
from penstock.core.errors import PenstockError
from penstock.core.threads import OnDeath, OwnedThread

_logger = logging.getLogger(__name__)

REFRESH_S: Final = 300.0
"""Interval at which keys are read again, in seconds."""
PAUSE_S: Final = 10.0
"""Least time between the starts of two reads of one issuer, in seconds."""
STALE_S: Final = 3_600.0
"""Time for which keys are used if they cannot be read again, in seconds."""

# The process does not wait for an issuer when it stops.
_END_S: Final = 0.5

FetchKeys: TypeAlias = Callable[[OidcIssuer], Sequence[VerificationKey]]


@dataclass(frozen=True, slots=True)
class _ReadKeys:
    """Keys of an issuer at the time of a read."""

    keys: tuple[VerificationKey, ...] = ()
    thumbprints: frozenset[str] = frozenset()
    read_s: float = float("-inf")


_NO_KEYS: Final = _ReadKeys()


@dataclass(slots=True)
class _State:
    """Keys of one issuer, and their reads."""

    issuer: OidcIssuer
    last: _ReadKeys = _NO_KEYS
    tried_s: float | None = None
    problem: str = ""
    # Completed when a read ends that was requested or is running; None: neither.
    reading: Future[None] | None = None


class OidcKeys:
    """Keys of all issuers. Any thread.

    The condition guards the states, and is held for a few lines that never wait: mail would make
    each check of a token wait for the thread.

    Args:
        clock: Time.
        fetch: Reads the keys of an issuer.
        changed: Called, on the thread, after the keys of an issuer have changed.
    """

    def __init__(
        self, clock: Clock, changed: Callable[[], object], fetch: FetchKeys = fetch_keys
    ) -> None:
        self._clock = clock
        self._fetch = fetch
        self._on_change = changed
        self._changed = threading.Condition()
        self._states: dict[tuple[str, str], _State] = {}
        self._is_started = False
        self._thread: OwnedThread | None = None

    def configure(self, issuers: Iterable[OidcIssuer]) -> None:
        """Replace the issuers; keys of those that stay are kept. Not on an event loop."""
        with self._changed:
            before = self._states
            self._states = {one.source: before.get(one.source) or _State(one) for one in issuers}
            for source, state in before.items():
                if source not in self._states:
                    _complete(state)
            self._changed.notify_all()
        self._start_thread()

    def start(self) -> None:
        """Read keys from now on."""
        self._is_started = True
        self._start_thread()

    def close(self) -> None:
        """End the thread, without waiting for a read; requests that wait for it continue."""
        self._is_started = False
        if self._thread is not None:
            self._thread.end(self._changed, _END_S)
            self._thread = None
        with self._changed:
            for state in self._states.values():
                _complete(state)

    def usable(self, issuer: OidcIssuer) -> tuple[VerificationKey, ...]:
        """Return the keys of an issuer; none if they were never read, or too long ago."""
        return self._usable(issuer).keys

    def has(self, issuer: OidcIssuer, thumbprint: str) -> bool:
        """Return whether one of the usable keys of an issuer has a thumbprint."""
        return thumbprint in self._usable(issuer).thumbprints

    def _usable(self, issuer: OidcIssuer) -> _ReadKeys:
        state = self._states.get(issuer.source)
        if state is None or self._clock.monotonic_s() >= state.last.read_s + STALE_S:
            return _NO_KEYS
        return state.last

    def problem(self, issuer: OidcIssuer) -> str:
        """Return why the last read of an issuer's keys failed; empty: it did not."""
        state = self._states.get(issuer.source)
        return "" if state is None else state.problem

    def is_reading(self, issuer: OidcIssuer) -> bool:
        """Return whether the keys of an issuer are being read."""
        state = self._states.get(issuer.source)
        return state is not None and state.reading is not None

    def request(self, issuer: OidcIssuer) -> Future[None] | None:
        """Have the keys of an issuer read; return a future that completes when the read ends.

        None: they are not read now, because they were a few seconds ago, or there is no thread.
        """
        with self._changed:
            state = self._states.get(issuer.source)
            if state is None or self._thread is None:
                return None
            if state.reading is None:
                now_s = self._clock.monotonic_s()
                if state.tried_s is not None and now_s < state.tried_s + PAUSE_S:
                    return None
                state.reading = _new_future()
                self._changed.notify_all()
            return state.reading

    def _start_thread(self) -> None:
        if self._is_started and self._thread is None and self._states:
            self._thread = OwnedThread("issuer keys", self._run, on_death=OnDeath.RESTART)
            self._thread.start()

    def _run(self) -> None:
        thread = self._thread
        while thread is not None and not thread.is_end_expected:
            with self._changed:
                state = self._next()
                if state is None:
                    if not thread.is_end_expected:
                        self._clock.wait(self._changed, self._wait_s())
                    continue
                state.tried_s = self._clock.monotonic_s()
                if state.reading is None:
                    state.reading = _new_future()
            self._read(state)

    def _next(self) -> _State | None:
        """Return the issuer whose keys are to be read now. The condition is held."""
        now_s = self._clock.monotonic_s()
        due = (
            one for one in self._states.values() if one.reading is not None or now_s >= _due_s(one)
        )
        # The one that has waited longest, so that slow issuers do not delay the others forever.
        return min(due, key=_tried_s, default=None)

    def _wait_s(self) -> float | None:
        """Return the time until the next regular read. The condition is held."""
        due_s = [_due_s(state) for state in self._states.values()]
        return max(0.001, min(due_s) - self._clock.monotonic_s()) if due_s else None

    def _read(self, state: _State) -> None:
        keys: tuple[VerificationKey, ...] = ()
        problem = ""
        try:
            keys = tuple(self._fetch(state.issuer))
        except PenstockError as error:
            problem = str(error)
        finally:
            # After an unexpected exception, too, the thread continues with the next issuer.
            self._store(state, keys, problem or ("" if keys else "it failed unexpectedly"))

    def _store(self, state: _State, keys: tuple[VerificationKey, ...], problem: str) -> None:
        issuer = state.issuer
        with self._changed:
            before, old_problem = state.last, state.problem
            state.problem = problem
            if keys:
                thumbprints = frozenset(one.thumbprint for one in keys)
                state.last = _ReadKeys(keys, thumbprints, self._clock.monotonic_s())
            has_changed = state.last.thumbprints != before.thumbprints
        if problem and problem != old_problem:
            _logger.warning(
                "the keys of the issuer %s (oidc.%s in access.toml) cannot be read: %s; those that"
                " were read before are used for up to %d minutes",
                *(issuer.url, issuer.name, problem, STALE_S // 60),
            )
        if old_problem and not problem:
            _logger.info("the keys of the issuer %s can be read again", issuer.url)
        if has_changed:
            self._on_change()
        with self._changed:
            _complete(state)


def _due_s(state: _State) -> float:
    """Return the time of the next regular read."""
    return _tried_s(state) + (PAUSE_S if state.problem else REFRESH_S)


def _tried_s(state: _State) -> float:
    return float("-inf") if state.tried_s is None else state.tried_s


def _new_future() -> Future[None]:
    found: Future[None] = Future()
    # It cannot be cancelled: one waiting request that ends must not affect the others.
    found.set_running_or_notify_cancel()
    return found


def _complete(state: _State) -> None:
    reading, state.reading = state.reading, None
    if reading is not None:
        reading.set_result(None)
