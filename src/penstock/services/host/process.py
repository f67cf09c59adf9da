"""Operating system processes: children that die with their parent, and sockets passed to them.

Owns how a child is started, its output file, and the listening sockets that the launcher keeps for
it. The restart of children is decided elsewhere (`restart_policy`).

The launcher opens a listening socket, and the child inherits it. A taken port is therefore found
before anything starts, no other program can take the port while a child restarts, and clients
that connect meanwhile wait in the kernel's queue instead of being refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

from penstock.broker.http_server.host_policy import EVERY_INTERFACE
from penstock.core.clock import Clock, pause
from penstock.core.errors import Conflict, Unavailable
from penstock.core.threads import DEATHS
from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.services.options.option_values import HostPort

# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

# Output of a child goes to a file; a larger file is moved aside at the next start.
OUTPUT_BYTES_MAX = 10 << 20

# Written by a child to the launcher's pipe: that it is ready, or the mark and the reason why it is
# not ready yet.
READY_LINE = b"ready\n"
WAITING_MARK = b"waits "
# A line of this length is written atomically (PIPE_BUF is 4,096 bytes).
REASON_CHARACTERS_MAX = 900

_TRY_EVERY_S = 0.05

T = TypeVar("T")

# Total time limit for threads that still run when a process ends.
_LEAVE_GRACE_S = 1.0

logger = logging.getLogger(__name__)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    If this process was adopted after its first parent had ended, the kernel kills it when the
    adopter's first thread ends. A forked process must call it again: the kernel clears it there.

    Args:
        parent: Process id of the current parent.
    """
    if sys.platform != "linux":  # children notice a lost parent by their closed input
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the line above; then nothing would kill this process.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """Set the name under which `ps` and `top` show this process; 15 characters are kept."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def leave(code: int, clock: Clock) -> NoReturn:
    """End this process after its parts have stopped, without a long wait for pending calls.

    The interpreter would wait for every thread of a pool, and one may wait for a process that was
    killed, whose socket the launcher keeps open, until the request times out. Work in lanes may be
    interrupted at any moment, as by a kill. Exit handlers do not run, except the log's.

    Args:
        code: The exit code.
        clock: Measures the time limit for threads that are not daemons.
    """
    until_s = clock.monotonic_s() + _LEAVE_GRACE_S
    others = [
        one
        for one in threading.enumerate()
        if not one.daemon and one is not threading.current_thread()
    ]
    for one in others:
        one.join(max(0.0, until_s - clock.monotonic_s()))
    if left := sorted(one.name for one in others if one.is_alive()):
        logger.info("the process ends while these threads still work: %s", ", ".join(left))
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed, or without a reader
            stream.flush()
    os._exit(code)


def end_on_thread_death() -> None:
    """End this process with `RESTART_REQUESTED` when a required thread ends, or a thread raises.

    For the entry point of a process. It ends at once, as by a kill: the recovery of the next start
    repairs the unfinished work of the dead thread, whereas an orderly stop could make it permanent.
    Log handlers flush each line, so nothing has to be flushed.
    """
    DEATHS.end_process_by(lambda _death: os._exit(RESTART_REQUESTED))


def listen(address: HostPort, option: str) -> socket.socket:
    """Open a listening socket that children can inherit.

    Args:
        address: Where to listen.
        option: Name of the option that sets the address, for the message.

    Raises:
        Conflict: The port is taken; the message names the process that holds it if it is known.
        Unavailable: The host is not an address of this machine, or the port needs privileges.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    # Asyncio sends small answers at once only if it knows the protocol; otherwise they wait 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address.host, address.port))
        listener.listen(1_024)
    except BaseException as error:
        listener.close()
        if not isinstance(error, OSError | UnicodeError):
            raise
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            holder = port_holder(address.port)
            raise Conflict(
                f"port {address.port} on {address.host} is taken"
                f"{f' by {holder}' if holder else ''}; stop that program, or choose another port "
                f"with {option} (port 0 picks a free one)"
            ) from None
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Unavailable(
            f"cannot listen on {address}: {reason}; choose another address with {option}"
        ) from None
    return listener


def retry_conflicts(take: Callable[[], T], clock: Clock, timeout_s: float) -> T:
    """Return what a call takes; repeat it for a while if another process has it.

    After a launcher was killed, the kernel may still be ending its children, which hold ports and
    locks. Raises as the last call.
    """
    until_s = clock.monotonic_s() + timeout_s
    while True:
        try:
            return take()
        except Conflict:
            if clock.monotonic_s() >= until_s:
                raise
        pause(clock, _TRY_EVERY_S)


def reached_at(listener: socket.socket) -> HostPort:
    """Return the address at which others reach a listening socket."""
    host, port = listener.getsockname()[:2]
    return HostPort(socket.gethostname() if host in EVERY_INTERFACE else host, port)


def listen_with_retries(
    address: HostPort, option: str, clock: Clock, timeout_s: float
) -> socket.socket:
    """Open a listening socket; retry a taken port for a while. Raises as `listen`."""
    return retry_conflicts(lambda: listen(address, option), clock, timeout_s)


def port_holder(port: int) -> str | None:
    """Name the process that listens on a port, if this user may see it."""
    wanted = f":{port:04X}"
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        # Columns: number, local address, remote address, state (0A: listening), …, inode.
        rows = [line.split() for line in lines]
        inodes |= {row[9] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    wanted_links = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir() if inodes else ():
        if process.name.isdecimal() and not wanted_links.isdisjoint(_open_files(process)):
            with contextlib.suppress(OSError):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
    return None


def _open_files(process: Path) -> Iterator[str]:
    # Files close and processes end during the loop, and other users' processes may be hidden.
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(link.readlink())


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Return whether a child that cannot inherit a socket could listen on a port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError):
            return False
        return True


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that is free now, for a child that cannot inherit a socket."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class ChildCommand:
    """Command and environment of a child."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    inherited: Sequence[int] = ()


def spawn(
    command: ChildCommand, output: Path, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a child whose output goes to a file; its input is empty, or a descriptor.

    The calling thread must live as long as the child, because the kernel regards it as the parent.

    Raises:
        Unavailable: The program or folder does not exist, or the process limit is reached.
    """
    try:
        if output.exists() and output.stat().st_size > OUTPUT_BYTES_MAX:
            output.replace(output.with_name(output.name + ".1"))
        with output.open("ab") as stream:
            return subprocess.Popen(
                list(command.argv),
                stdin=stdin,
                stdout=stream,
                bufsize=0,
                stderr=subprocess.STDOUT,
                env=dict(command.environment),
                cwd=command.folder,
                pass_fds=tuple(command.inherited),
                # Ctrl-C in a terminal goes to a whole group; only the launcher must act on it.
                start_new_session=True,
            )
    except OSError as error:
        raise Unavailable(f"{command.argv[0]} cannot be started: {error.strerror}") from None
