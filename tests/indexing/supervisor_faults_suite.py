"""Exceptions of every kind at every call of the ports of a supervisor.

A supervisor runs over a real task queue and metadata store; its tasks are `ReadingPeon`s, which
publish offsets through the real action handler but no rows. A test runs a sample of the cases, and
the soak suite `faults` all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, cast

from penstock.core.errors import Conflict, LockRevoked, NotFound, Unavailable
from penstock.indexing.actions import PublishSegments
from penstock.indexing.engine import RowCounts
from penstock.indexing.lockbox.lock_lane import LocksChanged
from penstock.indexing.lockbox.lock_store import AlertingLockStore, MetadataLockStore
from penstock.indexing.lockbox.lockboxes import Lockboxes
from penstock.indexing.overlord.action_handler import ActionHandler, TaskNotices
from penstock.indexing.overlord.supervisor_registry import Supervisors
from penstock.indexing.overlord.task_index import ActiveTask
from penstock.indexing.overlord.task_queue import QueuePorts, TaskQueue, TaskQueueOptions
from penstock.indexing.overlord.task_state import EndedTask
from penstock.indexing.ports import TaskLocation, TaskPhase, TaskReport, TaskState
from penstock.indexing.sequences import Offsets, SequenceEvent, TaskSequences
from penstock.indexing.specs import SupervisorSpec, parse_supervisor_spec
from penstock.indexing.supervisor import Supervisor, SupervisorOptions, SupervisorPorts
from penstock.indexing.supervisor.stream_watch import cursor_name
from penstock.indexing.supervisor.supervisor_ports import StreamQueue
from penstock.indexing.supervisor.task_groups import GroupState
from penstock.indexing.task_spec import StreamTaskSpec, TaskSpec
from penstock.mailbox import MailboxProcessor
from penstock.mailbox.event_mail import EventMail
from penstock.storage.metadata import MetadataStore
from penstock.storage.metadata.sql_database import Transactions
from penstock.testing.clock import VirtualClock
from tests.harness.call_faults_kit import Faults
from tests.harness.cluster_simulation.memory import MemoryDatabase
from tests.harness.mailbox_kit import InlineLanes, StepLanes, settle
from tests.indexing.indexing_kit import FakeBroker, spec_json
from tests.indexing.queue_kit import KeptEvents, SaidWorker
from tests.kits.fault_cases_kit import CountedPart, DrawnCases, FaultPlan

TOPIC = ID = "flights"
_FULL = 8
_PAUSE_S = 60.0
_TURN_S = 1.0
_OPTIONS = SupervisorOptions(retry_delay_max_ms=2_000, silence_limit_ms=60_000)


class ReadingPeon:
    """A streaming task without rows: what it agrees on with its supervisor is as of a real one."""

    def __init__(self, world: SupervisorWorld, worker: TakingWorker, task: StreamTaskSpec) -> None:
        self.world = world
        self.worker = worker
        self.task = task
        self.sequences = TaskSequences.begin(
            task.base_sequence_name, task.start_offsets, task.end_offsets, task.checkpoints
        )
        self.current = dict(self.sequences.items[0].start)
        self.paused_until_s = 0.0
        # Replicas read at paces of their own.
        self.pace = 1 + len(world.peons) % 3

    @property
    def is_paused(self) -> bool:
        return self.world.clock.monotonic_s() < self.paused_until_s

    def pause(self) -> dict[int, int]:
        last = self.sequences.last
        if self.sequences.final is not None or last is None:
            raise Conflict(f"task {self.task.id}: its end is agreed already")
        self.paused_until_s = self.world.clock.monotonic_s() + _PAUSE_S
        return {p: max(o, last.start[p]) for p, o in self.current.items()}

    def resume(self) -> None:
        self.paused_until_s = 0.0

    def set_end_offsets(self, end: Offsets, *, finish: bool) -> None:
        self.sequences = self.sequences.set_end_offsets(
            end, finish=finish, current=self.current, paused=self.is_paused
        ).sequences
        self.resume()

    def report(self) -> TaskReport:
        final = self.sequences.final
        return TaskReport(
            TaskPhase.PAUSED if self.is_paused else TaskPhase.READING,
            current=dict(self.current),
            persisted=dict(self.current),
            end=None if final is None else dict(final),
            checkpoints={one.number: dict(one.start) for one in self.sequences.items},
            counts={},
        )

    def step(self) -> None:
        """Read, publish what is whole, ask for a checkpoint, or end."""
        topic_id, ends = self.world.ends()
        if topic_id != self.task.topic_id:
            if self.sequences.final is None or self.current != self.sequences.final:
                self.sequences = self.sequences.cut(self.current).sequences
        elif not self.is_paused:
            final = self.sequences.final or ends
            for p, at in self.current.items():
                self.current[p] = max(at, min(at + self.pace, final[p], ends[p]))
        if self._publishes():
            last = self.sequences.last
            if last is not None and last.end is None:
                count = sum(self.current.values()) - sum(last.start.values())
                if count >= _FULL:
                    self.world.checkpoint_wanted(self.task, last.start)
            if self.sequences.done:
                self.worker.say(self.task.id, TaskState.SUCCESS)

    def _publishes(self) -> bool:
        self.sequences = self.sequences.reached(self.current)
        item = self.sequences.to_publish
        if item is None:
            return True
        assert item.end is not None
        count = sum(item.end.values()) - sum(item.start.values())
        if count:
            action = PublishSegments(
                item.name, (), item.start, item.end, RowCounts(count), self.task.topic_id
            )
            try:
                outcome = action.parse_result(
                    self.world.handler.perform(self.task.id, action.to_json())
                )
            except LockRevoked as error:
                self.worker.say(self.task.id, TaskState.FAILED, error=str(error))
                return False
            if outcome.retryable:
                return False
            if not outcome.ok and not outcome.already_published:
                self.worker.say(self.task.id, TaskState.FAILED, error=outcome.reason)
                return False
        for event in (SequenceEvent.READY, SequenceEvent.PUBLISHED):
            self.sequences = self.sequences.on(item.name, event).sequences
        return True


class TakingWorker(SaidWorker):
    """A worker that keeps the tasks that it was given."""

    def __init__(self, world: SupervisorWorld, name: str) -> None:
        super().__init__(name, capacity=10)
        self.world = world

    def assign(self, task: TaskSpec) -> None:
        assert isinstance(task, StreamTaskSpec)
        assert task.id not in self.world.peons, f"{task.id} is handed out twice"
        super().assign(task)
        self.world.peons[task.id] = ReadingPeon(self.world, self, task)

    def say(
        self,
        task_id: str,
        state: TaskState = TaskState.RUNNING,
        location: TaskLocation | None = None,
        error: str = "",
    ) -> None:
        super().say(task_id, state, location or TaskLocation("sim", 1), error)


class _PortedQueue:
    """The task queue of a supervisor, and its index, as ports."""

    def __init__(self, queue: TaskQueue, faults: Faults) -> None:
        self._queue = queue
        self._faults = faults
        ported = faults.port(queue)
        self.add, self.shutdown = ported.add, ported.shutdown

    @property
    def index(self) -> object:
        return self._faults.port(self._queue.index)


class _OutsideDatabase:
    """A database that is a port of the supervisor, and of its tasks when they act themselves."""

    def __init__(self, world: SupervisorWorld, database: MemoryDatabase) -> None:
        self._world = world
        self._database = database
        self._port = world.faults.port(database)

    def __getattr__(self, name: str) -> object:
        return getattr(self._database if self._world.tasks_act else self._port, name)


class SupervisorWorld:
    """A supervisor whose ports a test can make fail; it starts anew when its loop has ended."""

    def __init__(self, **io: Any) -> None:
        self.faults = Faults()
        self.clock = VirtualClock()
        self.database = MemoryDatabase(self.clock)
        self.truth = MetadataStore(self.database)
        self.tasks_act = False
        self.metadata = MetadataStore(cast("Transactions", _OutsideDatabase(self, self.database)))
        self.broker = FakeBroker()
        self.broker.create(TOPIC, 2)
        self.events = KeptEvents()
        # A worker takes one replica of a task.
        self.two_workers = (TakingWorker(self, "v"), TakingWorker(self, "w"))
        self.peons: dict[str, ReadingPeon] = {}
        self.tokens = 0
        self.sent = 0
        form = spec_json(**{"useEarliestOffset": False, "replicas": 2, **io})
        form["context"] = {"useConcurrentLocks": True}
        self.spec: SupervisorSpec = parse_supervisor_spec(form)
        self.start()

    def start(self) -> None:
        """Begin as the next overlord does: its workers and tasks go on."""
        self.lanes = StepLanes()
        self.processor = processor = MailboxProcessor(name="overlord", clock=self.clock)
        clock, lanes = self.faults.port(self.clock), self.faults.port(self.lanes)
        self.lockboxes = Lockboxes(
            AlertingLockStore(MetadataLockStore(self.metadata.locks), KeptEvents()),
            InlineLanes(),
            clock=self.clock,
            changes=EventMail(processor, self._locks_changed, "locks changed"),
        )
        self.queue = TaskQueue(
            QueuePorts(
                self.metadata,
                self.lockboxes,
                self,
                self.lanes,
                processor,
                self.clock,
                ended=EventMail(processor, self._task_ended, "a task ended", is_urgent=True),
                compared=EventMail(processor, self._tasks_compared, "compared", is_urgent=True),
            ),
            options=TaskQueueOptions(storage_sync_interval_ms=5_000),
        )
        self.supervisors = Supervisors(
            SupervisorPorts(
                metadata=self.metadata,
                queue=cast("StreamQueue", _PortedQueue(self.queue, self.faults)),
                broker=self.faults.port(self.broker),
                peons=self.faults.port(self, {"within"}),
                lanes=lanes,
                processor=processor,
                clock=clock,
                new_token=self.token,
                events=self.faults.port(self.events),
            ),
            _OPTIONS,
        )
        self.handler = ActionHandler(
            self.metadata,
            self.lockboxes,
            InlineLanes(),
            self,
            cast("TaskNotices", self),  # the handler is asked nothing else
            self.clock,
        )
        self.begun = self.change(self._begin)

    def _locks_changed(self, change: LocksChanged) -> None:
        self.queue.locks_changed(change)

    def _task_ended(self, ended: EndedTask) -> None:
        self.supervisors.streams.task_ended(ended.task, ended.state, ended.error)

    def _tasks_compared(self, _event: None) -> None:
        self.supervisors.streams.tasks_compared()

    def _begin(self) -> None:
        self.queue.start()
        self.supervisors.start()

    @property
    def has_begun(self) -> bool:
        return self.begun.done() and self.begun.exception() is None

    def token(self) -> str:
        self.tokens += 1
        return f"t{self.tokens}"

    # Ports: workers, tasks, and what the action handler asks and tells

    def workers(self) -> Sequence[TakingWorker]:
        return self.two_workers

    def within(self, _answer_ms: int) -> SupervisorWorld:
        return self

    def peon(self, task_id: str) -> ReadingPeon:
        if task_id not in self.running():
            raise Unavailable("the peon does not answer")
        return self.peons[task_id]

    def report(self, task_id: str) -> TaskReport:
        return self.peon(task_id).report()

    def pause(self, task_id: str) -> dict[int, int]:
        return self.peon(task_id).pause()

    def resume(self, task_id: str) -> None:
        self.peon(task_id).resume()

    def set_end_offsets(self, task_id: str, end: Offsets, *, finish: bool) -> None:
        self.peon(task_id).set_end_offsets(end, finish=finish)

    def active_task(self, task_id: str) -> TaskSpec | None:
        active = self.queue.index.get(task_id)
        return None if active is None else active.task

    def of_supervisor(self, supervisor_id: str) -> Mapping[str, ActiveTask]:
        return self.queue.index.of_supervisor(supervisor_id)

    def waits(self, _task_id: str, _reason: str) -> None:
        """Take no note of it."""

    def checkpoint_wanted(self, task: StreamTaskSpec, start: Offsets) -> None:
        offsets = dict(start)
        streams = self.supervisors.streams
        self.processor.post(lambda: streams.checkpoint_wanted(task, offsets))

    # What happens

    def change(self, command: Callable[[], object]) -> Future[object]:
        return self.processor.main_executor.submit_change(command)

    def ends(self) -> tuple[str, dict[int, int]]:
        parts = self.broker.topics[TOPIC]
        return self.broker.ids[TOPIC], {p: len(messages) for p, messages in enumerate(parts)}

    def send(self, count: int) -> None:
        for parts in self.broker.topics[TOPIC]:
            parts.extend([b"x"] * count)
            self.sent += count

    def settle(self, seconds: float) -> None:
        """Let time pass: the mailbox, its lanes, and once in a second the tasks."""
        end_s = self.clock.monotonic_s() + seconds
        while self.clock.monotonic_s() < end_s:
            settle(self.processor, self.clock, _TURN_S, self.lanes)
            self._let_tasks_act()

    def _let_tasks_act(self) -> None:
        if not self.has_begun:
            return
        self.tasks_act = True
        try:
            for task_id in self.running():
                with suppress(Unavailable):
                    self.peons[task_id].step()
        finally:
            self.tasks_act = False

    def active(self) -> set[str]:
        return set(self.truth.tasks.active_ids())

    def running(self) -> list[str]:
        said = [one for worker in self.two_workers for one in worker.says.values()]
        return [one.id for one in said if one.state is TaskState.RUNNING]

    def published(self) -> int:
        return sum(counts.processed for counts in self.truth.all_counts().values())

    @property
    def is_caught_up(self) -> bool:
        """Whether all messages are published, and committed."""
        return self.truth.offsets(ID) == self.ends()[1] and self.published() >= self.sent

    @property
    def is_read(self) -> bool:
        """Whether tasks have read all messages."""
        peons = [self.peons[one] for one in self.running()]
        return bool(peons) and all(one.current == self.ends()[1] for one in peons)

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor was terminated, and nothing of it is left."""
        left = [*self.truth.supervisors.list(), *self.supervisors.streams.all()]
        return not (left or self.active() or self.broker.cursors)

    def ask(self, command: Callable[[], object]) -> object:
        """Have a command done, as a user does who asks again while nobody answers."""
        for _ in range(5):
            future = self.change(command)
            self.settle(3)
            if not isinstance(future.exception(0), Unavailable):
                return future.result(0)
        raise AssertionError("it is refused again and again")

    def wait(self, condition: Callable[[], bool], where: str) -> None:
        for _ in range(300):
            if condition():
                return
            self.settle(1)
        tasks = {one: self.peons[one].report() for one in self.running()}
        every = [(one.id, one.snapshot.state, one.snapshot.errors()) for one in self.every()]
        raise AssertionError(
            f"{where}: it never comes: committed {self.truth.offsets(ID)} of {self.ends()},"
            f" published {self.published()} of {self.sent}, {tasks}, {every}"
        )

    def every(self) -> list[Supervisor]:
        return self.supervisors.streams.all()


