"""The worker's peons as processes: started cold, or taken warm from a few that wait.

Owns the processes and the spares. A *spare* is a peon without a task: it has imported everything
and holds a Spark session, and waits for the name of a task's folder on its standard input. One
process runs one task and ends; the next spare is made in the background, on the worker's mailbox
thread, as the kernel ends children with the thread that started them. A spare costs the memory of
an idle peon (`docs/indexing.md` has the figure), so there are at most as many as were asked for.

| a spare | then |
|---|---|
| is taken | another is made after `refill_delay_ms`, so that the task starts first |
| ends by itself | another after a growing while |
| has waited `spare_age_max_ms` | it goes, and another is made: its Spark session may be stale |
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.clock import Clock
from penstock.core.errors import Closed, Dependency, Unavailable
from penstock.core.waits import WaitTable
from penstock.indexing.errand import Retry
from penstock.mailbox import MailboxProcessor
from penstock.services.config import Address
from penstock.services.host.plan import child_environment
from penstock.services.host.process import ChildCommand, spawn
from penstock.services.host.watching import ChildWatch

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 8.0
_SPARE = "start a spare process"


@dataclass(frozen=True, slots=True)
class PeonOptions:
    """How peons are started.

    Attributes:
        spares: Warm processes that wait for a task.
        refill_delay_ms: How long after one was taken the next is made.
        spare_age_max_ms: One that has waited so long is replaced.
        retry: How long to wait before a spare that ended by itself is replaced.
    """

    spares: int = 1
    refill_delay_ms: int = 1_000
    spare_age_max_ms: int = 1_800_000
    retry: Retry = field(default_factory=lambda: Retry(500, 60_000))


class PeonChild:
    """`PeonProcess`: a peon as a child process."""

    def __init__(self, process: subprocess.Popen[bytes], task_id: str = "") -> None:
        self.process = process
        self.task_id = task_id

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Ask it to stop at the next good moment."""
        self.process.terminate()
        self.hang_up()

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()

    def give(self, folder: str) -> bool:
        """Tell a spare which task to run; whether it heard it."""
        stream = self.process.stdin
        if stream is None or self.process.poll() is not None:
            return False
        try:
            os.write(stream.fileno(), json.dumps({"folder": folder}).encode() + b"\n")
        except OSError:
            return False
        return True

    def hang_up(self) -> None:
        """Close its input, which asks it to end. Does nothing if that is closed already."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            self.process.stdin.close()


class Peons:
    """`PeonLauncher`. `start` and `launch` run on the worker's mailbox thread.

    Args:
        options_file: Where peons read the options.
        worker: Where they find the worker's API, and what the overlord calls the worker.
        spare_log: What spares print before they have a task.
        processor: The worker's mailbox.
        clock: Time.
        options: How peons are started.

    Attributes:
        waits: The wait for room to start spares, if there is none; any thread may read it.
    """

    def __init__(
        self,
        options_file: Path,
        worker: tuple[Address, str],
        spare_log: Path,
        processor: MailboxProcessor,
        clock: Clock,
        options: PeonOptions | None = None,
    ) -> None:
        self._options_file = options_file
        self._address, self._name = worker
        self._spare_log = spare_log
        self._processor = processor
        self._clock = clock
        self._options = options or PeonOptions()
        self._watch = ChildWatch()
        self._look: Callable[[str], None] = lambda _task_id: None
        self._spares: list[PeonChild] = []
        self._peons: list[PeonChild] = []
        self.waits = WaitTable(clock)
        self._deaths = 0
        self._refilling = False
        self._stopping = False

    def start(self, look: Callable[[str], None]) -> None:
        """Make the spares.

        Args:
            look: Looks at a task whose peon has said something or ended; on the mailbox thread.
        """
        self._look = look
        self._watch.start()
        self._fill()

    def launch(self, task_id: str, folder: str) -> PeonChild:
        """Start a peon in a task's folder: a spare that waits, else a new process."""
        peon, kind = self._take_spare(folder), "warm"
        if peon is None:
            peon, kind = self._spawn(Path(folder) / "log", folder), "new"
        peon.task_id = task_id
        logger.info("task %s runs in the %s process %d", task_id, kind, peon.process.pid)
        self._peons = [one for one in self._peons if one.exit_code() is None]
        self._peons.append(peon)
        return peon

    def stop(self) -> None:
        """Wait until all have ended, a bounded time, and kill those that have not.

        To be called when the mailbox launches no more; from any thread.
        """
        self._stopping = True
        for spare in self._spares:
            spare.terminate()
        until_s = self._clock.monotonic_s() + _STOP_TIMEOUT_S
        for peon in (*self._spares, *self._peons):
            try:
                peon.process.wait(max(0.0, until_s - self._clock.monotonic_s()))
            except subprocess.TimeoutExpired:
                logger.warning("peon %d did not stop in time and is killed", peon.process.pid)
                peon.kill()
                peon.process.wait()
        self._watch.stop()

    # The mailbox thread

    def _take_spare(self, folder: str) -> PeonChild | None:
        while self._spares:
            spare = self._spares.pop(0)
            self._refill(self._options.refill_delay_ms)
            if spare.give(folder):
                self._deaths = 0
                return spare
            self._let_go(spare)
        return None

    def _spawn(self, output: Path, folder: str | None) -> PeonChild:
        words, writer = os.pipe()
        try:
            argv = (
                *(sys.executable, "-P", "-m", "penstock.services.roles.peon"),
                *("--options", str(self._options_file), "--worker", str(self._address)),
                *("--worker-name", self._name),
                *("--parent", str(os.getpid()), "--words-fd", str(writer)),
                *(("--folder", folder) if folder else ()),
            )
            command = ChildCommand(argv, child_environment(os.environ), inherited=(writer,))
            child = PeonChild(spawn(command, output, stdin=subprocess.PIPE))
        except BaseException:
            os.close(words)
            raise
        finally:
            os.close(writer)
        self._watch.watch(child.process.pid, words, lambda: self._told_of(child))
        return child

    def _told_of(self, child: PeonChild) -> None:
        """Pass on that a peon did something; on the watch's thread."""
        with contextlib.suppress(Closed):
            self._processor.main_executor.execute(
                lambda: self._heard(child), "peon %d did something", child.process.pid
            )

    def _heard(self, child: PeonChild) -> None:
        if child.exit_code() is not None:
            # Whoever still refers to a process that has ended must not keep its pipe open.
            child.hang_up()
        if self._stopping:
            return
        if child.task_id:
            self._look(child.task_id)
        elif child in self._spares and (code := child.exit_code()) is not None:
            self._spares.remove(child)
            self._deaths += 1
            delay_ms = self._options.retry.delay_ms(self._deaths)
            logger.warning(
                "a spare peon ended with exit code %d (see %s); another in %d ms",
                *(code, self._spare_log, delay_ms),
            )
            self._refill(delay_ms)

    def _refill(self, delay_ms: int) -> None:
        if not self._refilling:
            self._refilling = True
            self._processor.timers.schedule_after(delay_ms, self._refill_now, "make a spare peon")

    def _refill_now(self) -> None:
        self._refilling = False
        self._fill()

    def _fill(self) -> None:
        while not self._stopping and len(self._spares) < self._options.spares:
            try:
                spare = self._spawn(self._spare_log, None)
            except Unavailable as error:
                self._deaths += 1
                self.waits.failed(_SPARE, error, dependency=Dependency.WORKER)
                logger.warning("a spare peon cannot be made: %s", error)
                self._refill(self._options.retry.delay_ms(self._deaths))
                return
            self.waits.ended(_SPARE)
            self._spares.append(spare)
            # The timer outlives most spares by far, so it refers to the process weakly.
            self._processor.timers.schedule_after(
                self._options.spare_age_max_ms,
                functools.partial(self._replace, weakref.ref(spare)),
                "old spare",
            )

    def _replace(self, reference: weakref.ref[PeonChild]) -> None:
        spare = reference()
        if spare is not None and spare in self._spares:
            self._spares.remove(spare)
            self._let_go(spare)
            self._fill()

    def _let_go(self, spare: PeonChild) -> None:
        self._peons.append(spare)  # waited for at the stop, and reaped at the next launch
        spare.hang_up()
