"""Exceptions of every kind at every call of the ports of a worker.

A test runs a sample of the cases, and the soak suite `faults` all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from penstock.core.errors import PenstockError
from penstock.indexing.ports import TaskState
from penstock.indexing.task.task_folder import TaskFolder
from penstock.indexing.task_spec import StreamTaskSpec
from penstock.indexing.worker import Worker, WorkerOptions
from penstock.indexing.worker.task_attempts import AttemptEnd, TaskAttempts
from penstock.mailbox import MailboxProcessor
from penstock.storage.filesystem import FileSystem
from penstock.testing.clock import VirtualClock
from penstock.testing.memory_disk import CrashableFileSystem
from tests.harness.call_faults_kit import Faults
from tests.harness.mailbox_kit import StepLanes, settle
from tests.indexing.indexing_kit import make_task
from tests.indexing.queue_kit import HeldPeon
from tests.kits.fault_cases_kit import CountedPart, DrawnCases, FaultPlan

FOLDER = "/tasks"
_DISK = ("CrashableFileSystem.", "_AppendFile.", "_ReadFile.")
OPTIONS = WorkerOptions(3, deaths_max=10, forget_delay_ms=5_000, shutdown_grace_ms=2_000)


class WorkerWorld:
    """A worker whose ports a test can make fail; it starts anew when its loop has ended."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.clock = VirtualClock()
        self.fs = CrashableFileSystem()
        self.peons: list[HeldPeon] = []
        self.start()
        self.settle()
        for name in ("runs", "ended"):
            self.worker.assign(task(name))
        self.settle(2)
        self.end("ended", TaskState.SUCCESS)
        self.settle(2)
        assert self.tasks() == {"runs": TaskState.RUNNING, "ended": TaskState.SUCCESS}

    def launch(self, task_id: str, folder: str) -> HeldPeon:
        made = HeldPeon(task_id, folder)

        def launch() -> HeldPeon:
            self.peons.append(made)
            return made

        try:
            return self.faults.call("launch", launch)
        except BaseException:
            made.kill()  # As the product does: a launch that raises leaves no process.
            raise

    def start(self) -> None:
        """Begin as the next process does: the peons of the one before have died with it."""
        for peon in self.peons:
            peon.code = -9 if peon.code is None else peon.code
        self.lanes = StepLanes()
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        faults = self.faults
        fs = faults.port(self.fs, {"create", "open_append", "open_read", "lock_folder"})
        # Each step of an atomic write is a call of its own.
        vars(fs)["write_atomically"] = functools.partial(FileSystem.write_atomically, fs)
        self.worker = Worker(
            [FOLDER],
            fs,
            self,
            self.processor,
            faults.port(self.clock),
            faults.port(self.lanes),
            OPTIONS,
        )
        self.started = self.worker.start()

    def settle(self, seconds: float = 0) -> None:
        settle(self.processor, self.clock, seconds, self.lanes)

    def end(self, task_id: str, state: TaskState) -> None:
        """Have the peon of a task write how it ended, and end."""
        attempts = TaskAttempts(TaskFolder(f"{FOLDER}/{task_id}", self.fs), self.fs)
        attempts.write_end(attempts.begin(restorable=True), AttemptEnd(state))
        for peon in self.living(task_id):
            peon.code = 0

    def living(self, task_id: str) -> list[HeldPeon]:
        return [peon for peon in self.peons if peon.task_id == task_id and peon.code is None]

    def tasks(self) -> dict[str, TaskState]:
        return {one.id: one.state for one in self.worker.report().tasks}


def task(name: str) -> StreamTaskSpec:
    return make_task().model_copy(update={"id": name, "base_sequence_name": f"base-{name}"})


def take(world: WorkerWorld) -> None:
    world.worker.assign(task("new"))


def take_again(world: WorkerWorld) -> None:
    """Take a task whose id an earlier one had, which was forgotten and left files."""
    world.worker.shutdown("ended")
    world.worker.assign(task("ended"))


