"""Isolation of the JVM of queries: its view of the host, and whether this host allows it.

A query is code in a language with many functions: an error in Spark or in a library could let it do
more than Penstock's checks of statements allow. So its JVM and the Python workers of that JVM get a
view with the files that they need, and no network: `query_jail` builds it.

Owns the plan of the view, its check, and the fall back. Isolation never prevents a start: without
it, queries run as before, and `penstock doctor` and the launcher's log have the reason. Once a JVM
in a view was ready, every later one runs in a view, so that a query cannot end the isolation by
ending its JVM.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import pwd
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import penstock
from penstock.core.host_memory import total_memory_bytes
from penstock.core.read_guard import is_below, real_path
from penstock.segments.layout import PROJECTIONS
from penstock.services.host import query_jail
from penstock.services.host.data_folder import (
    DataFolder,
    queries_run_folder,
    segment_cache_folder,
)
from penstock.services.host.memory import query_memory_limit, query_spark
from penstock.services.host.process import ChildCommand
from penstock.services.host.query_jail import ActiveLimits, JailPlan
from penstock.services.host.query_limits import excess_file, new_group, processes_max
from penstock.services.host.system_call_filter import system_call_filter
from penstock.services.options.table import PenstockOptions, local_path

logger = logging.getLogger(__name__)

USERS: Final = ("penstock-queries", "nobody")
"""Users of the JVM of queries if Penstock is root: the first that exists."""

_CHECK_S: Final = 20.0
_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/sys/fs/cgroup")
# Of /etc only what programs need: other files there may have secrets.
_SETTINGS: Final = (
    *("alternatives", "group", "host.conf", "hostname", "hosts", "ld.so.cache", "localtime"),
    *("nsswitch.conf", "passwd", "timezone"),
)
_JAVA_SETTINGS: Final = "java*"


@dataclass(frozen=True, slots=True)
class Isolation:
    """Whether and how queries are isolated.

    Attributes:
        plan: The view; None: queries are not isolated.
        text: Description of the isolation, or the reason why there is none; for users.
    """

    plan: JailPlan | None
    text: str

    def wrapped(self, command: ChildCommand, port: int) -> ChildCommand:
        """Return the command that runs another one in the view.

        Without a view, or if the last start was the first in a view and the JVM was never ready, it
        returns the command itself; the start after that tries the view again.

        Args:
            command: The command of the JVM.
            port: The port at which Spark Connect listens.
        """
        plan = self.plan
        if plan is None or command.folder is None:
            return command
        begun, ready = _begun(plan), Path(plan.marker)
        if begun.exists() and not ready.exists():
            begun.unlink()
            logger.warning(
                "this start of Spark does not isolate queries, because Spark was not ready in its"
                " view; see queries.out and `penstock doctor`"
            )
            return command
        begun.touch()
        plan = replace(
            plan,
            port=port,
            folder=str(command.folder),
            programs=_outermost([*plan.programs, *_java(command)]),
        )
        environment = {**command.environment, "TMPDIR": str(command.folder)}
        argv = (*_jail(plan), "--", *command.argv)
        return ChildCommand(argv, environment, command.folder, command.inherited)


def isolation(options: PenstockOptions, folder: DataFolder, cache: Path) -> Isolation:
    """Decide whether a JVM of queries can be isolated on this host; build a view to find out.

    Args:
        options: The options of this Penstock.
        folder: Its data folder.
        cache: Folder of the files that speed up Spark's start.
    """
    if sys.platform != "linux":
        return Isolation(None, "only Linux has the namespaces for it")
    if not options.spark_master.startswith("local"):
        return Isolation(None, "the executors of a cluster run elsewhere")
    try:
        plan = _plan(options, folder, cache)
        active = _check(plan)
    except OSError as error:
        return Isolation(None, str(error))
    for mark in (_begun(plan), Path(plan.marker)):
        mark.unlink(missing_ok=True)
    user = "Penstock's user without rights of others" if plan.user is None else _user_name()
    network = "with the network, for --deep-storage" if plan.has_network else "without a network"
    return Isolation(
        plan,
        f"queries run isolated: {network}, as {user}, and see only their"
        f" own files, segments and tasks; {_limits_text(active)}",
    )


def _limits_text(active: ActiveLimits) -> str:
    how = "by a control group" if active.has_group else "measured by Penstock"
    memory = f"{active.memory_bytes / (1 << 30):.1f} GiB of memory ({how})"
    calls = "filtered" if active.has_filter else "not filtered, which this kernel cannot"
    return f"limits: {memory}, {active.processes:,} processes and threads; system calls: {calls}"


def _plan(options: PenstockOptions, folder: DataFolder, cache: Path) -> JailPlan:
    run, root = queries_run_folder(folder), folder.run / "view"
    writable = [run, folder.log / "queries", folder.tmp / "queries", folder.answers]
    readable = [cache, folder.tasks, *options.task_folders]
    segments = local_path(options.deep_storage_address)
    if segments is not None:
        readable.append(segments)
        writable.append(segments / PROJECTIONS)
    else:
        copies = segment_cache_folder(folder)
        copies.mkdir(parents=True, exist_ok=True)
        readable.append(copies)
    for path in (root, *writable):
        path.mkdir(parents=True, exist_ok=True)
    programs = [*_SYSTEM, *(f"/etc/{name}" for name in _SETTINGS)]
    programs += [str(path) for path in Path("/etc").glob(_JAVA_SETTINGS)]
    programs += [sys.prefix, sys.base_prefix, str(Path(penstock.__file__).parents[1])]
    # Where packages are, but not the folder in which Penstock was started, nor that of its script.
    programs += [path for path in sys.path[1:] if path and Path(path).is_absolute()]
    data = str(folder.path.absolute())
    programs = [path for path in programs if not is_below(data, path)]
    readable = [path for path in readable if not is_below(data, str(path.absolute()))]
    # Java opens its class archive, Python its modules.
    needed = [str(one) for one in (segments, sys.executable, penstock.__file__) if one is not None]
    total = total_memory_bytes()
    heap = query_spark(options, total).memory or options.spark_memory
    group = new_group()
    return JailPlan(
        root=str(root.absolute()),
        programs=_outermost(programs),
        readable=tuple(str(path.absolute()) for path in readable if path.exists()),
        writable=tuple(str(path.absolute()) for path in writable),
        folder="/",
        user=_other_user(),
        has_network=segments is None,
        port=0,  # `wrapped` sets it
        # Not in a folder of the view.
        marker=str((folder.run / "queries-isolated").absolute()),
        processes=processes_max(),
        memory_bytes=query_memory_limit(options, heap, total),
        group="" if group is None else str(group),
        calls=system_call_filter(platform.machine()).hex(),
        excess=str(excess_file(folder).absolute()),
        needed=tuple(needed),
    )


def _begun(plan: JailPlan) -> Path:
    """Return the mark that a JVM was started in a view."""
    return Path(f"{plan.marker}.begun")


def _other_user() -> tuple[int, int] | None:
    if os.geteuid():
        return None
    entry = pwd.getpwnam(_user_name())
    return entry.pw_uid, entry.pw_gid


def _user_name() -> str:
    """Return the name of the user of queries under root.

    Raises:
        OSError: There is none.
    """
    known = {entry.pw_name for entry in pwd.getpwall()}
    found = next((name for name in USERS if name in known), None)
    if found is None:
        raise OSError(f"this host has none of the users {', '.join(USERS)}")
    return found


def _check(plan: JailPlan) -> ActiveLimits:
    """Build the view once; return its limits.

    Raises:
        OSError: It cannot be built.
    """
    try:
        done = subprocess.run(
            _jail(plan), capture_output=True, text=True, timeout=_CHECK_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"its view was not ready within {_CHECK_S:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise OSError(lines[-1])
    return ActiveLimits(**json.loads(done.stdout))


def _jail(plan: JailPlan) -> list[str]:
    return [sys.executable, "-I", "-S", str(query_jail.__file__), json.dumps(asdict(plan))]


def _java(command: ChildCommand) -> list[str]:
    """Return the folders of Java and Spark in a command."""
    homes = [command.environment.get(name) for name in ("JAVA_HOME", "SPARK_HOME")]
    return [home for home in homes if home]


def _outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return paths and what they lead to, without those that are inside of others."""
    found: list[str] = []
    both = {one for path in paths for one in (str(Path(path).absolute()), real_path(path))}
    for path in sorted(both):
        if not any(is_below(path, one) for one in found):
            found.append(path)
    return tuple(found)


def isolation_for_doctor(options: PenstockOptions, folder: DataFolder, cache: Path) -> Isolation:
    """Return the isolation that a start would have, with all files in a temporary data folder."""
    segments = folder.path / "segments"
    segments.mkdir(parents=True)
    trial = replace(options, data_dir=folder.path)
    if local_path(options.deep_storage_address) is not None:
        trial = replace(trial, deep_storage=str(segments))
    return isolation(trial, folder, cache)
