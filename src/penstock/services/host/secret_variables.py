"""Environment variables that contain secrets: kept out of the environment of child processes.

Every process of a user can read the environment of the user's other processes
(`/proc/PID/environ`), and it never changes after the start of a process. So children do not inherit
variables that specs or `secrets.toml` may name: they inherit a descriptor, read the variables from
memory that no path names, and close it. Only the environment of the process that a user started
contains them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from penstock.core.secret_names import INPUT_VARIABLES
from penstock.storage.secrets.secret_sources import read_sources


def secret_variables(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables with secrets: those for specs, and those that `secrets.toml` names.

    Args:
        environment: The variables of this process.
        folder: The folder of secrets.

    Raises:
        InvalidRequest: `secrets.toml` is wrong.
    """
    named = read_sources(folder).variables()
    return {n: v for n, v in environment.items() if n.startswith(INPUT_VARIABLES) or n in named}


def open_variables(variables: Mapping[str, str]) -> int:
    """Return a descriptor from which children read variables; the caller closes it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("penstock-secrets")
    else:  # not on Linux: a file without a name
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(json.dumps(dict(variables)).encode("ascii"))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_variables(descriptor: int | None) -> dict[str, str]:
    """Return the variables that the parent passed, and close the descriptor; None: there are none.

    Several children share the position in the file, so it is not used.
    """
    if descriptor is None:
        return {}
    try:
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
    finally:
        os.close(descriptor)
    return {str(name): str(value) for name, value in json.loads(content).items()}
