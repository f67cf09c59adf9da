"""Entry points of the launcher's children: a thread that dies there ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.services.host.restart_policy import DEAD_THREAD
from penstock.services.options import resolution
from penstock.services.options.table import Options

# The role itself is replaced: it starts a thread that dies, and would go on for long.
DIES = """
import sys, threading, types
from penstock.core.threads import OwnedThread

def fail():
    raise MemoryError("no room")

def run(*_given):
    OwnedThread("a thread of the role", fail).start()
    threading.Event().wait(30)
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


@pytest.mark.parametrize("entry", ["role", "peon"])
def test_a_process_one_of_whose_threads_dies_ends_with_its_exit_code(
    entry: str, tmp_path: Path
) -> None:
    """It went on, without what that thread does."""
    options = tmp_path / "options.json"
    options.write_text(resolution.to_json(Options(data_dir=tmp_path / "data")))
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
    assert ended.returncode == DEAD_THREAD, text
    assert "a thread of the role ended unexpectedly (MemoryError('no room'))" in text
