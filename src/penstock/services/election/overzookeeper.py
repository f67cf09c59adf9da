"""Election by ZooKeeper; terms in the metadata store fence former leaders.

    <base>/leader/<service>/<token>-<number>      ephemeral; contains the candidate's URL

The candidate with the lowest number leads. When a session ends, its candidates disappear, and the
next candidate leads within moments. It begins a new term, whatever time the old one has left. By
the term, writes of a former leader that has not noticed the change are refused.
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
        zookeeper: A client, which the caller starts and stops.
        terms: The metadata store's terms.
        service: The service to lead.
        holder: This candidate's URL, as others reach it.
        token: Distinguishes this process's candidates from others'.
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
        """Take part; `changed` is called when candidates appear or disappear."""
        self._changed = changed
        self._zookeeper.on_session(changed)

    def stop(self) -> None:
        """Leave the election."""
        try:
            self._step_aside()
        except Unavailable as error:
            logger.warning("a candidate stays until its session ends: %s", error)

    def seek(self) -> Term | None:
        """Register as a candidate; return a new term if this is the first candidate."""
        candidates = self._candidates()
        mine = next((one for one in candidates if self._is_mine(one)), None)
        if mine is not None and self._zookeeper.owner(self._path(mine)) != self._zookeeper.session:
            # Of an earlier session of this process that has not ended yet.
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
            Fenced: It is not the first, the session is over, or there is a newer term.
            Unavailable: The leader is not known now.
        """
        if self._zookeeper.is_lost:
            raise Fenced(f"the session in which {self._holder} led is over: stand again")
        candidates = self._candidates()
        if not candidates or not self._is_mine(candidates[0]):
            raise Fenced(f"{self._holder} is no longer the first candidate: stand again")
        return self._terms.renew(term)

    def resign(self, term: Term) -> None:
        """Move behind all other candidates, and resign the term."""
        self._step_aside()
        self._terms.resign(term)

    def leader(self) -> str | None:
        """Return the holder of the current term."""
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
