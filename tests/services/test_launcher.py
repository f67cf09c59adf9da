"""The launcher, with tiny children: readiness, restarts, the end."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.core.clock import SystemClock
from penstock.core.errors import Conflict, InvalidRequest, Unavailable
from penstock.services.host import launcher
from penstock.services.host.launcher import ChildPlan, Launcher
from penstock.services.host.liveness import LivenessCheck, LivenessOptions
from penstock.services.host.process import ChildCommand, listen, listen_with_retries
from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.services.options.option_values import HostPort
from penstock.testing.clock import VirtualClock

READY_AND_WAIT = """
import os, signal, sys
os.write(int(sys.argv[1]), b"ready\\n")
signal.pause()
"""
READY_AND_IGNORE = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(int(sys.argv[1]), b"ready\\n")
while True:
    signal.pause()
"""
# Has a thread that dies at SIGUSR1.
READY_AND_DIE = """
import logging, os, signal, sys, threading
from penstock.core.threads import OwnedThread
from penstock.services.host.process import end_on_thread_death

logging.basicConfig()
end_on_thread_death()
asked = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: asked.set())
OwnedThread("election", lambda: asked.wait() and 1 / 0).start()
os.write(int(sys.argv[1]), b"ready\\n")
while True:
    signal.pause()
"""
# Ends only together with another one that was asked to, too: they meet at a pipe with a name.
MEET = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})  # none is missed before the wait
os.write(int(sys.argv[1]), b"ready\\n")
signal.sigwait({{signal.SIGTERM}})
open({folder!r} + "/meeting", {mode!r}).close()
pathlib.Path({folder!r}, {name!r}).touch()
"""
LAST = """
import os, pathlib, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})  # none is missed before the wait
os.write(int(sys.argv[1]), b"ready\\n")
signal.sigwait({{signal.SIGTERM}})
ended = [name for name in ("a", "b") if pathlib.Path({folder!r}, name).exists()]
pathlib.Path({folder!r}, "seen").write_text(" ".join(ended))
"""
# Ends at its first start; the second waits.
FAIL_ONCE = """
import pathlib, signal, sys
first = pathlib.Path({folder!r}, "mark")
if first.exists():
    signal.pause()
