"""Peons as child processes of the worker: spares, forked processes, or new processes.

`PeonProcesses` owns the processes and the spares, `PeonForkServer` the fork server. A *spare* is a
peon without a task: it has opened a Spark session, and waits for the name of a task's folder on
its standard input. One process runs one task and ends. Processes are forked from an idle process
that has imported everything (`host.fork_server`); if that is not possible, they are new processes,
which import everything themselves. All of this runs on the worker's mailbox thread, because the
kernel ends children with the thread that started them. `docs/howto/tune.md` has the memory of a
process.

| a task starts | in |
|---|---|
| while a spare waits | the spare |
| else, once the fork server is ready | a forked process |
| else | a new process |

| event | action |
|---|---|
| the worker starts | it restores no task before the fork server is ready, for a limited time |
| the fork server is ready | spares are forked |
| it ends by itself | another is started after a growing delay; spares are new processes meanwhile |
| it does not answer in 5 s, or is not ready after 60 s | it is killed; then as above |
| a spare is taken | another is made after `refill_delay_ms`, so that the task starts first |
| a spare ends by itself | another is made after a growing delay |
| a spare has waited `spare_age_max_ms` | it is replaced, because its session may be stale |
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.core.access.derived_tokens import TASK_MADE_AGAIN_S
from penstock.core.backoff import RetryPolicy
from penstock.core.clock import Clock
from penstock.core.errors import Dependency, Unavailable
from penstock.core.waits import WaitTable
from penstock.mailbox import MailboxProcessor
from penstock.services.host.child_watch import ChildWatch
from penstock.services.host.fork_server import (
    ForkedProcess,
    ForkServer,
    ForkServerLost,
    adopt_orphans,
    reap_orphans,
)
from penstock.services.host.host_plan import child_environment
from penstock.services.host.process import ChildCommand, spawn
from penstock.services.host.secret_variables import open_variables
from penstock.services.options.option_values import HostPort
from penstock.services.roles.peon_credentials import PeonCredentials
from penstock.storage.secrets.secret_sources import SECRETS

logger = logging.getLogger(__name__)

PEON_PROGRAM = (sys.executable, "-P", "-m", "penstock.services.roles.peon_start")
"""Command of a peon and of a fork server; arguments are appended."""

_STOP_TIMEOUT_S = 8.0
_SPARE = "start a spare process"
# Time after which an unready fork server hangs; one that lived longer has no permanent fault.
_SERVER_START_MAX_MS = 60_000
_STEADY_S = 60.0


@dataclass(frozen=True, slots=True)
class PeonOptions:
    """Options of peon processes.

    Attributes:
        spares: Processes that wait for a task; without any there is no fork server.
        refill_delay_ms: Delay between taking a spare and making the next.
        spare_age_max_ms: A spare that has waited for this time is replaced.
        retry: Delays before a spare or fork server that ended by itself is replaced.
        credentials: Returns the credentials of a task's peon, by the task's id and folder.
        renewal_ms: Interval at which the credentials of running tasks are written again.
    """

    spares: int = 1
    refill_delay_ms: int = 300
    spare_age_max_ms: int = 1_800_000
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(500, 60_000))
    credentials: Callable[[str, str], PeonCredentials] | None = None
    renewal_ms: int = TASK_MADE_AGAIN_S * 1000


class PeonChild:
    """`PeonProcess`: a peon as a child process.

    Args:
        process: The process.
        stdin: The writing end of its input, closed by `hang_up`.
    """

    def __init__(self, process: subprocess.Popen[bytes] | ForkedProcess, stdin: int) -> None:
        self.process = process
        self.task_id = ""
        self.folder = ""
        self._stdin: int | None = stdin

    def exit_code(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self.process.poll()

    def terminate(self) -> None:
        """Ask the peon to stop at the next opportunity."""
        self.process.terminate()
        self.hang_up()

    def kill(self) -> None:
        """End the peon at once."""
        self.process.kill()

    def give(self, folder: str) -> bool:
        """Assign a task; return whether the process received it."""
        if self._stdin is None or self.process.poll() is not None:
            return False
        try:
            os.write(self._stdin, json.dumps({"folder": folder}).encode() + b"\n")
        except OSError:
            return False
        return True

    def hang_up(self) -> None:
        """Close its input, which asks it to end. Does nothing if the input is closed."""
        stdin, self._stdin = self._stdin, None
        if stdin is not None:
            os.close(stdin)


class PeonForkServer:
    """The fork server of a worker's peons, started again after it has ended.

    All methods but `wait` run on the worker's mailbox thread.

    Args:
        command: Starts the program of the server.
        changed: Called when the server is ready or has ended.
        output: File for its output and that of its forked processes.
        watch: Reports that it is ready, or has ended.
        processor: The worker's mailbox.
        clock: Time.
        retry: Delays before it is started again.

    Attributes:
        is_ready: Whether it forks processes.
    """

    def __init__(
        self,
        command: ChildCommand,
        changed: Callable[[], None],
        output: Path,
        watch: ChildWatch,
        processor: MailboxProcessor,
        clock: Clock,
        retry: RetryPolicy,
    ) -> None:
        self.is_ready = False
        self._command = command
        self._changed = changed
        self._output = output
        self._watch = watch
        self._processor = processor
        self._clock = clock
        self._retry = retry
        self._server: ForkServer | None = None
        self._since_s = 0.0
        self._ends = 0
        self._decided = threading.Event()
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process id, None while there is no server."""
        return None if self._server is None else self._server.process.pid

    @property
    def is_starting(self) -> bool:
        """Whether it may become ready, or its end has not been handled."""
        return self._server is not None and not self.is_ready

    def start(self) -> None:
        """Start the server, unless this kernel cannot adopt the processes that it forks."""
        if adopt_orphans():
            self._start()
        else:
            logger.warning("this kernel cannot adopt processes: each task starts a new one")
        if self._server is None:
            self._decided.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until the server is ready, could not be started or has ended, or for this time."""
        self._decided.wait(timeout_s)

    def fork(self, stdin: int, words: int) -> ForkedProcess:
        """Fork a process; a server that does not answer is killed.

        Args:
            stdin: Becomes the input of the process.
            words: Its pipe for messages; the caller closes this and `stdin`.

        Raises:
            Unavailable: The server failed.
        """
        server = self._server
        assert server is not None
        try:
            return server.fork(stdin, words)
        except BaseException as error:
            if isinstance(error, ForkServerLost) or not isinstance(error, Unavailable):
                # A late answer would be treated as the answer to the next fork.
                self.is_ready = False
                server.process.kill()  # the watch notices the end
            raise

    def stop(self) -> None:
        """End the server, and start no other one."""
        self._stopping = True
        if self._server is not None:
            self._server.stop()

    def _start(self) -> None:
        if self._stopping:
            return
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            try:
                words, writer = _pipe(ours, theirs)
                server = ForkServer(self._command, self._output, writer)
                try:
                    self._watch.watch(server.process.pid, words, lambda: self._post_event(server))
                except BaseException:
                    server.stop()
                    raise
            except Unavailable as error:
                self._start_later(f"cannot be started: {error}")
                return
            ours.pop_all()
        self._server, self._since_s = server, self._clock.monotonic_s()
        self._processor.timers.schedule_after(
            _SERVER_START_MAX_MS,
            functools.partial(self._end_late, weakref.ref(server)),
            "a fork server is late",
        )

    def _end_late(self, reference: weakref.ref[ForkServer]) -> None:
        server = reference()
        if server is not None and server is self._server and not self.is_ready:
            server.process.kill()  # the watch notices the end

    def _post_event(self, server: ForkServer) -> None:
        """Report that the server is ready or has ended; on the watch's thread."""
        self._processor.post(
            lambda: self._handle_event(server), "fork server %d", server.process.pid
        )
        # Later launches are processed after this mail.
        self._decided.set()

    def _handle_event(self, server: ForkServer) -> None:
        if self._stopping or server is not self._server:
            return
        if (code := server.process.poll()) is None:
            self.is_ready = True
        else:
            server.stop()
            self._server, self.is_ready = None, False
            if self._clock.monotonic_s() - self._since_s >= _STEADY_S:
                self._ends = 0
            self._start_later(f"ended with exit code {code} (see {self._output})")
        self._changed()

    def _start_later(self, how: str) -> None:
        self._ends += 1
        delay_ms = self._retry.delay_ms(self._ends)
        logger.warning("the peons' fork server %s; another in %d ms", how, delay_ms)
        self._processor.timers.schedule_after(delay_ms, self._start, "start a fork server")


