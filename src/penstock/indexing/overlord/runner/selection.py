"""Assignment of pending tasks to workers: a pure function of tasks, workers and config.

One call places a batch of tasks. Tasks of one kind (type, datasource, supervisor) may go to the
same workers. Once a kind finds no free worker, its other tasks are skipped, so the cost of a call
depends on the placed tasks, not on the pending ones. Invariants: no worker gets more than its slots
and limits allow; tasks of one availability group never share a worker; of tasks that may go to the
same workers the one with the higher priority goes first, then the older.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.indexing.overlord.runner.worker_config import (
    AffinityConfig,
    SelectStrategy,
    WorkerCategorySpec,
)


class Kind(NamedTuple):
    """Properties of a task that determine which workers may run it."""

    type: str
    datasource: str
    supervisor_id: str = ""


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task that waits for a worker; `number` gives the order of arrival."""

    id: str
    kind: Kind
    priority: int
    number: int
    availability_group: str

    @property
    def order(self) -> tuple[int, int]:
        """Sort key: the smallest is handed over first."""
        return (-self.priority, self.number)


@dataclass(slots=True)
class WorkerCandidate:
    """A worker that takes tasks, with its load; placing a batch updates the load.

    Attributes:
        name: Its name.
        host: Its host, with or without port, as in an affinity.
        capacity: Number of its slots.
        used: Number of occupied slots.
        category: Its category.
        groups: Availability groups of its tasks.
        used_by_type: Number of occupied slots by type of task.
        room: Maximum number of tasks that may be handed to it now.
    """

    name: str
    host: str
    capacity: int
    used: int
    category: str
    groups: set[str] = field(default_factory=set)
    used_by_type: dict[str, int] = field(default_factory=dict)
    room: int = 1

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self.capacity - self.used

    def take(self, task: PendingTask) -> None:
        """Add a task to the load."""
        self.used += 1
        self.room -= 1
        self.groups.add(task.availability_group)
        kind = task.kind.type
        self.used_by_type[kind] = self.used_by_type.get(kind, 0) + 1


