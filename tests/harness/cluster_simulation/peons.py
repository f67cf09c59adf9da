"""Peons: each a process that runs one task in its folder, as the worker's `PeonProcess`.

Streaming tasks run mail by mail, and their blocking calls run on fibers. Batch tasks, which block,
are fibers themselves, run by the real `Peon`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import orjson

from penstock.core.errors import PenstockError, Unavailable
from penstock.indexing.batch.batch_ports import BatchPorts
from penstock.indexing.batch.task_kinds import batch_kinds
from penstock.indexing.engine import EngineUnavailable
from penstock.indexing.ports import TaskLocation, TaskState
from penstock.indexing.task import StreamingTask
from penstock.indexing.task.streaming_state import TaskOptions, TaskPorts
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import StreamTaskSpec, parse_task
from penstock.indexing.worker.builtin_kinds import noop_kind
from penstock.indexing.worker.peon import Peon
from penstock.indexing.worker.peon_task import TaskKinds
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts
from tests.harness.cluster_simulation.broker import SimBroker
from tests.harness.cluster_simulation.fibers import Killed
from tests.harness.cluster_simulation.world import FiberLanes, Process
from tests.harness.engine_kit import FakeBatchEngine, FakeEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.indexing.ports import TaskAction
    from penstock.indexing.task_spec import TaskSpec
    from penstock.indexing.worker.peon_task import PeonTask
    from penstock.storage.filesystem import FolderLock
    from tests.harness.cluster_simulation.broker import Topics
    from tests.harness.cluster_simulation.stores import SimDeepStore
    from tests.harness.cluster_simulation.world import SimulatedWorld

R = TypeVar("R")

_SLOW_MAX_S: Final = 8.0
# A pause ends earlier by itself, even if a supervisor is late.
_TASK_OPTIONS: Final = TaskOptions(pause_limit_ms=5_000, drop_delay_ms=5_000, fold_fan_in=4)


class Around(Protocol):
    """The part of the cluster that peons use."""

    @property
    def world(self) -> SimulatedWorld:
        """Return the world."""
        ...

    @property
    def topics(self) -> Topics:
        """Return the broker's topics."""
        ...

    def deep_store(self, process: Process) -> SimDeepStore:
        """Return deep storage with the faults of a process."""
        ...

    def token(self) -> str:
        """Return a unique text."""
        ...

    def perform(
        self, process: Process, task_id: str, worker: str, form: Mapping[str, object]
    ) -> object:
        """Perform an action of a task on the leader, for a worker."""
        ...