def submit(world: SupervisorWorld) -> Future[object]:
    return world.change(lambda: world.supervisors.put(world.spec))


def look(world: SupervisorWorld) -> Future[object]:
    """Let rounds of looks pass, in which tasks read, ask for checkpoints, and roll over."""
    return world.change(lambda: None)


def hand_off(world: SupervisorWorld) -> Future[object]:
    return world.change(lambda: world.supervisors.find(ID).hand_off())


def suspend(world: SupervisorWorld) -> Future[object]:
    return world.change(lambda: world.supervisors.suspend(ID, suspended=True))


def resume(world: SupervisorWorld) -> Future[object]:
    return world.change(lambda: world.supervisors.suspend(ID, suspended=False))


def reset(world: SupervisorWorld) -> Future[object]:
    return world.change(lambda: world.supervisors.find(ID).offsets.reset({0: 1, 1: 1}))


def terminate(world: SupervisorWorld) -> Future[object]:
    return world.change(lambda: world.supervisors.terminate(ID))


def backfill(world: SupervisorWorld) -> Future[object]:
    """Leave the backlog to another supervisor; as a user does who finds it half done."""

    def act() -> object:
        pieces = [one for one in world.every() if one.id != ID and one.spec.suspended]
        for piece in pieces:
            own = world.truth.counts(ID).processed
            if own < sum((world.truth.offsets(ID) or {}).values()):
                return world.supervisors.suspend(piece.id, suspended=False)
            world.supervisors.terminate(piece.id)
        if any(one.id != ID for one in world.every()):
            return None
        return world.supervisors.backfill(ID, None)

    return world.change(act)