first.touch()
print("no luck", flush=True)
sys.exit(7)
"""
FAIL = "import sys; print('no luck', flush=True); sys.exit(7)"


def plan(name: str, script: str, stop_timeout_s: float = 10) -> ChildPlan:
    def command(ready_fd: int) -> ChildCommand:
        return ChildCommand((sys.executable, "-c", script, str(ready_fd)), dict(os.environ))

    return ChildPlan(name, command, stop_timeout_s=stop_timeout_s)


class Rig:
    """A launcher on the main thread; what it says drives the story."""

    def __init__(self, folder: Path, plans: list[ChildPlan]) -> None:
        self.folder = folder
        self.lines: list[str] = []
        self.waits: list[str] = []
        self.on_line: Callable[[str], None] = lambda _line: None
        self.on_ready: Callable[[], None] = lambda: None
        self.launcher = Launcher(plans, folder, folder, SystemClock(), self._say, self._ready)

    def _ready(self) -> None:
        self.on_ready()

    def _say(self, line: str) -> None:
        # How long a start takes is this machine's matter.
        (self.waits if line.startswith("still starting") else self.lines).append(line)
        self.on_line(line)

    def pids(self) -> dict[str, int]:
        content = json.loads((self.folder / "children.json").read_text())
        return {name: one["pid"] for name, one in content.items()}


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_it_is_ready_when_all_are_and_stops_all(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("a", READY_AND_WAIT), plan("b", READY_AND_WAIT)])
    pids: dict[str, int] = {}

    def on_ready() -> None:
        pids.update(rig.pids())
        rig.launcher.request_stop()

    rig.on_ready = on_ready
    rig.launcher.run()
    assert set(pids) == {"a", "b"}
    assert not any(alive(pid) for pid in pids.values())


def test_what_a_start_waits_for_is_told_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_REPORT_FIRST_S", 0.1)
    monkeypatch.setattr(launcher, "_REPORT_EVERY_S", 0.1)
    slow = "import signal; signal.pause()"
    rig = Rig(tmp_path, [plan("quick", READY_AND_WAIT), plan("slow", slow)])

    def on_line(line: str) -> None:
        if line == "still starting: slow" and len(rig.waits) > 1:
            rig.launcher.request_stop()

    rig.on_line = on_line
    rig.launcher.run()
    assert rig.waits[-1] == "still starting: slow"
    assert "stopping" in rig.lines


def test_a_start_does_not_tell_of_those_that_wait_for_what_is_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_REPORT_FIRST_S", 0.1)
    monkeypatch.setattr(launcher, "_REPORT_EVERY_S", 0.1)
    starting = dataclasses.replace(plan("broker", COMPLAINS), provides="the broker")
    rig = Rig(tmp_path, [starting, plan("told", REPORTS)])

    def on_line(line: str) -> None:
        if line.startswith("  broker") and len(rig.waits) > 3:
            rig.launcher.request_stop()

    rig.on_line = on_line
    rig.launcher.run()
    assert not any("nobody answers" in line for line in rig.lines)


REPORTS = """
import os, signal, sys
os.write(int(sys.argv[1]), b"waits the broker: nobody answers\\n")
signal.pause()
"""
COMPLAINS = "import signal; print('java.net.BindException: taken', flush=True); signal.pause()"


def test_a_start_says_why_each_child_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_REPORT_FIRST_S", 0.1)
    monkeypatch.setattr(launcher, "_REPORT_EVERY_S", 0.1)
    flaky = FAIL_ONCE.format(folder=str(tmp_path))
    rig = Rig(tmp_path, [plan("told", REPORTS), plan("mute", COMPLAINS), plan("flaky", flaky)])
    wanted = {
        "  told waits for the broker: nobody answers",
        "its last error: java.net.BindException: taken",
        "it ended (exit code 7), its last output: no luck",
    }

    def on_line(line: str) -> None:
        wanted.difference_update([one for one in wanted if one in line])
        if not wanted:
            rig.launcher.request_stop()

    rig.on_line = on_line
    rig.launcher.run()
    assert not wanted
    kept = json.loads((tmp_path / "children.json").read_text())
    assert kept["told"]["waits"] == "waits for the broker: nobody answers"
    assert kept["told"]["ready"] is False


def test_children_of_a_stage_stop_beside_each_other_and_lower_ones_after_them(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "meeting")
    folder = str(tmp_path)
    plans = [
        plan("last", LAST.format(folder=folder)),
        dataclasses.replace(
            plan("a", MEET.format(folder=folder, name="a", mode="r")), stop_stage=1
        ),
        dataclasses.replace(
            plan("b", MEET.format(folder=folder, name="b", mode="w")), stop_stage=1
        ),
    ]
    rig = Rig(tmp_path, plans)
    rig.on_ready = rig.launcher.request_stop
    rig.launcher.run()
    assert (tmp_path / "seen").read_text() == "a b"


def test_a_killed_child_is_started_again_and_counted(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("a", READY_AND_WAIT), plan("b", READY_AND_WAIT)])
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    def on_ready() -> None:
        before.update(rig.pids())
        os.kill(before["a"], signal.SIGKILL)

    def on_line(line: str) -> None:
        if line == "a is ready again":
            after.update(rig.pids())
            rig.launcher.request_stop()

    rig.on_ready, rig.on_line = on_ready, on_line
    rig.launcher.run()
    assert before["b"] == after["b"]
    assert before["a"] != after["a"]
    assert rig.lines[0] == "a ended (SIGKILL); restarting in 0.2 s"


def test_a_child_whose_thread_died_is_started_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("overlord", READY_AND_DIE)])

    def on_line(line: str) -> None:
        if line == "overlord is ready again":
            rig.launcher.request_stop()

    rig.on_ready = lambda: os.kill(rig.pids()["overlord"], signal.SIGUSR1)
    rig.on_line = on_line
    rig.launcher.run()
    ended = rig.lines[0]
    assert ended.startswith(f"overlord ended (exit code {RESTART_REQUESTED}); restarting in 0.2 s")
    assert "ZeroDivisionError" in ended


def test_a_child_that_hangs_is_started_again(tmp_path: Path) -> None:
    class Silence:
        def answered(self) -> None:
            return None

        def close(self) -> None:
            pass

    options = LivenessOptions(every_s=0.01, answer_s=0.02, check_s=0.01, failures_max=2)
    deaf = plan("spark", READY_AND_IGNORE, stop_timeout_s=0.05)
    hung = dataclasses.replace(deaf, pulse=LivenessCheck(Silence, SystemClock(), options))
    rig = Rig(tmp_path, [hung])

    def on_line(line: str) -> None:
        if "ready again" in line:
            rig.launcher.request_stop()

    rig.on_line = on_line
    rig.launcher.run()
    assert "spark hangs: no answer" in rig.lines[0]
    assert "spark ended (SIGKILL)" in rig.lines[1]


def test_a_child_in_trouble_is_started_again(tmp_path: Path) -> None:
    reasons = iter(["", "still runs cancelled work"])
    plans = [
        dataclasses.replace(
            plan("spark", READY_AND_IGNORE, stop_timeout_s=0.05),
            pulse=LivenessCheck(
                lambda: None, SystemClock(), LivenessOptions(every_s=0.01, failures_max=1_000_000)
            ),
            restart_reason=lambda: next(reasons, ""),
        )
    ]
    rig = Rig(tmp_path, plans)

    def on_line(line: str) -> None:
        if "ready again" in line:
            rig.launcher.request_stop()

    rig.on_line = on_line
    rig.launcher.run()
    assert rig.lines[0] == "spark still runs cancelled work"
    assert "spark ended (SIGKILL)" in rig.lines[1]


def fail_once(monkeypatch: pytest.MonkeyPatch, module: object, name: str) -> list[OSError]:
    """Have a call fail as with too many open files; return the failure until it was raised."""
    failures = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]
    call = getattr(module, name)

    def fail(*given: object) -> object:
        if failures:
            raise failures.pop()
        return call(*given)

    monkeypatch.setattr(module, name, fail)
    return failures


def test_a_lack_of_descriptors_at_a_restart_ends_no_other_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, [plan("a", READY_AND_WAIT), plan("b", READY_AND_WAIT)])
    before: dict[str, int] = {}
    after: dict[str, int] = {}

    def on_ready() -> None:
        before.update(rig.pids())
        fail_once(monkeypatch, os, "pipe")
        os.kill(before["a"], signal.SIGKILL)

    def on_line(line: str) -> None:
        if line == "a is ready again":
            after.update(rig.pids())
            rig.launcher.request_stop()

    rig.on_ready, rig.on_line = on_ready, on_line
    rig.launcher.run()
    assert before["b"] == after["b"]
    assert rig.lines[1].startswith("a cannot be started: cannot open a pipe (Too many open fi")


def test_a_lack_of_descriptors_at_the_first_start_ends_it_with_the_reason(tmp_path: Path) -> None:
    def lack(_ready_fd: int) -> ChildCommand:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    rig = Rig(tmp_path, [plan("a", READY_AND_WAIT), ChildPlan("b", lack)])
    with pytest.raises(Unavailable, match=r"could not be created: .*Too many open files"):
        rig.launcher.run()
    assert rig.lines == ["stopping"]


def test_a_lack_of_descriptors_delays_the_probe_of_a_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or the start would be noticed as complete at the next report only.
    monkeypatch.setattr(launcher, "_REPORT_FIRST_S", 3_600.0)
    monkeypatch.setattr(launcher, "_IDLE_WAIT_S", 3_600.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = "import signal; signal.pause()"
        probed = dataclasses.replace(plan("spark", script), ready_port=server.getsockname()[1])
        rig = Rig(tmp_path, [probed])
        rig.on_ready = rig.launcher.request_stop
        failures = fail_once(monkeypatch, launcher.socket, "socket")
        rig.launcher.run()
    assert not failures
    assert rig.lines == ["stopping"]


def test_a_stop_reports_what_it_waits_for_and_each_end_when_it_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(launcher, "_REPORT_FIRST_S", 0.1)
    monkeypatch.setattr(launcher, "_REPORT_EVERY_S", 0.1)
    caplog.set_level(logging.INFO, logger=launcher.logger.name)
    rig = Rig(
        tmp_path,
        [plan("deaf", READY_AND_IGNORE, 1000), plan("quick", READY_AND_WAIT, stop_timeout_s=1000)],
    )
    rig.on_ready = rig.launcher.request_stop

    def on_line(line: str) -> None:
        # The end of the quick one is logged while the deaf one, which is asked first, still runs.
        if line == "still stopping: deaf":
            assert any(one.startswith("quick stopped after") for one in caplog.messages)
            os.kill(rig.pids()["deaf"], signal.SIGKILL)

    rig.on_line = on_line
    rig.launcher.run()
    assert "still stopping: deaf" in rig.lines


def test_a_child_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("deaf", READY_AND_IGNORE, stop_timeout_s=0.05)])
    pids: dict[str, int] = {}

    def on_ready() -> None:
        pids.update(rig.pids())
        rig.launcher.request_stop()

    rig.on_ready = on_ready
    rig.launcher.run()
    assert not alive(pids["deaf"])


def test_a_stop_does_not_need_its_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`penstock up | head` ends the reader of its lines, which stops it."""
    monkeypatch.setattr(launcher, "_REPORT_FIRST_S", 0.0)
    deaf = plan("deaf", READY_AND_IGNORE, stop_timeout_s=0.05)
    rig = Rig(tmp_path, [deaf, dataclasses.replace(plan("a", READY_AND_WAIT), stop_stage=-1)])
    pids: dict[str, int] = {}

    def on_ready() -> None:
        pids.update(rig.pids())
        raise BrokenPipeError  # as printing does

    def on_line(line: str) -> None:
        if pids:
            raise BrokenPipeError(line)

    rig.on_ready, rig.on_line = on_ready, on_line
    with pytest.raises(BrokenPipeError):
        rig.launcher.run()
    assert [name for name, pid in pids.items() if alive(pid)] == []
    assert set(pids) == {"deaf", "a"}
    assert "stopping" in rig.lines
    assert "deaf did not stop within 0 s and was killed" in rig.lines


