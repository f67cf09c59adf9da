"""Kills processes of a running Penstock at random, with the signal that cannot be caught.

Owns how the processes of one launcher are found and named, and the choice among them.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from penstock.services.host.forkserver import FORK_SERVER_NAME

# What a command line, with the process's own name before it, holds, and what such a process is
# called; the first match counts. What is forked has the command line of its fork server.
_NAMES = (
    (f"{FORK_SERVER_NAME} ", "fork server"),
    ("/run/queries -cp ", "queries"),
    ("SparkConnectServer", "spark"),
    ("pyspark", "spark's python"),
    ("services.roles broker", "broker"),
    ("services.roles overlord", "overlord"),
    ("services.roles flow", "flow"),
    ("services.roles worker", "worker"),
    ("services.roles router", "router"),
    ("services.roles.peon", "peon"),
    ("penstock up", "launcher"),
)


@dataclass(frozen=True, slots=True)
class Victim:
    """A process that may be killed."""

    pid: int
    name: str


def processes_of(launcher: int, proc: Path = Path("/proc")) -> list[Victim]:
    """Return a launcher and everything below it that has a name of its own."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may hold spaces; the parent is the second field behind.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[Victim] = []
    waiting = [launcher]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        with contextlib.suppress(OSError):
            own = (proc / str(pid) / "comm").read_text().strip()
            line = (proc / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            words = f"{own} {line}"
            name = next((name for part, name in _NAMES if part in words), None)
            if name:
                found.append(Victim(pid, name))
    return found


def kill_one(launcher: int, chance: random.Random) -> Victim | None:
    """Kill one process, each name being as likely as any other; None when there was none."""
    victims = processes_of(launcher)
    if not victims:
        return None
    name = chance.choice(sorted({victim.name for victim in victims}))
    victim = chance.choice([one for one in victims if one.name == name])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
        return victim
    return None
