"""The program that starts the JVM of queries with a view of few files, and without a network.

It is run as a script, by its path, before the JVM: `query_isolation` writes its plan. It imports
the standard library alone, because it must start fast and be in one thread.

    launcher ── this process, which forwards the port ── PID 1 of the view: the JVM ── its workers

Owns the namespaces, the mounts, and the forwarding of Spark Connect's port into the view. The port
begins to listen once the JVM answers, so that an open port means a ready JVM, as without a view.

- *Files:* a new root with the entries of the plan: programs and libraries, segments to read, and
  the JVM's own folders to write. Everything else does not exist there.
- *User:* an unprivileged Penstock keeps its user, in a user namespace in which it has no rights of
  others. A Penstock of root gives the JVM the user of the plan. Mounts that map owners show the
  listed files to that user as its own.
- *Processes, IPC, network:* of its own; the network has a loopback interface only.
- *Rights:* no capabilities and no new ones, no core files, and no system calls that the plan's
  filter refuses.
- *Limits:* of processes, by the kernel; and of memory, by a control group if there is one that this
  user may divide, otherwise by this process, which measures the view and ends it.

Linux only. Every error ends the program with one line, which names the step.
"""

# It replaces calls that shells and container tools make, and has no other modules of Penstock.
# ruff: noqa: PTH100, PTH102, PTH103, PTH106, PTH110, PTH112, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final, NoReturn

FAILED: Final = 71
"""Exit code of a view that cannot be built (EX_OSERR of <sysexits.h>)."""

# From <linux/sched.h>, <sys/prctl.h>, <linux/mount.h>, <fcntl.h>, <linux/if.h> and
# <linux/seccomp.h>.
_NEW_MOUNTS: Final = 0x00020000
_NEW_IPC: Final = 0x08000000
_NEW_USER: Final = 0x10000000
_NEW_PIDS: Final = 0x20000000
_NEW_NETWORK: Final = 0x40000000
_PDEATHSIG: Final = 1
_DUMPABLE: Final = 4
_CAPBSET_DROP: Final = 24
_NO_NEW_PRIVS: Final = 38
_CAPABILITIES_MAX: Final = 63
_NOSUID: Final = 2
_NODEV: Final = 4
_NOEXEC: Final = 8
_REC: Final = 0x4000
_SLAVE: Final = 1 << 19
_DETACH: Final = 2
_CLONE_TREE: Final = 1
_CLOEXEC: Final = 0o2000000
_EMPTY_PATH: Final = 0x1000
_RECURSIVE: Final = 0x8000
_MOVE_EMPTY_PATH: Final = 4
_AT_FDCWD: Final = -100
_ATTR_RDONLY: Final = 1
_ATTR_NOSUID: Final = 2
_ATTR_NODEV: Final = 4
_ATTR_IDMAP: Final = 0x00100000
_SIOCSIFFLAGS: Final = 0x8914
_IFF_UP_RUNNING: Final = 0x41
_SET_FILTER: Final = 1
# Without it, older kernels slow a process with a filter down, against leaks by speculation.
_FILTER_SPEC_ALLOW: Final = 4
_FILTER_STEP_BYTES: Final = 8

# The same on all architectures.
_OPEN_TREE: Final = 428
_MOVE_MOUNT: Final = 429
_MOUNT_SETATTR: Final = 442
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}

_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
_ROOT_OPTIONS: Final = "mode=755,size=256m"
_MEMORY_OPTIONS: Final = "mode=1777,size=256m"
# Of -1000 to 1000: the kernel ends queries before other processes, and their workers first.
_BADNESS: Final = "200"
_POLL_S: Final = 0.05
_WATCH_S: Final = 0.2
# The kernel adds all pages up for it.
_EXACT_EVERY_S: Final = 1.0
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PIECE_BYTES: Final = 1 << 18
_CONNECTIONS_MAX: Final = 256

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class JailPlan:
    """Contents of a view.

    Attributes:
        root: Empty folder of the host on which the view is mounted.
        programs: Files and folders to read and execute, at the same paths.
        readable: Folders with data to read.
        writable: Folders to write.
        folder: Working folder of the command.
        user: User of the command, if Penstock is root; its id, and that of its group.
        has_network: Whether the network of the host stays.
        port: Port of the command; without the host's network it is forwarded from loopback.
        marker: File to create when the command's port answers.
        processes: Limit of processes and threads together.
        memory_bytes: Limit of the memory of all processes together; 0: none.
        group: Folder to make for a control group, below one that this user may divide; "": none.
        calls: Filter of system calls, in hexadecimal digits; "": none.
        excess: File for the reason, if the view is ended because of a limit.
        needed: Paths that must be readable in the view, for a check.
    """

    root: str
    programs: Sequence[str]
    readable: Sequence[str]
    writable: Sequence[str]
    folder: str
    user: Sequence[int] | None
    has_network: bool
    port: int
    marker: str
    processes: int
    memory_bytes: int = 0
    group: str = ""
    calls: str = ""
    excess: str = ""
    needed: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ActiveLimits:
    """Limits of a view that was built; a check prints it.

    Attributes:
        processes: Limit of processes and threads together.
        memory_bytes: Limit of memory; 0: none.
        has_group: Whether a control group limits the memory, instead of this program.
        has_filter: Whether system calls are filtered.
    """

    processes: int
    memory_bytes: int
    has_group: bool
    has_filter: bool