def fail(world: SupervisorWorld) -> Future[object]:
    """Have one task of two replicas fail."""
    for task_id in world.running()[:1]:
        world.peons[task_id].worker.say(task_id, TaskState.FAILED, error="it broke")
    return world.change(lambda: None)


def fail_all(world: SupervisorWorld) -> Future[object]:
    """Have all tasks fail."""
    for task_id in world.running():
        world.peons[task_id].worker.say(task_id, TaskState.FAILED, error="it broke")
    return world.change(lambda: None)


def adopt(world: SupervisorWorld) -> Future[object]:
    world.start()
    return world.begun


def make_topic_anew(world: SupervisorWorld) -> Future[object]:
    world.broker.create(TOPIC, 2)
    return world.change(lambda: None)


# Modules whose functions run out of memory.
INSIDE = (
    "penstock.indexing.supervisor",
    "penstock.indexing.overlord.supervisor_registry",
    "penstock.indexing.overlord.supervisor_ends",
)
Operation = Callable[[SupervisorWorld], Future[object]]
OPERATIONS: Sequence[Operation] = (
    *(submit, look, hand_off, suspend, resume, reset, terminate, backfill, fail, fail_all),
    *(adopt, make_topic_anew),
)
# What a user does again after a refusal; the others happen once.
_REPEATED = (submit, hand_off, suspend, resume, reset, terminate, backfill)