class PeonProcesses:
    """`PeonLauncher`. `start` and `launch` run on the worker's mailbox thread.

    Args:
        options_file: File with the options for peons.
        worker: The address of the worker's API, and the worker's name at the overlord.
        spare_log: The file for the output of processes that have no task yet.
        processor: The worker's mailbox.
        clock: Time.
        options: Options of peon processes.
        program: Command of a peon and of a fork server; arguments are appended.

    Attributes:
        waits: The wait for room for spares, if there is none; read from any thread.
    """

    def __init__(
        self,
        options_file: Path,
        worker: tuple[HostPort, str],
        spare_log: Path,
        processor: MailboxProcessor,
        clock: Clock,
        options: PeonOptions | None = None,
        program: Sequence[str] = PEON_PROGRAM,
    ) -> None:
        self._options_file = options_file
        self._address, self._name = worker
        self._spare_log = spare_log
        self._processor = processor
        self._clock = clock
        self._options = options or PeonOptions()
        self._program = program
        variables = SECRETS.get().variables
        self._secret_names = frozenset(variables)
        # All processes inherit the same one: they read it without moving its position.
        self._secrets_fd = open_variables(variables) if variables else None
        self._watch = ChildWatch()
        self._server = PeonForkServer(
            *(self._command(), self._fill, spare_log, self._watch, processor, clock),
            self._options.retry,
        )
        self._check_task: Callable[[str], None] = lambda _task_id: None
        self._spares: list[PeonChild] = []
        self._peons: list[PeonChild] = []
        self.waits = WaitTable(clock)
        self._deaths = 0
        self._refilling = False
        self._stopping = False

    def start(self, check_task: Callable[[str], None]) -> None:
        """Start the fork server and create the spares.

        Args:
            check_task: Called for a task whose peon sent a message or ended; on the mailbox thread.
        """
        self._check_task = check_task
        self._watch.start()
        if self._options.spares:
            self._server.start()
        self._fill()
        self._renew_later()

    def wait_for_server(self, timeout_s: float) -> None:
        """Wait until tasks can be forked; until then, each would import everything itself.

        Returns when the fork server is ready, if there is none, or when the time runs out. Do not
        call it on the mailbox thread.
        """
        if self._options.spares:
            self._server.wait(timeout_s)

    def launch(self, task_id: str, folder: str) -> PeonChild:
        """Start a peon in a task's folder.

        Raises:
            Unavailable: The machine has no room for another process.
        """
        self._forget_ended()
        self._write_credentials(task_id, folder)
        peon, kind = self._take_spare(folder), "warm"
        if peon is None:
            peon, kind = self._take_forked(folder), "forked"
        if peon is None:
            peon, kind = self._start_new(Path(folder) / "log", folder), "new"
        peon.task_id, peon.folder = task_id, folder
        logger.info("task %s runs in the %s process %d", task_id, kind, peon.process.pid)
        self._peons.append(peon)
        return peon

    def end_spares(self) -> None:
        """End processes without a task, and start no further ones; on the mailbox thread."""
        self._stopping = True
        self._server.stop()
        for spare in self._spares:
            spare.terminate()

    def stop(self) -> None:
        """Wait for all processes, for a limited time, and kill those that have not ended.

        Call it after `end_spares`, from any thread. If the mailbox was too busy for that call, this
        method does it.
        """
        if not self._stopping:
            self.end_spares()
        until_s = self._clock.monotonic_s() + _STOP_TIMEOUT_S
        for peon in (*self._spares, *self._peons):
            try:
                peon.process.wait(max(0.0, until_s - self._clock.monotonic_s()))
            except subprocess.TimeoutExpired:
                logger.warning("peon %d did not stop in time and is killed", peon.process.pid)
                peon.kill()
                # The kernel may not be able to end it yet, for example while it waits for a disk.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    peon.process.wait(_STOP_TIMEOUT_S)
            peon.hang_up()
        self._watch.stop()
        descriptor, self._secrets_fd = self._secrets_fd, None
        if descriptor is not None:
            os.close(descriptor)

    # The mailbox thread: credentials

    def _write_credentials(self, task_id: str, folder: str) -> None:
        if self._options.credentials is not None:
            self._options.credentials(task_id, folder).write(Path(folder))

    def _renew_later(self) -> None:
        self._processor.timers.schedule_after(
            self._options.renewal_ms, self._renew, "renew the credentials of tasks"
        )

    def _renew(self) -> None:
        if self._stopping:
            return
        self._forget_ended()
        for peon in self._peons:
            if not peon.task_id:
                continue
            try:
                self._write_credentials(peon.task_id, peon.folder)
            except Unavailable as error:
                # It repeats its requests until a later renewal.
                logger.warning("cannot renew the credentials of task %s: %s", peon.task_id, error)
        self._renew_later()

    # The mailbox thread: processes

    def _take_spare(self, folder: str) -> PeonChild | None:
        while self._spares:
            spare = self._spares.pop(0)
            self._refill(self._options.refill_delay_ms)
            if spare.give(folder):
                self._deaths = 0
                return spare
            self._let_go(spare)
        return None

    def _take_forked(self, folder: str) -> PeonChild | None:
        if not self._server.is_ready:
            return None
        try:
            peon = self._make(self._server.fork)
        except Unavailable as error:
            logger.warning("starting a new process for task folder %s: %s", folder, error)
            return None
        if peon.give(folder):
            return peon
        self._let_go(peon)
        return None

    def _start_new(self, output: Path, folder: str | None) -> PeonChild:
        def start(stdin: int, words: int) -> subprocess.Popen[bytes]:
            more = ("--words-fd", str(words), *(("--folder", folder) if folder else ()))
            return spawn(self._command(*more, inherited=(words,)), output, stdin)

        return self._make(start)

    def _make(
        self, start: Callable[[int, int], subprocess.Popen[bytes] | ForkedProcess]
    ) -> PeonChild:
        """Start a process with an input and a pipe for its messages, and watch it."""
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            stdin, writer = _pipe(theirs, ours)
            words, words_writer = _pipe(ours, theirs)
            child = PeonChild(start(stdin, words_writer), writer)
            ours.pop_all()
        try:
            self._watch.watch(
                child.process.pid, words, lambda: self._post_event(self._handle_event, child)
            )
        except BaseException:
            os.close(words)
            child.kill()  # it has not done anything yet
            self._let_go(child)
            raise
        return child

    def _command(self, *more: str, inherited: tuple[int, ...] = ()) -> ChildCommand:
        secret = () if self._secrets_fd is None else (self._secrets_fd,)
        argv = (
            *(*self._program, "--options", str(self._options_file)),
            *(part for number in secret for part in ("--secrets-fd", str(number))),
            *("--worker", str(self._address), "--worker-name", self._name),
            *("--parent", str(os.getpid()), *more),
        )
        environment = child_environment(os.environ, self._secret_names)
        return ChildCommand(argv, environment, inherited=(*inherited, *secret))

    def _post_event(self, handler: Callable[[PeonChild], None], child: PeonChild) -> None:
        """Report an event of a process to the mailbox; on the watch's thread."""
        self._processor.post(
            lambda: handler(child), "peon %d wrote to its pipe or ended", child.process.pid
        )

    def _handle_event(self, child: PeonChild) -> None:
        if child.exit_code() is not None:
            # Remaining references to an ended process must not keep its pipe open.
            child.hang_up()
        if self._stopping:
            return
        if child.task_id:
            self._check_task(child.task_id)
        elif child in self._spares and (code := child.exit_code()) is not None:
            self._spares.remove(child)
            self._deaths += 1
            delay_ms = self._options.retry.delay_ms(self._deaths)
            logger.warning(
                "a spare peon ended with exit code %d (see %s); another in %d ms",
                *(code, self._spare_log, delay_ms),
            )
            self._refill(delay_ms)

    # The mailbox thread: spares

    def _refill(self, delay_ms: int) -> None:
        if not self._refilling:
            self._refilling = True
            self._processor.timers.schedule_after(delay_ms, self._refill_now, "make a spare peon")

    def _refill_now(self) -> None:
        self._refilling = False
        self._fill()

    def _fill(self) -> None:
        self._forget_ended()
        while not self._stopping and len(self._spares) < self._options.spares:
            if self._server.is_starting:
                return  # once it is ready, or has ended
            try:
                spare = self._make_spare()
            except Unavailable as error:
                self._deaths += 1
                self.waits.failed(_SPARE, error, dependency=Dependency.WORKER)
                logger.warning("cannot start a spare peon: %s", error)
                self._refill(self._options.retry.delay_ms(self._deaths))
                return
            self.waits.ended(_SPARE)
            self._spares.append(spare)
            # The timer outlives most spares by far, so it has a weak reference.
            self._processor.timers.schedule_after(
                self._options.spare_age_max_ms,
                functools.partial(self._replace, weakref.ref(spare)),
                "old spare",
            )

    def _make_spare(self) -> PeonChild:
        if self._server.is_ready:
            return self._make(self._server.fork)
        return self._start_new(self._spare_log, None)

    def _replace(self, reference: weakref.ref[PeonChild]) -> None:
        spare = reference()
        if spare is not None and spare in self._spares:
            self._spares.remove(spare)
            self._let_go(spare)
            self._fill()

    def _forget_ended(self) -> None:
        self._peons = [one for one in self._peons if one.exit_code() is None]
        known = {one.process.pid for one in (*self._spares, *self._peons)}
        if (server := self._server.pid) is not None:
            known.add(server)
        reap_orphans(known)

    def _let_go(self, spare: PeonChild) -> None:
        self._peons.append(spare)  # awaited at the stop, and reaped at the next launch
        spare.hang_up()


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Open a pipe whose ends are closed with their stacks.

    Raises:
        Unavailable: No descriptors are left.
    """
    try:
        ends = os.pipe()
    except OSError as error:
        raise Unavailable(f"cannot create a pipe for a peon: {error.strerror}") from None
    reader.callback(os.close, ends[0])
    writer.callback(os.close, ends[1])
    return ends
