"""Limits of the view of queries: of memory and of processes, and the reason of an end by them.

A control group limits memory exactly, and at once. Only the second version of the kernel's
interface is used: in the first, memory and processes have separate trees, and users are never given
a part of them. Nothing here moves a process of others: the group of queries is made beside or below
that of this process, where the operator, systemd or a desktop has left that to this user
(`Delegate=` of a systemd unit). Elsewhere `query_jail` measures the memory.

Owns the search for such a group, the removal of groups that a killed process left behind, the
number of processes, and the file with the reason of an end. `memory` owns how much memory queries
may use, and `query_jail` makes the group of a view, moves itself into it, and writes the reason.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
from pathlib import Path
from typing import Final

from penstock.core.clock import Clock
from penstock.services.host.data_folder import DataFolder

_CONTROLLERS: Final = frozenset({"memory", "pids"})
_TREES: Final = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
_LIST: Final = "cgroup.controllers"
_GROUP: Final = "penstock-queries-"
# The threads of a JVM and of Python workers: a Spark of two cores has less than 300.
_PROCESSES: Final = 2_048
_PROCESSES_PER_CORE: Final = 256
_PROCESSES_MAX: Final = 16_384
# Before, the kernel counted all processes of a user together, not those of a user namespace.
_COUNTS_NAMESPACES: Final = (5, 14)
# For this time after the end of Spark, failures of queries have its reason.
_RECENT_MS: Final = 60_000


def processes_max() -> int:
    """Return how many processes and threads of queries may exist at once."""
    release = tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])
    if release < _COUNTS_NAMESPACES:
        return _PROCESSES_MAX
    return min(_PROCESSES + _PROCESSES_PER_CORE * (os.cpu_count() or 1), _PROCESSES_MAX)


def excess_file(folder: DataFolder) -> Path:
    """Return the file with the reason why a limit ended queries; no folder of the view has it."""
    return folder.run / "queries-excess"


def excess_reason(folder: DataFolder, clock: Clock) -> str:
    """Return why a limit ended the Spark of queries; "" if none did within the last minute."""
    path = excess_file(folder)
    try:
        age_ms = clock.now_ms() - path.stat().st_mtime * 1000
        return path.read_text() if age_ms <= _RECENT_MS else ""
    except OSError:
        return ""


def new_group() -> Path | None:
    """Return the folder of a control group to make for queries; None if this user may make none."""
    parent = divisible_group()
    if parent is None:
        return None
    for left in parent.glob(f"{_GROUP}*"):
        with contextlib.suppress(OSError):  # in use
            left.rmdir()
    return parent / f"{_GROUP}{os.getpid()}"


def divisible_group(root: Path = Path("/")) -> Path | None:
    """Return the folder of a control group in which this process may make others.

    The kernel enables controllers for the parts of a group only if no process is directly in it, so
    that is usually the parent of this process's group. Controllers are enabled there if they are
    not yet.

    Args:
        root: Folder of `proc` and `sys`.

    Returns:
        The folder; None if there is none, or if it cannot limit memory and processes.
    """
    tree = next((root / one for one in _TREES if (root / one / _LIST).exists()), None)
    path = _own_path(root)
    if tree is None or path is None:
        return None
    own = tree / path
    candidates = [own] if own == tree else [own, own.parent]
    return next((one for one in candidates if _may_divide(one)), None)


def _own_path(root: Path) -> str | None:
    """Return the path of this process's group in the tree of the second version."""
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, _, path = line.split(":", 2)
            # A process outside of the namespace of control groups has a path with dots.
            if number == "0" and ".." not in path.split("/"):
                return path.lstrip("/")
    return None


def _may_divide(group: Path) -> bool:
    """Return whether this user may make groups with limits in a group; enable what they need."""
    # Moving a process needs the right to write the list of the group that both places have.
    if not all(os.access(path, os.W_OK) for path in (group, group / "cgroup.procs")):
        return False
    try:
        if not _words(group / _LIST) >= _CONTROLLERS:
            return False
        enabled = group / "cgroup.subtree_control"
        for missing in sorted(_CONTROLLERS - _words(enabled)):
            enabled.write_text(f"+{missing}")
    except OSError:
        return False  # processes are directly in it, or it is read-only
    return True


def _words(file: Path) -> frozenset[str]:
    return frozenset(file.read_text().split())
