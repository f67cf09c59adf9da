"""What a task waits for, so that users can be told. Values alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from penstock.indexing.lockbox.model import Refused
    from penstock.indexing.overlord.runner.explaining import SlotReason

WaitKind: TypeAlias = Literal["locks", "line", "slots", "worker", "publish", "retry", "dependency"]


@dataclass(frozen=True, slots=True)
class Wait:
    """One thing that a task waits for.

    Attributes:
        kind: `locks`: that others let go of locks. `line`: another task that wants the same locks
            and came first. `slots`: a worker with a free slot. `worker`: that its worker says that
            it runs. `publish`: that an earlier sequence is published. `retry`: the next try of work
            that failed, as what it needs does not answer. `dependency`: a dependency that fails,
            as the running task reported to its worker.
        text: It as a sentence.
        refused: The locks in the way, of `locks`.
        slots: What each worker has against it, of `slots`.
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
