"""A broker process that serves until it is killed, for `test_broker_limits.py`.

    python broker_limits.py FOLDER

It prints its HTTP port and its TCP port once it serves. At SIGUSR1 it no longer starts
threads until SIGUSR2. As in a process of Penstock's own, a thread that dies ends it.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Final

from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer, run_broker
from penstock.core.threads import DEATHS
from penstock.services.host.process import DEAD_THREAD
from penstock.storage.queue.disk_queue import DiskQueueOptions

NOBODY: Final = 65_534


def limit_threads() -> None:
    """Forbid further threads; root becomes a user whom that binds, and owns the folder."""
    if os.getuid() == 0:
        top = Path(sys.argv[1])
        for place in (top, *top.rglob("*")):
            os.chown(place, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, resource.getrlimit(resource.RLIMIT_NPROC)[1]))


def lift_limit() -> None:
    """Let threads be started again."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


def main() -> None:
    """Serve."""
    DEATHS.end_process_by(lambda _death: os._exit(DEAD_THREAD))

    def say(server: BrokerServer) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, limit_threads)
        loop.add_signal_handler(signal.SIGUSR2, lift_limit)
        print(server.http_port, server.broker.tcp_port, flush=True)

    options = BrokerOptions(
        sys.argv[1], http_port=0, tcp_port=0, default_partitions=2, min_free_bytes=0
    )
    run_broker(options, DiskQueueOptions(max_bytes_per_file=1 << 20), on_ready=say)


if __name__ == "__main__":
    main()
