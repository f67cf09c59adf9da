"""Reasons why an active task waits, as users see them.

`WaitReason` is one thing that a task waits for: locks, an earlier task in line, a slot, its worker,
a publish, a retry or a dependency. `reasons_of` derives the reasons of a task from its progress,
the answers of the lockboxes, its position in the wait queue and the state of the workers, and is
pure; why no worker can run it is in `runner.slot_reasons`. `RefusalTracker` records for how long
the requests of running tasks have been refused; any thread may use it, and its mutex is held for a
few statements. A refused task repeats its request after a while; a pause without a request ends its
wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from penstock.indexing.lockbox.model import LockRefused
from penstock.indexing.overlord.runner.slot_reasons import SlotReason, slots_text
from penstock.indexing.overlord.task_index import RunnerState

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


def reasons_of(
    active: ActiveTask,
    *,
    line: tuple[str, int],
    refused: Sequence[LockRefused],
    slots: Sequence[SlotReason],
) -> list[WaitReason]:
    """Return the reasons why a task waits; empty if it runs.

    Args:
        active: The task.
        line: The task at the head of its line, and how many tasks are before it.
        refused: Why the head of the line has no locks.
        slots: Why each worker cannot run it.
    """
    if active.state is RunnerState.WAITING:
        head, before = line
        found = [WaitReason("locks", one.text(), refused=(one,)) for one in refused]
        if before:
            text = f"{before} earlier tasks that request the same locks; {head} is next"
            found.append(WaitReason("line", text))
        return found or [WaitReason("locks", "the overlord's decision on its locks")]
    if active.state is RunnerState.RUNNING:
        return []
    if active.worker is not None:
        return [WaitReason("worker", f"the worker {active.worker} to report that it runs")]
    text = slots_text(slots) or "one is free, and the task is about to be assigned to it"
    return [WaitReason("slots", f"a worker with a free slot: {text}", slots=tuple(slots))]


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
