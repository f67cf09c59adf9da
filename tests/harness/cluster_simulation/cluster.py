"""A whole Penstock without processes of broker and Spark: overlords, workers, peons.

Owns the set of processes, their connections, and their restarts. Faults are in `accidents`, user
requests in `users`, and conditions that must hold in `checker`.
"""

from __future__ import annotations

import itertools
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, Fenced, PenstockError, Unavailable
from penstock.indexing.overlord import Overlord, OverlordOptions, OverlordPorts
from penstock.indexing.overlord.runner.runner import RunnerOptions
from penstock.indexing.overlord.task_queue import TaskQueueOptions
from penstock.indexing.supervisor import SupervisorOptions
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.mailbox import MailboxProcessor
from penstock.services.membership.election import TermContest
from penstock.storage.metadata import MetadataStore
from tests.harness.cluster_simulation.broker import SimBroker, Topics
from tests.harness.cluster_simulation.database import SharedDatabase, store_of
from tests.harness.cluster_simulation.duties import duties_of
from tests.harness.cluster_simulation.memory import MemoryDatabase
from tests.harness.cluster_simulation.network import Publishes, call, wait_for
from tests.harness.cluster_simulation.peons import SimPeon
from tests.harness.cluster_simulation.stores import Files, SimDeepStore
from tests.harness.cluster_simulation.world import (
    FiberLanes,
    Process,
    SimulatedWorld,
    UndividedLanes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from penstock.indexing.ports import (
        HistoryPlace,
        PeonProcess,
        TaskReport,
        WorkerChanges,
        WorkerClient,
        WorkerReport,
    )
    from penstock.indexing.task import StreamingTask
    from penstock.indexing.task_spec import TaskSpec
    from penstock.storage.metadata import Term

T = TypeVar("T")

SERVICE: Final = "overlord"
PUBLISHES: Final = ("segmentTransactional", "segmentInsert")
"""Prefixes of the action types that publish segments."""

_TERM_MS: Final = 6_000
_BEHIND_MS: Final = (5_000, 25_000)
# A pause ends earlier by itself.
_AGREED_MAX_S: Final = 12.0
_OPTIONS: Final = OverlordOptions(
    queue=TaskQueueOptions(
        storage_sync_interval_ms=20_000,
        runner=RunnerOptions(sync_interval_ms=2_000, worker_timeout_ms=30_000),
    ),
    supervisors=SupervisorOptions(retry_delay_max_ms=2_000, silence_limit_ms=60_000),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the cluster."""

    overlords: int = 2
    workers: int = 2
    slots: int = 4


@dataclass(slots=True)
class Cluster:
    """The simulated cluster.

    Attributes:
        world: The world that it belongs to.
        folder: Holds everything that is on a disk.
        shape: Its size.
        topics: The broker's topics.
        files: The files of deep storage.
        database: The database itself.
        shared: The same database, with all faults of the connection to it.
        publishes: Publish requests of tasks on their way to the leader.
        truth: The metadata, past all faults.
        keeper: The process of the database.
        overlords: The overlords.
        workers: The workers.
        peons: The newest peon of each task.
        rules_version: Version of the retention rules in force.
    """

    world: SimulatedWorld
    folder: Path
    shape: Shape
    topics: Topics = field(init=False)
    files: Files = field(init=False)
    database: MemoryDatabase = field(init=False)
    shared: SharedDatabase = field(init=False)
    publishes: Publishes = field(init=False)
    truth: MetadataStore = field(init=False)
    keeper: Process = field(init=False)
    overlords: list[SimOverlord] = field(init=False)
    workers: list[SimWorker] = field(init=False)
    peons: dict[str, SimPeon] = field(default_factory=dict)
    rules_version: Callable[[], int] = lambda: 0
    _heard: dict[str, str] = field(default_factory=dict)
    _tokens: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.topics = Topics(self.world)
        self.files = Files(self.folder / "deep", lambda: self.world.now_s)
        self.publishes = Publishes(self.world)
        self.keeper = keeper = Process(self.world, "database")
        self.database = MemoryDatabase(keeper.clock)
        self.shared = SharedDatabase(self.database)
        self.shared.amid_write = self._amid_write
        self.truth = MetadataStore(self.database)
        self.workers = [SimWorker(self, f"worker{n}") for n in range(self.shape.workers)]
        self.overlords = [SimOverlord(self, f"overlord{n}") for n in range(self.shape.overlords)]

    def token(self) -> str:
        """Return a unique text."""
        return f"t{next(self._tokens)}"

    def deep_store(self, process: Process) -> SimDeepStore:
        """Return deep storage with the faults of a process."""
        return SimDeepStore(process, self.files)

    def leader(self) -> SimOverlord | None:
        """Return the leading overlord, according to the terms."""
        # Called before every request, so it does not use a statement that is built each time.
        rows = self.database.rows("SELECT holder FROM penstock_terms WHERE service = ?", SERVICE)
        return next((one for one in self.overlords if (one.name,) in rows), None)

    def perform(
        self, process: Process, task_id: str, worker: str, form: Mapping[str, object]
    ) -> object:
        """Perform an action of a task on the leader, for a worker; on a fiber.

        Checks that of two workers that have the same task, because of a late request, only one's
        actions are performed.
        """
        publishes = str(form["type"]).startswith(PUBLISHES)
        if publishes:
            self.publishes.be_late(form)
        leader = self.leader()
        if leader is None:
            process.world.let_others_run()
            raise Unavailable("nobody knows who leads")
        overlord = leader.overlord

        def act() -> object:
            fiber = self.world.current
            assert fiber is not None
            fiber.acting = f"action {form['type']} {task_id}"
            if publishes:
                self.publishes.arrive()
            answer = overlord.perform_action(task_id, form, worker)
            if self._heard.setdefault(task_id, worker) != worker:
                text = f"actions of {task_id} were done for {self._heard[task_id]} and for {worker}"
                self.world.violation = self.world.violation or text
            if publishes:
                self.publishes.done(form, answer)
            return answer

        answer = call(process, leader.process, "action", act)
        if publishes:
            self.publishes.come_back()
        return answer

    def close(self) -> None:
        """End everything."""
        self.world.close()
        self.database.close()

    def _amid_write(self, process: Process) -> None:
        """Make another overlord the leader just before one writes."""
        rivals = [one for one in self.overlords if one.process is not process and one.may_win]
        leader = self.leader()
        if leader is None or leader.process is not process or not rivals:
            return
        rival = rivals[0]
        seen = self.truth.terms.current(SERVICE)
        rival.won = self.truth.terms.take(SERVICE, rival.name, _TERM_MS, instead_of=seen)
        self.world.note(f"{rival.name} wins a term while {process.name} writes")
        rival.process.poke()


class SimOverlord:
    """An overlord that stands for election, and restarts after each death."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name: Final = name
        self._cluster = cluster
        self.start()

    def start(self) -> None:
        """Start a new process."""
        cluster = self._cluster
        self.process = process = Process(cluster.world, self.name)
        process.death_fault = "overlord dies"
        process.on_death = self._died
        self.won: Term | None = None
        self._leads = False
        self._deposed = False
        store = store_of(process, cluster.shared)
        processor = MailboxProcessor(name=self.name, clock=process.clock)
        process.processor = processor
        workers = _Workers(cluster, process)
        deep_store = cluster.deep_store(process)
        self.overlord = Overlord(
            processor,
            OverlordPorts(
                metadata=store,
                broker=SimBroker(process, cluster.topics),
                peons=_Peons(cluster, process),
                workers=workers,
                lanes=FiberLanes(process),
                lock_lanes=UndividedLanes(cluster.world),
                clock=process.clock,
                new_token=cluster.token,
                duties=lambda tools: duties_of(process, deep_store, tools, cluster.rules_version),
                deposed=self._told_deposed,
            ),
            _OPTIONS,
        )
        self._contest = TermContest(store.terms, SERVICE, self.name, process.clock, _TERM_MS)
        process.spawn("election", self._stand, is_vital=True)

    @property
    def may_win(self) -> bool:
        """Return whether it could begin a term now."""
        return self.process.alive and not self._leads and self.won is None

    def _died(self) -> None:
        world = self._cluster.world
        world.after(world.chance.of("restarts").uniform(0.2, 15), self.start)

    def _told_deposed(self) -> None:
        self._deposed = True
        self.process.poke()

    def _stand(self) -> None:
        world, dice = self._cluster.world, self._cluster.world.chance.of(self.name)
        while True:
            asked_s = world.now_s
            term, self.won = self.won, None
            try:
                term = term or self._asked(self._contest.seek)
            except PenstockError:
                term = None
            if term is not None:
                self._leads = True
                self._lead(term, asked_s)
                self._leads = False
            world.pause(dice.uniform(0.5, 1.0), lambda: self.won is not None)

    def _lead(self, term: Term, asked_s: float) -> None:
        """Lead until the term is over, as `LeaderSelector` does with threads."""
        world = self._cluster.world
        world.note(f"{self.name} leads in term {term.number}")
        if world.chance.fault("leader's clock behind"):
            self.process.skew_ms = -world.chance.of("clocks behind").randrange(*_BEHIND_MS)
            world.note(f"{self.name} has its clock off by {self.process.skew_ms} ms")
        self._deposed = False
        begun = self.overlord.start(term)
        until_s, ours = asked_s + _TERM_MS / 1_000, True
        while not (begun.done() and begun.exception() is not None):
            world.pause(1.5, lambda: self._deposed)
            self._deposed = False
            asked_s = world.now_s
            try:
                self._asked(lambda: self._contest.keep(term))
            except Fenced:
                ours = False
                break
            except PenstockError:
                if world.now_s >= until_s:
                    break
            else:
                until_s = asked_s + _TERM_MS / 1_000
        stopped = self.overlord.stop()
        while not stopped.done():
            world.pause(60.0, stopped.done)
        world.note(f"{self.name} no longer leads")
        if ours:
            try:
                self._asked(lambda: self._contest.resign(term))
            except PenstockError:
                world.note(f"{self.name} could not resign")

    def _asked(self, question: Callable[[], T]) -> T:
        """Ask the contest; an unexpected error counts as no answer, as in the product."""
        try:
            return question()
        except Exception as error:
            if not self.process.world.is_unforeseen(error):
                raise
            raise Unavailable(f"the election failed: {error!r}") from error


class SimWorker:
    """A worker that restarts after each death in the same folder."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name: Final = name
        self.host: Final = f"{name}:8091"
        self.folder: Final = cluster.folder / name
        self._cluster = cluster
        cluster.truth.roots.register(name, str(self.folder))
        self.start()

    def start(self) -> None:
        """Start a new process."""
        cluster = self._cluster
        self.process = process = Process(cluster.world, self.name)
        process.death_fault = "worker dies"
        process.on_death = self._died
        process.processor = MailboxProcessor(name=self.name, clock=process.clock)
        self.worker = Worker(
            [str(self.folder)],
            process.fs,
            self,
            process.processor,
            process.clock,
            FiberLanes(process),
            WorkerOptions(
                cluster.shape.slots, watch_interval_ms=1_000, deaths_max=30, forget_delay_ms=5_000
            ),
        )
        self.worker.start()

    def launch(self, task_id: str, folder: str) -> PeonProcess:
        """Start a peon."""
        peon = self._cluster.peons[task_id] = SimPeon(self._cluster, self.process, task_id, folder)
        return peon

    def _died(self) -> None:
        world = self._cluster.world
        world.after(world.chance.of("restarts").uniform(0.2, 45), self.start)


class _WorkerClient:
    """Client of one overlord for one worker."""

    def __init__(self, cluster: Cluster, caller: Process, worker: SimWorker) -> None:
        self._cluster = cluster
        self._caller = caller
        self._worker = worker
        self.name: Final = worker.name
        self.host: Final = worker.host

    def report(self) -> WorkerReport:
        """Return the state of all tasks of the worker."""
        return self._call("report", lambda worker: worker.report())

    def assign(self, task: TaskSpec) -> None:
        """Assign a task to the worker."""
        self._call("assign", lambda worker: worker.assign(task))

    def shutdown(self, task_id: str) -> None:
        """Stop a task, or forget a task that ended."""
        self._call("shut down", lambda worker: worker.shutdown(task_id))

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        """Return the changes after a place in the history."""
        worker, process = self._worker.worker, self._worker.process

        def ask() -> WorkerChanges:
            answer = worker.changes(after, wait_ms)
            wait_for(process, answer.done, wait_ms / 1_000 + 30)
            return answer.result()

        return call(self._caller, process, "changes", ask, timeout_s=wait_ms / 1_000 + 30)

    def _call(self, name: str, work: Callable[[Worker], T]) -> T:
        world, worker = self._cluster.world, self._worker.worker
        process = self._worker.process

        def ask() -> T:
            try:
                return world.on_scheduler(lambda: work(worker), name)
            except BaseException as error:
                # On the scheduler's thread a command is not mail, which would have ended the loop.
                if world.is_unforeseen(error):
                    process.broke(error)
                raise

        return call(self._caller, process, name, ask)


class _Workers:
    """All workers, for one overlord."""

    def __init__(self, cluster: Cluster, caller: Process) -> None:
        self._clients = [_WorkerClient(cluster, caller, worker) for worker in cluster.workers]

    def workers(self) -> Sequence[WorkerClient]:
        """Return them."""
        return self._clients


class _Peons:
    """Client of one overlord for all running tasks."""

    def __init__(self, cluster: Cluster, caller: Process) -> None:
        self._cluster = cluster
        self._caller = caller

    def within(self, answer_ms: int) -> _Peons:
        """Return itself: answers come at once or not at all."""
        del answer_ms
        return self

    def report(self, task_id: str) -> TaskReport:
        """Return the report of a task."""
        return self._ask(task_id, lambda task: task.report())

    def pause(self, task_id: str) -> dict[int, int]:
        """Pause a task."""
        return self._ask(task_id, lambda task: task.pause())

    def resume(self, task_id: str) -> None:
        """Resume a task."""
        self._ask(task_id, lambda task: task.resume())

    def set_end_offsets(self, task_id: str, end: Mapping[int, int], *, finish: bool) -> None:
        """Set end offsets, possibly after the task has ended its pause."""
        world = self._cluster.world
        if world.chance.fault("agreement late"):
            world.pause(world.chance.of("late agreements").uniform(1.0, _AGREED_MAX_S))
        self._ask(task_id, lambda task: task.set_end_offsets(end, finish=finish))

    def _ask(self, task_id: str, question: Callable[[StreamingTask], Future[T]]) -> T:
        peon = self._cluster.peons.get(task_id)
        if peon is None or peon.task is None:
            self._cluster.world.let_others_run()
            raise Unavailable(f"the peon of {task_id} does not answer")
        task, process = peon.task, peon.process

        def ask() -> T:
            try:
                answer = question(task)
                wait_for(process, answer.done)
                return answer.result()
            except (Closed, CancelledError) as error:
                raise Unavailable(f"the task has ended: {error}") from error

        return call(self._caller, process, "question", ask)


__all__ = ["PUBLISHES", "Cluster", "Shape"]
