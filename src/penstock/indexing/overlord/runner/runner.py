"""The runner: hands tasks to workers, and learns from them how the tasks stand.

State of the overlord's mailbox; workers are called on lanes. It knows nothing of locks and stores
nothing but which worker has a task, so that the next overlord does not hand it to another. What a
worker's word does is the table of `reactions`; which worker gets what is decided by `selection`.
Invariants:

- a task is handed to one worker; to another only if the first says that it does not have it;
- of a task that was handed over no event is told twice, and none after its end;
- no call waits for a worker, and an event costs what it changes, not what there is.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from penstock.core.errors import Conflict, InvalidRequest, PenstockError
from penstock.indexing.errand import Calls
from penstock.indexing.overlord.runner.blacklist import Blacklist, BlacklistOptions
from penstock.indexing.overlord.runner.explaining import Seen, SlotReason, explain
from penstock.indexing.overlord.runner.reactions import (
    Miss,
    Phase,
    Place,
    Reaction,
    missing,
    react,
)
from penstock.indexing.overlord.runner.selection import Kind, Pending, PendingTasks, Rules, place
from penstock.indexing.overlord.runner.workerconfig import WorkerConfig
from penstock.indexing.overlord.runner.workers import Item, Worker, WorkerView, view_of
from penstock.indexing.ports import HistoryPlace, TaskLocation, TaskState
from penstock.indexing.taskspec import StreamTaskSpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.core.clock import Clock
    from penstock.indexing.ports import (
        Lanes,
        WorkerChanges,
        WorkerClient,
        WorkerDirectory,
        WorkerReport,
        WorkerTask,
    )
    from penstock.indexing.taskspec import TaskSpec
    from penstock.mailbox import MailboxProcessor
    from penstock.mailbox.timers import Timer

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How the runner behaves.

    Attributes:
        sync_interval_ms: How often the workers are listed, and how long a worker that had nothing
            to say is left alone.
        long_poll_ms: How long a question for changes may wait at a worker.
        worker_timeout_ms: A worker that did not answer for so long is lost, and its tasks failed.
        handovers_max: Tasks that one worker is asked to take and has not said yes to.
        parallel_slot_ratio: Share of a worker's slots for tasks of type `index_parallel`.
        worker_version_min: Workers of an older version get no tasks.
        blacklist: When a worker gets no more tasks for a while.
    """

    sync_interval_ms: int = 1_000
    long_poll_ms: int = 20_000
    worker_timeout_ms: int = 120_000
    handovers_max: int = 4
    parallel_slot_ratio: float = 1.0
    worker_version_min: str = "0"
    blacklist: BlacklistOptions = field(default_factory=BlacklistOptions)


@dataclass(frozen=True, slots=True)
class TaskEnd:
    """How a task ended; `worker` is None for one that was with none."""

    task_id: str
    state: TaskState
    error: str
    worker: str | None


class RunnerListener(Protocol):
    """The queue, as the runner sees it; on the mailbox thread."""

    def wanted(self, task_id: str) -> TaskSpec | None:
        """Return a task that is active, whether or not the runner has it."""
        ...

    def placed(self, workers: Mapping[str, str | None]) -> None:
        """Store which worker each task is about to be handed to; None: it waits for any again.

        Raises:
            PenstockError: It cannot be stored: nothing may be handed over.
        """
        ...

    def changed(self, task_id: str) -> None:
        """Something that is shown of a task changed."""
        ...

    def ended(self, ends: Sequence[TaskEnd]) -> None:
        """Tasks have ended. The runner keeps them until it is told to drop them."""
        ...