class PendingTasks:
    """Tasks that wait for a worker, in the order of assignment."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, dict[int, dict[str, PendingTask]]] = {}
        self._tasks: dict[str, PendingTask] = {}
        # Kinds and priorities whose tasks must be sorted before they are read: workers may return
        # many tasks at once.
        self._unsorted: set[tuple[Kind, int]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._tasks

    def add(self, task: PendingTask) -> None:
        """Add a task; a task that is already present keeps its position."""
        if self._tasks.setdefault(task.id, task) is not task:
            return
        waiting = self._kinds.setdefault(task.kind, {}).setdefault(task.priority, {})
        newest = next(reversed(waiting.values()), task)
        waiting[task.id] = task
        if newest.number > task.number:  # A worker returned it: it keeps its position.
            self._unsorted.add((task.kind, task.priority))

    def remove(self, task_id: str) -> None:
        """Remove a task; unknown ids are ignored."""
        task = self._tasks.pop(task_id, None)
        if task is None:
            return
        priorities = self._kinds[task.kind]
        del priorities[task.priority][task.id]
        if not priorities[task.priority]:
            del priorities[task.priority]
            self._unsorted.discard((task.kind, task.priority))
        if not priorities:
            del self._kinds[task.kind]

    def kinds(self) -> list[Kind]:
        """Return the kinds of the waiting tasks."""
        return list(self._kinds)

    def of_kind(self, kind: Kind) -> Iterator[PendingTask]:
        """Yield the tasks of a kind in order; do not add or remove tasks meanwhile."""
        priorities = self._kinds.get(kind, {})
        for priority in sorted(priorities, reverse=True):
            if (kind, priority) in self._unsorted:
                self._unsorted.remove((kind, priority))
                tasks = priorities[priority].values()
                priorities[priority] = {t.id: t for t in sorted(tasks, key=lambda t: t.number)}
            yield from priorities[priority].values()


class TaskPlacement(NamedTuple):
    """A task and its assigned worker."""

    task: PendingTask
    worker: str


@dataclass(frozen=True, slots=True)
class SelectionRules:
    """Rules for placing tasks.

    Attributes:
        strategy: The strategy of the dynamic worker config.
        parallel_slot_ratio: Share of a worker's slots that `index_parallel` tasks may take.
    """

    strategy: SelectStrategy = field(default_factory=SelectStrategy)
    parallel_slot_ratio: float = 1.0


def place(
    pending: PendingTasks,
    workers: Sequence[WorkerCandidate],
    rules: SelectionRules,
    *,
    tasks_max: int = 1_000,
) -> list[TaskPlacement]:
    """Assign pending tasks to workers, most urgent first; updates the load of `workers`.

    Removes nothing from `pending`. Places at most `tasks_max` tasks.
    """
    room = sum(min(worker.free, worker.room) for worker in workers if worker.free > 0)
    if room <= 0:
        return []
    heads: list[tuple[tuple[int, int], Kind, PendingTask, Iterator[PendingTask]]] = []

    def advance(kind: Kind, tasks: Iterator[PendingTask]) -> None:
        head = next(tasks, None)
        if head is not None:
            heapq.heappush(heads, (head.order, kind, head, tasks))

    for kind in pending.kinds():
        advance(kind, pending.of_kind(kind))
    # Eligible workers, preferred ones first. Kinds share them; otherwise each worker that takes
    # a task would be moved once for each datasource.
    choices: dict[Hashable, list[_Choice]] = {}
    placed: list[TaskPlacement] = []
    while heads and room > 0 and len(placed) < tasks_max:
        _order, kind, task, tasks = heapq.heappop(heads)
        key = _place_of(kind, rules.strategy)
        if key not in choices:
            tiers = eligible(kind, workers, rules.strategy)
            choices[key] = [_Choice(kind.type, tier, rules) for tier in tiers]
        best = next((b for choice in choices[key] if (b := choice.best(task)) is not None), None)
        if best is not None:
            best.take(task)
            room -= 1
            placed.append(TaskPlacement(task, best.name))
            for choice in itertools.chain.from_iterable(choices.values()):
                choice.moved(best)
        elif not any(choices[key]):
            continue  # No worker is free for the kind: skip its other tasks.
        advance(kind, tasks)
    return placed


def eligible(
    kind: Kind, workers: Sequence[WorkerCandidate], strategy: SelectStrategy
) -> list[list[WorkerCandidate]]:
    """Return the workers that tasks of a kind may go to, in tiers, preferred ones first."""
    if strategy.affinity is not None:
        return _by_affinity(kind, workers, strategy.affinity)
    if strategy.categories is not None:
        return _by_category(kind, workers, strategy.categories)
    return [list(workers)]


def _place_of(kind: Kind, strategy: SelectStrategy) -> Hashable:
    """Return a key that is equal for kinds that may go to the same workers."""
    if strategy.affinity is not None:
        named = kind.datasource in strategy.affinity.affinity
        return kind.type, kind.datasource if named else None
    if strategy.categories is not None:
        return kind.type, category_of(kind, strategy.categories)
    return kind.type, None


def category_of(kind: Kind, categories: WorkerCategorySpec) -> str | None:
    """Return the worker category of a kind of task; None: any worker."""
    config = categories.category_map.get(kind.type)
    if config is None:
        return None
    return config.supervisor_id_category_affinity.get(
        kind.supervisor_id,
        config.category_affinity.get(kind.datasource, config.default_category),
    )


def _by_affinity(
    kind: Kind, workers: Sequence[WorkerCandidate], config: AffinityConfig
) -> list[list[WorkerCandidate]]:
    own = set(config.affinity.get(kind.datasource, ()))
    somebodys = {host for hosts in config.affinity.values() for host in hosts}
    others = [worker for worker in workers if not _named(worker, somebodys)]
    if kind.datasource not in config.affinity:
        return [others]
    preferred = [worker for worker in workers if _named(worker, own)]
    return [preferred] if config.strong else [preferred, others]


def _named(worker: WorkerCandidate, hosts: set[str]) -> bool:
    return not hosts.isdisjoint({worker.host, worker.host.rpartition(":")[0], worker.name})


def _by_category(
    kind: Kind, workers: Sequence[WorkerCandidate], categories: WorkerCategorySpec
) -> list[list[WorkerCandidate]]:
    category = category_of(kind, categories)
    if category is None:
        return [list(workers)]
    preferred = [worker for worker in workers if worker.category == category]
    return [preferred] if categories.strong else [preferred, list(workers)]


def _has_room(worker: WorkerCandidate, task_type: str, rules: SelectionRules) -> bool:
    if worker.free <= 0 or worker.room <= 0:
        return False
    used = worker.used_by_type.get(task_type, 0)
    return used < type_limit(worker, task_type, rules)


def type_limit(worker: WorkerCandidate, task_type: str, rules: SelectionRules) -> float:
    """Return the maximum number of tasks of a type on a worker; a share is at least one task."""
    limits = rules.strategy.task_limits
    ratio = limits.max_slot_ratio_by_type.get(task_type)
    if task_type == "index_parallel":
        ratio = min(1.0 if ratio is None else ratio, rules.parallel_slot_ratio)
    count = limits.max_slot_count_by_type.get(task_type, math.inf)
    by_share = math.inf if ratio is None else max(1 if ratio else 0, int(worker.capacity * ratio))
    return min(count, by_share)


class _Choice:
    """Workers that tasks of one type may go to, best first; full workers are removed.

    A worker that takes a task moves: its older heap entries become stale and are skipped. So the
    cost of a task depends on the skipped workers, not on the number of workers.
    """

    def __init__(
        self, task_type: str, candidates: Sequence[WorkerCandidate], rules: SelectionRules
    ) -> None:
        self._type = task_type
        self._rules = rules
        self._fills = rules.strategy.fills
        self._names = {worker.name for worker in candidates}
        self._heap = [(self._rank(worker), worker.name, worker) for worker in candidates]
        heapq.heapify(self._heap)

    def __bool__(self) -> bool:
        return bool(self._heap)

    def moved(self, worker: WorkerCandidate) -> None:
        """Update the rank of a worker that took a task."""
        if worker.name in self._names:
            heapq.heappush(self._heap, (self._rank(worker), worker.name, worker))

    def best(self, task: PendingTask) -> WorkerCandidate | None:
        """Return the best worker without a task of the same availability group."""
        apart = []
        found = None
        while self._heap and found is None:
            rank, _name, worker = entry = self._heap[0]
            if rank != self._rank(worker) or not _has_room(worker, self._type, self._rules):
                heapq.heappop(self._heap)
            elif task.availability_group in worker.groups:
                apart.append(entry)
                heapq.heappop(self._heap)
            else:
                found = worker
        for entry in apart:
            heapq.heappush(self._heap, entry)
        return found

    def _rank(self, worker: WorkerCandidate) -> int:
        return -worker.used if self._fills else -worker.free
