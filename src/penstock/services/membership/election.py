"""Leader election: a candidate's state machine, and the default contest over terms.

`LeaderSelector` owns one thread that acquires and renews terms, and one that calls the
listener, so that a slow listener does not lose the term. `Contest` decides which process leads;
`TermContest` does so by terms in the metadata store. `LeaderListener` is the service that leads.
`refuses` checks whether a leader's address refuses connections, as after a killed process; a host
that does not respond proves nothing.

    follows --won--> leads --lost, or asked to step down--> stops --> follows
                       | begin failed: alert, stops, resigns, rests 1 to 5 s --> follows

Two clocks are kept apart: the wall clock is stored for other hosts to read, and the time since
a term's last renewal is measured by each host's monotonic clock. A wrong wall clock therefore
neither keeps a dead leader nor removes a live one.

Invariants: `is_leader` is false from the moment when the term may have expired by this host's
monotonic clock, even if the threads are blocked. The listener receives the end of a term before the
next begin, and each begin has one end. The metadata store, not this module, refuses writes of a
leader that does not know yet that it was replaced.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from penstock.core.errors import Dependency, Fenced, PenstockError, Unavailable
from penstock.core.threads import OwnedThread, SerialExecutor
from penstock.core.waits import WaitTable
from penstock.services.emitter.emitter import send_alert
from penstock.services.emitter.events import Severity

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.core.clock import Clock
    from penstock.services.emitter.emitter import Emitter
    from penstock.storage.metadata import Term


logger = logging.getLogger(__name__)

_SEEK = "elect the leader"
_RENEW = "renew the term"

T = TypeVar("T")


class LeaderListener(Protocol):
    """Service that leads. Its methods are called from one thread, one after the other."""

    def become_leader(self, term: Term) -> None:
        """Begin to lead. If this raises, the selector steps down."""
        ...

    def stop_being_leader(self) -> None:
        """Stop leading. Also called after `become_leader` raised. It must not raise."""
        ...


@dataclass(frozen=True, slots=True)
class SelectorOptions:
    """Intervals of polling and rests.

    Attributes:
        renew_every_s: Pause between renewals; a fraction of the term's duration.
        seek_every_s: Longest pause between polls of a follower; the pauses are spread over
            the upper half of it, so that followers do not poll in step.
        rest_min_s: Shortest rest after a failure to lead.
        rest_max_s: Longest rest.
    """

    renew_every_s: float = 1.5
    seek_every_s: float = 1.0
    rest_min_s: float = 1.0
    rest_max_s: float = 5.0


class LeaderSelector:
    """Takes part in an election from `start` to `stop`; a lifecycle's handler.

    The condition's mutex guards the few fields that requests, the listener and the election thread
    share. It is never held during a call to one of them.

    Args:
        contest: Decides who leads.
        listener: The service that leads.
        clock: Time.
        emitter: Gets an alert when leading fails.
        broken: Called when the listener could not stop leading: the process must end.
        options: Intervals.
        chance: Randomizes polls and rests.

    Attributes:
        faults: Number of unexpected failures of the contest.
        waits: Failures of the contest that are retried.
    """

    def __init__(
        self,
        contest: Contest,
        listener: LeaderListener,
        clock: Clock,
        emitter: Emitter,
        broken: Callable[[], None],
        options: SelectorOptions | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._contest = contest
        self._listener = listener
        self._clock = clock
        self._emitter = emitter
        self._broken = broken
        self._options = options or SelectorOptions()
        self._chance = chance or random.Random()  # spreads load, guards nothing  # noqa: S311
        self.faults = 0
        self.waits = WaitTable(clock)
        self._changed = threading.Condition()
        self._poll_requested = False
        self._term: Term | None = None
        self._until_s = 0.0
        self._decided = threading.Event()
        self._thread = OwnedThread("election", self._run)
        self._leading = SerialExecutor("leading")

    def start(self) -> None:
        """Begin to stand for election."""
        self._contest.start(self.poll)
        self._thread.start()

    def stop(self) -> None:
        """Stop leading, resign, and leave the election; blocks until the listener has stopped."""
        self._thread.end(self._changed)
        self._leading.shutdown()
        self._contest.stop()

    def poll(self) -> None:
        """Poll the contest now, for example after a refused write. Thread-safe."""
        with self._changed:
            self._poll_requested = True
            self._changed.notify_all()

    def wait_decided(self, timeout_s: float) -> bool:
        """Wait, in real time, until this process leads for the first time, or follows."""
        return self._decided.wait(timeout_s)

    @property
    def is_leader(self) -> bool:
        """Return whether this process leads, as far as it can tell without a request."""
        with self._changed:
            return self._term is not None and self._clock.monotonic_s() < self._until_s

    def leader(self) -> str | None:
        """Return the URL of the leader. Raises Unavailable if it is not known now."""
        with self._changed:
            term = self._term
            if term is not None and self._clock.monotonic_s() < self._until_s:
                return term.holder
        return self._contest.leader()

    # The election thread

    def _run(self) -> None:
        while True:
            requested_s = self._clock.monotonic_s()
            term = self._seek()
            if term is not None and not self._lead(term, requested_s):
                return
            pause_s = self._options.seek_every_s * self._chance.uniform(0.5, 1.0)
            if not self._pause(pause_s):
                return

    def _seek(self) -> Term | None:
        try:
            term = self._call_contest(self._contest.seek)
            if term is None and self._call_contest(self._contest.leader) is not None:
                self._decided.set()
            self.waits.ended(_SEEK)
            return term  # noqa: TRY300
        except PenstockError as error:
            self.waits.failed(_SEEK, error, dependency=Dependency.METADATA)
            logger.warning("no leader can be elected now, trying again: %s", error)
            return None

    def _call_contest(self, question: Callable[[], T]) -> T:
        """Return the contest's answer; raise `Unavailable` for failures of any other type."""
        try:
            return question()
        except PenstockError:
            raise
        # The documented top-level boundary: without this thread, this process is never elected, and
        # a leader never steps down.
        except Exception as error:  # narrow: counts; any other ends the process
            self.faults += 1
            failure = "the election failed unexpectedly and will be retried"
            send_alert(self._emitter, logger, failure, Severity.SERVICE_FAILURE, error=error)
            raise Unavailable(f"the election failed: {error!r}") from error

    def _lead(self, term: Term, requested_s: float) -> bool:
        """Lead until the term ends; return whether to stand again."""
        try:
            return self._lead_until_over(term, requested_s)
        except BaseException:
            # Other processes must no longer treat this one as the leader, though its work may still
            # run.
            with self._changed:
                self._term = None
            self._broken()
            raise

    def _lead_until_over(self, term: Term, requested_s: float) -> bool:
        with self._changed:
            self._extend(term, requested_s)
        logger.info("%s leads the %s in term %d", term.holder, term.service, term.number)
        begun = self._leading.submit(self._listener.become_leader, term)
        begun.add_done_callback(self._note_begun)
        is_ours = self._renew_until_over(term, begun)
        self.waits.ended(_RENEW)
        with self._changed:
            self._term = None
        has_begun = self._report(begun, f"the {term.service} cannot lead")
        stopped = self._leading.submit(self._listener.stop_being_leader)
        has_stopped = self._report(stopped, f"the {term.service} cannot stop leading")
        logger.info("%s no longer leads the %s", term.holder, term.service)
        if is_ours:
            self._resign(term)
        if not has_stopped:
            # Its work may continue, though its writes are refused: the process must end.
            self._thread.expect_end()
            self._broken()
            return False
        return has_begun or self._rest()

    def _renew_until_over(self, term: Term, begun: Future[None]) -> bool:
        """Return when it is time to stop leading; the result is whether the term is still held."""
        while self._pause(self._options.renew_every_s):
            if begun.done() and begun.exception() is not None:
                return True
            requested_s = self._clock.monotonic_s()
            try:
                renewed = self._call_contest(lambda: self._contest.keep(term))
            except Fenced as error:
                logger.warning("%s", error)
                return False
            except PenstockError as error:
                if not self.is_leader:
                    logger.warning("term %d could not be renewed in time: %s", term.number, error)
                    return True
                logger.info("term %d was not renewed, trying again: %s", term.number, error)
                self.waits.failed(_RENEW, error, dependency=Dependency.METADATA)
                continue
            self.waits.ended(_RENEW)
            with self._changed:
                self._extend(renewed, requested_s)
        return True

    def _note_begun(self, begun: Future[None]) -> None:
        if begun.exception() is None:
            self._decided.set()
        self.poll()

    def _extend(self, term: Term, requested_s: float) -> None:
        # The time before the request, because the store may have answered late.
        self._term, self._until_s = term, requested_s + term.ttl_ms / 1_000

    def _report(self, done: Future[None], failure: str) -> bool:
        """Wait for a call of the listener; return whether it succeeded."""
        # The documented top-level boundary: if the listener raises, this process steps down.
        error = done.exception()
        if error is None:
            return True
        send_alert(self._emitter, logger, failure, Severity.SERVICE_FAILURE, error=error)
        return False

    def _resign(self, term: Term) -> None:
        try:
            self._call_contest(lambda: self._contest.resign(term))
        except PenstockError as error:
            logger.warning("term %d could not be resigned and will expire: %s", term.number, error)

    def _pause(self, timeout_s: float) -> bool:
        """Wait until there is work; return False when the selector stops."""
        with self._changed:
            if not (self._thread.is_end_expected or self._poll_requested):
                self._clock.wait(self._changed, timeout_s)
            self._poll_requested = False
            return not self._thread.is_end_expected

    def _rest(self) -> bool:
        """Let other candidates try; return False when the selector stops."""
        rest_s = self._chance.uniform(self._options.rest_min_s, self._options.rest_max_s)
        until_s = self._clock.monotonic_s() + rest_s
        while (left_s := until_s - self._clock.monotonic_s()) > 0:
            if not self._pause(left_s):
                return False
        return True


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


_TIMEOUT_S = 0.3


def refuses(url: str) -> bool:
    """Return whether the address refuses connections; no answer does not count as refusal.

    A process that hangs or is stopped does not refuse: its kernel still accepts connections.
    """
    parts = urlsplit(url)
    if parts.hostname is None or parts.port is None:
        return False
    try:
        with socket.create_connection((parts.hostname, parts.port), _TIMEOUT_S):
            return False
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
