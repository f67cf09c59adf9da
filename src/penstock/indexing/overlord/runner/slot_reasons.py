"""Reasons why no worker can run a pending task, as users see them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.core.errors import counted
from penstock.indexing.overlord.runner.selection import (
    PendingTask,
    SelectionRules,
    WorkerCandidate,
    category_of,
    eligible,
    type_limit,
)

_NAMES_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class SlotReason:
    """The reason why a worker cannot run a task.

    Attributes:
        worker: The worker; empty if no worker is eligible.
        reason: Why the worker cannot run it.
        task_ids: The tasks that occupy its slots.
    """

    worker: str
    reason: str
    task_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SurveyedWorker:
    """A worker with its tasks; `exclusion_reason` is empty if it takes tasks now."""

    candidate: WorkerCandidate
    task_ids: tuple[str, ...]
    exclusion_reason: str = ""


def slot_reasons(
    task: PendingTask, workers: Sequence[SurveyedWorker], rules: SelectionRules
) -> list[SlotReason]:
    """Return why each worker cannot run a pending task; empty if one can."""
    if not workers:
        return [SlotReason("", "there is no worker: start one")]
    strategy = rules.strategy
    choices = eligible(task.kind, [seen.candidate for seen in workers], strategy)
    allowed = {worker.name for choice in choices for worker in choice}
    if not allowed:
        return [SlotReason("", _nowhere(task, rules))]
    return [
        SlotReason(seen.candidate.name, reason, seen.task_ids)
        for seen in workers
        if seen.candidate.name in allowed and (reason := _against(task, seen, rules))
    ]


def slots_text(reasons: Sequence[SlotReason]) -> str:
    """Return the distinct reasons as a sentence, with some of the workers of each."""
    workers: dict[str, list[str]] = {}
    for one in reasons:
        workers.setdefault(one.reason, []).append(one.worker)
    return "; ".join(f"{_names(names)}{reason}" for reason, names in workers.items())


def _names(workers: Sequence[str]) -> str:
    known = [name for name in workers if name]
    rest = len(known) - _NAMES_MAX
    names = ", ".join(known[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")
    return f"{names}: " if names else ""


def _nowhere(task: PendingTask, rules: SelectionRules) -> str:
    categories = rules.strategy.categories
    if categories is not None:
        category = category_of(task.kind, categories)
        return (
            f"there is no worker of category {category!r}, which the worker config requires for"
            f" {task.kind.type} of {task.kind.datasource}: start one, or change the worker config"
        )
    return (
        f"there is no worker on the hosts that the worker config assigns to {task.kind.datasource}:"
        " start one, or change the worker config"
    )


def _against(task: PendingTask, seen: SurveyedWorker, rules: SelectionRules) -> str:
    worker = seen.candidate
    if seen.exclusion_reason:
        return seen.exclusion_reason
    if worker.free <= 0:
        many = f"all of its {worker.capacity} slots are"
        slots = "its only slot is" if worker.capacity == 1 else many
        return f"{slots} taken: suspend a supervisor, or give the worker more (--worker-capacity)"
    limit = type_limit(worker, task.kind.type, rules)
    used = worker.used_by_type.get(task.kind.type, 0)
    if used >= limit:
        tasks = f"{counted(used, 'task')} of type {task.kind.type}"
        return f"it has {tasks}, as many as the worker config allows"
    if task.availability_group in worker.groups:
        return "it has a replica of this task"
    if worker.room <= 0:
        return "other tasks are being assigned to it"
    return ""
