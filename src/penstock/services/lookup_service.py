"""Declaration and refresh of lookups in a process that answers queries.

Owns what happens with a spec: its rows are read first and stored with it, so that a spec whose rows
cannot be read changes nothing. Later reads replace the rows; one that fails leaves them, and the
reason is stored. A thread refreshes what is due, one lookup at a time. Several processes may do the
same: `storage.metadata.tables.lookups` decides which refresh counts.

A refresh needs the rights that the owner of the lookup has at that moment.

Does not own how files are read (`sampler_process`), or who may declare a lookup (`api.lookups`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from penstock.core.clock import Clock
from penstock.core.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    PenstockError,
    Unavailable,
)
from penstock.core.metrics import Counter, Sample
from penstock.core.threads import OnDeath, OwnedThread
from penstock.indexing.required_access import required_by_lookup
from penstock.indexing.specs.lookup_spec import LookupSpec, checked_lookup
from penstock.spark.batch.input.lookup_rows import rows_of_map
from penstock.storage.lookup_rows import written_rows
from penstock.storage.metadata.tables.lookups import NEVER_MS, LookupContent

if TYPE_CHECKING:
    from penstock.core.access.access_control import AccessControl
    from penstock.storage.metadata import AuditRow
    from penstock.storage.metadata.tables.lookups import LookupRow, StoredLookups

logger = logging.getLogger(__name__)

CLAIM_MS: Final = 120_000
"""How long a refresh may take before another process begins one: four times its time limit."""
PAUSE_S: Final = 5.0
"""How often it is looked which lookups are due: the shortest period is twice as long."""
_REASON_CHARACTERS: Final = 1_000
_ROWS: Final = "Rows of a lookup"
_AGE: Final = "Seconds since the rows of a lookup were read"
_FAILING: Final = "Refreshes of a lookup that failed since one succeeded"
_REFRESHES: Final = "Refreshes of lookups by this process, by outcome"


class LookupFiles(Protocol):
    """Reads the files of lookups: `penstock.services.sampler_process.SamplerProcesses`."""

    def lookup(self, spec: Mapping[str, object]) -> LookupContent:
        """Return the rows of a lookup. Blocks. May raise PenstockError."""
        ...


class NoLookupFiles:
    """`LookupFiles` where no files can be read."""

    def lookup(self, spec: Mapping[str, object]) -> LookupContent:
        """Refuse."""
        del spec
        raise Unavailable("files of lookups cannot be read here: ask the router of an installation")


class LookupService:
    """Declares and refreshes lookups. Any thread.

    Args:
        stored: The lookups in the metadata.
        files: Reads their files.
        clock: Time.
        access: Decides for the owners of lookups; None: nothing is decided, as in tests.
    """

    def __init__(
        self,
        stored: StoredLookups,
        files: LookupFiles,
        clock: Clock,
        access: AccessControl | None = None,
    ) -> None:
        self._stored = stored
        self._files = files
        self._clock = clock
        self._access = access
        self._outcomes = {name: Counter() for name in ("success", "failure")}

    def put(
        self, spec: LookupSpec, given: Mapping[str, object], entry: AuditRow, owner: str = ""
    ) -> LookupRow:
        """Read the rows of a spec, and store both.

        Args:
            spec: The spec.
            given: Its JSON form, without the entries of a map.
            entry: For the audit log.
            owner: Id of the principal for whom it is refreshed; empty: the installation.

        Raises:
            InvalidRequest: The rows cannot be read, or are not accepted.
            NotFound: A file does not exist.
            Conflict: Another lookup has a name that differs only in case.
            Unavailable: A file or the metadata cannot be read now, or there are too many lookups.
        """
        content = self._content(spec, given)
        due_ms = self._next_ms(spec)
        return self._stored.put(spec.name, given, content, due_ms, owner=owner, entry=entry)

    def refresh(
        self, name: str, has_rights: Callable[[LookupSpec], bool] = lambda _spec: False
    ) -> LookupRow:
        """Read the rows of a lookup again, and return its new state.

        Args:
            name: Its name.
            has_rights: Whether the principal that asks may apply the spec itself.

        Raises:
            NotFound: There is no such lookup.
            InvalidRequest: Its rows are a map, or cannot be read; they stay as they were.
            Forbidden: Neither its owner nor the principal that asks may read its input now.
            Conflict: Another refresh or another spec came meanwhile.
            Unavailable: A file or the metadata cannot be read now; the rows stay as they were.
        """
        found = self._stored.find(name)
        if found is None or found.name != name:
            raise no_lookup(name)
        if "map" in found.spec:
            raise InvalidRequest(
                f"the rows of {name} are the map in its spec: apply a spec with another map"
            )
        claim = self._stored.claim(self._clock.now_ms() + CLAIM_MS, name=name)
        if claim is None:
            raise no_lookup(name)
        error = self._refresh(claim, has_rights)
        if error is not None:
            raise error
        found = self._stored.find(name)
        if found is None:
            raise no_lookup(name)
        return found

    def delete(self, name: str, entry: AuditRow) -> None:
        """Delete a lookup.

        Raises:
            NotFound: There is no such lookup.
        """
        if not self._stored.delete(name, entry=entry):
            raise no_lookup(name)

    def refresh_due(self) -> bool:
        """Refresh one lookup that is due; return whether there was one.

        Raises:
            Unavailable: The metadata does not answer.
        """
        claim = self._stored.claim(self._clock.now_ms() + CLAIM_MS)
        if claim is None:
            return False
        error = self._refresh(claim)
        if error is not None:
            logger.warning("lookup %s keeps its rows: %s", claim.name, error)
        return True

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics. Raises as `StoredLookups.list`."""
        now_ms = self._clock.now_ms()
        for row in self._stored.list():
            labels = (("lookup", row.name),)
            age_s = max(0, now_ms - row.loaded_ms) / 1_000
            yield Sample("penstock_lookup_rows", "gauge", _ROWS, labels, float(row.rows))
            yield Sample("penstock_lookup_age_seconds", "gauge", _AGE, labels, age_s)
            failures = float(row.failures)
            yield Sample("penstock_lookup_failures", "gauge", _FAILING, labels, failures)
        for name, counter in self._outcomes.items():
            labels, total = (("outcome", name),), counter.value
            yield Sample("penstock_lookup_refreshes_total", "counter", _REFRESHES, labels, total)

    def _refresh(
        self, claim: LookupRow, has_rights: Callable[[LookupSpec], bool] = lambda _spec: False
    ) -> PenstockError | None:
        """Carry out a refresh, and store its outcome; return why it failed."""
        due_ms = NEVER_MS
        try:
            spec = checked_lookup(claim.spec)
            due_ms = self._next_ms(spec)
            if not has_rights(spec):
                self._check_owner(claim.owner, spec)
            content = self._content(spec, claim.spec)
            # From its end on: a slow source must not be read without a pause.
            due_ms = self._next_ms(spec)
            if not self._stored.refreshed(claim, content, due_ms):
                return Conflict(
                    f"the rows that were read for {claim.name} are not stored, because another"
                    " refresh or another spec came meanwhile: read its state"
                )
        except PenstockError as error:  # narrow: stored
            self._outcomes["failure"].add()
            reason = str(error)[:_REASON_CHARACTERS]
            self._stored.failed(claim, reason, due_ms)
            return error
        self._outcomes["success"].add()
        return None

    def _check_owner(self, owner_id: str, spec: LookupSpec) -> None:
        """Decide whether the owner of a lookup may still apply its spec.

        Raises:
            Forbidden: It may not.
        """
        if self._access is None or not owner_id:
            return
        owner = self._access.represented.sent_for(owner_id)
        problem = self._access.represented.problem(owner)
        for action, resource in required_by_lookup(spec):
            if problem:
                break
            try:
                self._access.require(owner, action, resource)
            except Forbidden:  # narrow: translates
                problem = f"it may not {action} {resource.shown}"
        if problem:
            raise Forbidden(
                f"the lookup is refreshed for {owner_id}, which applied its spec, but {problem}:"
                " apply the spec as a principal that has the rights that it needs ('penstock access"
                " check' explains the decision)"
            )

    def _content(self, spec: LookupSpec, given: Mapping[str, object]) -> LookupContent:
        if spec.map is not None:
            return written_rows(rows_of_map(spec))
        return self._files.lookup(given)

    def _next_ms(self, spec: LookupSpec) -> int:
        if spec.refresh_period is None:
            return NEVER_MS
        return self._clock.now_ms() + spec.refresh_period


def no_lookup(name: str) -> NotFound:
    """Return the error for a lookup that does not exist."""
    return NotFound(f"there is no lookup {name!r:.80}: penstock lookup list shows all")


class LookupRefresher:
    """Thread that refreshes what is due.

    Args:
        service: Refreshes.
        clock: Waits.
    """

    def __init__(self, service: LookupService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._changed = threading.Condition()
        self._thread = OwnedThread("lookups", self._run, on_death=OnDeath.RESTART)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a refresh that runs is awaited for a second, and then left."""
        self._thread.end(self._changed, 1.0)

    def _run(self) -> None:
        while not self._thread.is_end_expected:
            if self._refreshed():
                continue
            with self._changed:
                if not self._thread.is_end_expected:
                    self._clock.wait(self._changed, PAUSE_S)

    def _refreshed(self) -> bool:
        """Refresh one lookup; return whether another one may be due."""
        try:
            return self._service.refresh_due()
        except PenstockError as error:
            logger.debug("no lookup is refreshed now: %s", error)
            return False
