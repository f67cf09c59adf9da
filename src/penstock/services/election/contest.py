"""Decision who leads: the protocol, and its default, terms in the metadata store.

Owns how a silent leader is detected, with two clocks. The store holds wall clock times, which all
hosts read; each process measures with its own monotonic clock how long a term was not renewed.
A wrong wall clock therefore neither keeps a dead leader in office nor removes a live one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.storage.metadata import Term

TERM_TTL_MS: Final = 6_000

# A leader renews its term four times within its duration. After this part of the duration without
# a renewal, a leader whose address refuses connections counts as dead.
_SILENCE: Final = 0.4


class TermStore(Protocol):
    """The part of `MetadataStore.terms` that this module uses."""

    def take(
        self, service: str, holder: str, ttl_ms: int, *, instead_of: Term | None = None
    ) -> Term | None:
        """Begin the next term, unless there is a leader."""
        ...

    def renew(self, term: Term) -> Term:
        """Restart the duration of a term from now."""
        ...

    def resign(self, term: Term) -> None:
        """Resign a term."""
        ...

    def current(self, service: str) -> Term | None:
        """Return the newest term unless it was resigned, even if it has expired."""
        ...


class Contest(Protocol):
    """Decides who leads. Only the selector's thread calls its methods, except `leader`."""

    def start(self, changed: Callable[[], None]) -> None:
        """Take part; `changed` may be called, from any thread, when the leader may have changed."""
        ...

    def stop(self) -> None:
        """Leave the election."""
        ...

    def seek(self) -> Term | None:
        """Return a new term if it is won, else None.

        Raises:
            Unavailable: The leader is not known now.
        """
        ...

    def keep(self, term: Term) -> Term:
        """Renew a term and return it.

        Raises:
            Fenced: The term has ended.
            Unavailable: The leader is not known now.
        """
        ...

    def resign(self, term: Term) -> None:
        """Resign a term, so that another candidate can lead at once.

        Raises:
            Unavailable: The term could not be resigned, and will expire.
        """
        ...

    def leader(self) -> str | None:
        """Return the holder of the current term. Thread-safe.

        Raises:
            Unavailable: The leader is not known now.
        """
        ...


class TermContest:
    """Election by terms of the metadata store.

    Args:
        terms: The store's terms.
        service: The service to lead.
        holder: This candidate's URL, as others reach it.
        clock: Measures how long the leader was silent.
        ttl_ms: How long a term lasts without a renewal; the same for all candidates.
        refuses: Returns whether a URL refuses connections. This detects a dead leader before its
            term expires; the opposite result is never taken as proof that the leader is alive.
    """

    def __init__(
        self,
        terms: TermStore,
        service: str,
        holder: str,
        clock: Clock,
        ttl_ms: int = TERM_TTL_MS,
        refuses: Callable[[str], bool] = lambda _url: False,
    ) -> None:
        self._terms = terms
        self._service = service
        self._holder = holder
        self._clock = clock
        self._ttl_ms = ttl_ms
        self._refuses = refuses
        self._seen: tuple[int, int] | None = None
        self._seen_at_s = 0.0

    def start(self, changed: Callable[[], None]) -> None:
        """Take part; this contest polls and never reports changes."""

    def stop(self) -> None:
        """Leave the election."""

    def seek(self) -> Term | None:
        """Return a new term if there is no leader, or it is silent or refuses connections."""
        seen = self._terms.current(self._service)
        if seen is not None and seen.holder != self._holder and not self._is_silent(seen):
            return None
        return self._terms.take(self._service, self._holder, self._ttl_ms, instead_of=seen)

    def keep(self, term: Term) -> Term:
        """Renew a term."""
        return self._terms.renew(term)

    def resign(self, term: Term) -> None:
        """Resign a term."""
        self._terms.resign(term)

    def leader(self) -> str | None:
        """Return the holder of the current term."""
        found = self._terms.current(self._service)
        return None if found is None else found.holder

    def _is_silent(self, seen: Term) -> bool:
        """Return whether a term was not renewed for long enough, by this host's monotonic clock."""
        renewal = (seen.number, seen.expires_ms)
        now_s = self._clock.monotonic_s()
        if renewal != self._seen:
            self._seen, self._seen_at_s = renewal, now_s
        silence_ms = (now_s - self._seen_at_s) * 1_000
        if silence_ms >= self._ttl_ms:
            return True
        # A term that had expired at the first poll usually belongs to a process that died long ago:
        # its address refuses connections at once. The wall clock alone is not proof, because it may
        # be wrong.
        is_old = silence_ms >= _SILENCE * self._ttl_ms or seen.expires_ms <= self._clock.now_ms()
        return is_old and self._refuses(seen.holder)
