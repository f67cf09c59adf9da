"""The view of the JVM of queries: its files, its network and its rights, with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from penstock.services.host import query_jail
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.process import ChildCommand
from penstock.services.host.query_isolation import Isolation, isolation, isolation_for_doctor
from penstock.services.host.query_jail import FAILED, JailPlan
from penstock.services.host.system_call_filter import system_call_filter
from penstock.services.options.table import PenstockOptions
from tests.kits.ports_kit import kept_port

NOBODY = 65_534
SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/passwd", "/etc/ld.so.cache")
# The one of the system, which every user may run, and which needs no other files.
PYTHON = "/usr/bin/python3"
WAIT_S = 120.0
# Errors of kernels and containers without these namespaces and mounts.
FORBIDDEN = ("not permitted", "No space left", "not implemented")


class Jail:
    """A folder with a view, and how it is started."""

    def __init__(
        self, folder: Path, starter: Sequence[str], user: Sequence[int] | None, port: int
    ) -> None:
        self.folder = folder
        self._starter = starter
        for name in ("root", "segments", "own", "secret"):
            (folder / name).mkdir(mode=0o700)
        for name in ("segments", "secret"):
            (folder / name / "file").write_text(name)
            (folder / name / "file").chmod(0o600)
        shutil.copy(str(query_jail.__file__), folder / "jail.py")
        self.plan = JailPlan(
            root=str(folder / "root"),
            programs=SYSTEM,
            readable=(str(folder / "segments"),),
            writable=(str(folder / "own"),),
            folder=str(folder / "own"),
            user=user,
            has_network=False,
            port=port,
            marker=str(folder / "ready"),
            processes=2_048,
            memory_bytes=1 << 30,
            calls=system_call_filter(platform.machine()).hex(),
            excess=str(folder / "excess"),
            needed=(PYTHON, str(folder / "segments" / "file")),
        )
        if starter:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, NOBODY, NOBODY)

    def argv(self, plan: JailPlan, code: str) -> list[str]:
        jail = [PYTHON, "-I", "-S", str(self.folder / "jail.py"), json.dumps(asdict(plan))]
        return [*self._starter, *jail, *(("--", PYTHON, "-I", "-c", code) if code else ())]

    def run(self, code: str = "", **changed: object) -> subprocess.CompletedProcess[str]:
        argv = self.argv(replace(self.plan, **changed), code)  # type: ignore[arg-type]
        return subprocess.run(
            argv, capture_output=True, text=True, timeout=WAIT_S, check=False, env={}
        )


def starters() -> list[str]:
    return ["itself", "unprivileged"] if not os.geteuid() else ["itself"]


@pytest.fixture(params=starters())
def jail(request: pytest.FixtureRequest) -> Iterator[Jail]:
    """Return the view of this user; as root also that of an unprivileged one."""
    if sys.platform != "linux" or not Path(PYTHON).exists():
        pytest.skip("no namespaces, or no Python of the system")
    is_root = not os.geteuid() and request.param == "itself"
    other = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    # Not in the folder of pytest, which other users cannot pass.
    with tempfile.TemporaryDirectory() as name, kept_port() as port:
        Path(name).chmod(0o755)
        made = Jail(
            Path(name),
            other if request.param == "unprivileged" else (),
            (NOBODY, NOBODY) if is_root else None,
            port,
        )
        found = made.run()
        if found.returncode == FAILED and any(word in found.stderr for word in FORBIDDEN):
            pytest.skip(found.stderr.strip())
        assert found.returncode == 0, found.stderr
        yield made


TRY = """
import os, socket
def reason(call):
    try:
        call()
    except OSError as error:
        return type(error).__name__
    return "allowed"
"""


def test_the_view_has_only_the_files_of_its_plan(jail: Jail) -> None:
    here = jail.folder
    found = jail.run(
        f"""{TRY}