def main(arguments: Sequence[str]) -> NoReturn:
    """Run `PLAN -- COMMAND…`, or check the plan: `PLAN`."""
    plan, command = JailPlan(**json.loads(arguments[0])), list(arguments[2:])
    try:
        run(plan, command)
    except OSError as error:
        print(f"the view of queries cannot be built: {error}", file=sys.stderr)  # noqa: T201
        os._exit(FAILED)


def run(plan: JailPlan, command: list[str]) -> NoReturn:
    """Build the view, run the command in it, and end as it ends.

    Raises:
        OSError: A step is refused; its text names the step.
    """
    _call("prctl", _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    outside = None
    if command and not plan.has_network:
        outside = socket.socket()
        outside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio sets it only for sockets that state their protocol, and
        # without it each small query waits for delayed acknowledgements.
        outside.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        outside.bind(("127.0.0.1", plan.port))
    owners = None if plan.user is None else _mapping(*plan.user)
    flags = _NEW_IPC | _NEW_PIDS | (0 if plan.has_network else _NEW_NETWORK)
    if plan.user is None:
        _own_namespaces(flags)
    else:
        _call("namespaces", _libc.unshare(flags))
    if not plan.has_network:
        _raise_loopback()
    group = _Group(plan)
    child = os.fork()
    if not child:
        try:
            has_group = group.join()
            _enter(plan, owners)
            processes = _limit_processes(plan)
            _check(plan)
            has_filter = _filter_calls(plan)
            if command:
                os.execve(command[0], command, os.environ)  # noqa: S606 - Penstock's own command
            active = ActiveLimits(processes, plan.memory_bytes, has_group, has_filter)
            print(json.dumps(asdict(active)), flush=True)  # noqa: T201
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the fork must not return
            print(f"the view of queries cannot be built: {error}", file=sys.stderr)  # noqa: T201
            os._exit(FAILED)
    asyncio.run(_forward(outside, plan, child, group))
    raise AssertionError("it ends the process")


def _own_namespaces(flags: int) -> None:
    """Enter a user namespace in which this user is itself, and the others with it."""
    user, group = os.getuid(), os.getgid()
    _call("user namespace", _libc.unshare(_NEW_USER | flags))
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        _write(f"/proc/self/{name}", text)


def _mapping(user: int, group: int) -> int:
    """Return the descriptor of a user namespace that shows files of root as those of a user."""
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        done = _libc.unshare(_NEW_USER)
        os.write(ready[1], b"." if not done else b"!")
        os.read(go[0], 1)
        os._exit(0)
    try:
        if os.read(ready[0], 1) != b".":
            raise OSError("user namespace: not permitted")
        own_user, own_group = os.getuid(), os.getgid()
        _write(f"/proc/{child}/uid_map", f"{own_user} {user} 1")
        _write(f"/proc/{child}/gid_map", f"{own_group} {group} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.write(go[1], b".")
        os.waitpid(child, 0)
        for descriptor in (*ready, *go):
            os.close(descriptor)


def _enter(plan: JailPlan, owners: int | None) -> None:
    """Become the process 1 of the view: its files, its user, and no rights."""
    _call("prctl", _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    # Only here: the process that forwards keeps the files of the host.
    _call("mounts", _libc.unshare(_NEW_MOUNTS))
    # Disks that are mounted later on the host appear in the view, and nothing the other way round.
    _mount("none", "/", None, _REC | _SLAVE)
    mask = os.umask(0o022)  # folders above those of the plan are passable
    _mount("tmpfs", plan.root, "tmpfs", _NOSUID | _NODEV, _ROOT_OPTIONS)
    for name in ("tmp", "dev/shm"):
        os.makedirs(f"{plan.root}/{name}")
        _mount("tmpfs", f"{plan.root}/{name}", "tmpfs", _NOSUID | _NODEV, _MEMORY_OPTIONS)
    for path in plan.programs:
        try:
            _bind(plan, path, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, owners)
        except OSError:
            if owners is None:
                raise
            # A file system without such mounts; most programs may be read by everyone.
            _bind(plan, path, _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV, None)
    # An outer folder before the folders in it.
    modes = dict.fromkeys(plan.readable, _ATTR_RDONLY) | dict.fromkeys(plan.writable, 0)
    for path in sorted(modes):
        _bind(plan, path, modes[path] | _ATTR_NOSUID | _ATTR_NODEV, owners)
    _make_devices(plan)
    os.makedirs(f"{plan.root}/proc", exist_ok=True)
    _mount("proc", f"{plan.root}/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    os.umask(mask)
    _change_root(plan.root)
    os.chdir(plan.folder)
    _drop_rights(plan.user)


def _bind(plan: JailPlan, path: str, attributes: int, owners: int | None) -> None:
    """Show a file or folder of the host at the same path of the view."""
    source = os.path.realpath(path)
    if not os.path.exists(source):
        return
    target = plan.root + os.path.abspath(path)
    os.makedirs(target if os.path.isdir(source) else os.path.dirname(target), exist_ok=True)
    if not os.path.isdir(source):
        _touch(target)
    step = f"mount of {path}"
    tree = _call(
        step,
        _libc.syscall(
            *(_OPEN_TREE, _AT_FDCWD, os.fsencode(source)),
            _CLONE_TREE | _RECURSIVE | _CLOEXEC,
        ),
    )
    try:
        if owners is not None:
            attributes |= _ATTR_IDMAP
        size = struct.calcsize("=QQQQ")
        packed = struct.pack("=QQQQ", attributes, 0, 0, owners or 0)
        done = _libc.syscall(
            *(_MOUNT_SETATTR, tree, b"", _EMPTY_PATH | _RECURSIVE, packed, ctypes.c_size_t(size))
        )
        _call(step, done)
        done = _libc.syscall(
            *(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_EMPTY_PATH)
        )
        _call(step, done)
    finally:
        os.close(tree)


def _make_devices(plan: JailPlan) -> None:
    for name in _DEVICES:
        path = f"{plan.root}/dev/{name}"
        _touch(path)
        _mount(f"/dev/{name}", path, None, 4096)  # MS_BIND
    os.symlink("/proc/self/fd", f"{plan.root}/dev/fd")


def _change_root(root: str) -> None:
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"new root: unknown processor {platform.machine()}")
    os.chdir(root)
    _call("new root", _libc.syscall(number, b".", b"."))
    _call("new root", _libc.umount2(b".", _DETACH))
    os.chdir("/")


def _drop_rights(user: Sequence[int] | None) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        _write("/proc/self/oom_score_adj", _BADNESS)
    if user is not None:
        os.setgroups([])
        os.setresgid(user[1], user[1], user[1])
        os.setresuid(user[0], user[0], user[0])
        # Otherwise the files below would still belong to root.
        _call("prctl", _libc.prctl(_DUMPABLE, 1, 0, 0, 0))
        with contextlib.suppress(OSError):
            _own_namespaces(0)
    # A process of the view makes no further user namespaces, in which it would have rights.
    with contextlib.suppress(OSError):
        _write("/proc/sys/user/max_user_namespaces", "0")
    for capability in range(_CAPABILITIES_MAX + 1):
        if _libc.prctl(_CAPBSET_DROP, capability, 0, 0, 0):
            break  # one that this kernel does not have
    _call("prctl", _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    # Last, because a change of rights clears it.
    _call("prctl", _libc.prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def _limit_processes(plan: JailPlan) -> int:
    """Limit processes and threads; return the limit.

    It counts those of the user namespace alone, if it is set after that was made.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    most = plan.processes if hard == resource.RLIM_INFINITY else min(hard, plan.processes)
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    return most


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("steps", ctypes.c_ushort), ("program", ctypes.c_char_p))


def _filter_calls(plan: JailPlan) -> bool:
    """Install the filter of system calls; return whether this kernel has such filters."""
    program, number = bytes.fromhex(plan.calls), _SECCOMP.get(platform.machine())
    if not program or number is None:
        return False
    given = _FilterProgram(len(program) // _FILTER_STEP_BYTES, program)
    done: int = _libc.syscall(number, _SET_FILTER, _FILTER_SPEC_ALLOW, ctypes.byref(given))
    return done == 0


def _check(plan: JailPlan) -> None:
    for path in plan.needed:
        if not os.access(path, os.R_OK):
            raise OSError(f"{path} cannot be read by the user of queries")
    for path in plan.writable:
        if not os.access(path, os.W_OK | os.X_OK):
            raise OSError(f"{path} cannot be written by the user of queries")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP_RUNNING))


class _Group:
    """The control group of a view, in the second version of the kernel's interface.

    Without a group, or if it cannot be made, every method does nothing.
    """

    def __init__(self, plan: JailPlan) -> None:
        self._plan = plan
        self._folder = plan.group
        if not plan.group:
            return
        try:
            with contextlib.suppress(OSError):  # left by a process that was killed
                os.rmdir(plan.group)
            os.mkdir(plan.group)
            _write(f"{plan.group}/memory.max", str(plan.memory_bytes))
            _write(f"{plan.group}/memory.oom.group", "1")
            _write(f"{plan.group}/pids.max", str(plan.processes))
        except OSError:
            self.remove()
            return
        with contextlib.suppress(OSError):  # a kernel without swap
            _write(f"{plan.group}/memory.swap.max", "0")

    def join(self) -> bool:
        """Move this process into the group; return whether it is in it."""
        if not self._folder:
            return False
        try:
            _write(f"{self._folder}/cgroup.procs", "0")
        except OSError:
            return False
        return True

    def has_members(self) -> bool:
        """Return whether processes are in the group."""
        return bool(self._folder and _read(f"{self._folder}/cgroup.procs").strip())

    def remove(self) -> None:
        """Remove the group after its last process; leave the reason if its limit ended the view."""
        if not self._folder:
            return
        events = dict(line.split() for line in _read(f"{self._folder}/memory.events").splitlines())
        if int(events.get("oom_kill", 0)):
            _tell_excess(self._plan)
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)
        self._folder = ""


async def _watch(plan: JailPlan, child: int, group: _Group) -> None:
    """End the view when its processes together exceed the memory of the plan."""
    loop, exact_at_s = asyncio.get_running_loop(), 0.0
    processes = f"/proc/{child}/root/proc"
    while True:
        await asyncio.sleep(_WATCH_S)
        if not plan.memory_bytes or group.has_members():
            return
        # A quick sum first, which counts shared pages for each process that has them.
        if loop.time() < exact_at_s or _resident_bytes(processes) <= plan.memory_bytes:
            continue
        if _used_bytes(processes) > plan.memory_bytes:
            _tell_excess(plan)
            os.kill(child, signal.SIGKILL)
            return
        exact_at_s = loop.time() + _EXACT_EVERY_S


def _resident_bytes(processes: str) -> int:
    """Return the resident memory of processes, in which shared pages count for each process."""
    fields = (_read(f"{processes}/{pid}/statm").split() for pid in _pids(processes))
    return sum(int(one[1]) for one in fields if one) * _PAGE_BYTES


def _used_bytes(processes: str) -> int:
    """Return how much memory processes use together, with each page counted once."""
    used = 0
    for pid in _pids(processes):
        lines = _read(f"{processes}/{pid}/smaps_rollup").splitlines()
        used += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10
    return used


def _pids(processes: str) -> list[str]:
    try:
        return [name for name in os.listdir(processes) if name.isdigit()]
    except OSError:
        return []  # the view is not complete yet, or has ended


def _tell_excess(plan: JailPlan) -> None:
    """Leave the reason for the launcher's log and for the answers of queries."""
    size = f"{plan.memory_bytes / (1 << 30):.1f} GiB"
    text = f"queries together used more than their {size} of this host's memory"
    print(f"Spark is ended: {text}", file=sys.stderr, flush=True)  # noqa: T201
    if plan.excess:
        with contextlib.suppress(OSError):
            _write(plan.excess, text)


async def _forward(
    outside: socket.socket | None, plan: JailPlan, child: int, group: _Group
) -> NoReturn:
    """Forward the port while the child runs, and end as it ends.

    In one thread, because a process that has made a namespace of processes can start no thread.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGCHLD, ended.set)
    loop.add_signal_handler(signal.SIGTERM, lambda: os.kill(child, signal.SIGTERM))
    serving = asyncio.create_task(_serve(outside, plan))
    serving.add_done_callback(lambda done: _end_unserved(done, child))
    watching = asyncio.create_task(_watch(plan, child, group))
    watching.add_done_callback(lambda done: _end_unserved(done, child))
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)  # noqa: ASYNC222 - it does not wait
        if pid:
            group.remove()
            _end_as(os.waitstatus_to_exitcode(status))
        ended.clear()
        await ended.wait()


def _end_as(code: int) -> NoReturn:
    """End at once with an exit code, or by a signal if the code is negative."""
    if code < 0:
        with contextlib.suppress(OSError):  # of signals that are never handled
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end_unserved(serving: asyncio.Task[None], child: int) -> None:
    """End a JVM whose port or memory is not served, so that the launcher starts another one."""
    if not serving.cancelled() and (error := serving.exception()) is not None:
        print(f"the view of queries cannot be served: {error}", file=sys.stderr)  # noqa: T201
        os.kill(child, signal.SIGKILL)


async def _serve(outside: socket.socket | None, plan: JailPlan) -> None:
    """Listen on the host's loopback once the view answers, and connect both."""
    loop, free = asyncio.get_running_loop(), asyncio.Semaphore(_CONNECTIONS_MAX)
    while True:
        with contextlib.suppress(OSError):
            _, probe = await asyncio.open_connection("127.0.0.1", plan.port)
            probe.close()
            break
        await asyncio.sleep(_POLL_S)
    _touch(plan.marker)
    if outside is None:
        return
    outside.listen(_CONNECTIONS_MAX)
    outside.settimeout(0)
    while True:
        await free.acquire()
        try:
            client, _ = await loop.sock_accept(outside)
        except OSError:  # the client has gone, or descriptors ran out
            free.release()
            await asyncio.sleep(_POLL_S)
            continue
        inner = _ForwardedEnd(lambda: None)
        try:
            await loop.create_connection(partial(_same, inner), "127.0.0.1", plan.port)
            # The client's end begins to read when it is made, so it comes last.
            outer = _ForwardedEnd(free.release, inner)
            await loop.connect_accepted_socket(partial(_same, outer), client)
        except OSError:
            free.release()
            inner.close()
            client.close()


def _same(end: _ForwardedEnd) -> _ForwardedEnd:
    """Return a protocol, where a function that makes one is needed."""
    return end


class _ForwardedEnd(asyncio.BufferedProtocol):
    """One end of a forwarded connection: writes what it receives to the other end.

    Args:
        on_closed: Called once this end is closed.
        other: The other end, which is connected; that end gets this one as its other.
    """

    def __init__(self, on_closed: Callable[[], None], other: _ForwardedEnd | None = None) -> None:
        self._on_closed = on_closed
        self._buffer = bytearray(_PIECE_BYTES)
        self._other = other
        self._transport: asyncio.Transport | None = None
        self.has_ended = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._other is None:
            transport.pause_reading()  # until there is another end
        else:
            self._other.join(self)

    def join(self, other: _ForwardedEnd) -> None:
        """Begin to write to another end."""
        self._other = other
        if self._transport is None or self._transport.is_closing():
            other.close()
        else:
            self._transport.resume_reading()

    def get_buffer(self, sizehint: int) -> bytearray:
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._other is not None:
            self._other.write(bytes(memoryview(self._buffer)[:nbytes]))

    def eof_received(self) -> bool:
        self.has_ended = True
        if self._other is None:
            return False
        self._other.write_eof()
        return not self._other.has_ended  # if the other direction has more, this end stays

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_reading(is_paused=True)

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.pause_reading(is_paused=False)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if self._other is not None:
            self._other.close()
        self._on_closed()

    def write(self, piece: bytes) -> None:
        """Write a piece; the kernel may take a part of it, and the transport keeps the rest."""
        if self._transport is not None:
            self._transport.write(piece)

    def write_eof(self) -> None:
        """End this direction."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write_eof()

    def pause_reading(self, *, is_paused: bool) -> None:
        """Pause or resume reading."""
        if self._transport is None or self._transport.is_closing():
            return
        if is_paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        """Close after all is written."""
        if self._transport is not None:
            self._transport.close()


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _call(f"mount of {kind or target}", done)


def _touch(path: str) -> None:
    with open(path, "a"):
        pass


def _read(path: str) -> str:
    """Return the content of a file; "" if it cannot be read."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}") from None


def _call(step: str, result: int) -> int:
    """Return the result of a call of the C library.

    Raises:
        OSError: It failed; the text begins with the step.
    """
    if result < 0:
        raise OSError(f"{step}: {os.strerror(ctypes.get_errno())}")
    return result


if __name__ == "__main__":
    main(sys.argv[1:])