def prepare(operation: Operation, replicas: int) -> SupervisorWorld:
    """Return a world in which an operation is to be done."""
    world = SupervisorWorld(replicas=replicas)
    if operation is submit:
        return world
    world.ask(lambda: world.supervisors.put(world.spec))
    world.settle(4)
    world.send(3)
    world.wait(lambda: len(world.running()) == replicas, "prepared")
    if operation is resume:
        world.ask(lambda: world.supervisors.suspend(ID, suspended=True))
        world.wait(lambda: not world.active(), "suspended")
    elif operation is make_topic_anew:  # What nobody has read goes with it.
        world.wait(lambda: world.is_read, "prepared")
    else:
        world.send(3)
    if operation in (reset, backfill):  # They refuse what the supervisor has not seen.
        world.wait(lambda: world.every()[0].snapshot.latest()[0] == world.ends()[1], "prepared")
        assert not world.is_caught_up
    return world


def under_way(one: Supervisor) -> Iterator[str]:
    """Yield what a supervisor takes for under way; at rest, when no call is, that is nothing."""
    state = one._state
    if one._state.in_round:
        yield "a round"
    if state.stream._is_polling:
        yield "a look at the stream"
    for group in state.groups.values():
        agreeing = (GroupState.ROLLING, GroupState.CHECKPOINTING, GroupState.AGREEING_LATE)
        if group.state in agreeing:
            yield f"an agreement of {group.name}"
        for task_id, replica in group.replicas.items():
            if replica.report_requested:
                yield f"a question to {task_id}"
            if replica.catching_up:
                yield f"a catch-up of {task_id}"


