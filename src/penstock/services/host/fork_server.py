"""Fork server: it imports everything once, and each forked process starts in milliseconds.

Owns both ends. `ForkServer` is the client's end; `serve` is the server's loop, and returns in each
forked process. A request is one message on a socket pair, with two descriptors: the new process's
input, and the pipe on which that process notifies its parent. The answer is its process id, or the
reason why the fork failed.

A server has one thread and no connections, because a fork would copy mutexes that other threads
hold, and two processes would share a connection. With more threads it refuses to serve.

The client becomes the parent of the new process, as if it had started it itself: the server forks
twice, the process between ends, and the kernel gives the orphan to the nearest ancestor that adopts
orphans (`adopt_orphans`). So the client gets the exit code, and the kernel ends the new process
when the client ends. If the server dies during a fork, up to two unknown processes become children
of the client: they end by themselves, and `reap_orphans` removes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from penstock.core.errors import Unavailable
from penstock.services.host.process import ChildCommand, name_process, spawn

FORK_SERVER_NAME = "penstock-forks"
"""Name of a fork server for `ps`."""
FORKED_NAME = "penstock-forked"
"""Name of a forked process until it names itself."""

# From <sys/prctl.h>.
_PR_SET_CHILD_SUBREAPER = 36

_WANTED = b"fork"
_REFUSED = b"!"
_NO_DESCRIPTORS = _REFUSED + os.strerror(errno.EMFILE).encode()
_ANSWER_BYTES = 512
# A fork takes milliseconds; a frozen server must not block its client for long.
_ANSWER_TIMEOUT_S = 5.0


def adopt_orphans() -> bool:
    """Make this process the parent of descendants whose own parent has ended.

    Returns:
        Whether the kernel can do that, and can refer to processes by descriptors (Linux 5.4): no
        fork server can be used elsewhere.
    """
    if sys.platform != "linux":
        return False
    with contextlib.suppress(AttributeError, OSError):  # not in Python or the kernel
        os.close(os.pidfd_open(os.getpid()))
        return not ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    return False


def reap_orphans(known: Collection[int]) -> None:
    """Reap ended processes that this one has adopted and that nothing else waits for.

    Args:
        known: Children that something else waits for.
    """
    # The kernel assigns orphans to the main thread, so children of other threads are not listed.
    with contextlib.suppress(OSError):  # the kernel was built without the list
        text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
        for pid in {int(one) for one in text.split()} - set(known):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


class ForkedProcess:
    """A process that a fork server created for this one; a subset of `subprocess.Popen`.

    Safe for use by several threads.

    Args:
        pid: The process: a child of this one that was not reaped.

    Raises:
        Unavailable: No descriptors are left.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._returncode: int | None = None
        self._mutex = threading.Lock()
        try:
            self._descriptor = os.pidfd_open(pid)
        except OSError as error:
            raise Unavailable(f"process {pid} cannot be watched: {error.strerror}") from None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        with self._mutex:
            return self._polled()

    def wait(self, timeout: float) -> int:
        """Wait for the end.

        Args:
            timeout: Time limit in seconds.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        with self._mutex:
            code = self._polled()
            if code is not None:
                return code
            descriptor = self._descriptor
        # Another thread may find the end, and close the descriptor, before the next line: then this
        # returns at once, or, if the number is in use again, in time.
        _wait_readable(descriptor, timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def terminate(self) -> None:
        """Send SIGTERM. Does nothing if it has ended."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL. Does nothing if it has ended."""
        self._signal(signal.SIGKILL)

    def _polled(self) -> int | None:
        if self._returncode is None:
            found = os.waitid(os.P_PIDFD, self._descriptor, os.WEXITED | os.WNOHANG)
            if found is not None:
                exited = found.si_code == os.CLD_EXITED
                self._returncode = found.si_status if exited else -found.si_status
                os.close(self._descriptor)
        return self._returncode

    def _signal(self, number: signal.Signals) -> None:
        with self._mutex:
            if self._returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._descriptor, number)


class ForkServerLost(Unavailable):
    """A fork server has ended, or does not answer."""


