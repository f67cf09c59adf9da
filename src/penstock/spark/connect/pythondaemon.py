"""Spark's Python daemon, which ends when it has had no worker for some minutes.

Spark starts a daemon for each Connect session, forks the session's Python workers from it, ends
the workers after a minute without work, and keeps the daemon for as long as the JVM lives: tasks
come and go with a session each, and each would leave some 36 MB behind. A daemon that is gone when
it is needed again is started again by Spark, which takes a connection that is refused or reset for
just that.

Only the standard library and PySpark's daemon are imported: what starts threads must not be there
before a fork.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Final

from pyspark.daemon import manager

if TYPE_CHECKING:
    from types import FrameType

LOOK_INTERVAL_S: Final = 60.0
LOOKS: Final = 5


class Idleness:
    """Counts the looks in a row that have found no worker.

    Args:
        most: After so many of them the daemon is of no use.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen = 0

    def seen(self, *, has_workers: bool) -> bool:
        """Take note of a look; true when it is time to end."""
        self._seen = 0 if has_workers else self._seen + 1
        return self._seen >= self._most


def has_children() -> bool:
    """Whether a process that was forked from this one is alive.

    The daemon ignores SIGCHLD, so that the dead are no children any more.
    """
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def serve(interval_s: float = LOOK_INTERVAL_S, looks: int = LOOKS) -> None:
    """Be the daemon until Spark ends it, or nobody needs it."""
    idleness = Idleness(looks)

    def look(_signal: int, _frame: FrameType | None) -> None:
        if idleness.seen(has_workers=has_children()):
            sys.exit(0)

    # A timer is not inherited by what is forked: the workers never look.
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, interval_s, interval_s)
    manager()


if __name__ == "__main__":
    serve()
