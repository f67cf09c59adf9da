"""Waits of a task, as shown to users. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from penstock.indexing.lockbox.model import Refused
    from penstock.indexing.overlord.runner.explaining import SlotReason

WaitKind: TypeAlias = Literal["locks", "line", "slots", "worker", "publish", "retry", "dependency"]


@dataclass(frozen=True, slots=True)
class Wait:
    """One reason why a task waits.

    Attributes:
        kind: `locks`: for other tasks to release locks. `line`: for an earlier task that wants the
            same locks. `slots`: for a worker with a free slot. `worker`: for its worker to report
            that it runs. `publish`: for an earlier sequence to be published. `retry`: for the next
            try of failed work, because a dependency does not answer. `dependency`: for a failing
            dependency, as the running task reported to its worker.
        text: Description for users.
        refused: The conflicting locks, for `locks`.
        slots: The reason of each worker, for `slots`.
    """

    kind: WaitKind
    text: str
    refused: tuple[Refused, ...] = ()
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
