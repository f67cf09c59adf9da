"""ZooKeeper decides who leads, terms in the metadata store fence off who led before.

    <base>/leader/<service>/<token>-<number>      ephemeral; holds the candidate's URL

The candidate with the lowest number leads. When a session ends, its candidates go, and the next one
leads within moments, in a new term that it begins whatever the old one's time says. The term is
what refuses writes of a leader that does not know yet.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.core.errors import Fenced, Unavailable
from penstock.services.election.contest import TERM_TTL_MS, TermStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.services.discovery.zkclient import ZooKeeper
    from penstock.storage.metadata import Term

logger = logging.getLogger(__name__)


class ZooKeeperContest:
    """`Contest` over ZooKeeper.

    Args:
        zookeeper: A client; who made it starts and stops it.
        terms: The metadata store's terms.
        service: What is led.
        holder: Who takes part: the URL at which others reach it.
        token: Tells this process's candidates from others'.
        ttl_ms: How long a term lasts without a renewal.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        terms: TermStore,
        service: str,
        holder: str,
        token: str,
        ttl_ms: int = TERM_TTL_MS,
    ) -> None:
        self._zookeeper = zookeeper
        self._terms = terms
        self._service = service
        self._holder = holder
        self._token = token
        self._ttl_ms = ttl_ms
        self._folder = f"{zookeeper.base}/leader/{service}"
        self._changed: Callable[[], None] = lambda: None

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to take part; `changed` is called when candidates come and go."""
        self._changed = changed
        self._zookeeper.on_session(changed)

    def stop(self) -> None:
        """Take part no more."""
        try:
            self._step_aside()
        except Unavailable as error:
            logger.warning("a candidate stays until its session ends: %s", error)

    def seek(self) -> Term | None:
        """Stand as a candidate; return a new term if this is the first of them."""
        candidates = self._candidates()
        mine = next((one for one in candidates if self._is_mine(one)), None)
        if mine is not None and self._zookeeper.owner(self._path(mine)) != self._zookeeper.session:
            # Of an earlier session of this process, which nobody has ended yet.
            self._zookeeper.delete(self._path(mine))
            mine = None
        if mine is None:
            content = self._holder.encode()
            self._zookeeper.create(self._path(f"{self._token}-"), content, sequence=True)
            candidates = self._candidates()
        if not candidates or not self._is_mine(candidates[0]):
            return None
        seen = self._terms.current(self._service)
        return self._terms.take(self._service, self._holder, self._ttl_ms, instead_of=seen)

    def keep(self, term: Term) -> Term:
        """Renew a term while this one is the first candidate.

        Raises:
            Fenced: It is not, or the session is over, or there is a newer term.
            Unavailable: Nobody knows just now.
        """
        if self._zookeeper.is_lost:
            raise Fenced(f"the session in which {self._holder} led is over: stand again")
        candidates = self._candidates()
        if not candidates or not self._is_mine(candidates[0]):
            raise Fenced(f"{self._holder} is not the first candidate any more: stand again")
        return self._terms.renew(term)

    def resign(self, term: Term) -> None:
        """Step behind all other candidates, and give the term up."""
        self._step_aside()
        self._terms.resign(term)

    def leader(self) -> str | None:
        """Return the holder of the present term."""
        found = self._terms.current(self._service)
        return None if found is None else found.holder

    def _candidates(self) -> list[str]:
        names = self._zookeeper.children(self._folder, self._changed)
        return sorted(names, key=lambda name: name.rpartition("-")[2])

    def _step_aside(self) -> None:
        for name in self._candidates():
            if self._is_mine(name):
                self._zookeeper.delete(self._path(name))

    def _is_mine(self, name: str) -> bool:
        return name.rpartition("-")[0] == self._token

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}"
