"""The command of a peon: `python -m penstock.services.roles.peon_start …`, started by the worker.

It is a separate process, or the fork server that creates such processes with all imports done. A
peon without a task is a warm spare: it opens a Spark session and waits for one line on its standard
input, which names the task's folder; from then on its output is that task's log. If the folder is
given at its start, it skips both steps. On another pipe it notifies the worker of changes.

The process ends with the worker even while it starts: its imports take a second of processor time,
and a worker that is killed repeatedly would leave more such processes each time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.core.clock import SystemClock
from penstock.core.log_format import log_to_stream
from penstock.core.threads import start_job
from penstock.services.host.folder_permissions import use_umask
from penstock.services.host.fork_server import serve
from penstock.services.host.process import die_with_parent, end_on_thread_death, name_process
from penstock.services.host.secret_variables import read_variables
from penstock.services.options import resolution
from penstock.services.options.option_values import HostPort

PEON_NAME: Final = "penstock-peon"
"""Name of a peon for `ps`."""

_STDIN: Final = 0
_LINE_BYTES_MAX: Final = 65_536


def main(arguments: list[str]) -> int:
    """Run a peon, or a fork server of peons, and return the exit code."""
    die_with_parent(int(arguments[arguments.index("--parent") + 1]))
    parser = argparse.ArgumentParser(prog="penstock.services.roles.peon_start")
    parser.add_argument("--folder")
    parser.add_argument("--options", type=Path, required=True)
    parser.add_argument("--worker", type=HostPort.parse, required=True)
    parser.add_argument("--worker-name", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--words-fd", type=int)
    parser.add_argument("--forks-fd", type=int)
    parser.add_argument("--secrets-fd", type=int)
    given = parser.parse_args(arguments)
    # A fork server reads them once for all processes that it forks.
    variables = read_variables(given.secrets_fd)
    # Imported here, because the import takes a second of processor time.
    from penstock.services.host.process_guards import guard_process  # noqa: PLC0415
    from penstock.services.roles.peon import PeonRole, import_ahead  # noqa: PLC0415

    words: int | None = given.words_fd
    if given.forks_fd is not None and words is not None:
        import_ahead()
        words = serve(given.forks_fd, words)
        # The process that requested the fork is its parent, too; the kernel forgets the call above.
        die_with_parent(given.parent)
    end_on_thread_death()
    name_process(PEON_NAME)
    # Its output is the task's log.
    log_to_stream(sys.stdout)
    options = resolution.from_json(given.options.read_text())
    use_umask(options)
    clock = SystemClock()
    options = guard_process(options, variables, clock, "peon", [given.worker.port])
    notify_worker = _change_notifier(words)
    process = PeonRole(options, given.worker, given.worker_name, clock, notify_worker)
    folder: str | None = given.folder
    if folder is None:
        # In parallel: a task that needs no Spark does not wait for it.
        start_job("warm", process.warm)
        folder = _wait_for_folder()
        if folder is None:
            process.close()
            return 0
        _log_into(folder)
    return process.run(folder)


def _wait_for_folder() -> str | None:
    """Wait for the line that names the folder of a task; None: the input has ended."""
    line = b""
    while not line.endswith(b"\n"):
        try:
            part = os.read(_STDIN, _LINE_BYTES_MAX)
        except OSError:
            return None
        if not part or len(line) > _LINE_BYTES_MAX:
            return None
        line += part
    return str(json.loads(line)["folder"])


def _log_into(folder: str) -> None:
    """From now on, send this process's output to the log of the task in a folder."""
    sys.stdout.flush()
    descriptor = os.open(f"{folder}/log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _change_notifier(descriptor: int | None) -> Callable[[], None]:
    """Return a function that notifies the worker of changes of this task."""
    if descriptor is None:
        return lambda: None
    os.set_inheritable(descriptor, False)  # noqa: FBT003

    def notify() -> None:
        with contextlib.suppress(OSError):  # the worker has died
            os.write(descriptor, b".")

    return notify


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
