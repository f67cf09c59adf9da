"""Processes that wait for a task, and their fork server: how many there are, and that all end.

The processes are real, and do nothing but wait for the end of their input; time is virtual.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from types import ModuleType
from typing import NoReturn

import pytest

from penstock.core.access.derived_tokens import TASK_MADE_AGAIN_S
from penstock.core.errors import Unavailable
from penstock.mailbox import MailboxProcessor
from penstock.services.host.fork_server import FORK_SERVER_NAME, ForkedProcess, serve
from penstock.services.host.secret_variables import read_variables
from penstock.services.options.option_values import HostPort
from penstock.services.roles.peon_credentials import CREDENTIALS_FILE, PeonCredentials
from penstock.services.roles.peon_processes import (
    PEON_PROGRAM,
    PeonChild,
    PeonOptions,
    PeonProcesses,
)
from penstock.storage.secrets.secret_sources import SECRETS, Secrets
from penstock.testing.clock import VirtualClock
from tests.harness.mailbox_kit import settle
from tests.kits import waiting_peon

AGE_MS = 60_000
PROGRAM = (sys.executable, waiting_peon.__file__)


class PeonProcessesWorld:
    def __init__(self, folder: Path, spares: int = 2, program: tuple[str, ...] = PROGRAM) -> None:
        self.folder = folder
        self.clock = VirtualClock()
        self.processor = MailboxProcessor(name="worker", clock=self.clock)
        self.before = children()
        self.credentials = PeonCredentials("first", b"key")
        self.disk_is_full = False
        options = PeonOptions(
            spares=spares, spare_age_max_ms=AGE_MS, credentials=self.credentials_of
        )
        files = (folder / "options.json", (HostPort("127.0.0.1", 1), "w"), folder / "spare.out")
        self.peons = PeonProcesses(*files, self.processor, self.clock, options, program)
        self.launched: list[PeonChild] = []
        self.peons.start(lambda _task_id: None)

    def credentials_of(self, _task_id: str, _folder: str) -> PeonCredentials:
        if self.disk_is_full:
            raise Unavailable("the disk is full")
        return self.credentials

    def launch(self, task_id: str) -> PeonChild:
        folder = self.folder / task_id
        folder.mkdir()
        self.launched.append(self.peons.launch(task_id, str(folder)))
        return self.launched[-1]

    def stop(self) -> None:
        for one in self.launched:  # as the worker does
            one.terminate()
        self.peons.end_spares()
        self.peons.stop()
        assert not self.alive()

    def settle(self, seconds: float) -> None:
        settle(self.processor, self.clock, seconds)

    def until(self, what: Callable[[], bool], *, step_s: float = 0) -> None:
        """Run mail, which the ends and words of processes bring, until something is so.

        The clock goes on by a step each time: what comes a while after such an end needs that.
        """
        deadline = time.monotonic() + 120
        while not what():
            assert time.monotonic() < deadline
            self.settle(step_s)
            time.sleep(0.005)  # what processes do arrives on the watch's thread

    def alive(self) -> set[int]:
        """The processes that were started here and have not ended, in the order of their ids."""
        return {pid for pid in children() - self.before if not is_zombie(pid)}

    def server(self) -> int | None:
        return next((pid for pid in self.alive() if name_of(pid) == FORK_SERVER_NAME), None)

    def waiting(self) -> set[int]:
        """What waits for a task, or for its end: everything but the fork server."""
        return self.alive() - {self.server()}

    def ready(self, spares: int = 2) -> set[int]:
        """Wait until the server has forked the spares."""
        self.until(lambda: self.server() is not None and len(self.spares()) == spares)
        return self.spares()

    def spares(self) -> set[int]:
        return {pid for pid in self.waiting() if is_forked(pid)}


def children() -> set[int]:
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # a thread that ended
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def is_forked(pid: int) -> bool:
    try:
        return b"--forks-fd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture
def world(tmp_path: Path) -> Iterator[PeonProcessesWorld]:
    made = PeonProcessesWorld(tmp_path)
    yield made
    made.stop()


def test_secrets_are_not_in_the_environment_of_peons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("PENSTOCK_INPUT_SHOP", "NAMED_IN_SECRETS_TOML")
    for name in names:
        monkeypatch.setenv(name, "hush-4711")
    SECRETS.set(Secrets(variables=dict.fromkeys(names, "hush-4711")))
    try:
        world = PeonProcessesWorld(tmp_path, spares=1)
    finally:
        SECRETS.set(Secrets())
    world.ready(1)
    pids = world.alive()
    assert len(pids) == 2
    for pid in pids:
        started = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"hush" not in started + Path(f"/proc/{pid}/environ").read_bytes()
    words = Path(f"/proc/{world.server()}/cmdline").read_text().split("\0")
    passed = Path(f"/proc/{world.server()}/fd/{words[words.index('--secrets-fd') + 1]}")
    assert read_variables(os.open(passed, os.O_RDONLY)) == dict.fromkeys(names, "hush-4711")
    world.stop()


def test_the_credentials_of_running_tasks_are_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A peon outlives its overlord, and a token that it was given at its start."""
    world = PeonProcessesWorld(tmp_path, spares=0)
    ended, running = world.launch("ended"), world.launch("running")

    def token_of(task: str) -> str:
        return PeonCredentials.read(tmp_path / task).sends

    world.settle(TASK_MADE_AGAIN_S - 1)
    world.credentials = PeonCredentials("second", b"key")
    assert token_of("running") == token_of("ended") == "first"
    ended.kill()
    world.until(lambda: ended.exit_code() is not None)
    (tmp_path / "ended" / CREDENTIALS_FILE).unlink()
    world.settle(2)
    assert token_of("running") == "second"
    assert not (tmp_path / "ended" / CREDENTIALS_FILE).exists()
    # A disk that is full for a while.
    world.disk_is_full = True
    world.settle(TASK_MADE_AGAIN_S)
    assert "cannot renew the credentials of task running: the disk is full" in caplog.text
    world.disk_is_full = False
    world.credentials = PeonCredentials("third", b"key")
    world.settle(TASK_MADE_AGAIN_S)
    assert token_of("running") == "third"
    assert running.exit_code() is None
    world.stop()