def test_a_child_that_cannot_start_ends_it_with_its_last_words(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("good", READY_AND_WAIT), plan("bad", FAIL)])
    with pytest.raises(Unavailable, match=r"bad does not start \(exit code 7\)(.|\n)*no luck"):
        rig.launcher.run()


def test_the_terminal_shows_why_a_child_ended(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("bad", FAIL)])
    with pytest.raises(Unavailable):
        rig.launcher.run()
    assert rig.lines == [
        "bad ended (exit code 7); restarting in 0.2 s\n  no luck",
        "bad ended (exit code 7); restarting in 0.4 s\n  no luck",
        "stopping",
    ]


def test_a_child_that_printed_nothing_is_explained_by_its_log(tmp_path: Path) -> None:
    log = tmp_path / "spark.log"
    log.write_text("2026-01-01 ERROR x: of an earlier run\n")
    script = (
        f"with open({str(log)!r}, 'a') as file:\n"
        "    file.write('2026-01-01T00:00:00Z WARN A: not this\\n')\n"
        "    file.write('2026-01-01T00:00:00Z ERROR B: the reason\\n\\tat java.lang.Thread\\n')\n"
        "raise SystemExit(1)"
    )
    rig = Rig(tmp_path, [dataclasses.replace(plan("bad", script), log_file=log)])
    with pytest.raises(Unavailable):
        rig.launcher.run()
    shown = (
        "bad ended (exit code 1); restarting in 0.2 s\n  2026-01-01T00:00:00Z ERROR B: the reason"
    )
    assert rig.lines[0] == shown


