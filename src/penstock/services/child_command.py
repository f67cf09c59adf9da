"""The command `penstock` as a child process: `python -m penstock.services.child_command …`.

Its input must be a pipe whose other end belongs to its parent alone, as `ServerProcess` starts it.
When the parent has ended in any way, the pipe is closed, and this process stops in order.
"""

from __future__ import annotations

import contextlib
import os
import signal

from penstock.core.threads import OwnedThread
from penstock.services.cli import main


def _end_with_parent() -> None:
    """Stop this process in order when its input ends or cannot be read."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    OwnedThread("parent", _end_with_parent, may_return=True).start()
    main()
