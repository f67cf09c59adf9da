"""Reasons why an active task waits, as users see them.

`WaitReason` is one thing that a task waits for: locks, an earlier task in line, a slot, its worker,
a publish, a retry or a dependency. `reasons_of` derives the reasons from `WaitFacts`, and
`retry_reasons` from the report of a running task. Both are pure: the task queue and the task
service collect the facts, and the HTTP route reads the report. The reasons why no worker can run a
task are in `runner.slot_reasons`. `RefusalTracker` records for how long the requests of running
tasks have been refused; any thread may use it, and its mutex is held for a few statements. A
refused task repeats its request after a while; a pause without a request ends its wait.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.core.errors import counted
from penstock.indexing.lockbox.task_locks import LockRefused
from penstock.indexing.overlord.runner.slot_reasons import SlotReason, slots_text
from penstock.indexing.overlord.task_index import RunnerState
from penstock.indexing.task_spec import StreamTaskSpec

if TYPE_CHECKING:
    from penstock.core.clock import Clock
    from penstock.indexing.overlord.task_index import ActiveTask


WaitKind: TypeAlias = Literal["locks", "line", "slots", "worker", "publish", "retry", "dependency"]


@dataclass(frozen=True, slots=True)
class WaitReason:
    """One reason why a task waits.

    Attributes:
        kind: `locks`: for other tasks to release locks. `line`: for an earlier task that requests
            the same locks. `slots`: for a worker with a free slot. `worker`: for its worker to
            report that it runs. `publish`: for an earlier sequence to be published. `retry`: for
            the next try of failed work, because a dependency does not answer. `dependency`: for a
            failing dependency, as the running task reported to its worker.
        text: Description for users.
        refused: The conflicting locks, for `locks`.
        slots: The reason of each worker, for `slots`.
    """

    kind: WaitKind
    text: str
    refused: tuple[LockRefused, ...] = ()
    slots: tuple[SlotReason, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the JSON form."""
        return {
            "kind": self.kind,
            "text": self.text,
            "locks": [
                {
                    "type": str(one.type),
                    "interval": str(one.interval),
                    "taskIds": list(one.task_ids),
                    "groupId": one.group,
                    "priority": one.priority,
                    "sinceMs": one.since_ms,
                }
                for refused in self.refused
                for one in refused.refusals
            ],
            "workers": [
                {"worker": one.worker, "reason": one.reason, "taskIds": list(one.task_ids)}
                for one in self.slots
            ],
        }


@dataclass(frozen=True, slots=True)
class BlockedTask:
    """A task that waits for locks.

    Attributes:
        active: The task.
        refused: Why it has no locks, or the task at the head of its line, which needs the same
            ones; empty: the lockbox has not answered yet.
    """

    active: ActiveTask
    refused: Sequence[LockRefused]


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """The state from which the reasons of an active task follow.

    Attributes:
        active: The task.
        line: The task at the head of its line, and how many tasks are before it.
        refused: Why the head of the line has no locks.
        slots: Why each worker cannot run it.
        shortage: How supervisors leave too few slots for other tasks; empty if they do not.
        publish: Why the running task last waited for a publish; empty if it does not wait.
    """

    active: ActiveTask
    line: tuple[str, int]
    refused: Sequence[LockRefused] = ()
    slots: Sequence[SlotReason] = ()
    shortage: str = ""
    publish: str = ""


def reasons_of(facts: WaitFacts) -> list[WaitReason]:
    """Return the reasons why a task waits; empty if it runs.

    A running task may still wait for a retry, which its report contains: see `retry_reasons`.
    """
    active = facts.active
    found: list[WaitReason] = []
    if active.state is RunnerState.WAITING:
        found = _lock_reasons(facts)
    elif active.state is not RunnerState.RUNNING:
        found = [_worker_reason(facts)]
    elif facts.publish:
        found = [WaitReason("publish", facts.publish)]
    return [*found, *(WaitReason("dependency", str(wait)) for wait in active.waits)]


def _lock_reasons(facts: WaitFacts) -> list[WaitReason]:
    head, before = facts.line
    found = [WaitReason("locks", one.text(), refused=(one,)) for one in facts.refused]
    if before:
        tasks = counted(before, "earlier task that requests", "earlier tasks that request")
        found.append(WaitReason("line", f"{tasks} the same locks; {head} is next"))
    return found or [WaitReason("locks", "the overlord's decision on its locks")]


def _worker_reason(facts: WaitFacts) -> WaitReason:
    active = facts.active
    if active.worker is not None:
        return WaitReason("worker", f"the worker {active.worker} to report that it runs")
    text = slots_text(facts.slots) or "one is free, and the task is about to be assigned to it"
    # Tasks of supervisors cause the shortage, so their remedy is another one.
    if facts.shortage and not isinstance(active.task, StreamTaskSpec):
        text = f"{text}; {facts.shortage}"
    return WaitReason("slots", f"a worker with a free slot: {text}", slots=tuple(facts.slots))


def retry_reasons(report: object) -> list[WaitReason]:
    """Return the retry that a running task waits for, from its report; empty if nothing failed.

    Args:
        report: The report's JSON, possibly of another release; missing fields count as no retry.
    """
    payload = report
    for name in ("ingestionStatsAndErrors", "payload"):
        payload = payload.get(name) if isinstance(payload, Mapping) else None
    if not isinstance(payload, Mapping) or not isinstance(payload.get("nextTry"), str):
        return []
    most = payload.get("failedTriesMax")
    end = f"; with {most} it fails" if isinstance(most, int) else ", and it retries without a limit"
    return [
        WaitReason(
            "retry",
            f"its next attempt of {payload.get('failedWork')}, at {payload['nextTry']}:"
            f" {payload.get('failedTries')} failed{end}; last reason: {payload.get('lastFailure')}",
        )
    ]


_PAUSE_MAX_S: Final = 60.0
"""Upper bound of the time between two retries of a task."""

_SWEEP_AT: Final = 1_000
"""Number of waits at which those that ended are removed."""


@dataclass(slots=True)
class _Wait:
    """Times of the first and the last refusal of a task."""

    first_s: float
    last_s: float


class RefusalTracker:
    """The waits of tasks that are being refused.

    Args:
        clock: Measures the waits.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = threading.Lock()
        self._waits: dict[str, _Wait] = {}
        self._sweep_at = _SWEEP_AT

    def refused(self, task_id: str) -> int:
        """Record a refusal; return for how long the task has been refused, in ms."""
        now_s = self._clock.monotonic_s()
        with self._mutex:
            if len(self._waits) >= self._sweep_at:
                self._sweep(now_s)
                # Raise the threshold, so that many active waits are not scanned each time.
                self._sweep_at = max(_SWEEP_AT, 2 * len(self._waits))
            wait = self._waits.get(task_id)
            if wait is None or now_s - wait.last_s > _PAUSE_MAX_S:
                wait = self._waits[task_id] = _Wait(now_s, now_s)
            wait.last_s = now_s
            return int((now_s - wait.first_s) * 1000)

    def served(self, task_id: str) -> None:
        """Delete the wait of a task whose request was granted, or failed permanently."""
        with self._mutex:
            self._waits.pop(task_id, None)

    def _sweep(self, now_s: float) -> None:
        gone = [i for i, wait in self._waits.items() if now_s - wait.last_s > _PAUSE_MAX_S]
        for task_id in gone:
            del self._waits[task_id]