def test_spares_are_forked_and_are_children_of_the_worker(world: PeonProcessesWorld) -> None:
    first, second = world.ready()
    # Each has a session of its own, soon after it was forked.
    world.until(lambda: {os.getsid(first), os.getsid(second)} == {first, second})
    assert {parent_of(first), parent_of(second)} == {os.getpid()}


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_spare_that_has_waited_too_long_is_replaced(world: PeonProcessesWorld) -> None:
    first = world.ready()
    world.settle(AGE_MS / 1000 - 1)
    assert world.spares() == first
    world.settle(2)
    # Their input has ended, which is how a spare hears that nobody wants it.
    world.until(lambda: len(world.spares()) == 2 and not world.spares() & first)


def test_one_that_was_taken_is_not_replaced_for_its_age(world: PeonProcessesWorld) -> None:
    first = world.ready()
    taken = world.launch("t1")
    assert taken.process.pid in first
    world.settle(5)
    world.until(lambda: len(world.spares()) == 3)
    world.settle(AGE_MS / 1000 + 5)
    world.until(lambda: len(world.spares()) == 3 and world.spares() & first == {taken.process.pid})
    assert taken.exit_code() is None


def test_no_descriptor_outlives_a_peon(world: PeonProcessesWorld) -> None:
    """Each hand-off takes a spare; its timer and its task refer to the process for long after."""
    world.ready()
    before = open_files()
    kept = []
    for number in range(6):
        kept.append(world.launch(f"t{number}"))
        kept[-1].kill()
        kept[-1].process.wait(120)
        world.settle(2)
    world.until(lambda: len(world.spares()) == 2 and open_files() <= before)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_task_gets_a_process_that_lives_before_the_end_of_a_spare_was_told(
    world: PeonProcessesWorld,
) -> None:
    first = world.ready()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    while not all(map(is_zombie, first)):
        time.sleep(0.005)  # mail would tell the worker
    taken = world.launch("t1")
    assert taken.process.pid not in first
    assert taken.exit_code() is None


