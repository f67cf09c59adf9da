"""Use of quotas by principals in one process, and refusals.

Owns the counts of queries, tasks and connections that principals have at once, the token buckets of
publishers, the errors of refused requests, and how often refusals are recorded. Does not own the
values (`quotas`) nor who has which (`policy`).

Quotas hold for each process by itself: no process knows the use of a principal at another one.

Invariants: each count ends exactly once, by the end of a `with` block or by `leave`. The memory is
bounded: a count exists only while something is counted, buckets are dropped when they are full
again or are too many, and refusals are remembered for a minute.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

from penstock.core.access.principal import Principal
from penstock.core.access.quotas import (
    BURST_S,
    NO_QUOTAS,
    Quota,
    Quotas,
    TokenBucket,
    shown_value,
)
from penstock.core.errors import QuotaExceeded, TooLargeForQuota

if TYPE_CHECKING:
    from penstock.core.access.audit import AccessAudit
    from penstock.core.clock import Clock
    from penstock.core.metrics import MetricRegistry

DELAY_S_MAX: Final = 30
"""Longest delay of a publish over NSQ's protocol, in seconds; a longer one is refused.

Publishes that wait are in memory: at most what the quota allows in this time.
"""

PUBLISHERS_MAX: Final = 10_000
"""Number of principals whose buckets are kept. They take about 500 bytes each."""

_CHECKED_MAX: Final = 100
_RECORDED_MAX: Final = 1_000
_NANO: Final = 1_000_000_000
_SECONDS_OF: Final = {Quota.QUERIES: 1, Quota.TASKS: 10, Quota.CONNECTIONS: 10}
_REMEDY: Final = "or ask an administrator for a larger quota"
_CURRENT: Final = {
    Quota.QUERIES: ("runs", "queries", "wait until one ends"),
    Quota.TASKS: ("has", "tasks that have not ended", "wait until one ends"),
    Quota.CONNECTIONS: ("has", "connections to this process", "close one"),
}


class QuotaUse:
    """Use of quotas in one process. Any thread, except `publish_quota`.

    The mutexes of its parts guard a few statements: mail would cost more than a count.

    Args:
        clock: Time.
        audit: For refusals.
        registry: Metrics of the process.
        quotas_of: Returns the quotas of a principal.
    """

    def __init__(
        self,
        clock: Clock,
        audit: AccessAudit,
        registry: MetricRegistry,
        quotas_of: Callable[[Principal], Quotas],
    ) -> None:
        self.of: Final = quotas_of
        self.refusals: Final = QuotaRefusals(clock, audit, registry)
        self.queries: Final = HeldQuota(Quota.QUERIES, self.refusals, quotas_of)
        self.connections: Final = HeldQuota(Quota.CONNECTIONS, self.refusals, quotas_of)
        self._tasks = TaskQuota(self.refusals)
        self._clock = clock
        self._publish_quotas: dict[tuple[str, int | None, int | None], PublishQuota] = {}

    def publish_quota(self, principal: Principal) -> PublishQuota | None:
        """Return the quota of a principal's publishes; None: no limit. On one event loop only."""
        quotas = self.of(principal)
        if quotas is NO_QUOTAS:
            return None
        messages, size = quotas.messages_per_second, quotas.bytes_per_second
        if messages is None and size is None:
            return None
        key = (principal.id, messages, size)
        found = self._publish_quotas.pop(key, None)
        if found is None:
            self._make_room()
            found = PublishQuota(principal, quotas, self._clock, self.refusals)
        self._publish_quotas[key] = found  # at the end, where it is dropped last
        return found

    @contextmanager
    def submission(
        self,
        principal: Principal,
        task: str,
        active: Callable[[str], Collection[str]],
        origin: str = "",
    ) -> Iterator[None]:
        """Count a task that is submitted, for a block.

        Args:
            principal: Its submitter.
            task: Its id.
            active: Returns the tasks of a principal that have not ended, by its id.
            origin: Address of the client, for the audit.

        Raises:
            QuotaExceeded: The principal has as many tasks as it may.
        """
        most = self.of(principal).tasks
        if most is None:
            yield
            return
        with self._tasks.held(principal, task, active, most, origin):
            yield

    def _make_room(self) -> None:
        if len(self._publish_quotas) < PUBLISHERS_MAX:
            return
        # The first ones are those that were not used for the longest time.
        oldest = list(islice(self._publish_quotas, _CHECKED_MAX))
        idle = [key for key in oldest if self._publish_quotas[key].is_idle()]
        for key in idle or oldest[:1]:
            del self._publish_quotas[key]


