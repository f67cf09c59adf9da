"""Options of a broker. The name of each bound contains its unit."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.broker.channel.drop_policy import ChannelOptions
from penstock.broker.lookupd.announcer import LookupOptions
from penstock.broker.protocol.negotiation import NegotiationLimits
from penstock.broker.security.auth_servers import AuthOptions
from penstock.broker.security.tls import TlsOptions
from penstock.broker.topics.options import TopicOptions


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options of a broker.

    Attributes:
        folder: Folder of the topics (``DIR/topics``).
        host: Address to bind; loopback by default.
        http_port: Port of the HTTP API; 0 picks a free one.
        tcp_port: Port of NSQ's TCP protocol; 0 picks a free one; None disables it.
        https_port: Port of HTTP under TLS; 0 picks a free one; None disables it.
        tcp_socket: Path of a unix socket that serves NSQ's TCP protocol, too.
        tcp_socket_mode: Permissions of that socket; they decide which users can connect.
        tls: Certificates, and which clients must use TLS.
        auth: Servers that authorize TCP clients.
        lookup: The nsqlookupd servers, and the address that they return to clients.
        clients: Limits on the settings that TCP clients negotiate; its `tls` and
            `auth_required` are ignored.
        max_channel_consumers: Maximum number of consumers of a channel; 0 means unlimited.
        channels: Options of every channel.
        topics: Default options of topics; each topic can override them.
        allowed_hosts: Further names that the HTTP ports accept in `Host`, besides loopback
            names, `host` and the broadcast address.
        token: When set, every HTTP request but ``/ping`` needs ``Authorization: Bearer <token>``,
            and every TCP client must send it as the secret of ``AUTH``.
        default_partitions: Number of stream partitions of a topic that a publish creates.
        max_partitions: Maximum number of stream partitions of a topic.
        max_message_bytes: Maximum size of a message.
        max_body_bytes: Maximum size of the body of a publish.
        max_requeue_ms: Longest delay of a deferred or requeued message.
        max_inflight_bytes: Publish bodies held in memory at once; further publishers wait.
        admission_timeout_ms: How long a publisher waits for this memory before it is refused.
        body_timeout_ms: Time limit for sending one body.
        max_waiting_readers: Maximum number of concurrent long polls; further ones are refused.
        max_wait_ms: Longest long poll.
        max_fetch_bytes: Maximum size of one fetch, which always returns at least one block.
        mem_bytes: Total memory for messages, answers and the state of messages, publish bodies
            included.
        mem_queue_size: Number of the newest messages of a topic kept in memory for its channels;
            with 0, all messages are read from the disk.
        min_free_bytes: Free disk space below which publishes are refused.
        retention_ms: Retention of messages that every cursor has passed; None: unlimited.
        retention_bytes: Size of a stream partition above which such messages are deleted; None:
            unlimited.
        retention_interval_ms: Time between two searches for old log files.
        stop_timeout_ms: Time limit for running requests after a stop.
    """

    folder: str
    host: str = "127.0.0.1"
    http_port: int = 4151
    tcp_port: int | None = None
    https_port: int | None = None
    tcp_socket: str | None = None
    tcp_socket_mode: int = 0o600
    tls: TlsOptions = field(default_factory=TlsOptions)
    auth: AuthOptions = field(default_factory=AuthOptions)
    lookup: LookupOptions = field(default_factory=LookupOptions)
    clients: NegotiationLimits = field(default_factory=NegotiationLimits)
    max_channel_consumers: int = 0
    channels: ChannelOptions = field(default_factory=ChannelOptions)
    topics: TopicOptions = field(default_factory=TopicOptions)
    allowed_hosts: tuple[str, ...] = ()
    token: str | None = None
    default_partitions: int = 1
    max_partitions: int = 256
    max_message_bytes: int = 1_048_576
    max_body_bytes: int = 5_242_880
    max_requeue_ms: int = 3_600_000
    max_inflight_bytes: int = 16_777_216
    admission_timeout_ms: int = 5_000
    body_timeout_ms: int = 60_000
    max_waiting_readers: int = 4_096
    max_wait_ms: int = 60_000
    max_fetch_bytes: int = 4_194_304
    mem_bytes: int = 268_435_456
    mem_queue_size: int = 10_000
    min_free_bytes: int = 268_435_456
    retention_ms: int | None = None
    retention_bytes: int | None = None
    retention_interval_ms: int = 30_000
    stop_timeout_ms: int = 5_000
