"""The broker as a process: one event loop that owns the topics and the fronts that serve them."""

from __future__ import annotations

from penstock.broker.options import BrokerOptions


class BrokerServer:
    """One broker: the topics of one folder and their HTTP front.

    Args:
        options: What the broker was told.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self.options = options

    @property
    def http_port(self) -> int:
        """The bound port, also when 0 was asked for; known after ``start``."""
        raise NotImplementedError

    async def start(self) -> None:
        """Open the topics and serve.

        Raises:
            Unavailable: The port is taken, or another broker uses the folder.
        """
        raise NotImplementedError

    async def stop(self) -> None:
        """Stop accepting, answer what runs, sync and close the topics."""
        raise NotImplementedError


def run_broker(options: BrokerOptions) -> None:
    """Run a broker until SIGTERM or SIGINT; blocks.

    Raises:
        Unavailable: The port is taken, or another broker uses the folder.
    """
    raise NotImplementedError
