"""Restores the stored locks in a new term, except those that conflict.

Decides what happens to each stored lock and to its task. Invariant: after `changes` is applied, the
store matches the lockboxes. A lock that cannot be restored fails its task group, never the start of
the term.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from penstock.indexing.lockbox.lockbox import AddTask, Lockbox
from penstock.indexing.lockbox.task_locks import HeldLock, LockChanges

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.indexing.lockbox.task_locks import LockTask

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RestoredLocks:
    """The lockboxes at the start of a term.

    Attributes:
        boxes: Lockboxes by datasource.
        failed: Tasks that must fail because their group lost a lock.
        changes: Rows to delete.
    """

    boxes: dict[str, Lockbox]
    failed: list[str]
    changes: LockChanges


def restore_locks(
    active: Iterable[LockTask],
    stored: Iterable[HeldLock],
    version_floors: Mapping[str, str] = MappingProxyType({}),
) -> RestoredLocks:
    """Take over stored locks of active tasks, oldest versions first.

    Args:
        active: All active tasks.
        stored: All stored locks.
        version_floors: Exclusive lower bounds of the versions of new locks, by datasource.
    """
    tasks = {task.id: task for task in active}
    boxes: dict[str, Lockbox] = {}
    for task in tasks.values():
        floor = version_floors.get(task.datasource, "")
        box = boxes.setdefault(task.datasource, Lockbox(task.datasource, version_floor=floor))
        box.handle([AddTask(task)], 0)
        box.accept()
    forgotten: list[HeldLock] = []
    failed_groups: set[str] = set()
    for held in sorted(stored, key=lambda row: (row.lock.version, row.task_id)):
        owner = tasks.get(held.task_id)
        if owner is None or held.lock.interval.is_empty:
            forgotten.append(held)
            continue
        problem = boxes[owner.datasource].adopt(owner, held.lock)
        if problem:
            _logger.warning(
                "group %s of task %s fails: its stored %s cannot be taken over: %s",
                owner.group,
                owner.id,
                held.lock,
                problem,
            )
            forgotten.append(held)
            failed_groups.add(owner.group)
    failed = [task for task in tasks.values() if task.group in failed_groups]
    for task in failed:
        boxes[task.datasource].accept()
        boxes[task.datasource].retire(task.id)
    for box in boxes.values():
        box.accept()
        forgotten.extend(box.handle([], 0).changes.removed)
        box.accept()
    return RestoredLocks(
        boxes, sorted(task.id for task in failed), LockChanges(removed=tuple(forgotten))
    )