class Runner:
    """The runner. On the overlord's mailbox.

    Args:
        directory: Which workers there are.
        lanes: Where workers are called.
        processor: The overlord's mailbox.
        clock: Tells when a worker is lost.
        listener: Told what happens.
        options: How the runner behaves.
    """

    def __init__(
        self,
        directory: WorkerDirectory,
        lanes: Lanes,
        processor: MailboxProcessor,
        clock: Clock,
        listener: RunnerListener,
        options: RunnerOptions,
    ) -> None:
        self._directory = directory
        self._calls = Calls(lanes, processor)
        self._timers = processor.timers
        self._executor = processor.main_executor
        self._clock = clock
        self._listener = listener
        self._options = options
        self._rules = Rules(parallel_slot_ratio=options.parallel_slot_ratio)
        self._items: dict[str, Item] = {}
        self._pending = PendingTasks()
        self._workers: dict[str, Worker] = {}
        self._announced: set[str] = set()
        self._blacklist = Blacklist(options.blacklist)
        self._numbers = itertools.count()
        self._event = 0
        self._listing = False
        self._due = False
        self._stopped = False
        self._ticks: Timer | None = None

    def start(self) -> None:
        """Begin to list and ask the workers."""
        self._ticks = self._timers.schedule_every(
            self._options.sync_interval_ms, self._tick, "list the workers", first_after_ms=0
        )

    def stop(self) -> None:
        """Hand over and hear nothing any more; what runs goes on."""
        self._stopped = True
        if self._ticks is not None:
            self._ticks.cancel()

    def configure(self, config: WorkerConfig) -> None:
        """Select workers in another way from now on."""
        self._rules = Rules(config.select_strategy, self._options.parallel_slot_ratio)
        self.hand_over()

    # Tasks

    def restore(self, task: TaskSpec, worker: str) -> None:
        """Take a task that a former overlord may have handed to a worker.

        Whether it did is not known. A task that was handed over, and is not there any more, must
        not begin again under its name: its successor may be reading already.
        """
        item = Item(task, next(self._numbers), Phase.ACCEPTED, self._event, worker)
        self._items[task.id] = item
        self._worker(worker).items[task.id] = item

    def run(self, tasks: Sequence[TaskSpec]) -> None:
        """Hand tasks to workers as these have slots; those that it has already are left alone."""
        for task in tasks:
            if task.id not in self._items:
                self._items[task.id] = Item(task, next(self._numbers))
                self._wait(self._items[task.id])
        self.hand_over()

    def drop(self, task_id: str) -> None:
        """Forget a task that ended; its worker is asked to stop or forget it too."""
        item = self._items.pop(task_id, None)
        if item is None:
            return
        self._pending.remove(task_id)
        if item.worker is not None:
            worker = self._workers[item.worker]
            del worker.items[task_id]
            self._dismiss(worker, task_id)

    def locate(self, task_id: str, location: TaskLocation) -> None:
        """A peon says where it answers."""
        item = self._items.get(task_id)
        if item is not None and item.location != location:
            item.location = location
            self._listener.changed(task_id)

    def item(self, task_id: str) -> Item | None:
        """Return what the runner has of a task, None if it does not have it."""
        return self._items.get(task_id)

    def why(self, task_id: str) -> list[SlotReason]:
        """Return what stands between a pending task and each worker."""
        item = self._items.get(task_id)
        if item is None or item.worker is not None:
            return []
        seen = [
            Seen(w.candidate(self._options.handovers_max), tuple(sorted(w.items)), self._barred(w))
            for w in self._workers.values()
        ]
        return explain(_pending(item), seen, self._rules)

    # Workers

    def workers(self) -> list[WorkerView]:
        """Return what is known of the workers; lost ones are not among them."""
        now_s, now_ms = self._clock.monotonic_s(), self._clock.now_ms()
        views = []
        for worker in self._workers.values():
            silent_s = now_s - worker.seen_s
            if worker.client is None or silent_s * 1000 > self._options.worker_timeout_ms:
                continue
            until_s = self._blacklist.until_s(worker.name, now_s)
            until_ms = None if until_s is None else now_ms + int((until_s - now_s) * 1000)
            views.append(view_of(worker, silent_s=silent_s, blacklisted_until_ms=until_ms))
        return views

    def _worker(self, name: str) -> Worker:
        # One that this overlord never saw is given the same time from its first look on.
        return self._workers.setdefault(name, Worker(name, self._clock.monotonic_s()))

    def _tick(self) -> None:
        if self._stopped:
            return
        if not self._listing:
            self._listing = True
            self._calls.call("workers", self._directory.workers, self._listed, self._not_listed)
        self._fail_tasks_of_lost_workers()

    def _not_listed(self, error: PenstockError) -> None:
        self._listing = False
        _log.warning("cannot list the workers: %s", error)

    def _listed(self, clients: Sequence[WorkerClient]) -> None:
        self._listing = False
        if self._stopped:
            return
        self._announced = {client.name for client in clients}
        for client in clients:
            worker = self._worker(client.name)
            worker.client = client
            if not worker.asking:
                self._ask(worker)
        self._forget_workers_that_are_gone()
        self.hand_over()

    def _forget_workers_that_are_gone(self) -> None:
        """A host of a cluster may have another name each time it starts."""
        for name, worker in list(self._workers.items()):
            if name not in self._announced and not worker.items and not worker.asking:
                del self._workers[name]
                self._blacklist.forget(name)

    def _fail_tasks_of_lost_workers(self) -> None:
        now_s = self._clock.monotonic_s()
        for worker in self._workers.values():
            silent_ms = (now_s - worker.seen_s) * 1000
            if worker.items and silent_ms > self._options.worker_timeout_ms:
                reason = f"its worker {worker.name} has not answered for {silent_ms / 1000:.0f} s"
                self._end([(i, TaskState.FAILED, reason) for i in worker.items.values()])

    def _barred(self, worker: Worker) -> str:
        """Return why a worker gets no tasks at all now, empty if it does."""
        now_s = self._clock.monotonic_s()
        if worker.client is None or worker.name not in self._announced:
            return "it is not announced any more"
        if not worker.enabled:
            return "it is disabled: enable it, or wait for others"
        if worker.version < self._options.worker_version_min:
            return f"its version {worker.version!r} is too old"
        until_s = self._blacklist.until_s(worker.name, now_s)
        if until_s is not None:
            return f"tasks failed there in a row, it gets none for {until_s - now_s:.0f} s"
        silent_s = now_s - worker.seen_s
        # A question may wait at the worker for so long before it is answered.
        fresh_ms = 10 * self._options.sync_interval_ms + self._options.long_poll_ms
        return f"it has not answered for {silent_s:.0f} s" if silent_s * 1000 > fresh_ms else ""

    # What workers say

    def _ask(self, worker: Worker) -> None:
        client = worker.client
        assert client is not None
        after = HistoryPlace() if worker.resync else worker.place
        worker.asking, worker.resync = True, False
        asked, asked_s = self._next_event(), self._clock.monotonic_s()

        def done(changes: WorkerChanges) -> None:
            worker.asking = False
            self._heard(worker, changes, asked, asked_s)

        def failed(error: PenstockError) -> None:
            worker.asking = False  # It is asked again when the workers are listed next.
            # Who was to tell everything is to do so still: it may have what is to be dismissed.
            worker.resync = worker.resync or after == HistoryPlace()
            _log.info("worker %s does not answer: %s", worker.name, error)

        wait_ms = self._options.long_poll_ms
        self._calls.call(
            f"watch-{worker.name}", lambda: client.changes(after, wait_ms), done, failed
        )

    def _heard(self, worker: Worker, changes: WorkerChanges, asked: int, asked_s: float) -> None:
        if self._stopped:
            return
        now_s = self._clock.monotonic_s()
        worker.heard_changes(changes, now_s)
        if changes.report is not None:
            self._merge(worker, changes.report, asked)
        else:
            self._merge_tasks(worker, changes.tasks)
            self._missing(worker, set(changes.removed), asked)
        self.hand_over()
        news = changes.report is None and (changes.tasks or changes.removed)
        waited = (now_s - asked_s) * 1000 >= self._options.long_poll_ms / 2
        if (news or waited) and worker.name in self._announced:
            self._ask(worker)

    def _ask_for_all(self, worker: Worker) -> None:
        """Ask at once for everything: whether a task arrived must not wait for a long poll."""
        client, asked = worker.client, self._next_event()
        if client is None:
            return

        def done(report: WorkerReport) -> None:
            if not self._stopped:
                worker.heard(report, self._clock.monotonic_s())
                self._merge(worker, report, asked)
                self.hand_over()

        def failed(error: PenstockError) -> None:
            _log.info("worker %s does not answer: %s", worker.name, error)
            worker.resync = True  # The next answer will be everything.

        self._calls.call(f"worker-{worker.name}", client.report, done, failed)

    def _merge(self, worker: Worker, report: WorkerReport, asked: int) -> None:
        self._merge_tasks(worker, report.tasks)
        listed = {told.id for told in report.tasks}
        self._missing(worker, worker.items.keys() - listed, asked)

    def _merge_tasks(self, worker: Worker, tasks: Sequence[WorkerTask]) -> None:
        ends = []
        for told in tasks:
            item = self._items.get(told.id)
            wanted = None if item is not None else self._listener.wanted(told.id)
            place = item.place(worker.name) if item else Place.QUEUED if wanted else Place.UNKNOWN
            reaction = react(told.state, place)
            if reaction is Reaction.DISMISS:
                self._dismiss(worker, told.id)
                continue
            if item is None:
                assert wanted is not None
                item = self._items[told.id] = Item(wanted, next(self._numbers))
            self._belongs(item, worker, told.location)
            if reaction is Reaction.END:
                ends.append((item, told.state, told.error))
        self._count_ends(worker, ends)
        self._end(ends)

    def _belongs(self, item: Item, worker: Worker, location: TaskLocation | None) -> None:
        """A worker says that it has a task."""
        task_id = item.task.id
        location = location or item.location
        if item.phase is Phase.RUNNING and item.location == location:
            return
        self._pending.remove(task_id)
        item.worker, item.location = worker.name, location
        worker.items[task_id] = item
        self._enter(item, Phase.RUNNING)

    def _missing(self, worker: Worker, task_ids: set[str], asked: int) -> None:
        lost, back = [], []
        for task_id in task_ids:
            item = worker.items.get(task_id)
            if item is None or item.ended:
                continue
            miss = missing(item.phase, since=item.since, asked=asked)
            if miss is Miss.LOST:
                lost.append(item)
            elif miss is Miss.TAKE_BACK:
                back.append(item)
        reason = f"it disappeared from the worker {worker.name}"
        self._end([(item, TaskState.FAILED, reason) for item in lost])
        self._take_back(back)

    def _dismiss(self, worker: Worker, task_id: str) -> None:
        client = worker.client
        if client is None:
            return

        def failed(error: PenstockError) -> None:
            _log.info("worker %s cannot end %s yet: %s", worker.name, task_id, error)
            worker.resync = True  # It is in the next answer, and then asked for again.

        self._calls.call(
            f"worker-{worker.name}", lambda: client.shutdown(task_id), lambda _none: None, failed
        )

    def _count_ends(self, worker: Worker, ends: Sequence[tuple[Item, TaskState, str]]) -> None:
        for item, state, _error in ends:
            if item.ended:
                continue
            worker.last_end_ms = self._clock.now_ms()
            if state is TaskState.SUCCESS:
                self._blacklist.succeeded(worker.name)
            elif self._blacklist.failed(
                worker.name, self._clock.monotonic_s(), len(self._announced)
            ):
                _log.warning("worker %s gets no tasks for a while: they fail there", worker.name)

    def _end(self, ends: Sequence[tuple[Item, TaskState, str]]) -> None:
        fresh = [end for end in ends if not end[0].ended]
        for item, _state, _error in fresh:
            item.ended = True
            self._pending.remove(item.task.id)
        if fresh:
            self._listener.ended(
                [TaskEnd(item.task.id, state, error, item.worker) for item, state, error in fresh]
            )

    def _enter(self, item: Item, phase: Phase) -> None:
        item.phase, item.since = phase, self._next_event()
        self._listener.changed(item.task.id)

    def _next_event(self) -> int:
        self._event += 1
        return self._event

    # Handing over

    def _wait(self, item: Item) -> None:
        self._pending.add(_pending(item))
        self._enter(item, Phase.PENDING)

    def hand_over(self) -> None:
        """Place what waits where there is room: soon, for all that has changed until then."""
        if not self._due and not self._stopped and len(self._pending):
            self._due = True
            self._executor.execute(self._hand_over, "hand tasks over")

    def _hand_over(self) -> None:
        self._due = False
        if self._stopped:
            return
        candidates = [
            worker.candidate(self._options.handovers_max)
            for worker in self._workers.values()
            # First what costs least: most workers are full when tasks wait.
            if len(worker.items) < worker.capacity and not self._barred(worker)
        ]
        placed = place(self._pending, candidates, self._rules)
        if not placed:
            return
        try:
            # First, so that the next overlord does not hand them to others.
            self._listener.placed({task.id: worker for task, worker in placed})
        except PenstockError as error:
            _log.warning("%d tasks wait: %s", len(placed), error)
            return
        for task, name in placed:
            self._send(self._items[task.id], self._workers[name])

    def _send(self, item: Item, worker: Worker) -> None:
        client, task, name = worker.client, item.task, worker.name
        assert client is not None
        self._pending.remove(task.id)
        item.worker = name
        worker.items[task.id] = item
        self._enter(item, Phase.SENDING)

        def waits() -> bool:
            return self._items.get(task.id) is item and item.phase is Phase.SENDING

        def done(_none: None) -> None:
            if waits():
                self._enter(item, Phase.ACCEPTED)
                self.hand_over()

        def failed(error: PenstockError) -> None:
            if not waits():
                return
            _log.info("worker %s did not take %s: %s", name, task.id, error)
            if isinstance(error, InvalidRequest):
                self._end([(item, TaskState.FAILED, f"the worker {name} refuses it: {error}")])
            elif isinstance(error, Conflict):
                self._take_back([item])
            else:
                self._enter(item, Phase.UNSURE)
                self._ask_for_all(worker)

        self._calls.call(f"worker-{name}", lambda: client.assign(task), done, failed)

    def _take_back(self, items: Sequence[Item]) -> None:
        """Have tasks wait for any worker again, as one that surely does not have them gave up.

        The next overlord must know too, or it would take them for ones that disappeared there.
        """
        if not items:
            return
        for item in items:
            self._workers[item.worker or ""].items.pop(item.task.id, None)
            item.worker = None
            self._wait(item)
        try:
            self._listener.placed({item.task.id: None for item in items})
        except PenstockError as error:
            _log.warning("that %d tasks wait again is not stored: %s", len(items), error)


def _pending(item: Item) -> Pending:
    task = item.task
    supervisor_id = task.supervisor_id if isinstance(task, StreamTaskSpec) else ""
    kind = Kind(task.type, task.datasource, supervisor_id)
    return Pending(task.id, kind, task.priority, item.number, task.availability_group)