import json
print(json.dumps([
    open("{here}/segments/file").read(),
    reason(lambda: open("{here}/segments/file", "w")),
    reason(lambda: open("{here}/segments/new", "w")),
    reason(lambda: open("{here}/secret/file")),
    reason(lambda: open("{here}/jail.py")),
    sorted(os.listdir("{here}")),
    open("{here}/own/made", "w").write("x"),
    reason(lambda: open("/usr/new", "w")),
    reason(lambda: os.listdir("/root")),
    os.getcwd(),
]))"""
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == [
        "segments",
        "OSError",  # a read-only file system
        "OSError",
        "FileNotFoundError",
        "FileNotFoundError",
        ["own", "segments"],
        1,
        "OSError",
        "FileNotFoundError",
        f"{here}/own",
    ]
    owner = (here / "own").stat()
    made = (here / "own" / "made").stat()
    assert (made.st_uid, made.st_gid) == (owner.st_uid, owner.st_gid), "as if Penstock wrote it"


def test_the_view_has_no_network_no_other_processes_and_no_rights(jail: Jail) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        found = jail.run(
            f"""{TRY}
import ctypes, json
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
libc = ctypes.CDLL(None, use_errno=True)
print(json.dumps([
    os.getuid(),
    os.getpid(),
    [name for name in os.listdir("/proc") if name.isdigit()],
    reason(lambda: socket.create_connection(("127.0.0.1", {port}), 1)),
    reason(lambda: socket.create_connection(("192.0.2.1", 80), 1)),
    [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    status["NoNewPrivs"],
    reason(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    reason(lambda: os.kill({os.getpid()}, 0)),
    libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, None),
    libc.unshare(0x10000000),
]))"""
        )
    assert found.returncode == 0, found.stderr
    user, pid, pids, *rest = json.loads(found.stdout)
    assert user == (NOBODY if not os.geteuid() else os.getuid())
    assert (pid, pids) == (1, ["1"])
    none = "0000000000000000"
    refused = ["ConnectionRefusedError", "OSError", [none] * 5, "1", "PermissionError"]
    assert rest == [*refused, "ProcessLookupError", -1, -1]


def test_processes_have_a_limit_of_their_own(jail: Jail) -> None:
    code = """
import errno, os, time
count = 0
while True:
    try:
        if not os.fork():
            time.sleep(60)
    except OSError as error:
        print(count, errno.errorcode[error.errno])
        break
    count += 1
"""
    # Once more, with all of them there: other views of the user do not count.
    for _ in range(2):
        found = jail.run(code, processes=20)
        # In a user namespace, the process that forwards counts, too.
        assert found.stdout in {"19 EAGAIN\n", "18 EAGAIN\n"}, found.stderr


HOLDS = """
import os, time
{before}
for _ in range({children}):
    if not os.fork():
        {each}
        time.sleep({seconds})
        os._exit(0)
for _ in range({children}):
    os.wait()
print("ended")
"""
LIMIT_BYTES = 256 << 20


def test_processes_that_use_too_much_memory_together_end_the_view(jail: Jail) -> None:
    code = HOLDS.format(before="", children=5, each="held = b'x' * (70 << 20)", seconds=60)
    found = jail.run(code, memory_bytes=LIMIT_BYTES)
    assert found.returncode == -signal.SIGKILL, found.stderr
    reason = "queries together used more than their 0.2 GiB of this host's memory"
    assert reason in found.stderr
    excess = jail.folder / "excess"
    assert excess.read_text() == reason


def test_memory_that_processes_share_counts_once(jail: Jail) -> None:
    code = HOLDS.format(before="held = b'x' * (100 << 20)", children=5, each="pass", seconds=0.5)
    found = jail.run(code, memory_bytes=LIMIT_BYTES)
    assert (found.stdout, found.returncode) == ("ended\n", 0), found.stderr


def test_memory_is_limited_by_a_control_group_if_there_is_one(jail: Jail) -> None:
    # A folder of files in its place: not every kernel has the memory in the second version.
    group = jail.folder / "group"
    found = jail.run(group=str(group), memory_bytes=LIMIT_BYTES, processes=99)
    assert json.loads(found.stdout)["has_group"], found.stderr
    assert {path.name: path.read_text() for path in group.iterdir()} == {
        "memory.max": str(LIMIT_BYTES),
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "pids.max": "99",
        "cgroup.procs": "0",
    }
    found = jail.run(group=f"{jail.folder}/none/group")
    assert not json.loads(found.stdout)["has_group"]


def test_a_view_has_no_calls_that_change_or_read_more_than_itself(jail: Jail) -> None:
    known = {"x86_64": (101, 272, 308, 312, 425), "aarch64": (117, 97, 268, 272, 425)}
    numbers = known.get(platform.machine())
    if numbers is None:
        pytest.skip("no filter for this processor")
    # ptrace, unshare, setns, kcmp and io_uring_setup with arguments that have other errors, or none
    # at all, without the filter.
    code = f"""
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(number):
    done = libc.syscall(number, 0, 0, 0, 0, 0)
    return errno.errorcode.get(ctypes.get_errno()) if done else "allowed"
def family(number):
    try:
        socket.socket(number, socket.SOCK_RAW if number == 16 else socket.SOCK_STREAM).close()
    except OSError as error:
        return errno.errorcode.get(error.errno)
    return "allowed"
families = [family(one) for one in (1, 2, 16, 38, 40)]
print(json.dumps([[refused(one) for one in {numbers}], families]))
"""
    found = jail.run(code)
    assert found.returncode == 0, found.stderr
    families = [*["allowed"] * 3, *["EAFNOSUPPORT"] * 2]
    assert json.loads(found.stdout) == [["EPERM"] * 5, families]
    without = json.loads(jail.run(code, calls="").stdout)
    assert "EPERM" not in without[0]
    assert not json.loads(jail.run(calls="").stdout)["has_filter"]


SERVES = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        size = int(self.headers["Content-Length"])
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        self.wfile.write(self.rfile.read(size))
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("127.0.0.1", {port}), Handler).serve_forever()
"""


@contextlib.contextmanager
def serving(jail: Jail) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with kept_port() as port:
        plan = replace(jail.plan, port=port)
        with subprocess.Popen(jail.argv(plan, SERVES.format(port=port)), env={}) as process:
            try:
                yield process, port
            finally:
                process.kill()


def reached(port: int) -> socket.socket:
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 60)
        except ConnectionRefusedError:
            assert time.monotonic() < until_s
            time.sleep(0.02)