class ForkServer:
    """A process that forks others on request; for one thread, which must outlive it.

    Args:
        command: Starts the program, which must call `serve` with the two descriptors that are
            added to its arguments as `--forks-fd` and `--words-fd`.
        output: The file for its output and that of its forked processes.
        words: The writing end of a pipe, on which it reports that it is ready; the caller
            closes it.

    Raises:
        Unavailable: The process cannot be started, or the descriptors are used up.
    """

    def __init__(self, command: ChildCommand, output: Path, words: int) -> None:
        try:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise Unavailable(
                f"cannot create a socket for a fork server: {error.strerror}"
            ) from None
        self._channel.settimeout(_ANSWER_TIMEOUT_S)
        numbers = (theirs.fileno(), words)
        argv = (*command.argv, "--forks-fd", str(numbers[0]), "--words-fd", str(numbers[1]))
        inherited = (*command.inherited, *numbers)
        try:
            self.process = spawn(replace(command, argv=argv, inherited=inherited), output)
        except BaseException:
            self._channel.close()
            raise
        finally:
            theirs.close()

    def fork(self, stdin: int, words: int) -> ForkedProcess:
        """Create a process, a child of this one.

        Args:
            stdin: Becomes its input.
            words: Its pipe for messages; the caller closes this and `stdin`.

        Raises:
            ForkServerLost: The server has ended, or does not answer within 5 s.
            Unavailable: No processes or descriptors are left. Here and above, the process may exist
                nevertheless, and reads the end of its input once the caller has closed the pipe.
        """
        try:
            socket.send_fds(self._channel, [_WANTED], [stdin, words])
            answer = self._channel.recv(_ANSWER_BYTES)
        except OSError as error:
            raise ForkServerLost(f"the fork server does not answer: {error}") from None
        if not answer:
            raise ForkServerLost("the fork server has ended")
        if not answer.isdigit():
            reason = answer.removeprefix(_REFUSED).decode()
            raise Unavailable(f"the fork server cannot create a process: {reason}")
        return ForkedProcess(int(answer))

    def stop(self) -> None:
        """End the server; its forked processes continue."""
        self._channel.close()
        self.process.kill()  # it holds nothing
        self.process.wait()


def serve(channel: int, words: int) -> int:
    """Fork a process for each request; returns in the forked processes only.

    The server's own process exits when the client has closed the socket. A forked process has its
    input at descriptor 0, its output where the server's goes, and a session of its own.

    Args:
        channel: The server's end of the socket.
        words: The pipe on which it reports once that it is ready.

    Returns:
        The forked process's own pipe for words.

    Raises:
        Unavailable: This process has more than one thread.
        SystemExit: In the server, at its end.
    """
    if (threads := len(list(Path("/proc/self/task").iterdir()))) != 1:
        raise Unavailable(
            f"a fork server must have exactly one thread, but this process has {threads}"
        )
    name_process(FORK_SERVER_NAME)
    # Exclude all present objects from garbage collection in the forked processes: a collection
    # writes into each object that it visits, and the kernel would copy the page.
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=channel) as requests:
        os.write(words, b".")
        while True:
            message, given, _, _ = socket.recv_fds(requests, len(_WANTED), 2)
            if not message:
                sys.exit(0)
            answer = _NO_DESCRIPTORS if len(given) != 2 else _fork_orphan()
            if answer is None:
                break
            for descriptor in given:
                os.close(descriptor)
            with contextlib.suppress(BrokenPipeError):  # the client closed it; the next read ends
                requests.send(answer)
    os.close(words)
    os.setsid()
    stdin, own_words = given
    os.dup2(stdin, 0)
    os.close(stdin)
    return own_words


def _fork_orphan() -> bytes | None:
    """Fork a process whose parent ends; return the answer, None in that process."""
    try:
        reader, writer = os.pipe()
    except OSError:
        return _NO_DESCRIPTORS
    try:
        between = os.fork()
    except OSError as error:
        os.close(reader)
        os.close(writer)
        return _REFUSED + os.strerror(error.errno or 0).encode()
    if between == 0:
        is_whole = False
        try:
            os.close(reader)
            _leave_orphan(writer)
            os.close(writer)
            is_whole = True
        finally:
            if not is_whole:  # it must not continue as a second server
                os._exit(1)
        return None
    os.close(writer)
    os.waitpid(between, 0)
    answer = os.read(reader, _ANSWER_BYTES)
    os.close(reader)
    return answer or _REFUSED + b"the process ended unexpectedly during the fork"


def _leave_orphan(writer: int) -> None:
    """Fork, report the child's id, and exit; return in the child, by then an orphan."""
    name_process(FORKED_NAME)
    between = os.getpid()
    try:
        orphan = os.fork()
        answer = str(orphan).encode()
    except OSError as error:
        orphan, answer = -1, _REFUSED + os.strerror(error.errno or 0).encode()
    if orphan:
        with contextlib.suppress(BrokenPipeError):  # the server was killed
            os.write(writer, answer)
        os._exit(0)
    _wait_for_end(between)


def _wait_for_end(parent: int) -> None:
    """Wait until this process has another parent."""
    with contextlib.suppress(ProcessLookupError):  # it has ended, and was waited for
        descriptor = os.pidfd_open(parent)
        # Otherwise the descriptor may be of another process, which got the same number.
        if os.getppid() == parent:
            # The descriptor becomes readable after the kernel has assigned the children to another
            # parent.
            _wait_readable(descriptor)
        os.close(descriptor)


def _wait_readable(descriptor: int, timeout_s: float | None = None) -> None:
    waiting = select.poll()  # `select` takes no descriptor above 1,023
    waiting.register(descriptor, select.POLLIN)
    waiting.poll(None if timeout_s is None else math.ceil(timeout_s * 1000))