class QuotaRefusals:
    """Counts refusals; records the first one of each principal, quota and minute. Any thread.

    Args:
        clock: For the minute.
        audit: Writes the records.
        registry: Metrics of the process.
    """

    def __init__(self, clock: Clock, audit: AccessAudit, registry: MetricRegistry) -> None:
        self._clock = clock
        self._audit = audit
        self._registry = registry
        self._mutex = threading.Lock()
        self._minute = -1
        self._recorded: set[tuple[str, str]] = set()
        self._delays = registry.counter(
            "penstock_access_quota_delays_total", "Publishes that waited because of a quota"
        )

    def add(self, principal: Principal, quota: Quota, reason: str, origin: str = "") -> None:
        """Count a refusal, and record it if it is the first one of its minute."""
        self._registry.counter(
            "penstock_access_quota_refusals_total",
            "Requests refused because of a quota",
            quota=str(quota),
        ).add()
        self.record(principal, str(quota), reason, origin)

    def record(self, principal: Principal, kind: str, reason: str, origin: str = "") -> None:
        """Record a refusal of a kind, if it is the first one of its minute."""
        key = (principal.id, kind)
        minute = self._clock.now_ms() // 60_000
        with self._mutex:
            if minute != self._minute:
                self._minute = minute
                self._recorded.clear()
            if key in self._recorded or len(self._recorded) >= _RECORDED_MAX:
                return
            self._recorded.add(key)
        self._audit.over_quota(principal, kind, reason, origin)

    def add_delay(self) -> None:
        """Count a publish that waits."""
        self._delays.add()

    def exceeded(
        self, principal: Principal, quota: Quota, most: int, origin: str = ""
    ) -> QuotaExceeded:
        """Return the error for a principal that has as many of something as it may; count it."""
        verb, things, remedy = _CURRENT[quota]
        reason = (
            f"{principal.id} {verb} as many {things} as its quota {quota} allows ({most:,}):"
            f" {remedy}, {_REMEDY}"
        )
        self.add(principal, quota, reason, origin)
        return QuotaExceeded(reason, retry_after_s=_SECONDS_OF[quota])


class HeldQuota:
    """Number of things that principals have at once, with a limit. Any thread.

    Everything is counted, also without a limit, so that a new limit counts what exists already.

    Args:
        quota: The quota.
        refusals: Counts refusals.
        quotas_of: Returns the quotas of a principal.
    """

    def __init__(
        self, quota: Quota, refusals: QuotaRefusals, quotas_of: Callable[[Principal], Quotas]
    ) -> None:
        self._quota = quota
        self._refusals = refusals
        self._quotas_of = quotas_of
        self._mutex = threading.Lock()
        self._counts: dict[str, int] = {}

    def enter(self, principal: Principal, origin: str = "") -> None:
        """Count one more; `leave` ends it.

        Raises:
            QuotaExceeded: The principal has as many as it may; nothing was counted.
        """
        most = self._quotas_of(principal).of(self._quota)
        with self._mutex:
            count = self._counts.get(principal.id, 0)
            if most is None or count < most:
                self._counts[principal.id] = count + 1
                return
        raise self._refusals.exceeded(principal, self._quota, most, origin)

    def leave(self, principal: Principal) -> None:
        """Count one less."""
        with self._mutex:
            count = self._counts[principal.id] - 1
            if count:
                self._counts[principal.id] = count
            else:
                del self._counts[principal.id]

    @contextmanager
    def held(self, principal: Principal, origin: str = "") -> Iterator[None]:
        """Count one for a block. Raises as `enter`."""
        self.enter(principal, origin)
        try:
            yield
        finally:
            self.leave(principal)

    def count(self, principal_id: str) -> int:
        """Return how many a principal has."""
        return self._counts.get(principal_id, 0)


class TaskQuota:
    """Tasks that principals submit, until the overlord counts them. Any thread.

    Args:
        refusals: Counts refusals.
    """

    def __init__(self, refusals: QuotaRefusals) -> None:
        self._refusals = refusals
        self._mutex = threading.Lock()
        # For each principal, the number of requests by the id of their task.
        self._submitted: dict[str, dict[str, int]] = {}

    @contextmanager
    def held(
        self,
        principal: Principal,
        task: str,
        active: Callable[[str], Collection[str]],
        most: int,
        origin: str,
    ) -> Iterator[None]:
        """Count a task until the overlord knows it. As `QuotaUse.submission`."""
        with self._mutex:
            own = self._submitted.get(principal.id, {})
            # A task with the id of another one is refused as such, and is not one more.
            is_allowed = len({*own, *active(principal.id)} - {task}) < most
            if is_allowed:
                self._submitted[principal.id] = {**own, task: own.get(task, 0) + 1}
        if not is_allowed:
            raise self._refusals.exceeded(principal, Quota.TASKS, most, origin)
        try:
            yield
        finally:
            self._end(principal.id, task)

    def _end(self, principal_id: str, task: str) -> None:
        with self._mutex:
            own = self._submitted[principal_id]
            own[task] -= 1
            if not own[task]:
                del own[task]
            if not own:
                del self._submitted[principal_id]