def echo(port: int, body: bytes) -> bytes:
    """One request as curl sends it, without a library."""
    with reached(port) as web, web.makefile("rb") as answer:
        head = f"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        web.sendall(head.encode() + body)
        lines = iter(answer.readline, b"\r\n")
        assert next(lines).startswith(b"HTTP/1.0 200")
        _ = list(lines)
        return answer.read(len(body))


def test_its_port_is_reached_from_outside_and_it_ends_with_the_launcher(jail: Jail) -> None:
    body = os.urandom(3 << 20)
    with serving(jail) as (process, port):
        reached(port).close()
        assert Path(jail.plan.marker).exists()
        assert echo(port, body) == body
        # Connections that have ended do not count as open ones, which have a limit.
        for _ in range(query_jail._CONNECTIONS_MAX + 1):
            assert echo(port, b"x") == b"x"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 143
    with serving(jail) as (process, port):
        reached(port).close()
        process.kill()
        process.wait(WAIT_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), 5)


def test_it_ends_as_its_command_ends(jail: Jail) -> None:
    assert jail.run("raise SystemExit(3)").returncode == 3
    # A client is connected when the command ends.
    with serving(jail) as (process, port), reached(port) as client:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
        os.kill(int(children), signal.SIGKILL)
        assert process.wait(WAIT_S) == -signal.SIGKILL
        assert client.recv(1) == b""