def paused(world: SupervisorWorld) -> Iterator[str]:
    """Yield the tasks that are paused; at rest nobody goes on with them before their time."""
    yield from (one for one in world.running() if world.peons[one].is_paused)


def out_of_step(world: SupervisorWorld) -> list[str]:
    """Return what supervisors take for so that is not so. Time passes, in which no task acts."""
    settle(world.processor, world.clock, _TURN_S, world.lanes)
    found = [f"{one} is paused" for one in paused(world)]
    for one in world.every():
        found += [f"{one.id} waits for {what}" for what in under_way(one)]
        if one.is_stopping or one.spec.suspended:
            continue
        known, true = one.snapshot.committed(), world.truth.offsets(one.id) or {}
        if known != true:
            found.append(f"{one.id} knows the offsets {known}, not {true}")
        ends = world.ends()[1]
        wanted = {p: at for p, at in one._state.committed.to_keep.items() if at <= ends.get(p, -1)}
        held = world.broker.cursors.get((TOPIC, cursor_name(one.id)), {})
        if wanted and held != wanted:
            found.append(f"{one.id} holds {held}, not {wanted}")
    return found


def check_in_step(world: SupervisorWorld, where: str) -> None:
    """Insist that supervisors know in seconds what is so, without what helps after minutes."""
    for _ in range(3):
        if not (found := out_of_step(world)):
            return
        world.settle(1)
    raise AssertionError(f"{where}: {found}")


