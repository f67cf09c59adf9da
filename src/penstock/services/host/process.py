"""Operating-system processes: children that die with their parent, and sockets handed to them.

Owns how a child is started, its output file, and the listening sockets that the launcher keeps for
it. When a child is started again is decided elsewhere (`supervision`).

A listening socket is opened by the launcher and inherited by the child. So a taken port is found
before anything starts, no other program can take the port while a child is started again, and
clients that connect in between wait in the kernel's queue instead of being refused.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from penstock.core.clock import Clock
from penstock.core.errors import Conflict, Unavailable
from penstock.core.threads import DEATHS
from penstock.services.config import Address
from penstock.services.host.supervision import DEAD_THREAD

# From <sys/prctl.h>.
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15

# What a child prints goes to a file that is put aside at the next start once it is larger.
OUTPUT_BYTES_MAX = 10 << 20

# What a child writes to the launcher's pipe: that it is ready, or the mark and why it is not yet.
READY_LINE = b"ready\n"
WAITING_MARK = b"waits "
# A line of this length is written in one piece (PIPE_BUF is 4,096 bytes).
REASON_CHARACTERS_MAX = 900

_TRY_EVERY_S = 0.05

# What a process that is done still lets threads finish, all of them together.
_LEAVE_GRACE_S = 1.0

logger = logging.getLogger(__name__)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    If this process was adopted after its first parent had ended, the kernel kills it when the
    adopter's first thread ends. A forked process must call it again: the kernel clears it there.

    Args:
        parent: Process id of the present parent.
    """
    if sys.platform != "linux":  # elsewhere children notice a lost parent by their closed input
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have ended before the line above; nothing would kill us then.
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """Set the name under which `ps` and `top` show this process; 15 characters are kept."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def leave(code: int, clock: Clock) -> NoReturn:
    """End this process, whose parts are stopped, without waiting for calls of others for long.

    The interpreter would wait for every thread of a pool, and one may ask a process that is gone,
    whose socket the launcher keeps open, until the question times out. What runs in lanes may be
    cut at any moment, as by a kill. Nothing that is registered for the end of the interpreter is
    run but the log's.

    Args:
        code: The exit code.
        clock: Measures how long threads that are no daemons may take.
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
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
            stream.flush()
    os._exit(code)


def end_on_thread_death() -> None:
    """Have this process end with `DEAD_THREAD` when a thread ends that it needs, or is uncaught.

    For the entry of a process. It ends at once, as by a kill: the recovery of the next start
    repairs what the dead thread left half done, while an orderly stop could write that down.
    Handlers of logs write each line through, so nothing is flushed.
    """
    DEATHS.end_process_by(lambda _death: os._exit(DEAD_THREAD))


def listen(address: Address, option: str) -> socket.socket:
    """Open a listening socket that children can inherit.

    Args:
        address: Where to listen.
        option: Name of the option that sets the address, for the message.

    Raises:
        Conflict: The port is taken; the message names who holds it when that can be seen.
        Unavailable: The host is not one of this machine, or the port needs privileges.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
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


def listen_patiently(
    address: Address, option: str, clock: Clock, patience_s: float
) -> socket.socket:
    """Open a listening socket, trying a taken port again for a while.

    After a launcher was killed, the kernel may still be ending its children, who hold the port.
    Raises as `listen`.
    """
    until_s = clock.monotonic_s() + patience_s
    pause = threading.Condition()  # only waited on: the clock ends the wait
    while True:
        try:
            return listen(address, option)
        except Conflict:
            if clock.monotonic_s() >= until_s:
                raise
        with pause:
            clock.wait(pause, _TRY_EVERY_S)


def port_holder(port: int) -> str | None:
    """Name the process that listens on a port, when this user may see it."""
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
    # Files close and processes end while one looks, and others' processes may not be looked at.
    with contextlib.suppress(OSError):
        for link in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                yield str(link.readlink())


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a child that cannot inherit a socket could listen on a port now."""
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
    """What starts a child."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None
    inherited: Sequence[int] = ()


def spawn(
    command: ChildCommand, output: Path, stdin: int = subprocess.DEVNULL
) -> subprocess.Popen[bytes]:
    """Start a child whose output goes to a file; its input is nothing, or a descriptor.

    The calling thread must live as long as the child: that is the kernel's notion of a parent.

    Raises:
        Unavailable: The program or the folder is not there, or the machine is out of processes.
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
                # Ctrl-C in a terminal goes to a whole group; only the launcher shall act on it.
                start_new_session=True,
            )
    except OSError as error:
        raise Unavailable(f"{command.argv[0]} cannot be started: {error.strerror}") from None
