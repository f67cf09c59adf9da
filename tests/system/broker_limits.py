"""A broker process that serves until it is killed, for `test_broker_limits.py`.

    python broker_limits.py FOLDER

It prints its HTTP port and its TCP port once it serves. As in a process of Penstock's own, a thread
that dies ends it.
"""

from __future__ import annotations

import os
import sys

from penstock.broker.options import BrokerOptions
from penstock.broker.server import BrokerServer, run_broker
from penstock.core.threads import DEATHS
from penstock.services.host.restart_policy import RESTART_REQUESTED
from penstock.storage.queue.disk_queue import DiskQueueOptions


def main() -> None:
    """Serve."""
    DEATHS.end_process_by(lambda _death: os._exit(RESTART_REQUESTED))

    def say(server: BrokerServer) -> None:
        print(server.http_port, server.broker.tcp_port, flush=True)

    options = BrokerOptions(
        sys.argv[1], http_port=0, tcp_port=0, default_partitions=2, min_free_bytes=0
    )
    run_broker(options, DiskQueueOptions(max_bytes_per_file=1 << 20), on_ready=say)


if __name__ == "__main__":
    main()