def test_a_view_that_cannot_be_built_says_which_step(jail: Jail) -> None:
    found = jail.run("", root="/nonexistent/folder")
    assert found.returncode == FAILED
    assert "mount of tmpfs: No such file" in found.stderr
    found = jail.run("", needed=(f"{jail.folder}/secret/file",))
    assert found.returncode == FAILED
    assert "secret/file cannot be read by the user of queries" in found.stderr


def test_queries_run_as_before_if_a_view_was_never_ready(tmp_path: Path) -> None:
    marker = str(tmp_path / "ready")
    plan = JailPlan("r", (), (), (), "/", None, False, 0, marker, 99)  # noqa: FBT003
    command = ChildCommand(("java", "-version"), {"JAVA_HOME": "/opt/java"}, tmp_path)
    isolated = Isolation(plan, "isolated")
    first = isolated.wrapped(command, 7)
    assert first.argv[-3:] == ("--", "java", "-version")
    assert json.loads(first.argv[4])["port"] == 7
    assert "/opt/java" in json.loads(first.argv[4])["programs"]
    assert first.environment["TMPDIR"] == str(tmp_path)
    assert isolated.wrapped(command, 7) is command
    assert isolated.wrapped(command, 7).argv == first.argv
    # A query that ends the JVM does not end the isolation.
    (tmp_path / "ready").touch()
    for _ in range(3):
        assert isolated.wrapped(command, 7).argv[-3:] == first.argv[-3:]
    assert Isolation(None, "no").wrapped(command, 7) is command


def test_a_cluster_is_not_isolated(tmp_path: Path) -> None:
    options = PenstockOptions(data_dir=tmp_path, spark_master="spark://h:7077")
    assert "elsewhere" in isolation(options, DataFolder(tmp_path), tmp_path).text


def test_the_plan_has_no_other_part_of_the_data_folder(tmp_path: Path) -> None:
    found = isolation_for_doctor(PenstockOptions(), DataFolder(tmp_path / "data"), tmp_path)
    if found.plan is None:
        pytest.skip(found.text)
    assert "isolated: without a network" in found.text
    assert "GiB of memory" in found.text
    assert "processes and threads; system calls: filtered" in found.text
    data = tmp_path / "data"
    shown = [*found.plan.programs, *found.plan.readable, *found.plan.writable]
    assert not [path for path in shown if data.is_relative_to(path)]
    inside = {str(Path(path).relative_to(data)) for path in shown if path.startswith(str(data))}
    assert inside == {
        *("segments", "segments/~projections"),
        *("run/queries", "log/queries", "tmp/queries", "tmp/answers"),
    }


def test_the_jvm_learns_that_a_client_was_reset(tmp_path: Path) -> None:
    asyncio.run(_reset_one_client(tmp_path / "ready"))


async def _reset_one_client(marker: Path) -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def jvm(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.read(100):  # nothing from the probe of the port
            asked.set()
            await reader.read()  # it answers nothing: a query takes long
            ended.set()
        writer.close()

    server = await asyncio.start_server(jvm, "127.0.0.1", 0)
    plan = JailPlan(
        *("", (), (), (), "/", None),
        has_network=False,
        port=server.sockets[0].getsockname()[1],
        marker=str(marker),
        processes=99,
    )
    outside = socket.create_server(("127.0.0.1", 0))
    forwarding = asyncio.create_task(query_jail._serve(outside, plan))
    try:
        _, writer = await asyncio.open_connection(*outside.getsockname())
        writer.write(b"SELECT")
        await asyncio.wait_for(asked.wait(), WAIT_S)
        linger = struct.pack("ii", 1, 0)  # a reset instead of an orderly end
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        await asyncio.wait_for(ended.wait(), WAIT_S)
    finally:
        forwarding.cancel()
        server.close()
        outside.close()
