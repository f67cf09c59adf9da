"""What a supervisor and its tasks agree on: where the tasks, or their open sequences, end.

Blocking calls to a peon, for a lane. Each may be repeated after a lost answer: it finds what was
agreed then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.errors import Conflict, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.indexing.ports import TaskClient
    from penstock.indexing.sequences import Offsets


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a task stands while it is paused.

    Attributes:
        current: Up to where it has read.
        end: Its end, if that is agreed already; it is not paused then.
        next_start: Where the sequence after the one that is to be closed begins, if it is closed.
    """

    current: Offsets
    end: Offsets | None = None
    next_start: Offsets | None = None


def stand(peons: TaskClient, task_id: str, closing: int | None = None) -> Stand:
    """Pause a task and tell where it stands.

    Args:
        peons: The tasks.
        task_id: The task.
        closing: The number of the sequence that is to be closed; None to end the task.

    Raises:
        Unavailable: The peon does not answer.
        Conflict: It says that its end is agreed, and does not say which.
    """
    try:
        current = peons.pause(task_id)
    except Conflict:
        known = peons.report(task_id).end
        if known is None:
            raise
        return Stand(known, end=known)
    if closing is None:
        return Stand(current)
    return Stand(current, next_start=peons.report(task_id).checkpoints.get(closing + 1))


def catch_up(
    peons: TaskClient, task_id: str, checkpoints: Mapping[int, Offsets], end: Offsets | None
) -> None:
    """Tell a task what its replicas have agreed meanwhile: checkpoints, then the end.

    Raises:
        Unavailable: The peon does not answer.
        InvalidRequest: It has read on past that, or agreed on something else.
    """
    report = peons.report(task_id)
    for number, start in report.checkpoints.items():
        if number in checkpoints and dict(checkpoints[number]) != dict(start):
            raise InvalidRequest(
                f"its sequence {number} begins at {dict(start)}, that of its replicas at"
                f" {dict(checkpoints[number])}"
            )
    if report.end is not None:
        return
    newest = max(report.checkpoints, default=-1)
    missing = sorted(number for number in checkpoints if number > newest)
    if missing and missing[0] != newest + 1:
        raise InvalidRequest(f"nobody knows any more where its sequence {newest} ends")
    for number in missing:
        peons.pause(task_id)
        peons.set_end_offsets(task_id, checkpoints[number], finish=False)
    if end is not None:
        peons.pause(task_id)
        peons.set_end_offsets(task_id, end, finish=True)