class SimPeon:
    """A simulated peon.

    Args:
        cluster: The cluster that it belongs to.
        worker: Its worker's process.
        task_id: The task to run.
        folder: The task's folder.
    """

    def __init__(self, cluster: Around, worker: Process, task_id: str, folder: str) -> None:
        self.task_id = task_id
        self.task: StreamingTask | None = None
        self.process = Process(cluster.world, f"peon of {task_id}", worker, worker.host)
        self.process.death_fault = "peon dies"
        self.process.boot = self._boot
        self.process.on_death = self._died
        self._cluster = cluster
        self._worker = worker.name
        self._folder = TaskFolder(folder, self.process.fs)
        self._batch: PeonTask | None = None
        self._lock: FolderLock | None = None
        self._attempts = TaskAttempts(self._folder, self.process.fs)
        self._number = 0
        self._code: int | None = None

    # PeonProcess

    def exit_code(self) -> int | None:
        """Return the exit code, None while the peon runs."""
        return self._code

    def terminate(self) -> None:
        """Ask the peon to stop."""
        if self.process.alive:
            if self.task is not None:
                self.task.stop()
            if self._batch is not None:
                self._batch.stop()
            self.process.poke()

    def kill(self) -> None:
        """End it."""
        self.process.die()

    # Start and end

    def _boot(self) -> None:
        try:
            spec = parse_task(self._folder.read_json("task.json") or {})
            if isinstance(spec, StreamTaskSpec):
                self._boot_stream(spec)
            else:
                self.process.spawn("peon", self._run_batch)
        except PenstockError as error:
            self.process.world.note(f"{self.process.name} cannot begin: {error}")
            self._exit(1)

    def _boot_stream(self, spec: StreamTaskSpec) -> None:
        process, cluster = self.process, self._cluster
        self._lock = self._folder.lock()
        broker = SimBroker(process, cluster.topics)
        ports = TaskPorts(
            engine=FakeEngine(read=cluster.topics.read, at=self._engine_moment),
            broker=broker,
            dead_letters=broker,
            actions=self._actions(spec.id),
            deep_store=cluster.deep_store(process),
            fs=process.fs,
            lanes=FiberLanes(process),
            clock=process.clock,
            new_token=cluster.token,
        )
        task = StreamingTask(spec, self._folder, ports, _TASK_OPTIONS)
        self._folder.write_json("location.json", {"host": "sim", "port": 1})
        self._number = self._attempts.begin(restorable=True)
        self.task = task
        process.processor = _Ending(task, self._stream_ended)  # type: ignore[assignment]

    def _stream_ended(self) -> None:
        assert self.task is not None
        result = self.task.result
        if result.state is not TaskState.RUNNING:
            try:
                self._attempts.write_end(self._number, AttemptEnd(result.state, result.error, 0))
            except Unavailable:
                return  # With a full disk, the end waits for the next step, as in the real peon.
        self._exit(0)

    def _run_batch(self) -> None:
        kinds = TaskKinds([*batch_kinds(self._batch_ports), noop_kind(self.process.clock)])
        peon = Peon(
            self._folder.path, self.process.fs, self.process.clock, kinds, serve=self._serve
        )
        code = 0
        try:
            peon.run()
        except PenstockError as error:
            self.process.world.note(f"{self.process.name} cannot run: {error}")
            code = 1
        except BaseException as error:
            if isinstance(error, Killed):
                raise
            if self.process.world.is_unforeseen(error):
                self._exit(1)
                return
            # The boundary: nothing waits for this fiber, and a bug anywhere fails the seed.
            text = f"{self.process.name}: {error!r}"
            self.process.world.violation = self.process.world.violation or text
            raise
        self._exit(code)

    def _serve(self, _spec: TaskSpec, task: PeonTask) -> TaskLocation:
        self._batch = task
        return TaskLocation("sim", 1)

    def _batch_ports(self, spec: TaskSpec) -> BatchPorts:
        store = self._cluster.deep_store(self.process)

        def at(what: str) -> None:
            self._engine_moment(what)
            if store.is_full:
                # Files written so far stay, as engines write there themselves.
                raise EngineUnavailable("no space left on device in deep storage")

        return BatchPorts(
            FakeBatchEngine(at=at),
            self._actions(spec.id),
            store,
            self.process.clock,
            self._cluster.token,
        )

    def _actions(self, task_id: str) -> _Actions:
        return _Actions(self._cluster, self.process, task_id, self._worker)

    def _engine_moment(self, what: str) -> None:
        world = self.process.world
        world.let_others_run()
        # Others run in between only while some work takes long.
        if world.current is not None and world.chance.fault("engine slow"):
            world.pause(world.chance.of("engine").uniform(0.0, _SLOW_MAX_S))
        self.process.moment(f"{what} with the engine")
        if self.process.disk_full_until_s > world.now_s:
            raise EngineUnavailable("no space left on device")
        if world.chance.fault("engine lost"):
            raise EngineUnavailable(f"the engine was lost {what}")

    def _exit(self, code: int) -> None:
        self._code = code
        self.process.die()

    def _died(self) -> None:
        if self._code is None:
            self._code = -9
        if self._lock is not None:
            self._lock.release()
            self._lock = None


class _Ending:
    """A streaming task's mailbox, stepped by the scheduler; reports the end of the loop."""

    def __init__(self, task: StreamingTask, ended: Callable[[], None]) -> None:
        self._task = task
        self._ended = ended
        self.mailbox = task.processor.mailbox
        self.is_mailbox_loop_running = True

    def run_mailbox_step(self) -> bool:
        """Run one mail, or the end of the process."""
        if self._task.processor.is_mailbox_loop_running:
            return self._task.processor.run_mailbox_step()
        self._ended()
        return True


class _Actions:
    """The overlord, for one task: the current leader, as far as the terms show."""

    def __init__(self, cluster: Around, process: Process, task_id: str, worker: str) -> None:
        self._cluster = cluster
        self._process = process
        self._task_id = task_id
        self._worker = worker

    def perform(self, action: TaskAction[R]) -> R:
        """Perform an action on the leader."""
        form = orjson.loads(orjson.dumps(action.to_json()))
        answer = self._cluster.perform(self._process, self._task_id, self._worker, form)
        return action.parse_result(orjson.loads(orjson.dumps(answer)))
