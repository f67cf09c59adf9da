"""Lets a test forbid threads to a process of Penstock: put before the modules of Penstock.

From SIGUSR1 to SIGUSR2 the process can start no threads. Root becomes a user whom the limit
binds, and that user gets the folder that the environment names. The name of that variable must not
begin with PENSTOCK, because peons inherit no such variables.
"""

from __future__ import annotations

import os
import resource
import signal
from contextlib import suppress
from pathlib import Path
from types import FrameType

NOBODY = 65_534


def _limit(_number: int, _frame: FrameType | None) -> None:
    if os.getuid() == 0:
        top = Path(os.environ["LIMITED_TEST_FOLDER"])
        for place, folders, files in os.walk(top):
            for name in ("", *folders, *files):
                # Other threads delete files meanwhile.
                with suppress(FileNotFoundError):
                    os.chown(Path(place, name), NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))


def _lift(_number: int, _frame: FrameType | None) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


if "LIMITED_TEST_FOLDER" in os.environ:
    signal.signal(signal.SIGUSR1, _limit)
    signal.signal(signal.SIGUSR2, _lift)
