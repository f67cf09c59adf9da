"""The command `penstock` as a child process: `python -m penstock.services.child_command …`.

Its standard input must be a pipe whose other end belongs to its parent, as in `ServerProcess`. This
process stops cleanly when its parent has ended in any way. It detects this by the end of its input,
or by another parent process if a fork of the parent keeps the pipe open.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Final

from penstock.core.threads import OwnedThread
from penstock.services.cli import main

_POLL_EVERY_MS: Final = 1_000


def _end_with_parent() -> None:
    """Stop this process cleanly when its parent ends, or when its input ends or cannot be read."""
    parent, waiting = os.getppid(), select.poll()
    waiting.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        while os.getppid() == parent:
            if waiting.poll(_POLL_EVERY_MS) and not os.read(0, 1):
                break
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    OwnedThread("parent", _end_with_parent, may_return=True).start()
    main()