def shut_down(world: WorkerWorld) -> None:
    world.worker.shutdown("runs")


def forget(world: WorkerWorld) -> None:
    world.worker.shutdown("ended")


def end(world: WorkerWorld) -> None:
    world.end("runs", TaskState.FAILED)


def die(world: WorkerWorld) -> None:
    for peon in world.living("runs"):
        peon.code = 1


def lose(world: WorkerWorld) -> None:
    """Have the peon of a task that cannot continue die, and leave a log."""
    folder = TaskFolder(f"{FOLDER}/runs", world.fs)
    world.fs.write_atomically(f"{folder.path}/log", b"the last line\n")
    TaskAttempts(folder, world.fs).begin(restorable=False)
    die(world)


def restore(world: WorkerWorld) -> None:
    world.start()


def disable(world: WorkerWorld) -> None:
    world.worker.set_enabled(False)
    world.worker.set_enabled(True)


def report(world: WorkerWorld) -> None:
    world.worker.report()


# Modules whose functions run out of memory.
INSIDE = ("penstock.indexing.worker", "penstock.indexing.task")
Operation = Callable[[WorkerWorld], None]
OPERATIONS: Sequence[Operation] = (
    *(take, take_again, shut_down, forget, end, die, lose, restore, disable, report),
)


def check(world: WorkerWorld, where: str) -> None:
    """Insist that nothing is lost, doubled, stuck or leaked, and go on."""
    world.settle(30)
    worker = world.worker
    worker.set_enabled(True)
    for task_id, state in world.tasks().items():
        alive = len(world.living(task_id))
        assert alive == (state is TaskState.RUNNING), f"{where}: {task_id} has {alive} peons"
    if "runs" not in world.tasks():
        raise AssertionError(f"{where}: a task that nobody forgot is lost")
    for task_id in list(world.tasks()):  # All end, are forgotten, and their folders go.
        worker.shutdown(task_id)
        world.settle(5)
        worker.shutdown(task_id)
    world.settle(60)
    assert world.tasks() == {}, where
    assert not [name for name in world.fs.listdir(FOLDER) if "." not in name], f"{where}: folders"
    for number in range(OPTIONS.capacity):  # No slot has leaked, and no id is taken.
        worker.assign(task(("runs", "ended", "new")[number]))
    world.settle(5)
    found = world.tasks()
    assert [*found.values()] == [TaskState.RUNNING] * OPTIONS.capacity, where
    world.start()
    world.settle(5)
    assert world.tasks() == found, f"{where}: the next worker has other tasks"


def attempt(operation: Operation, plan: FaultPlan) -> Faults:
    """Do an operation with a fault, start anew if the loop ended, check; return what was raised."""
    world = WorkerWorld()
    with plan.armed(world.faults):
        step: Callable[[], None] = functools.partial(operation, world)
        for _ in range(4):
            is_start = step == world.start or operation is restore
            try:
                step()
            except BaseException as ended:
                if not world.faults.raised:
                    raise
                if is_start or not isinstance(ended, PenstockError):
                    step = world.start
                    continue
                # An answer: the worker goes on.
            try:
                world.settle(10)
            except BaseException as ended:
                if not world.faults.raised:
                    raise
                last = world.faults.raised.split(", then ")[-1]
                if isinstance(ended, PenstockError) and last.startswith(_DISK):
                    text = f"{operation.__name__}: {plan} ({world.faults.raised})"
                    raise AssertionError(f"{text}: the disk ended the worker") from ended
            else:
                if not world.started.done() or world.started.exception() is None:
                    break
            step = world.start
    raised = world.faults.raised
    assert not world.faults.unclosed, f"{operation.__name__}: {plan} ({raised}): not closed"
    check(world, f"{operation.__name__}: {plan} ({raised})")
    return world.faults


PART = CountedPart(OPERATIONS, attempt, INSIDE, gaps=6)
count, is_met, pair = PART.count, PART.is_met, PART.pair
PAIRS = DrawnCases(lambda number: ", then " in pair(number))
singles, insides = PART.singles, PART.insides
