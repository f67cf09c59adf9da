"""The parts of one broker, as seen by its servers.

Owns only the composition: the servers (HTTP and TCP) get this object and keep no other state than
requests and connections.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.broker.client_registry import NoClients
from penstock.broker.http_server.guard import HttpGuard
from penstock.core.loop_stalls import LoopStalls

if TYPE_CHECKING:
    from penstock.broker.client_registry import ClientRegistry
    from penstock.broker.lookupd.announcer import LookupdAnnouncer
    from penstock.broker.memory.memory_budget import MemoryBudget
    from penstock.broker.options import BrokerOptions
    from penstock.broker.publish_admission import ByteBudget
    from penstock.broker.publisher import MessagePublisher
    from penstock.broker.redrive.redriver import Redriver
    from penstock.broker.topics.channel_changes import ChannelChanges
    from penstock.broker.topics.topic_changes import TopicChanges
    from penstock.broker.topics.topic_registry import Topics
    from penstock.core.access.access_control import AccessControl
    from penstock.core.clock import Clock


@dataclass(slots=True)
class Broker:
    """The parts of one broker; used on its event loop only.

    Attributes:
        options: Its options.
        topics: Its topics.
        changes: Creates, changes and deletes topics.
        channel_changes: Creates, pauses and deletes channels.
        publisher: Appends messages.
        redriver: Publishes dead letters again.
        budget: Memory budget of publish bodies.
        memory: Memory budget of everything else.
        clock: Its clock.
        access: Decides who may do what.
        started_ms: Start time, epoch ms.
        http_port: The bound port.
        https_port: The bound port of HTTP under TLS; 0: it is not served.
        tcp_port: The bound port of NSQ's protocol; -1: it is not served.
        announcer: Registers it at the nsqlookupd servers; set once it serves.
        clients: Clients of NSQ's protocol.
        guard: Limits of its HTTP ports.
        waiting_readers: Number of waiting long polls.
        closing: It is being stopped: waits end, publishes are refused.
        loop_stalls: Times for which its event loop was blocked.
    """

    options: BrokerOptions
    topics: Topics
    changes: TopicChanges
    channel_changes: ChannelChanges
    publisher: MessagePublisher
    redriver: Redriver
    budget: ByteBudget
    memory: MemoryBudget
    clock: Clock
    access: AccessControl
    started_ms: int
    http_port: int = 0
    https_port: int = 0
    tcp_port: int = -1
    announcer: LookupdAnnouncer | None = None
    clients: ClientRegistry = field(default_factory=NoClients)
    guard: HttpGuard = field(default_factory=HttpGuard)
    waiting_readers: int = 0
    closing: bool = False
    loop_stalls: LoopStalls = field(default_factory=lambda: LoopStalls("broker"))

    def for_clients(self, text: str) -> str:
        """Return an error's text without the paths of this machine, which clients must not see."""
        folder = self.options.folder.rstrip("/")
        if not folder.startswith("/"):  # a relative folder may occur in any text
            return text
        return text.replace(f"{folder}/", "").replace(folder, "the data folder")