def test_without_a_spare_a_task_runs_in_a_forked_process(world: PeonProcessesWorld) -> None:
    first = world.ready()
    taken = [world.launch(f"t{number}") for number in range(3)]
    assert {one.process.pid for one in taken[:2]} == first
    assert isinstance(taken[2].process, ForkedProcess)
    assert taken[2].exit_code() is None
    world.settle(1)
    world.until(lambda: len(world.spares()) == 5)


def test_before_the_server_is_ready_a_task_runs_in_a_new_process(world: PeonProcessesWorld) -> None:
    taken = world.launch("t1")  # no mail has run, so nobody was told that it is ready
    assert not isinstance(taken.process, ForkedProcess)
    assert taken.process.pid not in world.ready()


def test_after_waiting_for_the_server_tasks_are_forked(world: PeonProcessesWorld) -> None:
    world.peons.wait_for_server(30)
    world.settle(0)  # a launch is mail behind the mail of the server
    assert isinstance(world.launch("t1").process, ForkedProcess)


def test_a_server_that_was_killed_is_replaced_and_what_it_forked_goes_on(
    world: PeonProcessesWorld,
) -> None:
    first = world.ready()
    server = world.server()
    assert server is not None
    os.kill(server, signal.SIGKILL)
    world.until(lambda: world.server() not in (None, server), step_s=0.1)
    assert world.spares() == first
    taken = [world.launch(f"t{number}").process.pid for number in range(2)]
    assert set(taken) == first


def test_a_server_that_is_frozen_is_killed_and_the_task_gets_a_process(
    world: PeonProcessesWorld,
) -> None:
    world.ready()
    server = world.server()
    assert server is not None
    os.kill(server, signal.SIGSTOP)
    for number in range(2):
        world.launch(f"t{number}")
    taken = world.launch("t2")
    assert not isinstance(taken.process, ForkedProcess)
    world.until(lambda: server not in world.alive())
    assert taken.exit_code() is None


def test_a_server_that_is_never_ready_is_replaced(tmp_path: Path) -> None:
    world = PeonProcessesWorld(tmp_path, program=(*PROGRAM, "--hangs"))
    [first] = world.alive()
    world.settle(59)
    assert world.alive() == {first}
    world.settle(2)
    world.until(lambda: first not in world.alive())
    world.settle(1)
    world.until(lambda: bool(world.alive()))
    world.stop()


def test_where_no_server_can_be_spares_are_new_processes(tmp_path: Path) -> None:
    world = PeonProcessesWorld(tmp_path, program=(*PROGRAM, "--no-forks"))
    world.peons.wait_for_server(30)
    world.until(lambda: len(world.waiting()) == 2)
    assert not world.spares()
    taken = world.launch("t1")
    assert not isinstance(taken.process, ForkedProcess)
    world.stop()
    assert "this one does not serve" in (tmp_path / "spare.out").read_text()


def test_a_worker_without_spares_has_no_server(tmp_path: Path) -> None:
    world = PeonProcessesWorld(tmp_path, spares=0)
    world.peons.wait_for_server(30)
    assert world.alive() == set()
    taken = world.launch("t1")
    assert world.alive() == {taken.process.pid}
    world.stop()


def test_exit_codes_of_forked_processes_reach_their_parent(world: PeonProcessesWorld) -> None:
    world.ready()
    ended, killed = world.launch("t1"), world.launch("t2")
    ended.hang_up()
    killed.kill()
    assert ended.process.wait(120) == 0
    assert killed.process.wait(120) == -signal.SIGKILL
    killed.terminate()  # does nothing
    assert killed.exit_code() == -signal.SIGKILL


