"""What a supervisor and a task agree on: where the task, or its open sequence, ends.

Blocking calls to the peon, for a lane. Each may be repeated after a lost answer: it finds what was
agreed then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.errors import Conflict

if TYPE_CHECKING:
    from penstock.indexing.ports import TaskClient
    from penstock.indexing.sequences import Offsets


def finish(peons: TaskClient, task_id: str) -> Offsets:
    """Pause a task and have it end where it stands; return these offsets.

    Raises:
        Unavailable: The peon does not answer.
        InvalidRequest: The pause was over before the end arrived.
    """
    try:
        end = peons.pause(task_id)
    except Conflict:
        known = peons.report(task_id).end
        if known is None:
            raise
        return known
    peons.set_end_offsets(task_id, end, finish=True)
    return end


def checkpoint(peons: TaskClient, task_id: str, start: Offsets) -> Offsets | None:
    """Close the task's open sequence if it is still the one that began at `start`.

    Raises:
        Unavailable: The peon does not answer.
        InvalidRequest: The pause was over before the end arrived.
    """
    report = peons.report(task_id)
    newest = max(report.checkpoints, default=None)
    if newest is None or dict(report.checkpoints[newest]) != dict(start) or report.end is not None:
        return None
    end = peons.pause(task_id)
    peons.set_end_offsets(task_id, end, finish=False)
    return end
