"""What decides who leads: the protocol, and its default, terms in the metadata store.

Owns how a leader's silence is told from its presence. Two clocks are kept apart: the wall clock
stands in the store, where all hosts read it; how long a term was not renewed is measured by one's
own monotonic clock. So a wall clock that is wrong neither keeps a dead leader in office nor takes a
living one out of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.storage.metadata import Term

TERM_TTL_MS: Final = 6_000

# A leader renews its term four times while it lasts. After this part of it without a renewal,
# one whose address refuses connections is taken for dead.
_SILENCE: Final = 0.4


class TermStore(Protocol):
    """What is needed of `MetadataStore.terms`."""

    def take(
        self, service: str, holder: str, ttl_ms: int, *, instead_of: Term | None = None
    ) -> Term | None:
        """Begin the next term, if nobody leads."""
        ...

    def renew(self, term: Term) -> Term:
        """Let a term last from now on."""
        ...

    def resign(self, term: Term) -> None:
        """Give a term up."""
        ...

    def current(self, service: str) -> Term | None:
        """Return the newest term unless it was given up, also when its time has run out."""
        ...


class Contest(Protocol):
    """Decides who leads. One thread, the selector's, calls everything but `leader`."""

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to take part; `changed` may be called, from any thread, when it is worth a look."""
        ...

    def stop(self) -> None:
        """Take part no more."""
        ...

    def seek(self) -> Term | None:
        """Return a new term if it is won, else None.

        Raises:
            Unavailable: Nobody knows just now.
        """
        ...

    def keep(self, term: Term) -> Term:
        """Prolong a term that was won and return it.

        Raises:
            Fenced: It is over.
            Unavailable: Nobody knows just now.
        """
        ...

    def resign(self, term: Term) -> None:
        """Give a term up, so that another one can lead at once.

        Raises:
            Unavailable: It could not be given up, and runs out.
        """
        ...

    def leader(self) -> str | None:
        """Return the holder of the present term. Any thread.

        Raises:
            Unavailable: Nobody knows just now.
        """
        ...


class TermContest:
    """Terms of the metadata store decide.

    Args:
        terms: The store's terms.
        service: What is led.
        holder: Who takes part: the URL at which others reach it.
        clock: Tells how long the leader was silent.
        ttl_ms: How long a term lasts without a renewal; the same for all who take part.
        refuses: Whether nobody listens at a URL. That a leader died is so known before its term
            runs out; that it did not, is never concluded from it.
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
        """Begin to take part; who polls is never told of changes."""

    def stop(self) -> None:
        """Take part no more."""

    def seek(self) -> Term | None:
        """Return a new term if nobody leads, or who did is silent or refuses connections."""
        seen = self._terms.current(self._service)
        if seen is not None and seen.holder != self._holder and not self._is_silent(seen):
            return None
        return self._terms.take(self._service, self._holder, self._ttl_ms, instead_of=seen)

    def keep(self, term: Term) -> Term:
        """Renew a term."""
        return self._terms.renew(term)

    def resign(self, term: Term) -> None:
        """Give a term up."""
        self._terms.resign(term)

    def leader(self) -> str | None:
        """Return the holder of the present term."""
        found = self._terms.current(self._service)
        return None if found is None else found.holder

    def _is_silent(self, seen: Term) -> bool:
        """Whether a term was not renewed for long enough, by this host's monotonic clock."""
        renewal = (seen.number, seen.expires_ms)
        now_s = self._clock.monotonic_s()
        if renewal != self._seen:
            self._seen, self._seen_at_s = renewal, now_s
        silence_ms = (now_s - self._seen_at_s) * 1_000
        if silence_ms >= self._ttl_ms:
            return True
        # A term that ran out before one looked for the first time is mostly of a process long gone:
        # its address says so at once. The wall clock alone would not do, it may be wrong.
        is_old = silence_ms >= _SILENCE * self._ttl_ms or seen.expires_ms <= self._clock.now_ms()
        return is_old and self._refuses(seen.holder)