def test_a_child_that_finds_an_option_wrong_ends_it_at_once(tmp_path: Path) -> None:
    wrong = "import sys; print('--x: wrong', flush=True); sys.exit(2)"
    (tmp_path / "bad.out").write_text("words of an earlier run\n")
    rig = Rig(tmp_path, [plan("good", READY_AND_WAIT), plan("bad", wrong)])
    with pytest.raises(InvalidRequest) as caught:
        rig.launcher.run()
    assert str(caught.value) == "--x: wrong"
    assert rig.lines == ["stopping"]


def test_a_signal_stops_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path, [plan("a", READY_AND_WAIT)])
    rig.on_ready = lambda: os.kill(os.getpid(), signal.SIGTERM)
    previous = signal.getsignal(signal.SIGTERM)
    rig.launcher.run()
    assert signal.getsignal(signal.SIGTERM) is previous


def test_children_die_with_their_parent() -> None:
    # The parent starts a child, tells its number, and is killed before it can stop it.
    child = textwrap.dedent("""
        import os, signal, sys
        from penstock.services.host.process import die_with_parent
        die_with_parent(int(sys.argv[1]))
        print(os.getpid(), flush=True)
        signal.pause()
    """)
    parent = textwrap.dedent("""
        import os, signal, subprocess, sys
        subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())])
        signal.pause()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", parent, child], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
        process.wait()
        # The pipe's end is reached when the last process that holds it is gone.
        assert process.stdout.read() == ""


# A lane that asks who never answers, as the overlord does a worker that was killed.
LEAVE = """
import sys, threading
from penstock.core.clock import SystemClock
from penstock.mailbox.lanes import ThreadLanes
from penstock.services.host.process import leave
lanes, begun = ThreadLanes("test"), threading.Event()
def work():
    begun.set()
    if sys.argv[1] == "silent":
        threading.Event().wait()
    else:
        sys.stdout.write("flushed\\n")  # at once, as the other one
asking = threading.Thread(target=lanes.submit, args=("a", work), daemon=sys.argv[2] == "daemon")
asking.start()  # as a mailbox does; the lane's thread is a daemon if this one is
begun.wait()
asking.join()
lanes.close()
sys.stdout.write("done\\n")
leave(3, SystemClock())
"""


@pytest.mark.parametrize(
    ("peer", "thread"), [("silent", "daemon"), ("silent", "plain"), ("well", "plain")]
)
def test_a_process_that_is_done_ends_whoever_it_still_asks(peer: str, thread: str) -> None:
    argv = [sys.executable, "-c", LEAVE, peer, thread]
    # Where nothing is buffered nothing is lost either.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    ended = subprocess.run(
        argv, env=env, stdout=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert ended.returncode == 3
    assert sorted(ended.stdout.split()) == (["done"] if peer == "silent" else ["done", "flushed"])


def test_a_taken_port_is_told_with_its_holder() -> None:
    with listen(HostPort("127.0.0.1", 0), "--http") as first:
        port = first.getsockname()[1]
        with pytest.raises(
            Conflict, match=rf"port {port} .* taken by process {os.getpid()} .*--http"
        ):
            listen(HostPort("127.0.0.1", port), "--http")


def _listen_outside_of_ephemeral_ports() -> socket.socket:
    """Listen on a port that no connection of another process takes once it is free."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    lowest = int(ephemeral.split()[0])
    for port in range(lowest - 1, 1_023, -1):
        with contextlib.suppress(Conflict):
            return listen(HostPort("127.0.0.1", port), "--http")
    raise AssertionError("no port is free")


def test_a_port_that_becomes_free_is_taken() -> None:
    clock = VirtualClock()
    first = _listen_outside_of_ephemeral_ports()
    address = HostPort("127.0.0.1", first.getsockname()[1])
    got: list[int] = []

    def take() -> None:
        with listen_with_retries(address, "--http", clock, 3) as listener:
            got.append(listener.getsockname()[1])

    taking = threading.Thread(target=take)
    taking.start()
    first.close()
    while taking.is_alive():
        if clock.waiting:  # or the time would be over while it looks for the holder of the port
            clock.advance(0.1)
        taking.join(0.01)
    assert got == [address.port]
    with listen(address, "--http"), pytest.raises(Conflict):
        listen_with_retries(address, "--http", clock, 0)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(Unavailable, match="--broker-http"):
        listen(HostPort("192.0.2.1", 0), "--broker-http")


def test_nothing_runs_in_other_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())  # those of tests before may end meanwhile
    rig = Rig(tmp_path, [plan("a", READY_AND_WAIT)])
    seen: list[set[threading.Thread]] = []

    def on_ready() -> None:
        seen.append(set(threading.enumerate()) - before)
        rig.launcher.request_stop()

    rig.on_ready = on_ready
    rig.launcher.run()
    assert seen == [set()]
