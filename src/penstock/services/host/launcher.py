"""Parent of all processes of one Penstock: starts, restarts and stops them.

Owns the loop of `penstock up`: children, their restarts, readiness and the end. Does not own how
each child is started (`host_plan`), nor when one is restarted (`restart_policy`). Everything runs
on the main thread, because the kernel regards the thread that starts a child as its parent.

A child inherits a pipe, on which it reports why it is not ready yet, and later that it is ready.
The JVM cannot report on a pipe, so its port is polled: until it is open, and then every few seconds
to check that the JVM is alive. Nothing else is polled: the end of a child arrives as SIGCHLD.

Invariants: a child is restarted with the same sockets if it ends unexpectedly, fails its liveness
check, or reports a reason to restart it. If descriptors run out, restarts and probes are delayed,
but no child is ended. Until all children have been ready once, a child that cannot be started ends
the launcher, so that the user sees the reason. Children end when this process ends in any way. They
are stopped stage by stage, in parallel within a stage; each has its own time limit, after which it
is killed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import selectors
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from penstock.core.clock import Clock
from penstock.core.error_output import error_lines, tail
from penstock.core.errors import InvalidRequest, PenstockError, Unavailable
from penstock.core.rate_limited_log import RateLimitedLog
from penstock.services.host.data_folder import CHILDREN_FILE
from penstock.services.host.liveness import LivenessCheck
from penstock.services.host.process import READY_LINE, WAITING_MARK, ChildCommand, spawn
from penstock.services.host.restart_policy import (
    ENDS_BEFORE_READY_MAX,
    INVALID_OPTIONS,
    ChildLife,
    next_wait_s,
)
from penstock.services.host.signals import SignalPipe

logger = logging.getLogger(__name__)

_PORT_PROBE_S = 0.1
_IDLE_WAIT_S = 60.0
_KILLED_WAIT_S = 1.0
_LOGGED_ERROR = re.compile(r"\S+(?: \S+)? (?:ERROR|CRITICAL|FATAL) ")
_READ_BYTES = 4_096
_REASON_SHOWN_MAX = 900
_ERROR_WORDS = re.compile(r"error|exception|fatal|cannot|refused|denied", re.IGNORECASE)
# Interval at which the user is shown what a start or a stop waits for.
_REPORT_FIRST_S = 3.0
_REPORT_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """How one child is started and stopped.

    Attributes:
        name: For messages, log files and metrics.
        command: Returns the command for a start, given the descriptor for the ready line.
        ready_port: A port whose opening means that the child is ready, for a child that
            cannot write the line.
        stop_timeout_s: Time to stop, after which it is killed.
        stop_stage: Children of a lower stage are stopped after all children of higher stages have
            ended, because those may still use them.
        pulse: Checks whether a ready child hangs; None: no check.
        restart_reason: Returns why it must be ended although it answers, or ""; called often.
        log_file: Its own log, searched for the reason of its end if its output has none.
        ends_before_ready_max: Number of consecutive ends of the child after which the launcher
            exits, if not all children have been ready.
        provides: Name of the dependency that other children wait for while this one starts, such as
            ``Spark``.
    """

    name: str
    command: Callable[[int], ChildCommand]
    ready_port: int | None = None
    stop_timeout_s: float = 10.0
    stop_stage: int = 0
    pulse: LivenessCheck | None = None
    restart_reason: Callable[[], str] = str
    log_file: Path | None = None
    ends_before_ready_max: int = ENDS_BEFORE_READY_MAX
    provides: str = ""


@dataclass(slots=True)
class _Child:
    plan: ChildPlan
    life: ChildLife
    process: subprocess.Popen[bytes] | None = None
    ready_fd: int | None = None
    ready: bool = False
    reported: bytes = field(default=b"")
    output_start: int = 0
    log_start: int = 0
    waits_for: str = ""
    last_end: str = ""


class Launcher:
    """Keeps the children of a plan running until it must stop.

    Args:
        plans: The children in starting order; they start in parallel.
        log_folder: Folder of the files `NAME.out` with the output of the children.
        run_folder: Folder of the file `children.json`, which lists the running processes.
        clock: Time.
        print_line: Prints a line for the user.
        on_ready: Called once every child is ready.
    """

    def __init__(
        self,
        plans: Sequence[ChildPlan],
        log_folder: Path,
        run_folder: Path,
        clock: Clock,
        print_line: Callable[[str], None],
        on_ready: Callable[[], None],
    ) -> None:
        self._children = [
            _Child(plan, ChildLife(plan.name, plan.ends_before_ready_max)) for plan in plans
        ]
        self._log_folder = log_folder
        self._run_folder = run_folder
        self._clock = clock
        self._print_line = print_line
        self._on_ready = on_ready
        self._was_ready = False
        self._report_at_s = clock.monotonic_s() + _REPORT_FIRST_S
        self._stop_signals = 0
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()
        self._failure_log = RateLimitedLog(logger, clock)

    def run(self) -> None:
        """Run until SIGTERM, SIGINT or `request_stop`; every child has ended afterwards.

        Raises:
            Unavailable: A child kept ending, or could not be started, before everything was ever
                ready.
            InvalidRequest: A child reports an invalid option.
        """
        with SignalPipe((signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)) as pipe:
            self._selector.register(pipe.reader, selectors.EVENT_READ, pipe)
            try:
                while not self._stop_signals:
                    self._step()
            finally:
                self._is_stopping = True
                self._show("stopping")
                self._stop_all()
                self._selector.unregister(pipe.reader)
                self._selector.close()

    def request_stop(self) -> None:
        """Let `run` return; call it from the thread of `run`."""
        self._stop_signals += 1

    def _step(self) -> None:
        now_s = self._clock.monotonic_s()
        for child in self._children:
            if child.process is None and child.life.due(now_s):
                self._start(child)
        self._probe_ports()
        self._end_troubled()
        if self._was_ready or not all(child.ready for child in self._children):
            self._wait(_PORT_PROBE_S if self._probing() else _IDLE_WAIT_S)
        self._reap()
        if not self._was_ready:
            self._report_start()

    def _report_start(self) -> None:
        awaited = [child.plan.name for child in self._children if not child.ready]
        if not awaited:
            self._was_ready = True
            self._write_children()
            self._on_ready()
        elif (now_s := self._clock.monotonic_s()) >= self._report_at_s:
            self._report_at_s = now_s + _REPORT_EVERY_S
            self._show(f"still starting: {', '.join(awaited)}")
            starting = tuple(
                child.plan.provides
                for child in self._children
                if child.plan.provides and child.process is not None and not child.ready
            )
            for child in self._children:
                # It was already reported that this child is still starting.
                if child.waits_for and child.waits_for.startswith(starting):
                    continue
                if not child.ready and (reason := self._reason(child)):
                    self._show(f"  {child.plan.name} {reason}")
            self._write_children()

    def _reason(self, child: _Child) -> str:
        """Return why a child is not ready: its report, how it ended, or its last error."""
        if child.process is None:
            return child.last_end
        if child.waits_for:
            return f"waits for {child.waits_for}"
        started_s = child.life.started_at_s
        running_s = 0.0 if started_s is None else self._clock.monotonic_s() - started_s
        error = self._last_error(child)
        after = f"; its last error: {error}" if error else ""
        before = f"; before that, it {child.last_end}" if child.last_end else ""
        return f"has been starting for {running_s:.0f} s{after}{before}"

    def _last_error(self, child: _Child) -> str:
        """Return the last line of a child's output that contains an error; empty if none does."""
        for line in reversed(self._last_words(child).splitlines()):
            if _ERROR_WORDS.search(line):
                return line.strip()[:_REASON_SHOWN_MAX]
        return ""

    def _wait(self, otherwise_s: float) -> None:
        lives = [child.life for child in self._children if child.process is None]
        now_s = self._clock.monotonic_s()
        pulses = [child.plan.pulse for child in self._children if child.plan.pulse is not None]
        due_s = [pulse.next_s - now_s for pulse in pulses if pulse.next_s is not None]
        if not self._was_ready:
            due_s.append(self._report_at_s - now_s)
        timeout_s = max(0.0, min([next_wait_s(lives, now_s, otherwise_s), *due_s]))
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.data, SignalPipe):
                signals = key.data.take()
                self._stop_signals += sum(one != signal.SIGCHLD for one in signals)
            elif isinstance(key.data, _Child):
                self._read_ready_line(key.data)

    def _start(self, child: _Child) -> None:
        try:
            process = self._spawn(child)
        except BaseException as error:
            self._close_ready_fd(child)
            if not isinstance(error, PenstockError) or not self._was_ready:
                raise
            wait_s = child.life.on_ended(self._clock.monotonic_s())
            self._show(
                f"{child.plan.name} cannot be started: {error}; restarting in {wait_s:.1f} s"
            )
            return
        child.process = process
        child.life.on_started(self._clock.monotonic_s())
        child.ready, child.reported, child.waits_for = False, b"", ""
        logger.info("%s started as process %d", child.plan.name, process.pid)
        self._write_children()

    def _spawn(self, child: _Child) -> subprocess.Popen[bytes]:
        """Start a child's process; its reports are watched before it starts.

        Raises:
            Unavailable: The process cannot be started, or the descriptors are used up.
        """
        try:
            child.ready_fd, writer = os.pipe()
        except OSError as error:
            raise Unavailable(
                f"cannot open a pipe ({error.strerror}): increase the limit of open files "
                "(ulimit -n)"
            ) from None
        try:
            os.set_blocking(child.ready_fd, False)
            self._selector.register(child.ready_fd, selectors.EVENT_READ, child)
            command = child.plan.command(writer)
            output = self._log_folder / f"{child.plan.name}.out"
            child.output_start = _size(output)
            child.log_start = _size(child.plan.log_file) if child.plan.log_file else 0
            return spawn(
                ChildCommand(
                    command.argv,
                    command.environment,
                    command.folder,
                    (*command.inherited, writer),
                ),
                output,
            )
        except OSError as error:
            raise Unavailable(f"the process could not be created: {error}") from error
        finally:
            os.close(writer)

    def _read_ready_line(self, child: _Child) -> None:
        if child.ready_fd is None:
            return
        chunk = os.read(child.ready_fd, _READ_BYTES)
        child.reported += chunk
        *lines, child.reported = child.reported.split(b"\n")
        for line in lines:
            if line.startswith(WAITING_MARK):
                text = line.removeprefix(WAITING_MARK).decode(errors="replace")
                child.waits_for = text[:_REASON_SHOWN_MAX]
            elif line == READY_LINE.strip():
                self._close_ready_fd(child)
                self._mark_ready(child)
                return
        if not chunk:
            self._close_ready_fd(child)

    def _mark_ready(self, child: _Child) -> None:
        child.ready, child.waits_for, child.last_end = True, "", ""
        if child.plan.pulse is not None:
            child.plan.pulse.begin(self._clock.monotonic_s())
        if self._was_ready:
            self._show(f"{child.plan.name} is ready again")

    def _close_ready_fd(self, child: _Child) -> None:
        if child.ready_fd is not None:
            with contextlib.suppress(KeyError):  # it could not be registered
                self._selector.unregister(child.ready_fd)
            os.close(child.ready_fd)
            child.ready_fd = None

    def _probing(self) -> bool:
        return any(
            child.process is not None and not child.ready and child.plan.ready_port
            for child in self._children
        )

    def _probe_ports(self) -> None:
        for child in self._children:
            port = child.plan.ready_port
            if port is None or child.process is None or child.ready:
                continue
            try:
                probe = socket.socket()
            except OSError as error:
                self._failure_log.warning(
                    "port %d of %s cannot be probed: %s", port, child.plan.name, error.strerror
                )
                continue
            with probe:
                probe.settimeout(_PORT_PROBE_S)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    self._mark_ready(child)

    def _end_troubled(self) -> None:
        for child in self._children:
            if child.process is None or child.process.poll() is not None:
                continue
            pulse, restart_reason = child.plan.pulse, child.plan.restart_reason()
            if pulse is not None and pulse.hangs(self._clock.monotonic_s()):
                restart_reason = f"hangs: no answer for {pulse.silence_s:.0f} s"
            if restart_reason:
                # A process that SIGSTOP stopped reacts only to SIGKILL. `_reap` restarts the child.
                child.process.kill()
                if pulse is not None:
                    pulse.end()
                self._show(f"{child.plan.name} {restart_reason}")
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.process.wait(_KILLED_WAIT_S)

    def _reap(self) -> None:
        for child in self._children:
            if child.process is None or child.process.poll() is None:
                continue
            code, was_ready = child.process.returncode, child.ready
            self._forget(child)
            wait_s = child.life.on_ended(self._clock.monotonic_s(), was_ready=was_ready)
            words = self._last_words(child)
            if child.life.is_unrecoverable(code, was_ready=self._was_ready):
                if code == INVALID_OPTIONS:
                    raise InvalidRequest(words)
                how = f"{child.plan.name} does not start ({_describe(code)})"
                raise Unavailable(
                    f"{how}; its last output:\n{words or f'(none; see {self._log_folder})'}"
                )
            child.last_end = self._how_it_ended(child, code)
            if not self._stop_signals:
                reason = "".join(f"\n  {line}" for line in words.splitlines())
                how = f"{child.plan.name} ended ({_describe(code)})"
                self._show(f"{how}; restarting in {wait_s:.1f} s{reason}")
            self._write_children()

    def _how_it_ended(self, child: _Child, code: int) -> str:
        last = (self._last_words(child).splitlines() or [""])[-1].strip()[:_REASON_SHOWN_MAX]
        words = f", its last output: {last}" if last else ""
        return f"ended ({_describe(code)}){words}"

    def _forget(self, child: _Child) -> None:
        self._close_ready_fd(child)
        child.process = None
        child.ready = False
        if child.plan.pulse is not None:
            child.plan.pulse.end()

    def _last_words(self, child: _Child) -> str:
        """Return the last error lines of a child's output since its start, or those of its log."""
        output = self._log_folder / f"{child.plan.name}.out"
        printed = error_lines(tail(output, child.output_start))
        if not printed and child.plan.log_file is not None:
            lines = tail(child.plan.log_file, child.log_start).splitlines()
            printed = error_lines("\n".join(line for line in lines if _LOGGED_ERROR.match(line)))
        return "\n".join(printed)

    def _write_children(self) -> None:
        # Only for `penstock status` and tests, so a plain write is enough.
        content = {
            child.plan.name: {
                "pid": child.process.pid,
                "restarts": child.life.restarts,
                "ready": child.ready,
                "waits": "" if child.ready else self._reason(child),
            }
            for child in self._children
            if child.process is not None
        }
        path = self._run_folder / CHILDREN_FILE
        fresh = path.with_suffix(".new")
        try:
            fresh.write_text(json.dumps(content))
            fresh.replace(path)
        except OSError as error:
            logger.warning("%s cannot be written: %s", path, error.strerror)

    def _show(self, line: str) -> None:
        """Print a line for the user.

        If the terminal is closed, the launcher stops; a stop that has begun continues.
        """
        try:
            self._print_line(line)
        except OSError:
            if not self._is_stopping:
                raise

    def _stop_all(self) -> None:
        def stage(child: _Child) -> int:
            return child.plan.stop_stage

        for _, children in groupby(sorted(self._children, key=stage, reverse=True), stage):
            self._stop_together(list(children))

    def _stop_together(self, children: Sequence[_Child]) -> None:
        begun_s = self._clock.monotonic_s()
        for child in children:
            if child.process is not None:
                child.process.terminate()
        report_at_s = begun_s + _REPORT_FIRST_S
        # Each round checks all children, so that each is logged when it ends.
        while running := [child for child in children if self._still_runs(child, begun_s)]:
            now_s = self._clock.monotonic_s()
            if now_s >= report_at_s:
                report_at_s = now_s + _REPORT_EVERY_S
                self._show(f"still stopping: {', '.join(one.plan.name for one in running)}")
            limit_s = begun_s + min(child.plan.stop_timeout_s for child in running)
            timeout_s = max(0.0, min(report_at_s, limit_s) - now_s)
            for key, _ in self._selector.select(timeout_s):
                if isinstance(key.data, SignalPipe):
                    key.data.take()  # SIGCHLD, or one more signal to stop
                elif isinstance(key.data, _Child):
                    self._read_ready_line(key.data)

    def _still_runs(self, child: _Child, begun_s: float) -> bool:
        """Return whether a child has not ended; kill it after its time limit."""
        process = child.process
        if process is None:
            return False
        took_s = self._clock.monotonic_s() - begun_s
        if process.poll() is None:
            if took_s < child.plan.stop_timeout_s:
                return True
            text = f"{child.plan.name} did not stop within {child.plan.stop_timeout_s:.0f} s"
            process.kill()
            process.wait()
            logger.warning("%s and was killed", text)
            self._show(f"{text} and was killed")
        logger.info("%s stopped after %.1f s", child.plan.name, took_s)
        self._forget(child)
        return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _describe(code: int) -> str:
    """Describe how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
