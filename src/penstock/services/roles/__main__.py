"""The command of a child: `python -m penstock.services.roles NAME …`, started by the launcher.

Owns its arguments. It imports only the requested role, because every child adds to the start time
and the memory of the host.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from pathlib import Path

from penstock.core.clock import SystemClock
from penstock.core.errors import InvalidRequest, PenstockError
from penstock.core.garbage_collection import freeze_new_objects
from penstock.core.printable import escaped_lines
from penstock.services.host.data_folder import DataFolder
from penstock.services.host.folder_permissions import use_umask
from penstock.services.host.process import die_with_parent, end_on_thread_death, leave
from penstock.services.host.restart_policy import INVALID_OPTIONS
from penstock.services.host.secret_variables import read_variables
from penstock.services.host.up import log_to_file
from penstock.services.options import resolution
from penstock.services.roles.runtime import InheritedSocket, StartReporter, run_role

ROLES = ("broker", "overlord", "flow", "worker", "router")


def main(arguments: list[str]) -> int:
    """Run the role and return the exit code."""
    parser = argparse.ArgumentParser(prog="penstock.services.roles")
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--options", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, required=True, action="append")
    parser.add_argument("--ready-fd", type=int)
    parser.add_argument("--secrets-fd", type=int)
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    variables = read_variables(given.secrets_fd)
    options = resolution.from_json(given.options.read_text())
    use_umask(options)
    end_on_thread_death()
    log_to_file(DataFolder(options.data_dir).log / f"{given.role}.log")
    # The name is one of ROLES. Garbage collection would take a sixth of the time of the import, and
    # find no garbage.
    with freeze_new_objects():
        role = importlib.import_module(f"penstock.services.roles.{given.role}")
    try:
        return run_role(
            given.role,
            options,
            SystemClock(),
            [InheritedSocket(number, options.http) for number in given.listen_fd],
            StartReporter(given.ready_fd),
            role.compose,
            variables,
        )
    except PenstockError as error:
        logging.getLogger(__name__).exception("%s ends", given.role)
        sys.stderr.write(f"{escaped_lines(str(error))}\n")
        return INVALID_OPTIONS if isinstance(error, InvalidRequest) else 1


if __name__ == "__main__":
    leave(main(sys.argv[1:]), SystemClock())
