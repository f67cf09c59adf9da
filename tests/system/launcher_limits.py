"""A launcher of small children, for `test_launcher_limits.py`; runs until SIGTERM.

    python launcher_limits.py FOLDER

`a` and `b` report that they are ready. `spark` opens a port and answers greetings, as Spark does.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Final

from penstock.core.clock import SystemClock
from penstock.services.host.launcher import ChildPlan, Launcher
from penstock.services.host.liveness import LivenessCheck, LivenessOptions, greet
from penstock.services.host.process import ChildCommand

REPORTS: Final = """
import os, signal, sys
os.write(int(sys.argv[1]), b"ready\\n")
signal.pause()
"""
ANSWERS: Final = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as server:
    while True:
        with server.accept()[0] as peer:
            if peer.recv(100):
                peer.sendall(b"\\0\\0\\0\\4\\0\\0\\0\\0\\0")
"""


def main() -> None:
    """Run the children."""
    logging.basicConfig(level=logging.WARNING)
    folder = Path(sys.argv[1])
    # Bound to the end, so that no other process gets the port while `spark` starts again.
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    port: int = keeper.getsockname()[1]

    def child(script: str, argument: int) -> ChildCommand:
        return ChildCommand((sys.executable, "-c", script, str(argument)), dict(os.environ))

    options = LivenessOptions(every_s=0.1, check_s=0.01)
    spark = ChildPlan(
        "spark",
        lambda _ready_fd: child(ANSWERS, port),
        ready_port=port,
        pulse=LivenessCheck(lambda: greet(port), SystemClock(), options),
    )
    plans = [*(ChildPlan(name, lambda fd: child(REPORTS, fd)) for name in "ab"), spark]

    def say(line: str) -> None:
        print(line, flush=True)

    Launcher(plans, folder, folder, SystemClock(), say, lambda: say("all are ready")).run()


if __name__ == "__main__":
    main()