class PublishQuota:
    """Rates of one principal's publishes. Used on the broker's event loop only.

    Args:
        principal: The principal.
        quotas: Its quotas, with at least one rate.
        clock: Time.
        refusals: Counts refusals and delays.
    """

    __slots__ = ("_buckets", "_clock", "_principal", "_refusals")

    def __init__(
        self, principal: Principal, quotas: Quotas, clock: Clock, refusals: QuotaRefusals
    ) -> None:
        self._principal = principal
        self._clock = clock
        self._refusals = refusals
        now_ns = self._now_ns()
        rates = (Quota.MESSAGES_PER_SECOND, Quota.BYTES_PER_SECOND)
        self._buckets = tuple(
            (quota, None if (rate := quotas.of(quota)) is None else TokenBucket(rate, now_ns))
            for quota in rates
        )

    def take(self, messages: int, size_bytes: int, origin: str = "") -> None:
        """Return if a publish is allowed now; its messages and bytes are counted then.

        Raises:
            QuotaExceeded: It is allowed later.
            TooLargeForQuota: It is larger than the largest publish that is ever allowed.
        """
        wait_ns, quota = self._wait(messages, size_bytes, origin, BURST_S)
        if wait_ns:
            wait_s = -(-wait_ns // _NANO)
            reason = (
                f"{self._principal.id} publishes more than its quota {quota} allows: publish again"
                f" after {wait_s} s, {_REMEDY}"
            )
            self._refusals.add(self._principal, quota, reason, origin)
            raise QuotaExceeded(reason, retry_after_s=wait_s)
        self._take(messages, size_bytes)

    def is_taken_now(self, messages: int, size_bytes: int) -> bool:
        """Count a publish, if it is allowed now; return whether it is."""
        now_ns = self._now_ns()
        amounts = (messages, size_bytes)
        for (_, bucket), amount in zip(self._buckets, amounts, strict=True):
            if bucket is not None and bucket.wait_ns(amount, now_ns):
                return False
        self._take(messages, size_bytes)
        return True

    def delay_s(self, messages: int, size_bytes: int, origin: str = "") -> float:
        """Count a publish, and return after how many seconds it is allowed.

        Raises:
            QuotaExceeded: It would have to wait for longer than `DELAY_S_MAX`.
            TooLargeForQuota: It would even if nothing was published before.
        """
        wait_ns, quota = self._wait(messages, size_bytes, origin, BURST_S + DELAY_S_MAX)
        if wait_ns > DELAY_S_MAX * _NANO:
            reason = (
                f"{self._principal.id} publishes more than its quota {quota} allows, and other"
                f" publishes wait already: publish again after {-(-wait_ns // _NANO)} s, {_REMEDY}"
            )
            self._refusals.add(self._principal, quota, reason, origin)
            raise QuotaExceeded(reason, retry_after_s=-(-wait_ns // _NANO))
        self._take(messages, size_bytes)
        if wait_ns:
            self._refusals.add_delay()
        return wait_ns / _NANO

    def is_idle(self) -> bool:
        """Return whether its buckets are full, so that new ones would be the same."""
        now_ns = self._now_ns()
        return all(bucket is None or bucket.is_full(now_ns) for _, bucket in self._buckets)

    def _wait(self, messages: int, size_bytes: int, origin: str, burst_s: int) -> tuple[int, Quota]:
        """Return the longest wait of both buckets in nanoseconds, and which one has it."""
        now_ns = self._now_ns()
        longest = (0, Quota.MESSAGES_PER_SECOND)
        for (quota, bucket), amount in zip(self._buckets, (messages, size_bytes), strict=True):
            if bucket is None:
                continue
            if amount > bucket.rate * burst_s:
                raise self._too_large(quota, bucket.rate, amount, burst_s, origin)
            longest = max(longest, (bucket.wait_ns(amount, now_ns), quota))
        return longest

    def _take(self, messages: int, size_bytes: int) -> None:
        for (_, bucket), amount in zip(self._buckets, (messages, size_bytes), strict=True):
            if bucket is not None:
                bucket.take(amount)

    def _too_large(
        self, quota: Quota, rate: int, amount: int, burst_s: int, origin: str
    ) -> TooLargeForQuota:
        unit = " messages" if quota is Quota.MESSAGES_PER_SECOND else ""
        reason = (
            f"the publish has {shown_value(quota, amount)}{unit}, and the quota {quota} of"
            f" {self._principal.id} allows {shown_value(quota, rate * burst_s)} at once: send"
            f" smaller batches, {_REMEDY}"
        )
        self._refusals.add(self._principal, quota, reason, origin)
        return TooLargeForQuota(reason)

    def _now_ns(self) -> int:
        return round(self._clock.monotonic_s() * _NANO)
