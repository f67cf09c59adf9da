"""Calls that agree with a task on its end, or on the end of its open sequence.

Blocking calls to a peon, for a lane. Each may be repeated after a lost answer: it returns what was
agreed the first time.
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
    """Position of a paused task.

    Attributes:
        current: Offsets up to which it has read.
        end: Its end, if already agreed; then it is not paused.
        next_start: Start of the sequence after the one to close, if that is already closed.
    """

    current: Offsets
    end: Offsets | None = None
    next_start: Offsets | None = None


def stand(peons: TaskClient, task_id: str, closing: int | None = None) -> Stand:
    """Pause a task and return its position.

    Args:
        peons: Client of the tasks.
        task_id: The task.
        closing: The number of the sequence to close; None to end the task.

    Raises:
        Unavailable: The peon does not answer.
        Conflict: The peon reports that an end is agreed, but not which one.
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
    """Send a task the checkpoints that its replicas have agreed, then the end.

    Raises:
        Unavailable: The peon does not answer.
        InvalidRequest: The task has read past them, or agreed on something else.
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
        raise InvalidRequest(f"the end of its sequence {newest} is no longer known")
    for number in missing:
        peons.pause(task_id)
        peons.set_end_offsets(task_id, checkpoints[number], finish=False)
    if end is not None:
        peons.pause(task_id)
        peons.set_end_offsets(task_id, end, finish=True)
