"""Overlord, worker, peons, broker and engine on one thread, stepped in an order drawn from a seed.

Anything can die at any step, also between two durable writes, or lose the answer of a call.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures._base import Future
from pathlib import Path
from typing import Any, TypeVar

import orjson

from penstock.core.errors import Unavailable
from penstock.indexing.engine import EngineUnavailable
from penstock.indexing.overlord import Overlord, OverlordOptions, OverlordPorts
from penstock.indexing.overlord.task_queue import TaskQueueOptions
from penstock.indexing.ports import (
    HistoryPlace,
    TaskAction,
    TaskLocation,
    TaskReport,
    TaskState,
    WorkerChanges,
    WorkerClient,
    WorkerReport,
)
from penstock.indexing.supervisor import SupervisorOptions
from penstock.indexing.task import StreamingTask
from penstock.indexing.task.streaming_state import TaskOptions, TaskPorts
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import TaskSpec, parse_task_spec
from penstock.indexing.worker import Worker, WorkerOptions, status_to_json
from penstock.mailbox import MailboxProcessor
from penstock.segments.segment import Segment
from penstock.storage.disk import OsFileSystem
from penstock.storage.metadata.rows.segments import Snapshot
from penstock.testing.clock import VirtualClock
from tests.harness.engine_kit import FakeEngine, read_rows
from tests.harness.mailbox_kit import InlineLanes, StepLanes
from tests.harness.metadata_kit import MemoryMetadata
from tests.indexing.indexing_kit import (
    DAY_MS,
    START_MS,
    FakeBroker,
    FakeDeepStore,
    event,
    make_spec,
)
from tests.indexing.queue_kit import KeptEvents

Answer = TypeVar("Answer")


class Killed(BaseException):
    """The process that runs just now is no more."""


class MortalFs(OsFileSystem):
    """A file system on which its process may die before and after each durable step."""

    def __init__(self, moment: Callable[[str], None]) -> None:
        super().__init__()
        self._moment = moment

    def write_atomically(self, path: str, data: bytes) -> None:
        self._moment("before write")
        super().write_atomically(path, data)
        self._moment("after write")

    def fsync_file(self, path: str) -> None:
        self._moment("before fsync")
        super().fsync_file(path)

    def unlink(self, path: str) -> None:
        self._moment("before unlink")
        super().unlink(path)


class SimPeon:
    """A peon as the worker's `PeonProcess`, and its task."""

    def __init__(self, sim: Simulation, task_id: str, folder: str) -> None:
        self.sim = sim
        self.task_id = task_id
        self.dead = False
        self.code: int | None = None
        self.lanes = StepLanes()
        self.task: StreamingTask | None = None
        self.fs = MortalFs(self.moment)
        self.folder_path = folder
        self.started_s = sim.clock.monotonic_s()
        self.waits_until_s = 0.0
        self._waits_since: object = None

    def boot(self) -> None:
        """What `run_peon` does before the loop; it may die here too."""
        sim = self.sim
        folder = TaskFolder(self.folder_path, self.fs)
        spec = parse_task_spec(folder.read_json("task.json"))
        engine = FakeEngine(read=sim.broker.read, at=self.engine_moment)
        ports = TaskPorts(
            engine=engine,
            broker=sim.broker,
            dead_letters=sim.broker,
            actions=self,
            deep_store=sim.deep_store,
            fs=self.fs,
            lanes=self.lanes,
            clock=sim.clock,
            new_token=sim.token,
        )
        self.folder = folder
        self.task = StreamingTask(spec, folder, ports, sim.task_options)
        folder.write_json("location.json", {"host": "sim", "port": 1})

    def perform(self, action: TaskAction[Answer]) -> Answer:
        self.moment("before action")
        form = orjson.loads(orjson.dumps(action.to_json()))
        answer = orjson.loads(orjson.dumps(self.sim.overlord.perform_action(self.task_id, form)))
        self.moment("after action")
        if self.sim.chance(0.03):
            raise Unavailable("the answer was lost")
        return action.parse_result(answer)

    def moment(self, _what: str) -> None:
        if self.dead:
            raise Killed
        if self.sim.chance(self.sim.peon_death):
            self.sim.note(f"peon of {self.task_id[-6:]} dies {_what}")
            self.die()
            raise Killed

    def engine_moment(self, what: str) -> None:
        self.moment(what)
        if self.sim.chance(self.sim.engine_loss):
            raise EngineUnavailable(f"lost {what}")

    def die(self, code: int = -9) -> None:
        self.dead = True
        if self.code is None:
            self.code = code
        self.lanes.close()

    def exit_code(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.die()

    def terminate(self) -> None:
        if self.task is not None and not self.dead:
            self.task.stop()

    def step(self) -> bool:
        """Run one mail or one piece of a lane's work."""
        if self.dead:
            return False
        try:
            if self.task is None:
                self.boot()
                return True
            if not self.task.processor.is_mailbox_loop_running:
                self._exit()
                return True
            lanes = self._waiting_lanes()
            if lanes and self.sim.random.random() < 0.5:
                self._run_one(lanes)
                return True
            if self.task.processor.run_mailbox_step():
                return True
            if lanes:
                self._run_one(lanes)
                return True
        except Killed:
            self.die()
            return True
        return False

    def _run_one(self, lanes: list[str]) -> None:
        self.sim.acting = self
        try:
            self.lanes.run_one(self.sim.random.choice(lanes))
        finally:
            self.sim.acting = None

    def finds_nothing_new(self, wait_ms: int) -> None:
        """Ask the broker no more until it has news, or the wait that it was asked for is over.

        The broker cannot stand still in the call, as everybody is on one thread.
        """
        self.waits_until_s = self.sim.clock.monotonic_s() + wait_ms / 1000
        self._waits_since = self.sim.broker.contents()

    @property
    def waits(self) -> bool:
        """Whether the broker keeps it waiting."""
        return (
            self.waits_until_s > self.sim.clock.monotonic_s()
            and self._waits_since == self.sim.broker.contents()
        )

    def _waiting_lanes(self) -> list[str]:
        lanes = self.lanes.waiting()
        if "broker" in lanes and self.waits:
            lanes.remove("broker")
        return lanes

    def _exit(self) -> None:
        assert self.task is not None
        result = self.task.result
        if result.state is not TaskState.RUNNING:
            self.folder.write_json("status.json", status_to_json(result.state, result.error, 0))
        self.die(0)


class SimWorker:
    """A worker, and the overlord's `WorkerClient` of it."""

    def __init__(self, sim: Simulation, number: int) -> None:
        self.sim = sim
        self.name = f"worker{number or ''}"
        self.host = f"sim:{8091 + number}"
        self.folder = str(sim.folder / f"tasks{number or ''}")
        sim.metadata.roots.register(self.name, self.folder)
        self.start()

    def start(self) -> None:
        self.processor = MailboxProcessor(name=self.name, clock=self.sim.clock)
        self.worker = Worker(
            [self.folder],
            OsFileSystem(),
            self.sim,
            self.processor,
            self.sim.clock,
            InlineLanes(),
            WorkerOptions(self.sim.slots, deaths_max=50, forget_delay_ms=5_000),
        )
        self.worker.start()

    def kill(self) -> None:
        self.sim.note(f"{self.name} dies")
        for peon in self.sim.peons.values():
            if peon.folder_path.startswith(f"{self.folder}/"):
                peon.die()
        self.start()

    def assign(self, task: TaskSpec) -> None:
        self.sim._maybe_lost()
        self.worker.assign(task)
        self.sim._maybe_lost()

    def shutdown(self, task_id: str) -> None:
        self.sim._maybe_lost()
        self.worker.shutdown(task_id)

    def report(self) -> WorkerReport:
        self.sim._maybe_lost()
        return self.worker.report()

    def changes(self, after: HistoryPlace, wait_ms: int) -> WorkerChanges:
        return WorkerChanges(HistoryPlace(), report=self.report())


class Simulation:
    """The world. Everything random comes from the seed."""

    task_context: Mapping[str, bool] = {}

    def __init__(
        self,
        folder: Path,
        seed: int,
        tuning: dict[str, Any] | None = None,
        *,
        slots: int = 4,
        workers: int = 1,
        **io: Any,
    ) -> None:
        self.seed = seed
        self.slots = slots
        self.random = random.Random(seed)
        self.folder = folder
        self.clock = VirtualClock()
        self.chaos = False
        self.peon_death = 0.0
        self.engine_loss = 0.0
        self.story: list[str] = []
        self.events = KeptEvents()
        self.broker = FakeBroker(lose_answers=lambda: self.chance(0.05), wait=self._nothing_new)
        self.acting: SimPeon | None = None
        self.broker.create("flights", 2)
        self.deep_store = FakeDeepStore(folder / "segments")
        self.metadata = MemoryMetadata(self.clock)
        self.task_options = TaskOptions(drop_delay_ms=5_000, fold_fan_in=4)
        self.peons: dict[str, SimPeon] = {}
        self.tokens = itertools.count()
        self.spec = make_spec(tuning, **io)
        self.failed: list[str] = []
        self.sent = 0
        self.good: list[int] = []
        self.bad = 0
        self._overlord: Overlord | None = None
        self.sim_workers = [SimWorker(self, number) for number in range(workers)]
        self.start_overlord()
        self.overlord.supervisor_service.submit(self.spec.to_json())

    # chance

    def chance(self, probability: float) -> bool:
        return self.chaos and self.random.random() < probability

    def token(self) -> str:
        return f"t{next(self.tokens)}"

    def note(self, text: str) -> None:
        self.story.append(f"{self.clock.monotonic_s():.1f}s {text}")

    # processes

    @property
    def overlord(self) -> Overlord:
        if self._overlord is None:
            raise Unavailable("the overlord is dead")
        return self._overlord

    def start_overlord(self) -> None:
        self.overlord_lanes = StepLanes()
        self.overlord_processor = MailboxProcessor(name="overlord", clock=self.clock)
        self._overlord = Overlord(
            self.overlord_processor,
            OverlordPorts(
                metadata=self.metadata,
                broker=self.broker,
                peons=self,
                workers=self,
                lanes=self.overlord_lanes,
                lock_lanes=InlineLanes(),
                clock=self.clock,
                new_token=self.token,
                events=self.events,
            ),
            OverlordOptions(
                queue=TaskQueueOptions(context=self.task_context),
                supervisors=SupervisorOptions(retry_delay_max_ms=2_000, silence_limit_ms=130_000),
            ),
        )
        self.overlord.start()

    def kill_overlord(self) -> None:
        self.note("overlord dies")
        self.overlord_lanes.close()
        self.start_overlord()

    @property
    def worker(self) -> Worker:
        """The first, which is often the only one."""
        return self.sim_workers[0].worker

    def kill_worker(self) -> None:
        self.random.choice(self.sim_workers).kill()

    def launch(self, task_id: str, folder: str) -> SimPeon:
        self.peons[task_id] = SimPeon(self, task_id, folder)
        return self.peons[task_id]

    # ports of the overlord: WorkerDirectory, WorkerClient, TaskClient

    def workers(self) -> Sequence[WorkerClient]:
        return self.sim_workers

    def within(self, answer_ms: int) -> Simulation:
        self.answer_ms = answer_ms
        return self

    def report(self, task_id: str) -> TaskReport:
        self._maybe_lost()
        return self._ask(task_id, lambda task: task.report())

    def pause(self, task_id: str) -> dict[int, int]:
        return self._ask(task_id, lambda task: task.pause())

    def resume(self, task_id: str) -> None:
        self._ask(task_id, lambda task: task.resume())

    def set_end_offsets(self, task_id: str, end: Mapping[int, int], *, finish: bool) -> None:
        self._ask(task_id, lambda task: task.set_end_offsets(end, finish=finish))

    def _ask(self, task_id: str, question: Callable[[StreamingTask], Future[Answer]]) -> Answer:
        peon = self.peons.get(task_id)
        if peon is None or peon.dead or peon.task is None:
            raise Unavailable("the peon does not answer")
        try:
            future = question(peon.task)
            for _ in range(200):
                if future.done():
                    break
                if not peon.task.processor.run_mailbox_step():
                    break
        except Killed:
            peon.die()
        if peon.dead or not future.done():
            raise Unavailable("the peon does not answer in time")
        self._maybe_lost()
        return future.result()

    def _maybe_lost(self) -> None:
        if self.chance(0.03):
            raise Unavailable("the answer was lost")

    def _nothing_new(self, wait_ms: int) -> None:
        # Accidents come by steps: who asks all the time has more of them.
        if self.acting is not None and not self.chaos:
            self.acting.finds_nothing_new(wait_ms)

    # steps

    def step(self) -> bool:
        movers: list[Callable[[], bool]] = [
            self.overlord_processor.run_mailbox_step,
            *(worker.processor.run_mailbox_step for worker in self.sim_workers),
            self._overlord_lane,
            *(peon.step for peon in self.peons.values()),
        ]
        self.random.shuffle(movers)
        return any(move() for move in movers)

    def _overlord_is_ready(self) -> bool:
        try:
            self.overlord.active_tasks()
        except Unavailable:
            return False
        return True

    def _overlord_lane(self) -> bool:
        lanes = self.overlord_lanes.waiting()
        if not lanes:
            return False
        self.overlord_lanes.run_one(self.random.choice(lanes))
        return True

    def advance(self) -> None:
        alarms = [self.overlord_processor.mailbox.alarm_s]
        alarms += [worker.processor.mailbox.alarm_s for worker in self.sim_workers]
        alarms += [
            peon.task.processor.mailbox.alarm_s
            for peon in self.peons.values()
            if not peon.dead and peon.task is not None
        ]
        alarms += [p.waits_until_s for p in self.peons.values() if not p.dead and p.waits]
        due = min(alarms)
        assert due != float("inf"), "nothing will ever happen"
        self.clock.advance_to(due)

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Step until virtual time has passed; a busy world still sees time go by."""
        end_s = self.clock.monotonic_s() + seconds
        steps = 0
        while self.clock.monotonic_s() < end_s:
            steps += 1
            if not self.step():
                self.advance()
                # Now and when nothing is left to do is often enough: looking costs more than doing.
                if until():
                    return True
            elif steps % 20 == 0:
                self.clock.advance(0.05)
                if steps % 100 == 0 and until():
                    return True
            if self.chaos:
                self._disaster()
        return until()

    def _disaster(self) -> None:
        """Accidents, and users who do not know what they want."""
        if self.chance(0.001):
            active = sorted(self.overlord.active_tasks()) if self._overlord_is_ready() else []
            if active:
                task_id = self.random.choice(active)
                self.note(f"task {task_id[-6:]} is shut down by a user")
                self.overlord.shutdown_task(task_id)
        if self.chance(0.002):
            self.note("hand-off")
            self.overlord.supervisor_service.hand_off("flights")
        if self.chance(0.001):
            self.note("suspend or resume")
            self.overlord.supervisor_service.suspend(
                "flights", suspended=self.random.random() < 0.3
            )
        if self.chance(0.0008):
            self.kill_overlord()
        if self.chance(0.0008):
            self.kill_worker()
        if self.chance(0.002):
            self.broker.down = not self.broker.down
            self.note(f"broker {'down' if self.broker.down else 'up'}")
        if self.chance(0.002):
            alive = [peon for peon in self.peons.values() if not peon.dead]
            if alive:
                peon = self.random.choice(alive)
                self.note(f"peon of {peon.task_id[-6:]} is killed")
                peon.die()

    # events

    def publish(self, count: int) -> None:
        for _ in range(count):
            n, self.sent = self.sent, self.sent + 1
            if self.random.random() < 0.05:
                self.bad += 1
                message = f"broken {n}".encode()
            else:
                self.good.append(n)
                message = event(n)
            self.broker.add("flights", self.random.randrange(2), [message])

    # what is there

    def published(self) -> list[int]:
        return sorted(self._published_rows())

    def visible(self) -> list[int]:
        snapshot = self.metadata.latest("flights")
        found = [row["n"] for r in snapshot.announced for row in self._rows(r.file.path)]
        return sorted(found + self._published_rows(snapshot))

    def _published_rows(self, snapshot: Snapshot | None = None) -> list[int]:
        rows = (snapshot or self.metadata.latest("flights")).segments
        segments = [Segment.from_row(row) for row in rows if row.used]
        return [
            row["n"] for s in segments for row in self._rows(self.deep_store.location(s.load_spec))
        ]

    def _rows(self, path: str) -> list[Any]:
        # A file whose peon died may be gone until the next one announces what there is.
        return read_rows(path) if Path(path).exists() else []

    def letters(self) -> list[tuple[int, int]]:
        lines = self.broker.topics.get("flights.dead-letter", [[]])[0]
        values = [orjson.loads(line) for line in lines]
        return sorted((value["partition"], value["offset"]) for value in values)

    def tell(self) -> str:
        return f"seed {self.seed}\n" + "\n".join(self.story[-40:])


__all__ = ["DAY_MS", "START_MS", "Simulation", "TaskLocation"]
