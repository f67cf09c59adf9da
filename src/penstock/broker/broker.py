"""One broker's parts, as its fronts see them.

Owns nothing but the composition: the fronts (HTTP now) get this one object and add no state of
their own beyond a request.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.clients import NoClients
from penstock.broker.httpserver.guard import HttpGuard
from penstock.core.loopstalls import LoopStalls

if TYPE_CHECKING:
    from penstock.broker.admission import ByteBudget
    from penstock.broker.clients import Clients
    from penstock.broker.lookupd.announcer import Announcer
    from penstock.broker.memory.ledger import MemoryLedger
    from penstock.broker.options import BrokerOptions
    from penstock.broker.publish import Publisher
    from penstock.broker.topics.changes import TopicChanges
    from penstock.broker.topics.folder import Topics
    from penstock.core.clock import Clock


@dataclass(slots=True)
class Broker:
    """The parts of one broker; used on its event loop only.

    Attributes:
        options: What it was told.
        topics: Its topics.
        changes: How they are made and deleted.
        publisher: The way in.
        budget: The bound on publish bodies in memory.
        memory: The bound on what else is held in memory.
        clock: Its clock.
        started_ms: When it started.
        http_port: The bound port.
        https_port: The bound port of HTTP under TLS; 0: it is not served.
        tcp_port: The bound port of NSQ's protocol; -1: it is not served.
        announcer: Tells the nsqlookupd servers of it; known once it serves.
        clients: Those that speak NSQ's protocol.
        guard: Bounds its HTTP ports.
        waiting_readers: Long polls that wait now.
        closing: It is being stopped: waits end, publishes are refused.
        loop_stalls: How long its event loop was held up.
    """

    options: BrokerOptions
    topics: Topics
    changes: TopicChanges
    publisher: Publisher
    budget: ByteBudget
    memory: MemoryLedger
    clock: Clock
    started_ms: int
    http_port: int = 0
    https_port: int = 0
    tcp_port: int = -1
    announcer: Announcer | None = None
    clients: Clients = field(default_factory=NoClients)
    guard: HttpGuard = field(default_factory=HttpGuard)
    waiting_readers: int = 0
    closing: bool = False
    loop_stalls: LoopStalls = field(default_factory=lambda: LoopStalls("broker"))

    def for_clients(self, text: str) -> str:
        """Return an error's text without the paths of this machine, which clients need not know."""
        folder = self.options.folder.rstrip("/")
        if not folder.startswith("/"):  # part of any text, perhaps
            return text
        return text.replace(f"{folder}/", "").replace(folder, "the data folder")
