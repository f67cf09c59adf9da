"""Entry points of the launcher's children: a thread that dies there ends the process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.services.host.signals import STOP_SIGNALS, SignalPipe
from penstock.services.options import resolution
from penstock.services.options.table import PenstockOptions

# The role itself is replaced: it starts a thread that dies, and would go on for long.
DIES = """
import sys, threading, types
from penstock.core.threads import OwnedThread

def fail():
    raise MemoryError("no room")

def run(*_given):
    OwnedThread("a thread of the role", fail).start()
    threading.Event().wait(120)
    return 0
"""
ROLE = f"""{DIES}
from penstock.services.roles import __main__ as entry
entry.importlib = types.SimpleNamespace(import_module=lambda _: types.SimpleNamespace(compose=None))
entry.run_role = run
sys.exit(entry.main(sys.argv[1:]))
"""
PEON = f"""{DIES}
class Peon:
    def __init__(self, *_given):
        self.run = run

role = types.SimpleNamespace(PeonRole=Peon, import_ahead=None)
sys.modules["penstock.services.roles.peon"] = role
from penstock.services.roles import peon_start
sys.exit(peon_start.main(sys.argv[1:]))
"""


# A role one of whose parts ends it, or a signal does.
STOPS = """
import os, signal, sys, types
from penstock.services.lifecycle import Lifecycle, LifecycleHandler, StartStage
from penstock.services.roles import __main__ as entry

def compose(context):
    def end():
        os.kill(os.getpid(), signal.SIGTERM) if how == "signal" else context.request_stop()
    lifecycle = Lifecycle()
    lifecycle.add_handler(LifecycleHandler("part", end, context.request_stop))
    return lifecycle

how = sys.argv.pop()
role = types.SimpleNamespace(compose=compose)
entry.importlib = types.SimpleNamespace(import_module=lambda _: role)
sys.exit(entry.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(("how", "code"), [("signal", 0), ("part", RESTART_REQUESTED)])
def test_a_process_that_a_part_of_it_ends_asks_for_a_restart(
    how: str, code: int, tmp_path: Path
) -> None:
    """It ended as after a signal, and systemd did not start it again."""
    options = tmp_path / "options.json"
    options.write_text(resolution.to_json(PenstockOptions(data_dir=tmp_path / "data")))
    (tmp_path / "data" / "log").mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        given = ["--options", str(options), "--parent", str(os.getpid())]
        command = [sys.executable, "-c", STOPS, "flow", *given]
        command += ["--listen-fd", str(listener.fileno()), how]
        ended = subprocess.run(
            command, capture_output=True, text=True, check=False, pass_fds=[listener.fileno()]
        )
    assert ended.returncode == code, ended.stderr + (tmp_path / "data/log/flow.log").read_text()


def test_a_signal_that_other_code_handles_does_not_end_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended the process in order: Python notes each signal that has a handler."""
    handler = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with SignalPipe(STOP_SIGNALS) as pipe:
            signals = iter([signal.SIGUSR1, signal.SIGTERM])
            wait = select.select

            def send_then_wait(*given: list[int]) -> object:
                os.kill(os.getpid(), next(signals))
                return wait(*given)

            monkeypatch.setattr(select, "select", send_then_wait)
            pipe.wait()
            assert next(signals, None) is None
            os.kill(os.getpid(), signal.SIGUSR1)
            assert pipe.take() == []
    finally:
        signal.signal(signal.SIGUSR1, handler)


@pytest.mark.parametrize("entry", ["role", "peon"])
def test_a_process_one_of_whose_threads_dies_ends_with_its_exit_code(
    entry: str, tmp_path: Path
) -> None:
    """It went on, without what that thread does."""
    options = tmp_path / "options.json"
    options.write_text(resolution.to_json(PenstockOptions(data_dir=tmp_path / "data")))
    (tmp_path / "data" / "log").mkdir(parents=True)
    given = ["--options", str(options), "--parent", str(os.getpid())]
    if entry == "role":
        command = [sys.executable, "-c", ROLE, "flow", *given, "--listen-fd", "0"]
    else:
        command = [sys.executable, "-c", PEON, *given, "--worker", "127.0.0.1:1"]
        command += ["--worker-name", "a worker", "--folder", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    log = tmp_path / "data/log/flow.log"
    text = ended.stdout + ended.stderr + (log.read_text() if log.exists() else "")
    assert ended.returncode == RESTART_REQUESTED, text
    assert "a thread of the role ended unexpectedly (MemoryError('no room'))" in text