def converge(world: SupervisorWorld, operation: Operation, where: str) -> None:
    """Have a world end in a supervisor that has published all."""
    world.settle(10)
    if operation is suspend:
        world.wait(lambda: not world.active(), f"{where}: suspended")
        world.ask(lambda: world.supervisors.suspend(ID, suspended=False))
    elif operation is terminate:
        world.wait(lambda: world.is_gone, f"{where}: terminated")
        world.ask(lambda: world.supervisors.put(world.spec))
    world.settle(3)
    world.send(2)
    world.settle(8)
    world.ask(lambda: world.supervisors.find(ID).hand_off())
    world.wait(lambda: world.is_caught_up or operation is reset, where)


def check(world: SupervisorWorld, operation: Operation, where: str) -> None:
    """Insist that nothing is lost, doubled, stuck or leaked, and go on."""
    converge(world, operation, where)
    world.wait(lambda: world.truth.offsets(ID) == world.ends()[1], where)
    if operation is reset:  # Two messages are skipped, and others are published again.
        assert world.published() >= world.sent - 2, where
    else:
        assert world.published() == world.sent, f"{where}: {world.published()} of {world.sent}"
    for piece in [one for one in world.every() if one.id != ID]:
        world.ask(partial(world.supervisors.terminate, piece.id))
    world.settle(10)
    (one,) = world.every()
    assert one.snapshot.state == "RUNNING", f"{where}: {one.snapshot.state}"
    reading = [one for one in world.running() if world.peons[one].sequences.final is None]
    assert len(reading) == world.spec.io.replicas, f"{where}: {reading}"
    before = world.published()
    world.send(1)
    world.settle(5)
    world.ask(lambda: world.supervisors.suspend(ID, suspended=True))
    world.wait(lambda: not world.active() and not world.running(), f"{where}: later suspended")
    assert world.published() == before + 2, f"{where}: later"
    world.ask(lambda: world.supervisors.terminate(ID))
    world.wait(lambda: world.is_gone, f"{where}: later terminated")
    assert not world.truth.locks.every().get(TOPIC), f"{where}: locks are left"
    # An end that could not be noted is noted in the next term.
    world.start()
    world.wait(lambda: not world.truth.supervisors.unreleased(), f"{where}: the end is noted")


def attempt(operation: Operation, plan: FaultPlan, *, replicas: int = 2) -> Faults:
    """Do an operation with a fault, start anew if the loop ended, check; return what was raised."""
    world = prepare(operation, replicas)
    done: Future[object] | None = None
    with plan.armed(world.faults):
        for _ in range(4):
            try:
                # Nobody serves commands before a term has begun: it would know no supervisor.
                is_wanted = operation in _REPEATED and done is not None and not is_done(done)
                if done is None or (is_wanted and world.has_begun):
                    done = operation(world)
                world.settle(5)
                if world.has_begun and (is_done(done) or operation not in _REPEATED):
                    break
            except BaseException:
                if not world.faults.raised:
                    raise
                world.start()
            else:
                if not world.has_begun:
                    world.start()
    raised = world.faults.raised
    where = f"{operation.__name__}: {plan} ({raised}), {replicas} replicas"
    assert done is not None, where
    if not world.has_begun:
        world.start()
        world.settle(5)
    if operation in _REPEATED and not is_done(done):
        done = operation(world)
        world.settle(5)
        assert is_done(done) or operation is backfill, f"{where}: {done}"
    check_in_step(world, where)
    check(world, operation, where)
    check_in_step(world, where)
    world.database.close()
    return world.faults


def is_done(done: Future[object]) -> bool:
    """Whether a command was done, or is refused because it was done before."""
    error = done.exception(0) if done.done() else Unavailable("")
    return error is None or "already" in str(error) or isinstance(error, NotFound)


Case = tuple[Operation, int]
# Operations and numbers of replicas.
CASES: Sequence[Case] = tuple(itertools.product(OPERATIONS, (1, 2)))


def attempt_case(case: Case, plan: FaultPlan) -> Faults:
    operation, replicas = case
    return attempt(operation, plan, replicas=replicas)


PART = CountedPart(CASES, attempt_case, INSIDE, gaps=20)
count, pair = PART.count, PART.pair
PAIRS = DrawnCases(lambda number: ", then " in pair(number))
singles, insides = PART.singles, PART.insides
