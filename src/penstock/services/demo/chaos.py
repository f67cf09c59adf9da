"""Kills processes of a running Penstock at random, with SIGKILL.

Owns how the processes of one launcher are found and named, and the choice of one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from penstock.services.host.fork_server import FORK_SERVER_NAME

# Parts of command lines, after the process's own name, and the names of such processes; the first
# match counts. A forked process has the command line of its fork server.
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
    """Return a launcher and all its descendants that have a name here."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # The name in parentheses may contain spaces; the parent is the second field after
                # it.
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
    """Kill one process, with equal probability for each name; return None if there is none."""
    victims = processes_of(launcher)
    if not victims:
        return None
    name = chance.choice(sorted({victim.name for victim in victims}))
    victim = chance.choice([one for one in victims if one.name == name])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim.pid, signal.SIGKILL)
        return victim
    return None