def test_orphans_that_have_ended_are_removed(world: PeonProcessesWorld) -> None:
    """As a server that is killed during a fork leaves: the worker adopts them, and knows none."""
    world.ready()
    # It ends with its input, after its parent.
    script = "exec 3<&0; cat <&3 >&2 & echo $!"
    with subprocess.Popen(["sh", "-c", script], stdin=PIPE, stdout=PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        parent.wait(120)
    while not is_zombie(orphan):
        time.sleep(0.005)
    assert parent_of(orphan) == os.getpid()
    taken = world.launch("t1")
    assert not Path(f"/proc/{orphan}").exists()
    assert taken.exit_code() is None


@pytest.mark.parametrize(("module", "name"), [(os, "pidfd_open"), (socket, "socketpair")])
def test_a_server_for_which_descriptors_lack_is_started_later(
    world: PeonProcessesWorld, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    world.ready()
    server = world.server()
    assert server is not None
    refused = []

    def refuse(*given: object) -> NoReturn:
        refused.append(given)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(module, name, refuse)
        os.kill(server, signal.SIGKILL)
        world.until(lambda: bool(refused), step_s=0.1)
        assert world.server() is None
    world.until(lambda: world.server() is not None, step_s=0.1)
    again = world.server()
    assert again is not None
    os.kill(again, signal.SIGKILL)
    world.until(lambda: world.server() not in (None, again), step_s=0.1)


def test_a_process_that_cannot_be_watched_is_killed(
    world: PeonProcessesWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes for one task would write into the same folder."""
    started = []

    def refuse(pid: int) -> NoReturn:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", refuse)
        with pytest.raises(Unavailable, match="cannot be watched"):
            world.launch("t1")  # the server is not ready
    world.until(lambda: is_zombie(started[0]))
    assert world.launch("t2").exit_code() is None
    assert not Path(f"/proc/{started[0]}").exists()


class EndsNever(ForkedProcess):
    """A process that the kernel cannot end, for example because it waits for a disk."""

    def wait(self, timeout: float) -> NoReturn:
        raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)


def test_a_process_that_cannot_be_ended_keeps_no_other_one_from_being_ended(tmp_path: Path) -> None:
    world = PeonProcessesWorld(tmp_path)
    world.ready()
    stuck, other = world.launch("t1"), world.launch("t2")
    process, stuck.process = stuck.process, EndsNever(stuck.process.pid)
    for one in world.launched:
        one.terminate()
    world.peons.stop()
    assert other.exit_code() == -signal.SIGTERM
    assert process.wait(120) < 0  # it got both signals
    assert not world.alive()


def test_a_process_with_several_threads_does_not_serve() -> None:
    """A forked process would have copies of mutexes that other threads hold."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        with pytest.raises(Unavailable, match="one thread"):
            serve(-1, -1)
    finally:
        end.set()
        thread.join()


def test_a_peon_whose_worker_has_ended_ends_before_it_imports_anything() -> None:
    command = [*PEON_PROGRAM, "--parent", "1"]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL


@pytest.mark.parametrize("error", [MemoryError, RuntimeError])
def test_a_process_whose_watch_fails_unexpectedly_is_killed(
    world: PeonProcessesWorld, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    """It waited for ever, with its pipes open, and nobody knew of it."""
    world.ready()
    started = []

    def refuse(pid: int, *_given: object) -> NoReturn:
        started.append(pid)
        raise error("no room")

    before = open_files()
    with monkeypatch.context() as patch:
        patch.setattr(world.peons._watch, "watch", refuse)
        patch.setattr(world.peons, "_spares", [])
        with pytest.raises(error):
            world.launch("t1")
    world.until(lambda: is_zombie(started[0]))
    world.peons._forget_ended()
    assert open_files() <= before
