"""The simulated world: processes, time, and the order of events.

Owns the virtual time and the schedule. A process is a mailbox, fibers, or both. It may die, pause,
have a wrong wall clock, be cut off from others, and have a full disk. This module does not know
what a process does.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.core.errors import Closed, Unavailable
from penstock.core.threads import promise
from penstock.storage.disk import OsFileSystem
from tests.harness.cluster_simulation.fibers import Fiber, Killed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from penstock.mailbox import MailboxProcessor
    from tests.harness.cluster_simulation.chance import Chance

T = TypeVar("T")

START_MS: Final = 1_356_998_400_000
DAY_MS: Final = 86_400_000
DAYS: Final = 3
_STEP_S: Final = 0.002
_LOOK_S: Final = 1.0
_STORY_LINES: Final = 100_000
_UNFORESEEN: Final[tuple[type[BaseException], ...]] = (
    MemoryError,
    OSError,
    RuntimeError,
    KeyboardInterrupt,
)


class SimulatedWorld:
    """Scheduler of processes in virtual time.

    Args:
        chance: The dice.
    """

    def __init__(self, chance: Chance) -> None:
        self.chance: Final = chance
        self.now_s = 0.0
        self.steps = 0
        self.processes: list[Process] = []
        self.story: list[str] = []
        self.current: Fiber[object] | None = None
        self._acting = ""
        # Violations that were found; kept here, because callers may swallow the error.
        self.violation = ""
        # Errors that no part of the product expects, in the order in which they were raised.
        self._unforeseen: list[BaseException] = []
        # While it is not 0, code runs that holds a mutex for which other threads would wait.
        self.undivided = 0
        self._order = chance.of("order")
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def note(self, text: str) -> None:
        """Add a line to the log of the run."""
        if len(self.story) < _STORY_LINES:
            self.story.append(f"{self.now_s:8.2f} s  {text}")

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        """Schedule an event."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), event))

    def run(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Run until virtual time has passed or a condition holds; return whether it holds.

        The condition is checked only now and then, because a check costs more than most steps.
        """
        end_s = self.now_s + seconds
        look_s = self.now_s
        while self.now_s < end_s and not self.violation:
            if self.now_s >= look_s:
                if until():
                    return True
                look_s = self.now_s + _LOOK_S
            if self.step():
                self.now_s += _STEP_S
            else:
                self.now_s = max(self.now_s, min(self._next_s(), end_s))
        return until()

    def step(self) -> bool:
        """Run one step; return False if nothing is due before time advances."""
        self.steps += 1
        while self._events and self._events[0][0] <= self.now_s:
            heapq.heappop(self._events)[2]()
        now_s = self.now_s
        processes = [p for p in self.processes if p.alive and p.stalled_until_s <= now_s]
        self._order.shuffle(processes)
        draw = self._order.random
        return any(process.step(draw()) for process in processes)

    def resume(self, fiber: Fiber[object]) -> None:
        """Run a fiber until it waits."""
        self.current = fiber
        try:
            fiber.resume()
        finally:
            self.current = None

    def pause(self, seconds: float, is_ready: Callable[[], bool] = lambda: False) -> None:
        """Let the running fiber wait. The scheduler's thread cannot wait."""
        fiber = self.current
        assert fiber is not None, "only a fiber can wait"
        until_s = self.now_s + seconds
        self.current = None
        fiber.pause(until_s, is_ready)

    @property
    def acting(self) -> str:
        """Return whose work is running: the name of a fiber, or the name that was set."""
        return self._acting or (self.current.acting if self.current is not None else "mailbox")

    def on_scheduler(self, work: Callable[[], T], acting: str) -> T:
        """Run a function on the scheduler's thread, where mailboxes run, and return its result."""
        fiber = self.current
        assert fiber is not None, "only a fiber is on another thread"

        def run() -> T:
            self.current, before = None, self._acting
            self._acting = acting
            try:
                return work()
            finally:
                self.current, self._acting = fiber, before

        return fiber.on_scheduler(run)  # type: ignore[return-value]  # result unchanged

    def unforeseen(self, what: str) -> BaseException:
        """Return an error of a type that no part of the product expects."""
        kind = self.chance.of("unforeseen errors").choice(_UNFORESEEN)
        error = kind(f"unforeseen {what}")
        self._unforeseen.append(error)
        return error

    def is_unforeseen(self, error: BaseException | None) -> bool:
        """Return whether an error is one of those, not one that the product derived from it."""
        return any(error is one for one in self._unforeseen)

    def let_others_run(self) -> None:
        """Let another event happen first, if a fiber runs and may be interrupted."""
        if self.current is not None and not self.undivided:
            self.pause(0.0)

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.die()

    def _next_s(self) -> float:
        times = [process.next_s() for process in self.processes if process.alive]
        if self._events:
            times.append(self._events[0][0])
        found = min(times, default=math.inf)
        assert found != math.inf, "no event is scheduled"
        return max(found, self.now_s + 0.000_001)


class Process:
    """One process, from its start to its death; a restart makes a new object of the same name.

    Args:
        world: The world that it belongs to.
        name: Name for logs.
        parent: The process dies with its parent; None: independent.
        host: Processes of one host share disk, clock and network; default: the name.
    """

    def __init__(
        self, world: SimulatedWorld, name: str, parent: Process | None = None, host: str = ""
    ) -> None:
        self.world: Final = world
        self.name: Final = name
        self.host: Final = host or name
        self.alive = True
        self.stalled_until_s = 0.0
        self.skew_ms = 0
        self.disk_full_until_s = 0.0
        self.cut_until_s = 0.0
        self.death_fault = ""
        self.processor: MailboxProcessor | None = None
        self.boot: Callable[[], None] | None = None
        self.on_death: Callable[[], None] = lambda: None
        self.clock: Final = ProcessClock(self)
        self.fs: Final = ProcessFs(self)
        self._fibers: list[Fiber[object]] = []
        self.children: list[Process] = []
        world.processes.append(self)
        if parent is not None:
            self.skew_ms = parent.skew_ms
            parent.children.append(self)

    @property
    def runs(self) -> bool:
        """Return whether the process does anything at this moment."""
        return self.alive and self.stalled_until_s <= self.world.now_s

    @property
    def is_cut(self) -> bool:
        """Return whether the process is cut off from all others."""
        return self.cut_until_s > self.world.now_s

    def spawn(
        self, name: str, work: Callable[[], T], delay_s: float = 0.0, *, is_vital: bool = False
    ) -> Fiber[T]:
        """Start blocking work.

        Args:
            name: Name for logs.
            work: The function to run.
            delay_s: Seconds until the work begins.
            is_vital: Whether the process ends if the work fails with an error.
        """
        fiber = Fiber(name, work, self.world.now_s + delay_s)
        fiber.is_vital = is_vital
        if self.alive:
            self._fibers.append(fiber)  # type: ignore[arg-type]  # a fiber's result is its caller's
        return fiber

    def moment(self, what: str) -> None:
        """Die here, or raise an unexpected error, if chance decides so.

        Raises:
            Killed: The process is dead.
        """
        if not self.alive:
            raise Killed
        if not self.death_fault:
            return
        if self.world.chance.fault(self.death_fault):
            self.world.note(f"{self.name} dies {what}")
            self.die()
            raise Killed
        if self.world.chance.fault("unforeseen error"):
            error = self.world.unforeseen(what)
            self.world.note(f"{self.name} has a {type(error).__name__} {what}")
            raise error

    def broke(self, error: BaseException) -> None:
        """End, as the product does after a failure of its mailbox or of a thread that it needs.

        Raises the error if chance did not cause it.
        """
        if not self.world.is_unforeseen(error):
            raise error
        self.world.note(f"{self.name} ends after a {type(error).__name__}")
        self.die()

    def die(self) -> None:
        """End at once, with all child processes and fibers."""
        if not self.alive:
            return
        self.alive = False
        for child in self.children:
            child.die()
        self.on_death()
        current, self.world.current = self.world.current, None
        if current is None:
            self._end_fibers()
        else:
            # Fibers end each other only through the scheduler.
            self.world.current = current
            self.world.after(0.0, self._end_fibers)
        if self in self.world.processes:
            self.world.processes.remove(self)

    def _end_fibers(self) -> None:
        for fiber in self._fibers:
            if fiber is not self.world.current:
                fiber.kill()
        self._fibers.clear()

    def poke(self) -> None:
        """Wake everything that waits, so that it checks its condition again."""
        for fiber in self._fibers:
            fiber.wake_s = min(fiber.wake_s, self.world.now_s)

    def step(self, chance: float) -> bool:
        """Do one thing, if there is work."""
        try:
            if self.boot is not None:
                boot, self.boot = self.boot, None
                boot()
                return True
            if chance < 0.5:
                return self._step_mailbox() or self._step_fiber(chance)
            return self._step_fiber(chance) or self._step_mailbox()
        except Killed:
            self.die()
        except BaseException as error:  # noqa: BLE001 - any other than those of chance is raised
            self.broke(error)
        return True

    def next_s(self) -> float:
        """Return when the process has work next, unless another event comes first."""
        times = [fiber.wake_s for fiber in self._fibers]
        if self.processor is not None and self.processor.is_mailbox_loop_running:
            times.append(self.processor.mailbox.alarm_s)
        return max(min(times, default=math.inf), self.stalled_until_s)

    def _step_mailbox(self) -> bool:
        processor = self.processor
        if processor is None or not processor.is_mailbox_loop_running:
            return False
        return processor.run_mailbox_step()

    def _step_fiber(self, chance: float) -> bool:
        if not self._fibers:
            return False
        now_s = self.world.now_s
        ready = [s for s in self._fibers if s.wake_s <= now_s or s.is_ready()]
        if not ready:
            return False
        fiber = ready[int(chance * 1_000) % len(ready)]
        self.world.resume(fiber)
        if fiber.finished:
            if fiber in self._fibers:
                self._fibers.remove(fiber)
            if fiber.was_killed:
                self.die()
            elif fiber.is_vital and (error := fiber.future.exception()) is not None:
                self.broke(error)
        return True


class ProcessClock:
    """The clocks of a host: the monotonic one is right, the wall clock may not be."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_ms(self) -> int:
        """Return the time of the wall clock."""
        return START_MS + int(self._process.world.now_s * 1_000) + self._process.skew_ms

    def monotonic_s(self) -> float:
        """Return the virtual seconds since the start."""
        return self._process.world.now_s

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> bool:
        """Wait on a held condition while others run; may return early, as every wait may."""
        world = self._process.world
        until_s = math.inf if timeout_s is None else world.now_s + timeout_s
        condition.release()
        try:
            world.pause(until_s - world.now_s)
        finally:
            condition.acquire()
        return world.now_s < until_s


class ProcessFs(OsFileSystem):
    """A disk that may be full; the process may die before and after each durable step."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def write_atomically(self, path: str, data: bytes) -> None:
        """Replace a file."""
        self._step("before it writes")
        super().write_atomically(path, data)
        self._process.moment("after it wrote")

    def fsync_file(self, path: str) -> None:
        """Make a file durable."""
        self._step("before an fsync")
        super().fsync_file(path)

    def unlink(self, path: str) -> None:
        """Delete a file."""
        self._process.moment("before it deletes")
        super().unlink(path)

    def _step(self, what: str) -> None:
        process = self._process
        process.moment(what)
        if process.disk_full_until_s > process.world.now_s:
            raise Unavailable("no space left on device: free space and try again")


class FiberLanes:
    """Lanes of a process: each runs its work in order on a fiber."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lanes: dict[str, deque[Callable[[], None]]] = {}
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Add work to a lane. Raises Closed after `close`."""
        if self._closed:
            raise Closed("the lanes are closed")
        future, run = promise(work, through=(Killed,))

        waiting = self._lanes.get(lane)
        if waiting is None:
            if self._process.world.chance.fault("no thread"):
                future.set_exception(Unavailable(f"no thread for {lane} can be started"))
                return future
            self._lanes[lane] = waiting = deque()
            self._process.spawn(lane, lambda: self._serve(lane))
        waiting.append(run)
        return future

    def close(self) -> None:
        """Start no further work."""
        self._closed = True
        for waiting in self._lanes.values():
            waiting.clear()

    def _serve(self, lane: str) -> None:
        waiting = self._lanes[lane]
        while waiting:
            waiting.popleft()()
        del self._lanes[lane]


class UndividedLanes:
    """Lanes whose work runs at once, on the thread that submits it, without interruption.

    Used for locks and commits, whose results are awaited by code that the world cannot interrupt.
    """

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._waiting: deque[Callable[[], None]] = deque()
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        """Run work, then the work that it submitted. Raises Closed after `close`."""
        del lane
        if self._closed:
            raise Closed("the lanes are closed")
        future, run = promise(work)

        if not self._waiting and self._world.chance.fault("no thread"):
            future.set_exception(Unavailable("no thread for a datasource can be started"))
            return future
        self._waiting.append(run)
        if len(self._waiting) == 1:
            self._world.undivided += 1
            try:
                while self._waiting:
                    self._waiting[0]()
                    self._waiting.popleft()
            finally:
                self._world.undivided -= 1
        return future

    def close(self) -> None:
        """Accept no further work."""
        self._closed = True
