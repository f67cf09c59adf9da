"""Flow of the demo: applied, started, and observed while it publishes.

Owns the requests about the flow and the counts of the two topics that it publishes to. Does not own
the files that it reads (`flights`), nor the end of its work (`run`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.broker.http_client import BrokerClient
from penstock.core.errors import NotFound, PenstockError
from penstock.services.demo.server import DemoServer
from penstock.services.demo.standstill import flow_at_work
from penstock.services.demo.view import Progress
from penstock.services.examples import example
from penstock.services.httpclient import JsonClient

TOPIC: Final = "flights"
REJECTED: Final = "flights.rejected"
PARTITIONS: Final = 2
# Variable of the flow's parameter.
FOLDER_VARIABLE: Final = "FLIGHTS_FOLDER"
_TIMEOUT_S: Final = 30


class Feeding:
    """The flow in a server, and its topics.

    Args:
        server: The server of the flow.
        flow: Name of the example with the flow.
    """

    def __init__(self, server: DemoServer, flow: str) -> None:
        self._server = server
        self._flow = flow

    def begin(self) -> None:
        """Create the topic, apply the flow and start it; may be repeated.

        Raises:
            PenstockError: A request was refused, or the server does not answer.
        """
        with BrokerClient(self._server.broker_http) as broker:
            broker.create_topic(TOPIC, PARTITIONS)
        api = JsonClient(self._server.http, timeout_s=_TIMEOUT_S)
        api.request("PUT", "/flow", example(self._flow), query={"file": self._flow})
        api.post("/flow/start")

    def look(self, progress: Progress) -> None:
        """Record the progress of the flow; counts of parts that do not answer stay unchanged."""
        try:
            with BrokerClient(self._server.broker_http, timeout_s=_TIMEOUT_S) as broker:
                progress.published = _messages(broker, TOPIC)
                progress.rejected = _messages(broker, REJECTED)
            status = JsonClient(self._server.http, timeout_s=_TIMEOUT_S).get("/flow/status")
        except PenstockError:  # just killed
            return
        if isinstance(status, dict):
            progress.waiting = waiting(status)
            progress.at_work = flow_at_work(status)


def _messages(broker: BrokerClient, topic: str) -> int:
    try:
        return sum(one.latest for one in broker.offsets(topic).partitions)
    except NotFound:  # nothing published yet
        return 0


def waiting(status: Mapping[str, object]) -> dict[str, int]:
    """Return how many FlowFiles wait for each component, from the flow's status."""
    found: dict[str, int] = {}
    connections = status.get("connections")
    for one in connections if isinstance(connections, list) else ():
        destination = str(one["name"]).rpartition("→")[2].strip()
        found[destination] = found.get(destination, 0) + int(one["queued"])
    return {name: count for name, count in found.items() if count}
